package io.polarisspark;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.rest.HTTPRequest;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The supervised Python side of this JVM, one per interpreter, serving any number of catalogs. A child that dies is
 * replaced, and the request that it was answering is sent again, once, as it was: its operation id lets Python answer
 * it exactly once however far the first attempt came.
 */
final class PythonSide {
  private static final Logger LOG = LoggerFactory.getLogger(PythonSide.class);
  private static final Map<String, PythonSide> BY_INTERPRETER = new ConcurrentHashMap<>();

  private final String interpreter;
  private PythonChild child;

  private PythonSide(String interpreter) {
    this.interpreter = interpreter;
  }

  static PythonSide of(String interpreter) {
    return BY_INTERPRETER.computeIfAbsent(interpreter, PythonSide::new);
  }

  /**
   * Sends a request to the catalog that a configuration describes.
   *
   * @throws IllegalArgumentException if the child or the catalog cannot be opened: nothing was sent then
   */
  Reply request(Map<String, String> configuration, HTTPRequest request) {
    try {
      return requestOnce(configuration, request);
    } catch (PythonChild.LostException e) {
      LOG.warn("{}; starting it again and repeating the request", e.getMessage());
    }
    try {
      return requestOnce(configuration, request);
    } catch (PythonChild.LostException | RuntimeException e) {
      // The first attempt may have been carried out, so this must not look like a refusal.
      String message = e.getMessage() + "; whether the request was carried out is not known";
      return Reply.error(502, "BadGatewayException", message);
    }
  }

  private Reply requestOnce(Map<String, String> configuration, HTTPRequest request)
      throws PythonChild.LostException {
    PythonChild live = liveChild();
    try {
      return live.request(live.connect(configuration), request);
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
