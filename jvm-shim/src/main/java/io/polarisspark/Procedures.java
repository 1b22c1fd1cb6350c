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

/** The procedures and system views of a catalog, as Python lists them when it is first asked. */
final class Procedures {
  /** What the paths of these requests begin with. */
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

  /** The state of the catalog that the session uses. */
  SessionState session() {
    return session;
  }

  /** The names of all. */
  Set<String> names() {
    return known().keySet();
  }

  /** The procedure of a name, in any case, or null. */
  PythonProcedure find(String name) {
    return known().get(name.toLowerCase(Locale.ROOT));
  }

  /** Calls one and returns the rows of its result. */
  JsonNode call(String name, String id, Map<String, ?> message) {
    return resultOf(python.call(configuration, session.name(), name, id, Json.write(message))).get("rows");
  }

  /** The names of the system views. */
  synchronized Set<String> views() {
    if (views == null) {
      Set<String> found = new LinkedHashSet<>();
      JsonNode listed = resultOf(python.ask(configuration, session.name(), "GET", PATH + "views", null));
      listed.get("views").forEach(view -> found.add(view.asText()));
      views = found;
    }
    return views;
  }

  /** How to read a materialized view; the question says by which version of it, and in which session. */
  JsonNode materializedView(Identifier identifier, Map<String, ?> question) {
    return resultOf(askMaterializedView(identifier, "read", question));
  }

  /** Where the rows of an earlier refresh of a materialized view are, or null if there is no such view. */
  JsonNode materializedViewAsOf(Identifier identifier, Map<String, ?> question) {
    Reply reply = askMaterializedView(identifier, "as-of", question);
    return isNoView(reply) ? null : resultOf(reply);
  }

  private Reply askMaterializedView(Identifier identifier, String question, Map<String, ?> message) {
    String namespace = encoded(String.join("\u001f", identifier.namespace()));
    String view = namespace + "/materialized-views/" + encoded(identifier.name());
    String path = PATH + "namespaces/" + view + "/" + question;
    return python.ask(configuration, session.name(), "POST", path, Json.write(message));
  }

  /** The columns of a view that is read with these options, or null if there is no view of the name. */
  JsonNode columns(Map<String, String> options) {
    Reply reply = askView(options, "columns", Map.of("options", options));
    return isNoView(reply) ? null : resultOf(reply);
  }

  private static boolean isNoView(Reply reply) {
    return reply.status() == 404 && reply.text().contains("NoSuchViewException");
  }

  /** The number of rows of a view that is read with these options. */
  long count(Map<String, String> options) {
    return resultOf(askView(options, "count", Map.of("options", options))).get("count").asLong();
  }

  /** Plans to read columns of a view: the function that reads a partition, and the partitions, pickled. */
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
