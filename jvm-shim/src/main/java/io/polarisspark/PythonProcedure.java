package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A procedure that Python defines and runs. Spark checks and orders the arguments. */
final class PythonProcedure implements UnboundProcedure, BoundProcedure {
  private final Procedures procedures;
  private final String name;
  private final String description;
  private final boolean usesSpark;
  private final boolean switches;
  private final ProcedureParameter[] parameters;
  private final StructType columns;

  PythonProcedure(Procedures procedures, JsonNode definition) {
    this.procedures = procedures;
    this.name = definition.get("name").asText();
    this.description = definition.get("comment").asText();
    this.usesSpark = definition.get("uses-spark").asBoolean();
    this.switches = definition.get("switches").asBoolean();
    JsonNode listed = definition.get("parameters");
    this.parameters = new ProcedureParameter[listed.size()];
    for (int i = 0; i < parameters.length; i++) {
      parameters[i] = parameter(listed.get(i));
    }
    StructType schema = new StructType();
    for (JsonNode column : definition.get("columns")) {
      schema = schema.add(column.get("name").asText(), type(column));
    }
    this.columns = schema;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return description;
  }

  @Override
  public BoundProcedure bind(StructType inputType) {
    return this;
  }

  @Override
  public ProcedureParameter[] parameters() {
    return parameters.clone();
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  /**
   * Calls the procedure and waits for its result. If the thread is interrupted, cancels the procedure's Spark jobs and
   * does not wait.
   */
  @Override
  public Iterator<Scan> call(InternalRow input) {
    String id = "polaris-spark-" + UUID.randomUUID();
    Map<String, Object> message = new HashMap<>();
    message.put("id", id);
    message.put("arguments", arguments(input));
    message.put("driver", usesSpark ? SparkCalls.begin(id) : null);
    try {
      JsonNode result = procedures.call(name, id, message);
      if (switches) {
        procedures.session().use(result.get(0).get(0).asText());
      }
      return List.<Scan>of(new Result(columns, rows(result))).iterator();
    } catch (CancellationException e) {
      SparkCalls.cancelJobs(id);
      throw e;
    } finally {
      SparkCalls.end(id);
    }
  }

  private Map<String, Object> arguments(InternalRow input) {
    Map<String, Object> arguments = new LinkedHashMap<>();
    for (int i = 0; i < parameters.length; i++) {
      arguments.put(parameters[i].name(), Values.read(input, i, parameters[i].dataType()));
    }
    return arguments;
  }

  private InternalRow[] rows(JsonNode result) {
    InternalRow[] rows = new InternalRow[result.size()];
    int next = 0;
    for (JsonNode row : result) {
      Object[] values = new Object[columns.size()];
      for (int i = 0; i < values.length; i++) {
        values[i] = Values.of(row.get(i), columns.apply(i).dataType());
      }
      rows[next++] = new GenericInternalRow(values);
    }
    return rows;
  }

  private static ProcedureParameter parameter(JsonNode definition) {
    ProcedureParameter.Builder builder =
        ProcedureParameter.in(definition.get("name").asText(), type(definition))
            .comment(definition.get("comment").asText());
    return (definition.get("required").asBoolean() ? builder : builder.defaultValue("NULL"))
        .build();
  }

  private static DataType type(JsonNode definition) {
    return DataType.fromDDL(definition.get("type").asText());
  }

  private record Result(StructType readSchema, InternalRow[] rows) implements LocalScan {}
}
