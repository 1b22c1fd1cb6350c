package io.polarisspark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** The Python interpreter that runs the commit protocol. */
final class Interpreter {
  static final String PROPERTY = "python";

  private Interpreter() {}

  /** Returns the path of the interpreter, from the catalog's properties or else from the environment. */
  static String of(Map<String, String> properties) {
    String configured = properties.get(PROPERTY);
    if (configured != null) {
      return configured;
    }
    return System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
  }

  /**
   * Returns a sentence that says why the Python process did not start, and what to do. Runs the interpreter to find out
   * whether it works.
   */
  static String whyItDoesNotStart(String interpreter) {
    String hint = "; name another one with spark.sql.catalog.<name>." + PROPERTY;
    String found;
    try {
      found = lastLineOf(interpreter, "-c", "import polaris_spark.bridge");
    } catch (IOException e) {
      return "Cannot run the Python interpreter '" + interpreter + "': " + e.getMessage() + hint;
    }
    if (found.contains("No module named") || found.contains("ImportError")) {
      return String.format(
          "The Python interpreter '%s' cannot import polaris_spark (%s). Install it there with"
              + " '%s -m pip install polaris-spark'%s",
          interpreter, found, interpreter, hint);
    }
    return String.format(
        "The Python interpreter '%s' did not start polaris_spark%s%s",
        interpreter, found.isEmpty() ? "" : " (" + found + ")", hint);
  }

  private static String lastLineOf(String... command) throws IOException {
    ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
    builder.environment().put("PYTHONSAFEPATH", "1");
    Process process = builder.start();
    process.getOutputStream().close();
    process.onExit().orTimeout(30, TimeUnit.SECONDS).exceptionally(e -> process.destroyForcibly());
    String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    return output.strip().lines().reduce("", (first, last) -> last);
  }
}
