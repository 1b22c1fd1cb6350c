package io.polarisspark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.iceberg.rest.HTTPHeaders;
import org.apache.iceberg.rest.HTTPHeaders.HTTPHeader;
import org.apache.iceberg.rest.HTTPRequest;
import org.apache.iceberg.rest.ImmutableHTTPRequest;
import org.apache.iceberg.rest.responses.LoadTableResponse;

/**
 * The answer that a table was last loaded or committed with. Iceberg loads a table again before most commits; with its
 * tag sent along, an unchanged one is answered as such, and need not be parsed again.
 */
record KnownTable(String tag, LoadTableResponse answer) {
  private static final String IF_NONE_MATCH = "If-None-Match";
  private static final String TAG = "ETag";

  /** What to keep of an answer, or null if it has no tag. */
  static KnownTable of(Map<String, String> headers, LoadTableResponse answer) {
    String tag = headers.get(TAG);
    if (tag == null) {
      return null;
    }
    // Built now, because another thread may get it later.
    answer.tableMetadata();
    return new KnownTable(tag, answer);
  }

  /** A request that also names this version as known. */
  HTTPRequest namedIn(HTTPRequest request) {
    Map<String, String> headers = new LinkedHashMap<>();
    for (HTTPHeader header : request.headers().entries()) {
      headers.put(header.name(), header.value());
    }
    headers.merge(IF_NONE_MATCH, tag, (theirs, ours) -> theirs.equals(ours) ? ours : theirs + ", " + ours);
    return ImmutableHTTPRequest.copyOf(request).withHeaders(HTTPHeaders.of(headers));
  }

  /** Whether an answer without content means this version, and the one who asked does not have it himself. */
  boolean answers(HTTPRequest asked, Reply reply) {
    return reply.status() == 304
        && tag.equals(reply.headers().get(TAG))
        && asked.headers().entries(IF_NONE_MATCH).stream().noneMatch(h -> tag.equals(h.value()));
  }
}
