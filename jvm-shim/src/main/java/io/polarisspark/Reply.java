package io.polarisspark;

import java.nio.charset.StandardCharsets;
import java.util.Map;

/** A response of the REST protocol. The body is JSON in UTF-8, or empty. */
record Reply(int status, Map<String, String> headers, byte[] body) {

  String text() {
    return new String(body, StandardCharsets.UTF_8);
  }

  /** Returns an error of the transport, in the protocol's error model. */
  static Reply error(int status, String type, String message) {
    Map<String, Object> error = Map.of("message", message, "type", type, "code", status);
    String body = Json.write(Map.of("error", error));
    return new Reply(status, Map.of(), body.getBytes(StandardCharsets.UTF_8));
  }
}
