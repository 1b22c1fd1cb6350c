package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.iceberg.CachingCatalog;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.NamespaceNotEmptyException;
import org.apache.iceberg.spark.PathIdentifier;
import org.apache.iceberg.spark.SparkCatalog;
import org.apache.iceberg.spark.SparkUtil;
import org.apache.iceberg.spark.procedures.SparkProcedures;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.ViewAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.connector.catalog.ViewChange;
import org.apache.spark.sql.connector.catalog.ViewInfo;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The catalog for Spark: Iceberg's Spark catalog over {@link PolarisRESTCatalog}, with system views and procedures in
 * the namespace {@code system}.
 */
public class PolarisCatalog extends SparkCatalog {
  private SystemViews systemViews;
  private Procedures procedures;

  @Override
  protected Catalog buildIcebergCatalog(String name, CaseInsensitiveStringMap options) {
    SparkSession session = SparkSession.active();
    SparkContext context = session.sparkContext();
    Map<String, String> properties = new HashMap<>(options.asCaseSensitiveMap());
    properties.putIfAbsent("catalog", name);
    if (!PolarisRESTCatalog.hasCredentials(properties)) {
      properties.putIfAbsent("principal", context.sparkUser());
    }
    properties.put("spark.master", context.master());
    properties.put("spark.catalog", name);
    String python = context.getConf().get("spark.pyspark.python", null);
    if (python != null) {
      properties.putIfAbsent(Interpreter.PROPERTY, python);
    }
    SessionState state = new SessionState();
    PolarisRESTCatalog configured = open(session, name, properties, state.name());
    this.procedures = configured.procedures(state);
    this.systemViews = new SystemViews(properties, procedures);
    return SwitchingCatalog.of(
        state, used -> used.isEmpty() ? configured : open(session, name, properties, used));
  }

  private static PolarisRESTCatalog open(
      SparkSession session, String name, Map<String, String> properties, String state) {
    PolarisRESTCatalog catalog = new TablesForSpark();
    catalog.setConf(SparkUtil.hadoopConfCatalogOverrides(session, name));
    Map<String, String> all = new HashMap<>(properties);
    if (!state.isEmpty()) {
      all.put(PolarisRESTCatalog.STATE, state);
    }
    catalog.initialize(name, all);
    return catalog;
  }

  /** Returns a procedure of Iceberg or of Python. */
  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    boolean isOurs =
        SystemViews.isSystem(identifier.namespace())
            && !SparkProcedures.names().contains(identifier.name().toLowerCase(Locale.ROOT));
    UnboundProcedure found = isOurs ? procedures.find(identifier.name()) : null;
    if (found != null) {
      return found;
    }
    UnboundProcedure icebergs = super.loadProcedure(identifier);
    return UserError.converting(
        UnboundProcedure.class, DeletingProcedure.of(icebergs, this, procedures));
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    Stream<Identifier> icebergs = Arrays.stream(super.listProcedures(namespace));
    return SystemViews.isSystem(namespace)
        ? Stream.concat(
                icebergs, procedures.names().stream().map(name -> Identifier.of(namespace, name)))
            .distinct()
            .toArray(Identifier[]::new)
        : icebergs.toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    if (SystemViews.isSystem(identifier.namespace())) {
      return systemViews.load(identifier);
    }
    forget(identifier);
    try {
      return super.loadTable(identifier);
    } catch (NoSuchTableException missing) {
      return OutsideSources.load(this, identifier, (catalog, name) -> catalog.loadTable(name));
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    if (SystemViews.isSystem(identifier.namespace())) {
      return systemViews.loadAsOf(identifier, version);
    }
    forget(identifier);
    try {
      return super.loadTable(identifier, version);
    } catch (NoSuchTableException missing) {
      Table rows = earlierRows(identifier, Map.of("version", version));
      return rows != null
          ? rows
          : OutsideSources.load(this, identifier, (catalog, name) -> catalog.loadTable(name, version));
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public Table loadTable(Identifier identifier, long microseconds) throws NoSuchTableException {
    if (SystemViews.isSystem(identifier.namespace())) {
      return systemViews.loadAsOf(identifier, microseconds);
    }
    forget(identifier);
    try {
      return super.loadTable(identifier, microseconds);
    } catch (NoSuchTableException missing) {
      Table rows = earlierRows(identifier, Map.of("timestamp-us", microseconds));
      return rows != null
          ? rows
          : OutsideSources.load(this, identifier, (catalog, name) -> catalog.loadTable(name, microseconds));
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  /** Loads the rows of an earlier refresh of a materialized view, or returns null if there is no such view. */
  private Table earlierRows(Identifier identifier, Map<String, ?> time) throws NoSuchTableException {
    String[] namespace = identifier.namespace();
    boolean canBeView = namespace.length > 0 && !(identifier instanceof PathIdentifier);
    JsonNode rows = canBeView ? procedures.materializedViewAsOf(identifier, time) : null;
    if (rows == null) {
      return null;
    }
    String[] view = Arrays.copyOf(namespace, namespace.length + 1);
    view[namespace.length] = identifier.name();
    Table stored = loadTable(Identifier.of(view, "storage"), rows.get("snapshot-id").asText());
    return new MaterializedViewAsOf(name() + "." + String.join(".", view), stored, rows.get("columns"));
  }

  @Override
  public boolean tableExists(Identifier identifier) {
    if (SystemViews.isSystem(identifier.namespace())) {
      return systemViews.isView(identifier.name());
    }
    forget(identifier);
    return super.tableExists(identifier);
  }

  /** Does nothing for the views in {@code system}, because they are not cached. */
  @Override
  public void invalidateTable(Identifier identifier) {
    if (!SystemViews.isSystem(identifier.namespace())) {
      super.invalidateTable(identifier);
    }
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    return SystemViews.isSystem(namespace) ? systemViews.list() : super.listTables(namespace);
  }

  @Override
  public Identifier[] listViews(String... namespace) {
    return SystemViews.isSystem(namespace) ? new Identifier[0] : super.listViews(namespace);
  }

  @Override
  public boolean viewExists(Identifier identifier) {
    return !SystemViews.isSystem(identifier.namespace()) && super.viewExists(identifier);
  }

  @Override
  public View loadView(Identifier identifier) throws NoSuchViewException {
    if (SystemViews.isSystem(identifier.namespace())) {
      throw new NoSuchViewException(identifier);
    }
    View view = super.loadView(identifier);
    refuseViewOfState(identifier);
    return MaterializedView.of(view, name(), identifier, procedures);
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo table)
      throws TableAlreadyExistsException {
    forget(identifier);
    try {
      return super.createTable(identifier, table);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo table)
      throws TableAlreadyExistsException {
    try {
      return super.stageCreate(identifier, table);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public StagedTable stageReplace(Identifier identifier, TableInfo table)
      throws NoSuchTableException {
    try {
      return super.stageReplace(identifier, table);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo table) {
    try {
      return super.stageCreateOrReplace(identifier, table);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes)
      throws NoSuchTableException {
    forget(identifier);
    try {
      return super.alterTable(identifier, changes);
    } catch (NumberFormatException refused) {
      throw UserError.of("a table property must be a number: " + refused.getMessage(), refused);
    } catch (IllegalArgumentException | UnsupportedOperationException refused) {
      // Spark would wrap these in an exception that is shown with its stack trace.
      throw UserError.of(refused.getMessage(), refused);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  /**
   * Renames a table. Spark passes the new name as it was written, so it may begin with the name of the catalog. This
   * method removes it unless there is a namespace with this name.
   */
  @Override
  public void renameTable(Identifier from, Identifier to)
      throws NoSuchTableException, TableAlreadyExistsException {
    String[] namespace = to.namespace();
    boolean qualified = namespace.length > 1 && namespace[0].equals(name());
    Identifier target = to;
    if (qualified && !namespaceExists(namespace)) {
      target = Identifier.of(Arrays.copyOfRange(namespace, 1, namespace.length), to.name());
    }
    try {
      super.renameTable(from, target);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  /**
   * Creates a view. If its namespace is missing, reports this namespace; Iceberg's catalog would report the session's
   * current namespace.
   */
  @Override
  public View createView(ViewInfo view)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    try {
      return super.createView(view);
    } catch (NoSuchNamespaceException missing) {
      throw new NoSuchNamespaceException(view.ident().namespace());
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  /** Reports a missing namespace as {@link #createView} does. */
  @Override
  public View replaceView(
      Identifier identifier,
      String sql,
      String currentCatalog,
      String[] currentNamespace,
      StructType schema,
      String[] queryColumns,
      String[] aliases,
      String[] comments,
      Map<String, String> properties)
      throws NoSuchNamespaceException, NoSuchViewException {
    try {
      return super.replaceView(
          identifier,
          sql,
          currentCatalog,
          currentNamespace,
          schema,
          queryColumns,
          aliases,
          comments,
          properties);
    } catch (NoSuchNamespaceException missing) {
      throw new NoSuchNamespaceException(identifier.namespace());
    } catch (NumberFormatException refused) {
      throw UserError.of("a view property must be a number: " + refused.getMessage(), refused);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public View alterView(Identifier identifier, ViewChange... changes) throws NoSuchViewException {
    try {
      return super.alterView(identifier, changes);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public void renameView(Identifier from, Identifier to)
      throws NoSuchViewException, ViewAlreadyExistsException {
    try {
      super.renameView(from, to);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  /**
   * Drops a table with PURGE. The catalog deletes the files, because it knows which files branches and history still
   * need.
   */
  @Override
  public boolean purgeTable(Identifier identifier) {
    return identifier instanceof PathIdentifier
        ? super.purgeTable(identifier)
        : icebergCatalog().dropTable(buildIdentifier(identifier), true);
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    return SystemViews.isSystem(namespace) || super.namespaceExists(namespace);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    return SystemViews.isSystem(namespace)
        ? SystemViews.NAMESPACE_PROPERTIES
        : super.loadNamespaceMetadata(namespace);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties)
      throws NamespaceAlreadyExistsException {
    SystemViews.refuse(namespace);
    try {
      super.createNamespace(namespace, properties);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes)
      throws NoSuchNamespaceException {
    SystemViews.refuse(namespace);
    try {
      super.alterNamespace(namespace, changes);
    } catch (RuntimeException refused) {
      throw UserError.of(refused);
    }
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException {
    SystemViews.refuse(namespace);
    try {
      return super.dropNamespace(namespace, cascade);
    } catch (NamespaceNotEmptyException refused) {
      throw UserError.of(
          refused.getMessage() + ": drop its tables, views and namespaces first, CASCADE does not",
          refused);
    }
  }

  /** Refuses names in {@code system}. Iceberg's catalog calls this method before every operation on a table or view. */
  @Override
  protected TableIdentifier buildIdentifier(Identifier identifier) {
    if (SystemViews.isSystem(identifier.namespace())) {
      SystemViews.refuse(identifier.namespace());
    }
    return super.buildIdentifier(identifier);
  }

  /**
   * Refuses to read a view in another state, such as v@dev. Spark would read the tables of its query in the session's
   * state, and so mix two states. A view whose own name contains @ can be read.
   */
  private void refuseViewOfState(Identifier identifier) {
    int at = identifier.name().lastIndexOf('@');
    if (at <= 0 || Arrays.asList(super.listViews(identifier.namespace())).contains(identifier)) {
      return;
    }
    String state = identifier.name().substring(at + 1);
    String message =
        String.format(
            "The view %s cannot be read by a name with a state, because its query reads the tables of the "
                + "session's state; CALL %s.system.use('%s') and read %s",
            identifier, name(), state, identifier.name().substring(0, at));
    throw UserError.of(message, null);
  }

  /**
   * Removes a table from Iceberg's cache, so that it is loaded again. By default, Iceberg's Spark catalog caches tables
   * for 30 seconds, which would hide commits of other programs. Loading an unchanged table again costs little.
   */
  private void forget(Identifier identifier) {
    if (identifier instanceof PathIdentifier || !(icebergCatalog() instanceof CachingCatalog cached)) {
      return;
    }
    cached.invalidateTable(buildIdentifier(identifier));
    String[] namespace = identifier.namespace();
    if (namespace.length > 0) {
      // The metadata table db.table.snapshots is read from db.table, which is cached, too.
      cached.invalidateTable(TableIdentifier.of(namespace));
    }
  }

  /** The catalog whose tables report errors of the user as {@link UserError}. */
  private static final class TablesForSpark extends PolarisRESTCatalog {
    @Override
    public org.apache.iceberg.Table loadTable(TableIdentifier identifier) {
      return UserErrorTable.of(super.loadTable(identifier));
    }
  }
}
