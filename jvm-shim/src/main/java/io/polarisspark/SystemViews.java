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
 * The system views: the catalog's own data as read-only tables in the namespace {@code system}. The Python process,
 * which is already running, describes, counts and plans them. Only reading them starts Spark's Python workers.
 */
final class SystemViews {
  static final String NAMESPACE = "system";
  static final Map<String, String> NAMESPACE_PROPERTIES =
      Map.of("comment", "Read-only views of this catalog's own data, such as its tables, commits and stored objects");

  private static final String FILES = "files";

  /** Properties that the data source needs to open the catalog. Other properties are not sent to executors. */
  private static final Set<String> PASSED_ON = Set.of("store", "realm", "catalog", "branch", "credential");

  /** Options that the system view sets itself. */
  private static final Set<String> OWN = Set.of("view", "prune");

  /** The view that can also be read as a stream. */
  private static final String FEED = "changes";

  private final Map<String, String> options = new HashMap<>();

  /** Properties of pyiceberg's FileIO, which only the view {@code files} needs on executors. */
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

  /** Refuses all operations in the namespace {@code system} except reading views. */
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
    // Filters may skip partitions, because each scan has its own source.
    all.put("prune", "true");
    JsonNode columns = python.columns(all);
    if (columns == null) {
      throw new NoSuchTableException(identifier);
    }
    return new View(NAMESPACE + "." + identifier.name(), all, columns, python);
  }

  /**
   * A system view under its name, read-only. Tables of the Python data source have another name and can be written to.
   */
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
        // Refuses wrong options with a one-line error. Spark's planning would add the stack trace of a Python worker.
        python.columns(all);
      }
      return new ViewScanBuilder(python, all, schema, counted ? () -> python.count(all) : null);
    }

    /** Returns the catalog's options with a query's options. A query cannot change the store. */
    private Map<String, String> with(CaseInsensitiveStringMap readOptions) {
      Map<String, String> all = new HashMap<>(options);
      if (readOptions.containsKey("reference")) {
        // A stream follows either a reference or a branch of a catalog, so the session's branch does not apply.
        all.keySet().removeAll(Set.of("catalog", "branch"));
      }
      readOptions.forEach(
          (key, value) -> {
            if (isTimeTravel(key)) {
              // Spark has already loaded the view as of this version or time, but leaves the option in place.
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

  /** Plans a scan of only the columns that a query needs. The Python data source cannot skip columns. */
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
     * @param rows counts all rows; null if only a scan can count them
     */
    ViewScanBuilder(
        Procedures python, Map<String, String> options, StructType schema, LongSupplier rows) {
      this.python = python;
      this.options = options;
      this.schema = schema;
      this.rows = rows;
      this.wanted = schema;
    }

    /** Keeps the filters for the source, which may use them to skip rows. Spark evaluates all filters again. */
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
      // A batch without columns has no row count. The first column is among the cheapest to read.
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

    /** Returns whether the source may use filters to skip rows. True unless the session's settings disable it. */
    private static boolean isPushing() {
      SQLConf session = SQLConf.get();
      return !session.contains(SQLConf.PYTHON_FILTER_PUSHDOWN_ENABLED().key())
          || session.pythonFilterPushDown();
    }
  }

  /** A scan of one row: the number of rows in a view. They are counted immediately before the query runs. */
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
