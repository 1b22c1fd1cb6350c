package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;
import org.apache.iceberg.util.EnvironmentUtil;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The catalog's own data as read-only tables in the namespace {@code system}. The Python child, which runs already,
 * describes, counts and plans them; only reading waits for workers of Spark's.
 */
final class SystemViews {
  static final String NAMESPACE = "system";
  static final Map<String, String> NAMESPACE_PROPERTIES =
      Map.of("comment", "What this catalog is made of, as read-only tables");

  private static final String FILES = "files";

  /** What the data source needs to find the catalog; anything else stays with the driver. */
  private static final Set<String> PASSED_ON = Set.of("store", "realm", "catalog", "branch");

  /** What a table of the catalog says itself. */
  private static final Set<String> OWN = Set.of("view", "prune");

  /** The view that is a stream, too. */
  private static final String FEED = "changes";

  private final Map<String, String> options = new HashMap<>();

  /** Of pyiceberg's FileIO: the view of files alone needs them on executors. */
  private final Map<String, String> fileOptions = new HashMap<>();

  private final Procedures python;

  SystemViews(Map<String, String> properties, Procedures python) {
    this.python = python;
    EnvironmentUtil.resolveAll(properties)
        .forEach(
            (key, value) -> {
              if (PASSED_ON.contains(key) || key.startsWith("store.")) {
                options.put(key, value);
              } else {
                fileOptions.put(FILES + "." + key, value);
              }
            });
  }

  static boolean isSystem(String[] namespace) {
    return namespace.length == 1 && NAMESPACE.equalsIgnoreCase(namespace[0]);
  }

  boolean isView(String name) {
    return python.views().contains(name.toLowerCase(Locale.ROOT));
  }

  Identifier[] list() {
    return python.views().stream()
        .map(view -> Identifier.of(new String[] {NAMESPACE}, view))
        .toArray(Identifier[]::new);
  }

  /** Refuses anything but reading a view, in the namespace and below it. */
  static void refuse(String[] namespace) {
    if (namespace.length > 0 && NAMESPACE.equalsIgnoreCase(namespace[0])) {
      throw new UnsupportedOperationException(
          "The namespace 'system' holds read-only views of the catalog itself and nothing else");
    }
  }

  Table load(Identifier identifier) throws NoSuchTableException {
    return load(identifier, new HashMap<>(options));
  }

  Table loadAsOf(Identifier identifier, String commit) throws NoSuchTableException {
    Map<String, String> all = new HashMap<>(options);
    all.put("as-of", commit);
    return load(identifier, all);
  }

  Table loadAsOf(Identifier identifier, long microseconds) throws NoSuchTableException {
    return loadAsOf(identifier, Instant.EPOCH.plus(microseconds, ChronoUnit.MICROS).toString());
  }

  private Table load(Identifier identifier, Map<String, String> all) throws NoSuchTableException {
    String view = identifier.name().toLowerCase(Locale.ROOT);
    String[] state = python.session().name().split("#", 2);
    if (!state[0].isEmpty()) {
      all.put("branch", state[0]);
    }
    if (state.length > 1) {
      all.putIfAbsent("as-of", state[1]);
    }
    if (view.equals(FILES)) {
      all.putAll(fileOptions);
    }
    all.put("view", view);
    // Filters may leave partitions out, because no two scans share a source.
    all.put("prune", "true");
    JsonNode columns = python.columns(all);
    if (columns == null) {
      throw new NoSuchTableException(identifier);
    }
    return new View(NAMESPACE + "." + identifier.name(), all, columns, python);
  }

  /** A view under its own name, which the Python data source does not know, and without its way to write. */
  private static final class View implements SupportsRead {
    private final String name;
    private final Map<String, String> options;
    private final Procedures python;
    private final StructType schema;
    private final boolean counted;

    View(String name, Map<String, String> options, JsonNode columns, Procedures python) {
      this.name = name;
      this.options = options;
      this.python = python;
      this.schema = (StructType) DataType.fromJson(columns.get("schema").toString());
      this.counted = columns.get("counted").asBoolean();
    }

    @Override
    public String name() {
      return name;
    }

    @Override
    public Column[] columns() {
      return CatalogV2Util.structTypeToV2Columns(schema);
    }

    @Override
    public Set<TableCapability> capabilities() {
      return FEED.equals(options.get("view"))
          ? Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ)
          : Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap readOptions) {
      Map<String, String> all = with(readOptions);
      if (!all.equals(options)) {
        // Refuses options in one line; Spark's planning would show the stack of a Python worker, too.
        python.columns(all);
      }
      return new ViewScanBuilder(python, all, schema, counted ? () -> python.count(all) : null);
    }

    /** The options of a query besides those of the catalog, whose store it cannot change. */
    private Map<String, String> with(CaseInsensitiveStringMap readOptions) {
      Map<String, String> all = new HashMap<>(options);
      if (readOptions.containsKey("reference")) {
        // A stream follows a reference or a branch of a catalog; that of the session was not asked for.
        all.keySet().removeAll(Set.of("catalog", "branch"));
      }
      readOptions.forEach(
          (key, value) -> {
            if (isTimeTravel(key)) {
              // Spark has loaded this view as of that already, and leaves the option where it was.
              return;
            }
            if (key.equals("store") || key.startsWith("store.") || OWN.contains(key)) {
              throw new IllegalArgumentException(
                  "The option '" + key + "' of " + name + " is fixed and cannot be given to a query");
            }
            all.put(key, value);
          });
      return all;
    }

    private static boolean isTimeTravel(String option) {
      SQLConf session = SQLConf.get();
      return option.equalsIgnoreCase(session.getConf(SQLConf.TIME_TRAVEL_VERSION_KEY()))
          || option.equalsIgnoreCase(session.getConf(SQLConf.TIME_TRAVEL_TIMESTAMP_KEY()));
    }
  }

  /** A scan of those columns alone that a query needs; the source itself has no way to leave some out. */
  private static final class ViewScanBuilder
      implements ScanBuilder,
          SupportsPushDownFilters,
          SupportsPushDownRequiredColumns,
          SupportsPushDownAggregates {
    private final Procedures python;
    private final Map<String, String> options;
    private final StructType schema;
    private final LongSupplier rows;
    private StructType wanted;
    private Filter[] filters = new Filter[0];
    private boolean onlyCounts;

    /**
     * @param rows counts all rows, or null if only a scan can
     */
    ViewScanBuilder(
        Procedures python, Map<String, String> options, StructType schema, LongSupplier rows) {
      this.python = python;
      this.options = options;
      this.schema = schema;
      this.rows = rows;
      this.wanted = schema;
    }

    /** Takes note of filters for the source, which only leaves rows out by them: Spark evaluates all of them. */
    @Override
    public Filter[] pushFilters(Filter[] pushed) {
      filters = pushed;
      return pushed;
    }

    @Override
    public Filter[] pushedFilters() {
      return new Filter[0];
    }

    @Override
    public void pruneColumns(StructType required) {
      Set<String> names = Set.of(required.fieldNames());
      StructField[] kept =
          Arrays.stream(schema.fields())
              .filter(field -> names.contains(field.name()))
              .toArray(StructField[]::new);
      // A batch without columns has no rows to count. The first column is one of those that cost least.
      wanted = new StructType(kept.length > 0 ? kept : new StructField[] {schema.fields()[0]});
    }

    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
      return rows != null
          && filters.length == 0
          && aggregation.groupByExpressions().length == 0
          && aggregation.aggregateExpressions().length == 1
          && aggregation.aggregateExpressions()[0] instanceof CountStar;
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
      onlyCounts = supportCompletePushDown(aggregation);
      return onlyCounts;
    }

    @Override
    public Scan build() {
      if (onlyCounts) {
        return new Count(rows);
      }
      return new ViewScan(python, options, wanted, isPushing() ? filters : new Filter[0]);
    }

    /** Whether filters may leave rows out before Spark evaluates each again: unless the session says otherwise. */
    private static boolean isPushing() {
      SQLConf session = SQLConf.get();
      return !session.contains(SQLConf.PYTHON_FILTER_PUSHDOWN_ENABLED().key())
          || session.pythonFilterPushDown();
    }
  }

  /** A row that says how many rows a view has, counted when the query is about to run. */
  private record Count(LongSupplier all) implements LocalScan {
    @Override
    public StructType readSchema() {
      return new StructType().add("count(*)", DataTypes.LongType, false);
    }

    @Override
    public InternalRow[] rows() {
      return new InternalRow[] {new GenericInternalRow(new Object[] {all.getAsLong()})};
    }
  }
}
