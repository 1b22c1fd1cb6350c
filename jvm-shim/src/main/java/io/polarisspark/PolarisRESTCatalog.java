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
 * The catalog for any JVM engine, as its {@code catalog-impl}. It needs the property {@code store}; all properties go
 * to Python as they are.
 */
public class PolarisRESTCatalog extends RESTCatalog {
  /** The property that names the state of the catalog, for {@link SwitchingCatalog}. */
  static final String STATE = "polaris-state";

  private static final Set<String> CREDENTIALS = Set.of("credential", "token");

  private final AtomicReference<BridgeClient> client;

  public PolarisRESTCatalog() {
    this(new AtomicReference<>());
  }

  private PolarisRESTCatalog(AtomicReference<BridgeClient> client) {
    // Iceberg asks for a client twice, the second time with the properties that the first one's server answered; both
    // must reach the same catalog.
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
    // Iceberg would send it to have a server choose a catalog by it; here the connection has chosen.
    forIceberg.remove(CatalogProperties.WAREHOUSE_LOCATION);
    // Iceberg hands its properties on to each table's FileIO, and with it to executors.
    forIceberg.keySet().removeIf(key -> key.equals("store") || key.startsWith("store."));
    // They are for Python. Iceberg would ask a server for a token by them.
    forIceberg.keySet().removeAll(CREDENTIALS);
    // The transport loads snapshots on demand; Iceberg's own way would show the newest version's in an older one.
    forIceberg.remove(RESTCatalogProperties.SNAPSHOT_LOADING_MODE);
    forIceberg.put(CatalogProperties.URI, BridgeClient.NOWHERE.toString());
    forIceberg.putIfAbsent(CatalogProperties.FILE_IO_IMPL, PolarisFileIO.class.getName());
    super.initialize(name, forIceberg);
  }

  Procedures procedures(SessionState session) {
    return client.get().procedures(session);
  }

  /** Tables that Iceberg keeps are revalidated whenever they are loaded, so there is nothing to forget. */
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
