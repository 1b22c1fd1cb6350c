package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** The procedures that Python answers, as it lists them when it is first asked. */
final class Procedures {
  private final PythonSide python;
  private final Map<String, String> configuration;
  private Map<String, PythonProcedure> known;

  Procedures(PythonSide python, Map<String, String> configuration) {
    this.python = python;
    this.configuration = configuration;
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
    return resultOf(python.call(configuration, name, id, Json.write(message)));
  }

  /** Asks about a view with these options: its columns, or the number of its rows. */
  JsonNode view(String method, Map<String, String> options) {
    String view = options.get("view");
    return resultOf(python.view(configuration, method, view, Json.write(options)));
  }

  /** Plans to read columns of a view: the function that reads a partition, and the partitions, pickled. */
  JsonNode plan(Map<String, String> options, String[] columns, List<List<Object>> filters) {
    Map<String, Object> asked =
        Map.of("options", options, "columns", columns, "filters", filters);
    return resultOf(python.view(configuration, "PLAN", options.get("view"), Json.write(asked)));
  }

  private synchronized Map<String, PythonProcedure> known() {
    if (known == null) {
      Map<String, PythonProcedure> found = new LinkedHashMap<>();
      for (JsonNode definition : resultOf(python.procedures(configuration))) {
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
