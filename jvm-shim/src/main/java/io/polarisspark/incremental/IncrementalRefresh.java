package io.polarisspark.incremental;

import com.fasterxml.jackson.core.type.TypeReference;
import io.polarisspark.Json;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.iceberg.spark.CommitMetadata;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Refreshes the stored rows of one view, in full or incrementally. Python calls it, and passes lists and maps in JSON,
 * because Py4J sends a request for every element of a list.
 *
 * <p>An incremental refresh computes the change of the query's result from the changes of its tables,
 * and applies it to the stored rows in one commit.
 */
public final class IncrementalRefresh implements AutoCloseable {
  private static final TypeReference<List<String>> NAMES = new TypeReference<>() {};
  private static final TypeReference<Map<String, Long>> IDS = new TypeReference<>() {};

  /** Number of bytes that a refresh may read whatever a full refresh reads. */
  private static final long SMALL = 16L << 20;

  /** Largest number of deleted rows whose keys become literals in MERGE, so that it skips files. */
  private static final int LITERALS = 1_000;

  private final SparkSession spark;
  private final StoredQuery query;
  private final String hindrance;
  private final LogicalPlan analyzed;
  private final LogicalPlan plan;
  private String stored;
  private Sources sources;
  private Evaluation evaluation;
  private StoredRows.Change change;

  /**
   * @param spark the session
   * @param sql the query, which reads all tables as of snapshots
   * @param columns names of the view's columns, in JSON
   */
  public IncrementalRefresh(
      org.apache.spark.sql.SparkSession spark, String sql, String columns) {
    this.spark = (SparkSession) spark;
    this.analyzed = this.spark.sql(sql).queryExecution().analyzed();
    LogicalPlan rewritten = null;
    StoredQuery stored = null;
    String why;
    try {
      rewritten = NormalForm.of(analyzed);
      stored = new StoredQuery(rewritten, Json.read(columns, NAMES));
      why = Hindrance.of(analyzed, rewritten);
    } catch (Exception error) { // Spark throws exceptions of all classes; a full refresh is still possible
      why = "its plan cannot be rewritten: " + error.getMessage();
    }
    this.plan = rewritten;
    this.hindrance = why;
    this.query = stored;
  }

  /** Returns Spark's plan of the query. */
  public LogicalPlan analyzed() {
    return analyzed;
  }

  /** Returns why the query can never be refreshed incrementally; an empty text if it can. */
  public String hindrance() {
    return hindrance;
  }

  /** Returns the stored columns that the view does not show, in JSON: name, type in SQL, and what it holds. */
  public String hidden() {
    return Json.write(
        query.hidden().stream()
            .map(one -> List.of(one.name(), one.attribute().dataType().sql(), one.holds()))
            .toList());
  }

  /** Returns all rows to store. */
  public Dataset<Row> rows() {
    return Plans.rows(spark, query.plan());
  }

  /**
   * Finds what has changed, and whether an incremental refresh is possible and pays.
   *
   * @param since ids of the snapshots that the last refresh read (-1 for none), by the UUID of a table,
   *     "@", and the id of the snapshot that the query reads; in JSON
   * @param stored name of the storage table, and its snapshot, as in SQL
   * @param limit the largest part of the bytes of all tables that an incremental refresh may read
   * @return why an incremental refresh is not possible or does not pay; an empty text if it is possible
   */
  public String estimate(String since, String stored, double limit) {
    close();
    try {
      sources = new Sources(plan, Json.read(since, IDS));
      this.stored = "SELECT " + String.join(", ", columns(stored)) + " FROM " + stored;
    } catch (NotIncrementalException error) {
      return error.getMessage();
    }
    long all = Math.max(sources.amount(plan).bytes(), sources.amount(sources.before(plan)).bytes());
    Amount changed = sources.changed();
    if (changed.bytes() > limit * all) {
      return "%,d of %,d bytes have changed".formatted(changed.bytes(), all);
    }
    if (!sources.isChanged(plan)) {
      return "";
    }
    try (Evaluation estimate = new Evaluation(spark, true)) {
      rows(estimate).check();
      return "";
    } catch (NotIncrementalException error) {
      return error.getMessage();
    }
  }

  /**
   * Returns the stored columns in SQL, with the types that the query has for them. A byte is stored as an integer, for
   * example, and rows that are compared in Java must have values of the same class.
   *
   * @throws NotIncrementalException the type of a stored column cannot hold all values of the query's column
   */
  private List<String> columns(String stored) {
    StructType types = spark.sql("SELECT * FROM " + stored).schema();
    List<String> columns = new ArrayList<>();
    for (Attribute column : Plans.output(query.plan())) {
      String name = StoredRows.quoted(column.name());
      DataType type = column.dataType();
      DataType now = types.apply(column.name()).dataType();
      if (!StoredTypes.keeps(type, now)) {
        throw new NotIncrementalException(
            "the stored column %s has the type %s, and the query now has the type %s"
                .formatted(column.name(), now.simpleString(), type.simpleString()));
      }
      boolean same = type.simpleString().equals(now.simpleString());
      columns.add(
          same || !(type instanceof AtomicType)
              ? name
              : "CAST(%s AS %s) AS %s".formatted(name, type.sql(), name));
    }
    return columns;
  }

  /** Returns the numbers of files, bytes and rows that have changed, in JSON. */
  public String changed() {
    Amount found = sources == null ? Amount.NONE : sources.changed();
    return Json.write(List.of(found.files(), found.bytes(), found.rows()));
  }

  /**
   * Computes the change of the stored rows.
   *
   * @return why it cannot be computed, or computing it does not pay; an empty text if it does
   */
  public String compute(double limit) {
    evaluation = new Evaluation(spark, false);
    if (!sources.isChanged(plan)) {
      change = StoredRows.Change.inserts(Plans.empty(Plans.output(query.plan())));
      return "";
    }
    try {
      change = rows(evaluation).change();
    } catch (NotIncrementalException error) {
      return error.getMessage();
    }
    long reads = Sources.relations(change.inserts()).isEmpty() ? 0 : planned(change.inserts());
    if (reads <= SMALL) {
      return "";
    }
    long all = planned(query.plan());
    return reads > limit * all
        ? "it would read %,d bytes, and a full refresh %,d".formatted(reads, all)
        : "";
  }

  /**
   * Writes the computed change to the stored rows.
   *
   * @param table name of the storage table, as in SQL
   * @param entries entries for the summary of the snapshot, in JSON
   */
  public void write(String table, String entries) throws Exception {
    Map<String, String> summary = Json.readStrings(entries);
    Dataset<Row> inserts = Plans.rows(spark, change.inserts());
    if (Plans.isLocal(change.inserts())) {
      inserts = inserts.coalesce(1); // otherwise Spark writes a file for each of its cores
    }
    List<InternalRow> deletes =
        change.deletes() == null ? List.of() : evaluation.collected(change.deletes(), LITERALS);
    if (deletes != null && deletes.isEmpty()) {
      append(table, inserts, summary);
      return;
    }
    FileReplacement files =
        new FileReplacement(
            spark, Sources.relations(rows(evaluation).rows().logicalPlan()).get(0));
    if (files.isUsual()) {
      replace(files, table, inserts, deletes, summary);
      return;
    }
    String source = "polaris_refresh_" + UUID.randomUUID().toString().replace("-", "");
    marked(inserts).createOrReplaceTempView(source);
    try {
      CommitMetadata.withCommitProperties(
          summary, () -> spark.sql(merge(table, source, deletes)), Exception.class);
    } finally {
      spark.catalog().dropTempView(source);
    }
  }

  private static void append(String table, Dataset<Row> rows, Map<String, String> summary)
      throws NoSuchTableException {
    var writer = rows.writeTo(table);
    summary.forEach((key, text) -> writer.option("snapshot-property." + key, text));
    writer.append();
  }

  private void replace(
      FileReplacement files,
      String table,
      Dataset<Row> inserts,
      List<InternalRow> deletes,
      Map<String, String> summary)
      throws NoSuchTableException {
    Dataset<Row> rows = Plans.rows(spark, change.deletes());
    List<String> same = conditions();
    Set<String> paths = change.files();
    if (paths == null) {
      List<String> all = new ArrayList<>(same);
      if (deletes != null) {
        all.addAll(literals(deletes));
      }
      paths = files.files(rows, String.join(" AND ", all));
    }
    if (paths.isEmpty()) {
      append(table, inserts, summary);
      return;
    }
    files.commit(paths, rows, String.join(" AND ", same), inserts, summary);
    if (!spark.sharedState().cacheManager().isEmpty()) {
      spark.catalog().refreshTable(table);
    }
  }

  /** Returns the conditions, in SQL, that the stored row t is the row s to delete. */
  private List<String> conditions() {
    List<String> conditions = new ArrayList<>();
    for (Attribute column : Plans.output(query.plan())) {
      if (change.by().contains(column.name())) {
        String name = StoredRows.quoted(column.name());
        conditions.add(
            query.method() == StoredQuery.Method.BY_ROW
                ? StoredRows.same("t." + name, "s." + name, column)
                : "t.%1$s <=> s.%1$s".formatted(name));
      }
    }
    return conditions.isEmpty() ? List.of("true") : conditions;
  }

  @Override
  public void close() {
    if (evaluation != null) {
      evaluation.close();
      evaluation = null;
    }
    if (sources != null) {
      sources.close();
      sources = null;
    }
  }

  private StoredRows rows(Evaluation with) {
    return new StoredRows(spark, query, new DeltaRules(sources, with), with, stored);
  }

  /** Returns the rows to insert and the keys of the rows to delete, marked. */
  private Dataset<Row> marked(Dataset<Row> inserts) {
    Dataset<Row> deletes = Plans.rows(spark, change.deletes());
    List<String> keys = new ArrayList<>();
    for (String name : query.columns()) {
      keys.add(
          change.by().contains(name)
              ? StoredRows.quoted(name)
              : "CAST(NULL AS %s) AS %s".formatted(types().get(name), StoredRows.quoted(name)));
    }
    keys.add("true AS " + StoredRows.DELETES);
    return inserts
        .selectExpr("*", "false AS " + StoredRows.DELETES)
        .unionAll(deletes.selectExpr(keys.toArray(String[]::new)));
  }

  /**
   * @param deletes the rows to delete; null if there are many
   */
  private String merge(String table, String source, List<InternalRow> deletes) {
    List<String> conditions = new ArrayList<>(List.of("s." + StoredRows.DELETES));
    conditions.addAll(conditions());
    if (deletes != null) {
      conditions.addAll(literals(deletes));
    }
    List<String> names = query.columns().stream().map(StoredRows::quoted).toList();
    return "MERGE INTO %s t USING %s s ON %s WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.%s THEN INSERT (%s) VALUES (s.%s)"
        .formatted(
            table,
            source,
            String.join(" AND ", conditions),
            StoredRows.DELETES,
            String.join(", ", names),
            String.join(", s.", names));
  }

  /** Returns conditions in SQL that all rows to delete meet. */
  private List<String> literals(List<InternalRow> rows) {
    List<Attribute> columns = Plans.output(change.deletes());
    List<String> conditions = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      Attribute column = columns.get(position);
      if (!change.by().contains(column.name()) || !Keys.hasLiterals(column.dataType())) {
        continue;
      }
      Set<String> values = new LinkedHashSet<>();
      boolean hasNull = false;
      for (InternalRow row : rows) {
        if (row.isNullAt(position)) {
          hasNull = true;
        } else {
          values.add(literal(row.get(position, column.dataType()), column.dataType()));
        }
      }
      String name = "t." + StoredRows.quoted(column.name());
      String in = values.isEmpty() ? "false" : name + " IN (" + String.join(", ", values) + ")";
      conditions.add(hasNull ? "(" + in + " OR " + name + " IS NULL)" : in);
    }
    return conditions;
  }

  /**
   * Returns a value in SQL that means the same in all sessions. The meaning of quoted texts depends on the setting
   * {@code escapedStringLiterals}, and a local time can be ambiguous.
   */
  private static String literal(Object value, DataType type) {
    if (type instanceof StringType) {
      return "CAST(X'" + HexFormat.of().formatHex(((UTF8String) value).getBytes()) + "' AS STRING)";
    }
    return type instanceof TimestampType
        ? "timestamp_micros(" + value + "L)"
        : new Literal(value, type).sql();
  }

  private Map<String, String> types() {
    return Plans.output(query.plan()).stream()
        .collect(Collectors.toMap(Attribute::name, one -> one.dataType().sql()));
  }

  /** Returns the number of bytes that a plan reads from tables, as Spark estimates it. */
  private long planned(LogicalPlan rows) {
    return scanned(Plans.rows(spark, rows).queryExecution().optimizedPlan());
  }

  private static long scanned(LogicalPlan plan) {
    long bytes =
        plan instanceof DataSourceV2ScanRelation relation
                && relation.scan() instanceof SupportsReportStatistics scan
            ? scan.estimateStatistics().sizeInBytes().orElse(0)
            : 0;
    for (LogicalPlan child : Plans.<LogicalPlan>list(plan.children())) {
      bytes += scanned(child);
    }
    return bytes;
  }
}
