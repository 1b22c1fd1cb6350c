package io.polarisspark;

import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.rest.HTTPHeaders.HTTPHeader;
import org.apache.iceberg.rest.HTTPRequest;

/**
 * Heads of frames. A head consists of lines, each of which ends with a newline. Newlines and backslashes in a line are
 * escaped as in Java.
 */
final class Lines {
  private Lines() {}

  /**
   * Returns the head of a request: the handle of the catalog in the Python process, the method, the path, the number of
   * query parameters, then the name and value of each query parameter and of each header.
   */
  static String of(String handle, HTTPRequest request) {
    StringBuilder lines = new StringBuilder(256);
    add(lines, handle);
    add(lines, request.method().name());
    add(lines, request.path());
    Map<String, String> query = request.queryParameters();
    add(lines, Integer.toString(query.size()));
    for (Map.Entry<String, String> parameter : query.entrySet()) {
      add(lines, parameter.getKey());
      add(lines, parameter.getValue());
    }
    for (HTTPHeader header : request.headers().entries()) {
      add(lines, header.name());
      add(lines, header.value());
    }
    return lines.toString();
  }

  /**
   * Returns the head of a request without parameters: the handle of the catalog, the method, the path.
   *
   * @param state the state of the catalog to use; empty to use the state in the configuration
   */
  static String of(String handle, String method, String path, String state) {
    return of(handle, method, path, state, Map.of());
  }

  /** Returns the head of a request with further headers and without parameters. */
  static String of(
      String handle, String method, String path, String state, Map<String, String> headers) {
    StringBuilder lines = new StringBuilder(128);
    add(lines, handle);
    add(lines, method);
    add(lines, path);
    add(lines, "0");
    if (!state.isEmpty()) {
      add(lines, SessionState.HEADER);
      add(lines, state);
    }
    headers.forEach(
        (name, value) -> {
          add(lines, name);
          add(lines, value);
        });
    return lines.toString();
  }

  /** Reads the head of a response: the status, then the name and value of each header. */
  static Reply reply(String head, byte[] body) {
    int end = head.indexOf('\n');
    int status = Integer.parseInt(head, 0, end, 10);
    Map<String, String> headers = new HashMap<>();
    while (end + 1 < head.length()) {
      int name = end + 1;
      int value = head.indexOf('\n', name) + 1;
      end = head.indexOf('\n', value);
      headers.put(read(head.substring(name, value - 1)), read(head.substring(value, end)));
    }
    return new Reply(status, headers, body);
  }

  private static void add(StringBuilder lines, String text) {
    boolean plain = text.indexOf('\\') < 0 && text.indexOf('\n') < 0;
    lines.append(plain ? text : text.replace("\\", "\\\\").replace("\n", "\\n")).append('\n');
  }

  private static String read(String line) {
    return line.indexOf('\\') < 0 ? line : line.translateEscapes();
  }
}
