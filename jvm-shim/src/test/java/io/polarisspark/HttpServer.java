package io.polarisspark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/** A process of {@code polaris-spark serve} with its own store. It ends with this JVM. */
record HttpServer(String uri, String token) {
  /** Name of the second branch of each server's catalog. */
  static final String BRANCH = "dev";

  private static final Map<String, HttpServer> RUNNING = new ConcurrentHashMap<>();

  /** Returns the server for a value of {@code metadata-files}; starts it on first use. */
  static HttpServer of(String metadataFiles) {
    return RUNNING.computeIfAbsent(metadataFiles, HttpServer::start);
  }

  private static HttpServer start(String metadataFiles) {
    String token = UUID.randomUUID().toString();
    try {
      Path directory = Files.createTempDirectory("polaris-http");
      String store = "sqlite://" + directory.resolve("catalog.db");
      ProcessBuilder builder =
          command(
              "serve",
              store,
              "--warehouse",
              directory.resolve("warehouse").toUri().toString(),
              // The suites put tables into the temporary directories of their tests.
              "--allow-location",
              Path.of(System.getProperty("java.io.tmpdir")).toUri().toString(),
              "--metadata-files",
              metadataFiles,
              "--port",
              "0",
              "--token",
              "env:SUITES_TOKEN");
      builder.environment().put("SUITES_TOKEN", token);
      Process process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
      Runtime.getRuntime().addShutdownHook(new Thread(() -> end(process, directory)));
      BufferedReader reader = process.inputReader(StandardCharsets.UTF_8);
      String line = reader.readLine();
      if (line == null) {
        throw new IllegalStateException("the server did not start");
      }
      Process create = command("branch", "create", store, "--name", BRANCH).inheritIO().start();
      if (create.waitFor() != 0) {
        throw new IllegalStateException("the branch was not created");
      }
      return new HttpServer(line.substring(line.lastIndexOf(' ') + 1), token);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Returns a process builder for a command of {@code polaris-spark}. */
  private static ProcessBuilder command(String... arguments) {
    List<String> all = new ArrayList<>();
    all.add(System.getProperty("polaris.python", "python3"));
    all.addAll(List.of("-c", "from polaris_spark.cli import main; main()"));
    all.addAll(List.of(arguments));
    return new ProcessBuilder(all);
  }

  private static void end(Process process, Path directory) {
    process.destroy();
    try {
      process.waitFor();
      try (var files = Files.walk(directory)) {
        files.sorted(java.util.Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
      }
    } catch (InterruptedException | IOException e) {
      process.destroyForcibly();
    }
  }
}
