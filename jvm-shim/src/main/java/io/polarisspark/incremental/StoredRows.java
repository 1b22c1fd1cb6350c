package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.project;

import io.polarisspark.incremental.StoredQuery.Column;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.MapType;

/** Computes the rows to delete from the stored rows of a view, and those to insert. */
final class StoredRows {
  /**
   * Column of the source of MERGE: true in rows with the keys of stored rows to delete, false in rows to
   * insert.
   */
  static final String DELETES = StoredQuery.HIDDEN + "deletes";

  /** Message of the error if an incremental refresh does not find the stored rows that it expects. */
  static final String OTHER_ROWS = "the stored rows are not those of the last refresh";

  /** SQL that raises this error. */
  static final String RAISE_OTHER_ROWS = "raise_error('" + OTHER_ROWS + "')";

  private final SparkSession spark;
  private final StoredQuery query;
  private final DeltaRules rules;
  private final Evaluation evaluation;

  /** SQL that returns the stored rows. */
  private final String stored;

  StoredRows(
      SparkSession spark,
      StoredQuery query,
      DeltaRules rules,
      Evaluation evaluation,
      String stored) {
    this.spark = spark;
    this.query = query;
    this.rules = rules;
    this.evaluation = evaluation;
    this.stored = stored;
  }

  /**
   * A change of the stored rows.
   *
   * @param inserts the rows to insert
   * @param deletes rows that say which stored rows to delete; null if none are deleted
   * @param by names of the columns in which stored rows and rows of {@code deletes} are equal
   * @param files paths of the data files with the rows to delete; null if they are not known
   */
  record Change(LogicalPlan inserts, LogicalPlan deletes, List<String> by, Set<String> files) {
    /** Returns a change that deletes no rows. */
    static Change inserts(LogicalPlan rows) {
      return new Change(rows, null, List.of(), null);
    }
  }

  Change change() {
    rules.requireUnchangedSubqueries(query.plan());
    return switch (query.method()) {
      case BY_ROW -> new ChangeByRow(this, query, evaluation).of(rules.delta(query.plan()));
      case BY_KEY -> byKey();
      case BY_STATE -> new ChangeByState(this, query, rules, evaluation).change();
    };
  }

  /**
   * Checks that there are rules by which the change can be computed. Nothing is computed.
   *
   * @throws NotIncrementalException there are none
   */
  void check() {
    rules.requireUnchangedSubqueries(query.plan());
    if (query.method() == StoredQuery.Method.BY_ROW) {
      new ChangeByRow(this, query, evaluation).check(rules.delta(query.plan()));
    } else {
      rules.delta(child());
    }
  }

  /** Returns the plan whose rows the outermost aggregate or window reads. */
  LogicalPlan child() {
    return Plans.<LogicalPlan>list(query.core().children()).get(0);
  }

  private Change byKey() {
    LogicalPlan child = child();
    Keys keys = rules.keys(child, query.keyExpressions());
    LogicalPlan rows = query.over(keys.restrict(child, query.keyExpressions()));
    return new Change(rows, named(keys.plan(), keys.columns()), keyNames(), null);
  }

  List<String> keyNames() {
    return query.keys().stream().map(Column::name).toList();
  }

  /** Returns the columns of a plan, under the names of the stored columns of the keys. */
  LogicalPlan named(LogicalPlan plan, List<Attribute> columns) {
    List<NamedExpression> named = new ArrayList<>();
    for (int position = 0; position < query.keys().size(); position++) {
      named.add(alias(columns.get(position), query.keys().get(position).name()));
    }
    return project(named, plan);
  }

  /** Returns the stored rows. */
  Dataset<Row> rows() {
    return (Dataset<Row>) spark.sql(stored);
  }

  Dataset<Row> rows(LogicalPlan plan) {
    return Plans.rows(spark, plan);
  }

  /** Returns the condition, in SQL, that two values of a column are the same (see {@link SignedRows#identity}). */
  static String same(String one, String other, Attribute column) {
    List<String> conditions = new ArrayList<>();
    boolean isMap = column.dataType() instanceof MapType;
    String form = isMap ? "map_entries(%s)" : "%s";
    conditions.add(form.formatted(one) + " <=> " + form.formatted(other));
    if (SignedRows.hasFloats(column.dataType())) {
      conditions.add("CAST(%s AS STRING) <=> CAST(%s AS STRING)".formatted(one, other));
    }
    return String.join(" AND ", conditions);
  }

  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }
}
