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

/** Iceberg's REST client. It sends requests to this JVM's Python process instead of a server. */
final class BridgeClient extends BaseHTTPClient {
  /** Base URI of requests, which Iceberg requires. No request is sent to it. */
  static final URI NOWHERE = URI.create("http://polaris-spark.invalid");

  private final PythonSide python;
  private final Map<String, String> configuration;
  private final String state;

  /**
   * @param state the state of the catalog to use; empty to use the state in the configuration
   */
  BridgeClient(PythonSide python, Map<String, String> configuration, String state) {
    this.python = python;
    this.configuration = Map.copyOf(configuration);
    this.state = state;
  }

  /** Returns the procedures of this catalog. Calls use the session's state of the catalog. */
  Procedures procedures(SessionState session) {
    return new Procedures(python, configuration, session);
  }

  /** Returns this client: only this JVM's user can reach the Python process, so requests need no authentication. */
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
      // The operation id prevents a repeated request from being carried out twice.
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

  /** Sends a request that loads or changes a table, and returns the response. */
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
   * Returns the snapshots of a version of a table, as changes from another version.
   *
   * @param known the other version; null to get all snapshots
   * @throws org.apache.iceberg.exceptions.NotFoundException the version no longer exists
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

  /** Returns the request with a parameter that limits the response to the snapshots of branches and tags. */
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

  /** Does nothing: the Python process serves other catalogs too, and ends with the JVM. */
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
