package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.spark.source.SparkView;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.unsafe.types.UTF8String;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A materialized view. A query that reads it gets the stored rows if they are fresh, or if the view allows stale data.
 * Otherwise the view is refreshed first. If that fails, the query of the view itself is run.
 */
final class MaterializedView extends SparkView {
  private static final Logger LOG = LoggerFactory.getLogger(MaterializedView.class);
  private static final String METADATA = "materialized_view_metadata";

  /** Iceberg's rule that replaces the name of a view in a query by the view's query. */
  private static final String READER = "org.apache.spark.sql.catalyst.analysis.ResolveViews";

  /** Iceberg's setting by which a session reads other branches of tables, which no refresh reads. */
  private static final String OTHER_BRANCH = "spark.wap.branch";

  private final String catalog;
  private final Identifier identifier;
  private final Procedures procedures;

  private MaterializedView(
      org.apache.iceberg.view.View view,
      String catalog,
      Identifier identifier,
      Procedures procedures) {
    super(catalog, view);
    this.catalog = catalog;
    this.identifier = identifier;
    this.procedures = procedures;
  }

  /** Returns the view as a materialized view if it is one, otherwise the view itself. */
  static View of(View view, String catalog, Identifier identifier, Procedures procedures) {
    return view instanceof SparkView found && found.view().properties().containsKey(METADATA)
        ? new MaterializedView(found.view(), catalog, identifier, procedures)
        : view;
  }

  /**
   * Returns the query that replaces the view in a query that reads it. For other statements, such as SHOW CREATE TABLE,
   * returns the view's own query.
   */
  @Override
  public String query() {
    if (!isRead()) {
      return super.query();
    }
    JsonNode answer;
    try {
      answer = answer();
    } catch (RuntimeException failure) {
      LOG.warn("{} is read by its query, because it could not be refreshed", name(), failure);
      answer = null;
    }
    if (answer == null) {
      return super.query();
    }
    String recursion = answer.path("recursion").asText();
    if (!recursion.isEmpty()) { // running the view's query would never end
      throw UserError.of(recursion, null);
    }
    JsonNode stored = answer.get("query");
    return stored.isNull() || readsOtherBranch() ? super.query() : stored.asText();
  }

  /** Finds out how to read the view, after a refresh if this is needed. */
  private JsonNode answer() {
    JsonNode answer = ask();
    boolean refreshes =
        answer.get("refreshable").asBoolean() && answer.path("recursion").asText().isEmpty();
    if (!refreshes || readsOtherBranch()) {
      return answer;
    }
    refresh();
    return ask();
  }

  private static boolean readsOtherBranch() {
    return SQLConf.get().contains(OTHER_BRANCH);
  }

  private static boolean isRead() {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().startsWith(READER)));
  }

  /** Looks up the tables and views outside of the catalog that a response lists. */
  private static List<Map<String, Object>> outside(JsonNode answer) {
    SparkSession session = (SparkSession) SparkSession.active();
    List<Map<String, Object>> described = new ArrayList<>();
    for (JsonNode name : answer.get("unknown")) {
      List<String> parts = new ArrayList<>();
      name.forEach(part -> parts.add(part.asText()));
      Map<String, Object> one = new HashMap<>(OutsideSources.description(session, parts, false));
      one.put("parts", parts);
      described.add(one);
    }
    return described;
  }

  /** Returns how to read the view. Looks up the tables and views outside of the catalog on which this depends. */
  private JsonNode ask() {
    JsonNode answer = ask(List.of());
    List<Map<String, Object>> outside = outside(answer);
    return outside.isEmpty() ? answer : ask(outside);
  }

  /**
   * Returns how to read the view, according to Python.
   *
   * @param outside the tables and views outside of the catalog that have been looked up
   */
  private JsonNode ask(List<Map<String, Object>> outside) {
    return procedures.materializedView(
        identifier,
        Map.of(
            "catalog", catalog,
            "uuid", view().uuid().toString(),
            "version-id", view().currentVersion().versionId(),
            "session", SessionSettings.of(SQLConf.get()),
            "outside", outside));
  }

  private void refresh() {
    PythonProcedure procedure = procedures.find("refresh");
    Object[] arguments = new Object[procedure.parameters().length];
    arguments[0] = UTF8String.fromString(quoted());
    InternalRow input = new GenericInternalRow(arguments);
    procedure.call(input);
  }

  private String quoted() {
    StringBuilder name = new StringBuilder();
    for (String part : identifier.namespace()) {
      name.append('`').append(part.replace("`", "``")).append("`.");
    }
    return name.append('`').append(identifier.name().replace("`", "``")).append('`').toString();
  }
}
