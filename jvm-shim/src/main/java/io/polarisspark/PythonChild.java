package io.polarisspark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.iceberg.rest.HTTPRequest;

/**
 * A Python process that answers requests. Its standard input and output are the control channel: each message is a line
 * of JSON. Secrets are sent only over this channel. The process ends when the JVM's end of the pipe closes, even if the
 * JVM was killed. Requests are sent over {@link PythonConnections}.
 */
final class PythonChild {
  private static final String PROTOCOL = "5";
  private static final int START_SECONDS = 120;

  private final String interpreter;
  private final Process process;
  private final Writer toChild;
  private final BufferedReader fromChild;
  private final PythonConnections connections;
  private final Map<Map<String, String>, String> handles = new ConcurrentHashMap<>();

  /** The Python process ended, or the connection to it broke, during a request. */
  static final class LostException extends Exception {
    LostException(String message, Throwable cause) {
      super(message, cause);
    }
  }

  PythonChild(String interpreter) throws LostException {
    this.interpreter = interpreter;
    this.process = start(interpreter);
    this.toChild = process.outputWriter(StandardCharsets.UTF_8);
    this.fromChild =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    CompletableFuture<Void> started = new CompletableFuture<>();
    started.orTimeout(START_SECONDS, TimeUnit.SECONDS).exceptionally(e -> kill());
    try {
      String token = newToken();
      String socket = tell(Map.of("token", token, "protocol", PROTOCOL)).get("socket");
      this.connections = new PythonConnections(socket, token);
    } catch (IOException | UncheckedIOException e) {
      if (!started.isDone() && wasKilled()) {
        throw new LostException(lossOf("while it started"), e);
      }
      kill();
      throw new IllegalArgumentException(Interpreter.whyItDoesNotStart(interpreter), e);
    } finally {
      started.complete(null);
    }
  }

  boolean isAlive() {
    return process.isAlive();
  }

  long pid() {
    return process.pid();
  }

  /**
   * Opens the catalog of a configuration, once for each process.
   *
   * @return the handle of the catalog in the process
   * @throws IllegalArgumentException the configuration does not work; the message is Python's
   */
  String connect(Map<String, String> configuration) throws LostException {
    String known = handles.get(configuration);
    if (known != null) {
      return known;
    }
    synchronized (this) {
      if (!handles.containsKey(configuration)) {
        handles.put(configuration, open(configuration));
      }
      return handles.get(configuration);
    }
  }

  Reply request(String handle, HTTPRequest request) throws LostException {
    try {
      return connections.request(Lines.of(handle, request), request.encodedBody());
    } catch (IOException e) {
      String what = request.method() + " " + request.path();
      throw new LostException(lossOf("while answering " + what), e);
    }
  }

  /** Sends a request of the extension that only reads. */
  Reply ask(String handle, String state, String method, String path, String body)
      throws LostException {
    try {
      return connections.request(Lines.of(handle, method, path, state), body);
    } catch (IOException e) {
      throw new LostException(lossOf("while answering " + method + " " + path), e);
    }
  }

  /**
   * Calls a procedure. This can take long.
   *
   * @throws CancellationException the thread was interrupted; the procedure was then asked to stop
   */
  Reply call(String handle, String state, String name, String id, String message)
      throws LostException {
    try {
      return connections.requestOnce(
          Lines.of(handle, "POST", Procedures.PATH + "procedures/" + name, state, CommitNotes.headers()),
          message);
    } catch (ClosedByInterruptException e) {
      cancel(handle, id);
      throw new CancellationException(
          "The call of " + name + " was interrupted; completed steps remain");
    } catch (IOException e) {
      throw new LostException(lossOf("in the middle of procedure " + name), e);
    }
  }

  private void cancel(String handle, String id) {
    try {
      connections.request(Lines.of(handle, "DELETE", Procedures.PATH + "runs/" + id, ""), null);
    } catch (IOException e) {
      // The process has ended, and the procedure with it.
    }
  }

  /** Waits for a short time until the system reports that a process has ended that has just closed its connection. */
  void awaitDeath() {
    // Not waitFor, which does not wait in an interrupted thread.
    process.onExit().completeOnTimeout(process, 1, TimeUnit.SECONDS).join();
  }

  /** Returns whether a signal ended the process. An interpreter that does not work exits without a signal. */
  private boolean wasKilled() {
    awaitDeath();
    return !isAlive() && process.exitValue() > 128;
  }

  void discard() {
    kill();
    connections.close();
  }

  private String open(Map<String, String> configuration) throws LostException {
    Map<String, String> answer;
    try {
      answer = tell(Map.of("connect", configuration));
    } catch (IOException e) {
      throw new LostException(lossOf("while opening a catalog"), e);
    }
    if (answer.containsKey("error")) {
      throw new IllegalArgumentException(answer.get("error"));
    }
    return answer.get("connection");
  }

  private synchronized Map<String, String> tell(Map<String, ?> message) throws IOException {
    toChild.write(Json.write(message) + "\n");
    toChild.flush();
    String line = fromChild.readLine();
    if (line == null) {
      throw new IOException(interpreter + " closed its output");
    }
    Map<String, String> answer = Json.readStrings(line);
    if (answer.containsKey("fatal")) {
      throw new IllegalArgumentException(answer.get("fatal"));
    }
    return answer;
  }

  private String lossOf(String when) {
    return "The Python process " + pid() + " (" + interpreter + ") was lost " + when;
  }

  private Void kill() {
    process.destroyForcibly();
    return null;
  }

  private static Process start(String interpreter) {
    ProcessBuilder builder = new ProcessBuilder(interpreter, "-m", "polaris_spark.bridge");
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    // A module in the current directory must not replace a module of Python's standard library.
    builder.environment().put("PYTHONSAFEPATH", "1");
    try {
      return builder.start();
    } catch (IOException e) {
      throw new IllegalArgumentException(Interpreter.whyItDoesNotStart(interpreter), e);
    }
  }

  private static String newToken() {
    byte[] bytes = new byte[32];
    new SecureRandom().nextBytes(bytes);
    return HexFormat.of().formatHex(bytes);
  }
}
