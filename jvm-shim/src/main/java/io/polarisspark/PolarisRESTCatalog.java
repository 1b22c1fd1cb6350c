package io.polarisspark;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.iceberg.CatalogProperties;
import org.apache.iceberg.catalog.SessionCatalog.SessionContext;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.rest.RESTCatalogProperties;

/**
 * The catalog for any JVM engine, as its {@code catalog-impl}. It needs the property {@code store}. It passes all
 * properties to Python unchanged.
 */
public class PolarisRESTCatalog extends RESTCatalog {
  /** Property that contains the state of the catalog, for {@link SwitchingCatalog}. */
  static final String STATE = "polaris-state";

  private static final Set<String> CREDENTIALS = Set.of("credential", "token");

  private final AtomicReference<BridgeClient> client;

  public PolarisRESTCatalog() {
    this(new AtomicReference<>());
  }

  private PolarisRESTCatalog(AtomicReference<BridgeClient> client) {
    // Iceberg requests a client twice, the second time with the properties in the server's response to the first
    // client. Both clients must use the same catalog.
    super(SessionContext.createEmpty(), properties -> client.get());
    this.client = client;
  }

  @Override
  public void initialize(String name, Map<String, String> properties) {
    Map<String, String> configuration = new HashMap<>(properties);
    configuration.putIfAbsent("catalog", name);
    if (!hasCredentials(properties)) {
      configuration.putIfAbsent("principal", userOf(properties));
    }
    configuration.remove(Interpreter.PROPERTY);
    String state = configuration.remove(STATE);
    PythonSide python = PythonSide.of(Interpreter.of(properties));
    client.set(new BridgeClient(python, configuration, state == null ? "" : state));

    Map<String, String> forIceberg = new HashMap<>(properties);
    // Iceberg would send this property so that a server can choose the catalog. Here the connection belongs to one
    // catalog.
    forIceberg.remove(CatalogProperties.WAREHOUSE_LOCATION);
    // Iceberg passes these properties to the FileIO of each table, and so to executors.
    forIceberg.keySet().removeIf(key -> key.equals("store") || key.startsWith("store."));
    // Credentials are for Python. Iceberg would use them to ask a server for a token.
    forIceberg.keySet().removeAll(CREDENTIALS);
    // The client loads snapshots on demand. Iceberg's implementation would show the newest version's snapshots in an
    // older version.
    forIceberg.remove(RESTCatalogProperties.SNAPSHOT_LOADING_MODE);
    forIceberg.put(CatalogProperties.URI, BridgeClient.NOWHERE.toString());
    forIceberg.putIfAbsent(CatalogProperties.FILE_IO_IMPL, PolarisFileIO.class.getName());
    super.initialize(name, forIceberg);
  }

  Procedures procedures(SessionState session) {
    return client.get().procedures(session);
  }

  /** Does nothing, because each load of a cached table checks whether it has changed. */
  @Override
  public void invalidateTable(TableIdentifier identifier) {}

  /** Whether the properties say who the principal is, so that the user of the process is not. */
  static boolean hasCredentials(Map<String, String> properties) {
    return !Collections.disjoint(properties.keySet(), CREDENTIALS);
  }

  private static String userOf(Map<String, String> properties) {
    return properties.getOrDefault(CatalogProperties.USER, System.getProperty("user.name"));
  }
}
