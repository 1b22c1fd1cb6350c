package io.polarisspark;

import java.net.URI;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.iceberg.exceptions.RESTException;
import org.apache.iceberg.rest.BaseHTTPClient;
import org.apache.iceberg.rest.ErrorHandler;
import org.apache.iceberg.rest.ErrorHandlers;
import org.apache.iceberg.rest.HTTPHeaders;
import org.apache.iceberg.rest.HTTPRequest;
import org.apache.iceberg.rest.HTTPRequest.HTTPMethod;
import org.apache.iceberg.rest.ImmutableHTTPRequest;
import org.apache.iceberg.rest.ParserContext;
import org.apache.iceberg.rest.RESTCatalogProperties;
import org.apache.iceberg.rest.RESTClient;
import org.apache.iceberg.rest.RESTResponse;
import org.apache.iceberg.rest.RESTUtil;
import org.apache.iceberg.rest.auth.AuthSession;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.apache.iceberg.util.UUIDUtil;

/** Iceberg's REST client, with the Python side of this JVM in the place of a server. */
final class BridgeClient extends BaseHTTPClient {
  /** Requests are built against it and never sent there. */
  static final URI NOWHERE = URI.create("http://polaris-spark.invalid");

  private final PythonSide python;
  private final Map<String, String> configuration;
  private final String state;

  /** @param state the state of the catalog that is used; empty for the one that the configuration names */
  BridgeClient(PythonSide python, Map<String, String> configuration, String state) {
    this.python = python;
    this.configuration = Map.copyOf(configuration);
    this.state = state;
  }

  /** The procedures of the same catalog, called in the state that a session uses. */
  Procedures procedures(SessionState session) {
    return new Procedures(python, configuration, session);
  }

  /** The process boundary is private to this JVM and its user: there is nothing to authenticate. */
  @Override
  public RESTClient withAuthSession(AuthSession session) {
    return this;
  }

  @Override
  protected HTTPRequest buildRequest(
      HTTPMethod method,
      String path,
      Map<String, String> query,
      Map<String, String> headers,
      Object body) {
    Map<String, String> all = new LinkedHashMap<>(headers == null ? Map.of() : headers);
    if (!state.isEmpty()) {
      all.put(SessionState.HEADER, state);
    }
    if (method == HTTPMethod.POST || method == HTTPMethod.DELETE) {
      // Without an operation id a request that was sent twice could be carried out twice.
      all.putIfAbsent(RESTUtil.IDEMPOTENCY_KEY_HEADER, UUIDUtil.generateUuidV7().toString());
      all.putAll(CommitNotes.headers());
    }
    return ImmutableHTTPRequest.builder()
        .baseUri(NOWHERE)
        .method(method)
        .path(path)
        .queryParameters(query == null ? Map.of() : query)
        .headers(HTTPHeaders.of(all))
        .body(body)
        .build();
  }

  @Override
  protected <T extends RESTResponse> T execute(
      HTTPRequest request,
      Class<T> responseType,
      Consumer<ErrorResponse> errorHandler,
      Consumer<Map<String, String>> responseHeaders) {
    return execute(request, responseType, errorHandler, responseHeaders, null);
  }

  @Override
  protected <T extends RESTResponse> T execute(
      HTTPRequest request,
      Class<T> responseType,
      Consumer<ErrorResponse> errorHandler,
      Consumer<Map<String, String>> responseHeaders,
      ParserContext parserContext) {
    if (responseType == LoadTableResponse.class) {
      return responseType.cast(table(request, errorHandler, responseHeaders));
    }
    Reply reply = answer(request, errorHandler, responseHeaders);
    return isEmpty(reply) || responseType == null
        ? null
        : Json.readMessage(reply.body(), responseType, parserContext);
  }

  /** Answers a request for a table, or a change of it. */
  private LoadTableResponse table(
      HTTPRequest request,
      Consumer<ErrorResponse> errorHandler,
      Consumer<Map<String, String>> responseHeaders) {
    SoftCache.Key key = new SoftCache.Key(configuration, state + request.path());
    KnownTable known = request.method() == HTTPMethod.GET ? python.tables().get(key) : null;
    HTTPRequest sent = withoutHistory(known == null ? request : known.namedIn(request));
    Reply reply = answer(sent, errorHandler, responseHeaders);
    if (isEmpty(reply)) {
      return known != null && known.answers(request, reply) ? known.answer() : null;
    }
    LoadTableResponse answered =
        onDemand(Json.readMessage(reply.body(), LoadTableResponse.class, null), reply);
    KnownTable now = KnownTable.of(reply.headers(), answered);
    if (now != null) {
      python.tables().put(key, now);
    }
    return answered;
  }

  private static boolean isEmpty(Reply reply) {
    return reply.status() == 204 || reply.status() == 304;
  }

  /**
   * Asks for the snapshots of one version of a table, as changes of those of another version of it.
   *
   * @param known the other version, or null if none is known
   * @throws org.apache.iceberg.exceptions.NotFoundException if that version is no longer there
   */
  SnapshotChanges snapshots(SnapshotPin pin, SnapshotPin known) {
    HTTPRequest request = buildRequest(HTTPMethod.GET, pin.path(), pin.query(known), Map.of(), null);
    return Json.readSnapshots(answer(request, ErrorHandlers.tableErrorHandler(), headers -> {}).body());
  }

  private Reply answer(
      HTTPRequest request,
      Consumer<ErrorResponse> errorHandler,
      Consumer<Map<String, String>> responseHeaders) {
    Reply reply = python.request(configuration, request);
    responseHeaders.accept(reply.headers());
    if (reply.status() >= 400) {
      errorHandler.accept(errorOf(reply, errorHandler));
      throw new RESTException("Unhandled answer %s: %s", reply.status(), reply.text());
    }
    return reply;
  }

  /** Whatever is answered with a table is asked for the snapshots that branches and tags name, and no others. */
  private static HTTPRequest withoutHistory(HTTPRequest request) {
    Map<String, String> query = new LinkedHashMap<>(request.queryParameters());
    query.put(RESTCatalogProperties.SNAPSHOTS_QUERY_PARAMETER, "refs");
    return ImmutableHTTPRequest.copyOf(request).withQueryParameters(query);
  }

  private LoadTableResponse onDemand(LoadTableResponse answered, Reply reply) {
    SnapshotPin pin = SnapshotPin.of(reply.headers());
    if (pin == null) {
      return answered;
    }
    SoftCache.Key key = new SoftCache.Key(configuration, pin.table());
    return new TableResponse(
        answered, new SnapshotsOnDemand(this, python.snapshots(), key, pin));
  }

  /** The child serves other catalogs too, and ends with the JVM. */
  @Override
  public void close() {}

  private static ErrorResponse errorOf(Reply reply, Consumer<ErrorResponse> errorHandler) {
    if (reply.body().length > 0 && errorHandler instanceof ErrorHandler handler) {
      return handler.parseResponse(reply.status(), reply.text());
    }
    return ErrorResponse.builder()
        .responseCode(reply.status())
        .withType("RESTException")
        .withMessage(reply.text())
        .build();
  }
}
