package io.polarisspark;

import java.nio.charset.StandardCharsets;
import java.util.Map;

/** An answer of the REST protocol; the body is JSON text in UTF-8, or empty. */
record Reply(int status, Map<String, String> headers, byte[] body) {

  String text() {
    return new String(body, StandardCharsets.UTF_8);
  }

  /** An answer of the transport itself, in the protocol's error model. */
  static Reply error(int status, String type, String message) {
    Map<String, Object> error = Map.of("message", message, "type", type, "code", status);
    String body = Json.write(Map.of("error", error));
    return new Reply(status, Map.of(), body.getBytes(StandardCharsets.UTF_8));
  }
}
