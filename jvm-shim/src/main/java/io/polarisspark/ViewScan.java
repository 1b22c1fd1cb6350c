package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.spark.JobArtifactSet$;
import org.apache.spark.JobArtifactState;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.StringStartsWith;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * A scan of a system view. The running Python process plans it. Spark would start another worker for each step: finding
 * the data source, creating it, pushing filters, and planning. The Python data source plans streams.
 */
final class ViewScan implements Scan {
  private static final String FORMAT = "polaris-objects";

  /** Filters that compare a column with a value and that Python can use. */
  private static final Set<Class<? extends Filter>> COMPARISONS =
      Set.of(
          EqualTo.class,
          EqualNullSafe.class,
          GreaterThan.class,
          GreaterThanOrEqual.class,
          LessThan.class,
          LessThanOrEqual.class,
          StringStartsWith.class);

  private static UserDefinedPythonDataSource workers;

  private final Procedures python;
  private final Map<String, String> options;
  private final StructType wanted;
  private final List<List<Object>> filters;

  /**
   * @param filters may be used to skip rows; Spark evaluates them again
   */
  ViewScan(Procedures python, Map<String, String> options, StructType wanted, Filter[] filters) {
    this.python = python;
    this.options = options;
    this.wanted = wanted;
    this.filters = told(filters);
  }

  @Override
  public StructType readSchema() {
    return wanted;
  }

  /** Returns the description in query plans. It does not contain options, which may be secret. */
  @Override
  public String description() {
    return "(Python)";
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return new UserDefinedPythonDataSource(null).createPythonMetrics();
  }

  @Override
  public Batch toBatch() {
    return new ViewBatch();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    // The source uses the options of the scan, not those of the table.
    return ((SupportsRead) source().getTable(wanted, new Transform[0], options))
        .newScanBuilder(new CaseInsensitiveStringMap(options))
        .build()
        .toMicroBatchStream(checkpointLocation);
  }

  private static TableProvider source() {
    scala.Option<TableProvider> found;
    try {
      found = DataSource.lookupDataSourceV2(FORMAT, SQLConf.get());
    } catch (Exception e) {
      throw notInstalled(e);
    }
    if (found.isEmpty()) {
      throw notInstalled(null);
    }
    return found.get();
  }

  private static IllegalArgumentException notInstalled(Exception cause) {
    return new IllegalArgumentException(
        "Spark's Python workers do not find the data source '"
            + FORMAT
            + "': install polaris-spark for the interpreter that PYSPARK_PYTHON names",
        cause);
  }

  /**
   * Returns Spark's Python data source. It is created once, because Spark starts the interpreter to find out its
   * version.
   */
  private static synchronized UserDefinedPythonDataSource workers() {
    if (workers == null) {
      workers =
          new UserDefinedPythonDataSource(PythonUtils$.MODULE$.createPythonFunction(new byte[0]));
    }
    return workers;
  }

  /** Returns the filters that Python can use, as lists of name, column and value. */
  private static List<List<Object>> told(Filter[] filters) {
    List<List<Object>> told = new ArrayList<>();
    for (Filter filter : filters) {
      if (filter instanceof In in) {
        Object[] values = Arrays.stream(in.values()).map(ViewScan::plain).toArray();
        if (Arrays.stream(values).allMatch(Objects::nonNull)) {
          told.add(List.of("In", in.attribute(), values));
        }
      } else if (COMPARISONS.contains(filter.getClass())) {
        Object value = plain(((scala.Product) filter).productElement(1));
        if (value != null) {
          told.add(
              List.of(
                  filter.getClass().getSimpleName(),
                  ((scala.Product) filter).productElement(0),
                  value));
        }
      }
    }
    return told;
  }

  /** Returns a value in a form that JSON can hold, times in microseconds since 1970; null for other types. */
  private static Object plain(Object value) {
    if (value instanceof Timestamp time) {
      return DateTimeUtils.fromJavaTimestamp(time);
    }
    if (value instanceof Instant time) {
      return DateTimeUtils.instantToMicros(time);
    }
    boolean isPlain =
        value instanceof String
            || value instanceof Long
            || value instanceof Integer
            || value instanceof Boolean;
    return isPlain ? value : null;
  }

  /** A batch that is planned once, immediately before it is read. */
  private final class ViewBatch implements Batch {
    private final Option<String> jobArtifacts =
        JobArtifactSet$.MODULE$.getCurrentJobArtifactState().map(JobArtifactState::uuid);

    /** UUID of the session if it stores the logs of its Python workers. */
    private final Option<String> loggingSession =
        SparkSession$.MODULE$
            .getActiveSession()
            .filter(session -> session.sessionState().conf().pythonWorkerLoggingEnabled())
            .map(session -> session.sessionUUID());

    private JsonNode planned;

    @Override
    public InputPartition[] planInputPartitions() {
      JsonNode partitions = planned().get("partitions");
      InputPartition[] made = new InputPartition[partitions.size()];
      for (int index = 0; index < made.length; index++) {
        made[index] = new PythonInputPartition(index, bytes(partitions.get(index)));
      }
      return made;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new PythonPartitionReaderFactory(
          workers(),
          bytes(planned().get("function")),
          wanted,
          jobArtifacts,
          loggingSession);
    }

    private synchronized JsonNode planned() {
      if (planned == null) {
        planned = python.plan(options, wanted.fieldNames(), filters);
      }
      return planned;
    }

    private static byte[] bytes(JsonNode base64) {
      try {
        return base64.binaryValue();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }
}
