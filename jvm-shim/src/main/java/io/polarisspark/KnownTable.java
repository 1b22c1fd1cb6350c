package io.polarisspark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.iceberg.rest.HTTPHeaders;
import org.apache.iceberg.rest.HTTPHeaders.HTTPHeader;
import org.apache.iceberg.rest.HTTPRequest;
import org.apache.iceberg.rest.ImmutableHTTPRequest;
import org.apache.iceberg.rest.responses.LoadTableResponse;

/**
 * The last response to a load or commit of a table. Iceberg loads a table again before most commits. The request then
 * contains the tag of the known response, so an unchanged table is neither sent nor parsed again.
 */
record KnownTable(String tag, LoadTableResponse answer) {
  private static final String IF_NONE_MATCH = "If-None-Match";
  private static final String TAG = "ETag";

  /** Returns the table of a response; null if the response has no tag. */
  static KnownTable of(Map<String, String> headers, LoadTableResponse answer) {
    String tag = headers.get(TAG);
    if (tag == null) {
      return null;
    }
    // Builds the metadata now, because other threads will read it.
    answer.tableMetadata();
    return new KnownTable(tag, answer);
  }

  /** Returns the request with the tag of this version as a condition. */
  HTTPRequest namedIn(HTTPRequest request) {
    Map<String, String> headers = new LinkedHashMap<>();
    for (HTTPHeader header : request.headers().entries()) {
      headers.put(header.name(), header.value());
    }
    headers.merge(IF_NONE_MATCH, tag, (theirs, ours) -> theirs.equals(ours) ? ours : theirs + ", " + ours);
    return ImmutableHTTPRequest.copyOf(request).withHeaders(HTTPHeaders.of(headers));
  }

  /**
   * Returns whether a response without content stands for this version, and the original request did not name this
   * version.
   */
  boolean answers(HTTPRequest asked, Reply reply) {
    return reply.status() == 304
        && tag.equals(reply.headers().get(TAG))
        && asked.headers().entries(IF_NONE_MATCH).stream().noneMatch(h -> tag.equals(h.value()));
  }
}
