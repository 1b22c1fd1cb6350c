package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Identifier;

/** The procedures and system views of a catalog. Python lists them on first use. */
final class Procedures {
  /** Beginning of the paths of these requests. */
  static final String PATH = "polaris-spark/v1/";

  private final PythonSide python;
  private final Map<String, String> configuration;
  private final SessionState session;
  private Map<String, PythonProcedure> known;
  private Set<String> views;

  Procedures(PythonSide python, Map<String, String> configuration, SessionState session) {
    this.python = python;
    this.configuration = configuration;
    this.session = session;
  }

  /** Returns the state of the catalog that the session uses. */
  SessionState session() {
    return session;
  }

  /** Returns the names of all procedures. */
  Set<String> names() {
    return known().keySet();
  }

  /** Returns the procedure with a name, regardless of case; null if there is none. */
  PythonProcedure find(String name) {
    return known().get(name.toLowerCase(Locale.ROOT));
  }

  /** Calls a procedure and returns the rows of its result. */
  JsonNode call(String name, String id, Map<String, ?> message) {
    return resultOf(python.call(configuration, session.name(), name, id, Json.write(message))).get("rows");
  }

  /** Returns the names of the system views. */
  synchronized Set<String> views() {
    if (views == null) {
      Set<String> found = new LinkedHashSet<>();
      JsonNode listed = resultOf(python.ask(configuration, session.name(), "GET", PATH + "views", null));
      listed.get("views").forEach(view -> found.add(view.asText()));
      views = found;
    }
    return views;
  }

  /**
   * Returns how to read a materialized view.
   *
   * @param question the version of the view, and the settings of the session
   */
  JsonNode materializedView(Identifier identifier, Map<String, ?> question) {
    return resultOf(askMaterializedView(identifier, "read", question));
  }

  /** Returns the location of the rows of an earlier refresh of a materialized view; null if there is no such view. */
  JsonNode materializedViewAsOf(Identifier identifier, Map<String, ?> question) {
    Reply reply = askMaterializedView(identifier, "as-of", question);
    return isNoView(reply) ? null : resultOf(reply);
  }

  private Reply askMaterializedView(Identifier identifier, String question, Map<String, ?> message) {
    String path = path(identifier, "materialized-views", question);
    return python.ask(configuration, session.name(), "POST", path, Json.write(message));
  }

  /**
   * Checks that no other branch or tag of the catalog may need files of a table, before Iceberg deletes those that the
   * branch of the session does not need. Returns whether there is such a table.
   */
  boolean checkDeletion(Identifier table) {
    String path = path(table, "tables", "check-deletion");
    Reply reply = python.ask(configuration, session.name(), "POST", path, null);
    if (reply.status() >= 400 && reply.status() != 404) {
      resultOf(reply);
    }
    return reply.status() < 400;
  }

  private static String path(Identifier identifier, String kind, String question) {
    String namespace = encoded(String.join("\u001f", identifier.namespace()));
    String named = namespace + "/" + kind + "/" + encoded(identifier.name());
    return PATH + "namespaces/" + named + "/" + question;
  }

  /** Returns the columns of a system view that is read with these options; null if there is no such view. */
  JsonNode columns(Map<String, String> options) {
    Reply reply = askView(options, "columns", Map.of("options", options));
    return isNoView(reply) ? null : resultOf(reply);
  }

  private static boolean isNoView(Reply reply) {
    return reply.status() == 404 && reply.text().contains("NoSuchViewException");
  }

  /** Returns the number of rows of a system view that is read with these options. */
  long count(Map<String, String> options) {
    return resultOf(askView(options, "count", Map.of("options", options))).get("count").asLong();
  }

  /** Plans a scan of a system view. Returns the function that reads a partition, and the partitions, pickled. */
  JsonNode plan(Map<String, String> options, String[] columns, List<List<Object>> filters) {
    Map<String, Object> asked =
        Map.of("options", options, "columns", columns, "filters", filters);
    return resultOf(askView(options, "plan", asked));
  }

  private Reply askView(Map<String, String> options, String question, Map<String, ?> message) {
    String path = PATH + "views/" + encoded(options.get("view")) + "/" + question;
    return python.ask(configuration, session.name(), "POST", path, Json.write(message));
  }

  private static String encoded(String part) {
    return URLEncoder.encode(part, StandardCharsets.UTF_8);
  }

  private synchronized Map<String, PythonProcedure> known() {
    if (known == null) {
      Map<String, PythonProcedure> found = new LinkedHashMap<>();
      JsonNode listed = resultOf(python.ask(configuration, session.name(), "GET", PATH + "procedures", null));
      for (JsonNode definition : listed.get("procedures")) {
        PythonProcedure procedure = new PythonProcedure(this, definition);
        found.put(procedure.name(), procedure);
      }
      known = found;
    }
    return known;
  }

  private static JsonNode resultOf(Reply reply) {
    JsonNode result = Json.readTree(reply.body());
    if (reply.status() >= 400) {
      throw UserError.of(result.path("error").path("message").asText(), null);
    }
    return result;
  }
}
