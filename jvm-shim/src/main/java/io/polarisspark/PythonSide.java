package io.polarisspark;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.rest.HTTPRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The Python process of this JVM, one for each interpreter. It serves any number of catalogs. If the process dies, a
 * new one is started, and the interrupted request is sent again once, unchanged. Its operation id ensures that it takes
 * effect only once.
 */
final class PythonSide {
  private static final Logger LOG = LoggerFactory.getLogger(PythonSide.class);
  private static final Map<String, PythonSide> BY_INTERPRETER = new ConcurrentHashMap<>();

  private final String interpreter;
  private final SoftCache<SnapshotsOnDemand.Known> snapshots = new SoftCache<>();
  private final SoftCache<KnownTable> tables = new SoftCache<>();
  private PythonChild child;

  /** A request to a process about a catalog that the process has opened. */
  private interface Question {
    Reply ask(PythonChild live, String handle) throws PythonChild.LostException;
  }

  private PythonSide(String interpreter) {
    this.interpreter = interpreter;
  }

  static PythonSide of(String interpreter) {
    return BY_INTERPRETER.computeIfAbsent(interpreter, PythonSide::new);
  }

  /**
   * Sends a request to the catalog of a configuration.
   *
   * @throws IllegalArgumentException the process or the catalog cannot be opened; nothing was sent
   */
  Reply request(Map<String, String> configuration, HTTPRequest request) {
    return askTwice(configuration, (live, handle) -> live.request(handle, request));
  }

  /** Sends a request of the extension that only reads, such as a request for the list of procedures. */
  Reply ask(Map<String, String> configuration, String state, String method, String path, String body) {
    return askTwice(configuration, (live, handle) -> live.ask(handle, state, method, path, body));
  }

  /**
   * Calls a procedure. It is not called again if the process dies, because the user must first check what the procedure
   * has done.
   */
  Reply call(
      Map<String, String> configuration, String state, String name, String id, String message) {
    try {
      return askOnce(configuration, (live, handle) -> live.call(handle, state, name, id, message));
    } catch (PythonChild.LostException e) {
      String lost = e.getMessage() + "; it is unknown which of its steps were completed, and it was not started again";
      return Reply.error(502, "BadGatewayException", lost);
    }
  }

  private Reply askTwice(Map<String, String> configuration, Question question) {
    try {
      return askOnce(configuration, question);
    } catch (PythonChild.LostException e) {
      LOG.warn("{}; starting it again and repeating the request", e.getMessage());
    }
    try {
      return askOnce(configuration, question);
    } catch (PythonChild.LostException | RuntimeException e) {
      // The first attempt may have been carried out, so the error must not say that the request was refused.
      String message = e.getMessage() + "; it is unknown whether the request was carried out";
      return Reply.error(502, "BadGatewayException", message);
    }
  }

  /** Returns the known snapshots of tables, by the tables' stable ids. */
  SoftCache<SnapshotsOnDemand.Known> snapshots() {
    return snapshots;
  }

  /** Returns the known tables, by their paths. */
  SoftCache<KnownTable> tables() {
    return tables;
  }

  private Reply askOnce(Map<String, String> configuration, Question question)
      throws PythonChild.LostException {
    PythonChild live = liveChild();
    try {
      return question.ask(live, live.connect(configuration));
    } catch (PythonChild.LostException e) {
      live.awaitDeath();
      throw e;
    }
  }

  private synchronized PythonChild liveChild() throws PythonChild.LostException {
    if (child != null && !child.isAlive()) {
      child.discard();
      child = null;
    }
    if (child == null) {
      child = new PythonChild(interpreter);
      LOG.info("Started {} as process {}", interpreter, child.pid());
    }
    return child;
  }
}
