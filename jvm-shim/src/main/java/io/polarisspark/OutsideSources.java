package io.polarisspark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.DataOperations;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SnapshotSummary;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.spark.PathIdentifier;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.iceberg.spark.source.SparkView;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.connector.catalog.ViewCatalog;

/**
 * Describes tables and views outside of the catalog that its materialized views read. Each description is JSON, as {@code
 * outside_sources.py} specifies it.
 */
public final class OutsideSources {
  private static final Map<String, Object> NONE = Map.of("type", "none");

  /** The entries of a snapshot's summary that are described. */
  private static final List<String> COUNTS =
      List.of(
          SnapshotSummary.ADDED_RECORDS_PROP,
          SnapshotSummary.DELETED_RECORDS_PROP,
          SnapshotSummary.TOTAL_RECORDS_PROP,
          SnapshotSummary.TOTAL_DATA_FILES_PROP,
          SnapshotSummary.TOTAL_FILE_SIZE_PROP);

  private OutsideSources() {}

  /** Loads a table whose name is a location, such as {@code iceberg.`/path`}. */
  interface Loader {
    Table load(TableCatalog catalog, Identifier identifier) throws NoSuchTableException;
  }

  /**
   * Loads a table whose name is a location: an Iceberg table, or a Delta table by the session's catalog.
   *
   * @throws NoSuchTableException the name is not a location, or there is no table
   */
  static Table load(TableCatalog catalog, Identifier identifier, Loader loader)
      throws NoSuchTableException {
    String name = identifier.name();
    boolean isLocation =
        identifier.namespace().length == 1 && (name.startsWith("/") || name.contains(":/"));
    String format = isLocation ? identifier.namespace()[0].toLowerCase(Locale.ROOT) : "";
    if (format.equals("iceberg")) {
      try {
        return loader.load(catalog, new PathIdentifier(name));
      } catch (NoSuchTableException missing) {
        throw UserError.of("there is no Iceberg table at " + name, missing);
      }
    }
    SparkSession session = (SparkSession) SparkSession.active();
    CatalogPlugin delta = session.sessionState().catalogManager().v2SessionCatalog();
    if (format.equals("delta") && delta instanceof TableCatalog tables && isDelta(delta)) {
      return loader.load(tables, identifier);
    }
    throw new NoSuchTableException(identifier);
  }

  private static boolean isDelta(CatalogPlugin catalog) {
    return catalog.getClass().getName().startsWith("org.apache.spark.sql.delta.");
  }

  /**
   * For Python: describes the current state of a table or view.
   *
   * @param parts the full name, catalog first; or an empty text, {@code iceberg}, and the location of a table
   */
  public static String describe(SparkSession session, List<String> parts) {
    return Json.write(description(session, parts, true));
  }

  /**
   * Describes the current state of a table or view.
   *
   * @param history whether to describe all schemas and snapshots of a table; otherwise only the snapshots since the last
   *     change of its rows, which show whether its rows are those of another snapshot
   */
  static Map<String, Object> description(
      SparkSession session, List<String> parts, boolean history) {
    if (parts.get(0).isEmpty()) {
      return parts.get(1).equals("iceberg") ? atLocation(session, parts.get(2), history) : NONE;
    }
    CatalogPlugin catalog = session.sessionState().catalogManager().catalog(parts.get(0));
    int last = parts.size() - 1;
    String[] namespace = parts.subList(1, last).toArray(String[]::new);
    Identifier identifier = Identifier.of(namespace, parts.get(last));
    Map<String, Object> table =
        catalog instanceof TableCatalog tables ? ofTable(tables, identifier, history) : NONE;
    return table == NONE && catalog instanceof ViewCatalog views
        ? ofView(views, identifier)
        : table;
  }

  private static Map<String, Object> atLocation(
      SparkSession session, String location, boolean history) {
    try {
      return of(new HadoopTables(session.sessionState().newHadoopConf()).load(location), history);
    } catch (org.apache.iceberg.exceptions.NoSuchTableException missing) {
      return NONE;
    }
  }

  /**
   * Describes a table. Removes it from the cache of its catalog first, so that the description and the next read use
   * its current state.
   */
  private static Map<String, Object> ofTable(
      TableCatalog catalog, Identifier identifier, boolean history) {
    catalog.invalidateTable(identifier);
    Table table;
    try {
      table = catalog.loadTable(identifier);
    } catch (NoSuchTableException missing) {
      return NONE;
    }
    boolean isIceberg =
        table instanceof SparkTable found && found.table() instanceof HasTableOperations;
    return isIceberg ? of(((SparkTable) table).table(), history) : Map.of("type", "other");
  }

  private static Map<String, Object> of(org.apache.iceberg.Table table, boolean history) {
    TableMetadata metadata = ((HasTableOperations) table).operations().current();
    Map<String, Long> refs = new HashMap<>();
    metadata.refs().forEach((name, ref) -> refs.put(name, ref.snapshotId()));
    List<Map<String, Object>> snapshots = new ArrayList<>();
    (history ? metadata.snapshots() : compactions(metadata))
        .forEach(snapshot -> snapshots.add(of(snapshot)));
    String mapping = metadata.properties().get(TableProperties.DEFAULT_NAME_MAPPING);
    return Map.of(
        "type", "table",
        "uuid", String.valueOf(metadata.uuid()),
        "current-schema-id", metadata.currentSchemaId(),
        "schemas", history ? metadata.schemas() : List.of(),
        "refs", refs,
        "snapshots", snapshots,
        "properties",
            mapping == null ? Map.of() : Map.of(TableProperties.DEFAULT_NAME_MAPPING, mapping));
  }

  /** The snapshots of branches and tags that compacted the rows of earlier ones. */
  private static List<Snapshot> compactions(TableMetadata metadata) {
    Set<Snapshot> found = new LinkedHashSet<>();
    for (SnapshotRef ref : metadata.refs().values()) {
      Snapshot snapshot = metadata.snapshot(ref.snapshotId());
      while (snapshot != null
          && DataOperations.REPLACE.equals(snapshot.operation())
          && found.add(snapshot)) {
        Long parent = snapshot.parentId();
        snapshot = parent == null ? null : metadata.snapshot(parent);
      }
    }
    return List.copyOf(found);
  }

  private static Map<String, Object> of(Snapshot snapshot) {
    Map<String, Object> summary = new HashMap<>();
    summary.put("operation", snapshot.operation());
    for (String name : COUNTS) {
      String count = snapshot.summary().get(name);
      if (count != null) {
        summary.put(name, count);
      }
    }
    Map<String, Object> described = new HashMap<>();
    described.put("snapshot-id", snapshot.snapshotId());
    described.put("timestamp-ms", snapshot.timestampMillis());
    described.put("summary", summary);
    if (snapshot.parentId() != null) {
      described.put("parent-snapshot-id", snapshot.parentId());
    }
    if (snapshot.schemaId() != null) {
      described.put("schema-id", snapshot.schemaId());
    }
    return described;
  }

  private static Map<String, Object> ofView(ViewCatalog catalog, Identifier identifier) {
    View view;
    try {
      view = catalog.loadView(identifier);
    } catch (NoSuchViewException missing) {
      return NONE;
    }
    // Not view.query(), which may refresh a materialized view.
    var sql = view instanceof SparkView known ? known.view().sqlFor("spark") : null;
    if (!(view instanceof SparkView found) || sql == null) {
      return Map.of("type", "other");
    }
    String current = view.currentCatalog();
    return Map.of(
        "type", "view",
        "uuid", found.view().uuid().toString(),
        "version-id", found.view().currentVersion().versionId(),
        "sql", sql.sql(),
        "catalog", current == null || current.isEmpty() ? catalog.name() : current,
        "namespace", view.currentNamespace(),
        "schema", found.view().schema());
  }
}
