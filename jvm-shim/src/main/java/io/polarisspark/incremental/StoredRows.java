package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.aggregate;
import static io.polarisspark.incremental.Plans.project;

import io.polarisspark.incremental.AggregateState.Kind;
import io.polarisspark.incremental.StoredQuery.Column;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;

/** Computes the rows to delete from the stored rows of a view, and those to insert. */
final class StoredRows {
  /** Column of {@link Change#rows}: whether the row says which stored rows are deleted. */
  static final String DELETES = StoredQuery.HIDDEN + "deletes";

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
   */
  record Change(LogicalPlan inserts, LogicalPlan deletes, List<String> by) {}

  Change change() {
    rules.requireUnchangedSubqueries(query.plan());
    return switch (query.method()) {
      case BY_ROW -> byRow();
      case BY_KEY -> byKey();
      case BY_STATE -> byState();
    };
  }

  private Change byKey() {
    LogicalPlan child = Plans.<LogicalPlan>list(query.core().children()).get(0);
    Keys keys = rules.keys(child, query.keyExpressions());
    LogicalPlan rows = query.over(keys.restrict(child, query.keyExpressions()));
    return new Change(rows, named(keys.plan(), keys.columns()), keyNames());
  }

  private Change byRow() {
    LogicalPlan plan = query.plan();
    List<Attribute> columns = Plans.output(plan);
    SignedRows delta = rules.delta(plan);
    if (!delta.removes()) {
      return new Change(delta.select(columns).withoutWeight(columns), null, List.of());
    }
    for (Attribute column : columns) {
      if (!SignedRows.comparable(column.dataType())) {
        throw new NotIncrementalException("rows with column " + column.name() + " cannot be compared");
      }
    }
    LogicalPlan counted = evaluation.keep(delta.counted(columns).plan());
    Dataset<Row> changes = rows(counted).toDF(with("n", columns));
    LogicalPlan stored = rows(this.stored).logicalPlan();
    SignedRows all = SignedRows.of(stored, true);
    Dataset<Row> gone = changes.where("n < 0");
    Dataset<Row> found =
        rows(this.stored)
            .toDF(with(null, columns))
            .alias("s")
            .join(gone.alias("g"), org.apache.spark.sql.functions.expr(same(columns)), "left_semi");
    SignedRows before = SignedRows.of(found.logicalPlan(), true);
    Dataset<Row> copies =
        rows(before.counted(Plans.output(found.logicalPlan())).plan()).toDF(with("n", columns));
    Dataset<Row> left =
        gone.alias("g")
            .join(copies.alias("s"), org.apache.spark.sql.functions.expr(same(columns)), "left_outer")
            .selectExpr(
                with(
                    "if(s.n IS NULL OR s.n + g.n < 0, "
                        + "raise_error('the stored rows are not those of the last refresh'), s.n + g.n) AS n",
                    "g.",
                    columns));
    Dataset<Row> more = changes.where("n > 0").unionAll(left.where("n > 0"));
    Dataset<Row> inserts =
        more.selectExpr(with("explode(array_repeat(0, CAST(n AS INT))) AS n", "", columns))
            .drop("n")
            .toDF(query.columns().toArray(String[]::new));
    return new Change(
        inserts.logicalPlan(),
        gone.drop("n").toDF(query.columns().toArray(String[]::new)).logicalPlan(),
        query.columns());
  }

  private static String[] with(String last, List<Attribute> columns) {
    List<String> names = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      names.add("c" + position);
    }
    if (last != null) {
      names.add(last);
    }
    return names.toArray(String[]::new);
  }

  private static String[] with(String last, String prefix, List<Attribute> columns) {
    List<String> names = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      names.add(prefix + "c" + position);
    }
    names.add(last);
    return names.toArray(String[]::new);
  }

  /** Returns the condition in SQL that the rows g and s are the same. */
  private static String same(List<Attribute> columns) {
    List<String> conditions = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      conditions.add(same("g.c" + position, "s.c" + position, columns.get(position)));
    }
    return String.join(" AND ", conditions);
  }

  static String same(String one, String other, Attribute column) {
    List<String> conditions = new ArrayList<>();
    boolean isMap = column.dataType() instanceof org.apache.spark.sql.types.MapType;
    String form = isMap ? "map_entries(%s)" : "%s";
    conditions.add(form.formatted(one) + " <=> " + form.formatted(other));
    if (SignedRows.hasFloats(column.dataType())) {
      conditions.add("CAST(%s AS STRING) <=> CAST(%s AS STRING)".formatted(one, other));
    }
    return String.join(" AND ", conditions);
  }

  private Change byState() {
    LogicalPlan child = Plans.<LogicalPlan>list(query.core().children()).get(0);
    List<Expression> keys = query.keyExpressions();
    SignedRows delta = rules.net(child);
    Dataset<Row> merged = merged(delta, keys);
    LogicalPlan kept = evaluation.keep(merged.logicalPlan());
    Dataset<Row> groups = rows(kept);
    long again = 0;
    long present = 0;
    if (!evaluation.isEstimate()) {
      Row counts =
          groups.selectExpr("count_if(again)", "count_if(present)").collectAsList().get(0);
      again = counts.getLong(0);
      present = counts.getLong(1);
    }
    LogicalPlan known =
        groups.where(keys.isEmpty() ? "NOT again" : "NOT again AND m0 > 0").logicalPlan();
    List<LogicalPlan> inserts = new ArrayList<>();
    inserts.add(fromState(known, keys));
    if (again > 0) {
      inserts.add(computedAgain(groups, child, keys));
    }
    List<Attribute> columns = Plans.output(groups.logicalPlan()).subList(0, keys.size());
    LogicalPlan deletes =
        present == 0 && !evaluation.isEstimate()
            ? null
            : named(groups.where("present").logicalPlan(), columns);
    return new Change(Plans.union(inserts), deletes, keyNames());
  }

  private LogicalPlan computedAgain(Dataset<Row> groups, LogicalPlan child, List<Expression> keys) {
    if (keys.isEmpty()) {
      return query.plan();
    }
    LogicalPlan some = groups.where("again").logicalPlan();
    List<Expression> columns = new ArrayList<>(Plans.output(some).subList(0, keys.size()));
    Keys found = Keys.of(List.of(new Keys.Source(some, columns)), evaluation);
    return query.over(found.restrict(child, keys));
  }

  /** Returns the columns k0, ... (keys), m0, ... (merged values), again and present. */
  private Dataset<Row> merged(SignedRows delta, List<Expression> keys) {
    List<AggregateState.Value> values = query.state().values();
    // Named columns first, so that the rest can be said in SQL.
    List<NamedExpression> inputs = new ArrayList<>();
    List<Expression> groups = new ArrayList<>();
    for (Expression key : keys) {
      NamedExpression one = alias(key, "k" + groups.size());
      inputs.add(one);
      groups.add(one.toAttribute());
    }
    List<NamedExpression> results = new ArrayList<>();
    groups.forEach(one -> results.add((NamedExpression) one));
    for (int position = 0; position < values.size(); position++) {
      AggregateState.Value value = values.get(position);
      if (value.kind() == Kind.SUM) {
        NamedExpression input = alias(AggregateState.signed(value, delta.weight()), "i" + position);
        inputs.add(input);
        results.add(total(new Sum(input.toAttribute()), "d" + position));
      } else {
        NamedExpression added =
            alias(AggregateState.only(value, delta.weight(), true), "a" + position);
        NamedExpression removed =
            alias(AggregateState.only(value, delta.weight(), false), "r" + position);
        inputs.add(added);
        inputs.add(removed);
        results.add(extreme(value.kind(), added.toAttribute(), "a" + position));
        results.add(extreme(value.kind(), removed.toAttribute(), "r" + position));
      }
    }
    LogicalPlan changes = aggregate(groups, results, project(inputs, delta.plan()));
    List<String> before = new ArrayList<>();
    List<String> conditions = new ArrayList<>();
    for (Column key : query.keys()) {
      int position = conditions.size();
      before.add(quoted(key.name()) + " AS o" + position);
      conditions.add("d.k" + position + " <=> s.o" + position);
    }
    for (Column column : query.stateColumns()) {
      before.add(quoted(column.name()) + " AS s" + (before.size() - keys.size()));
    }
    before.add("true AS present");
    Dataset<Row> stored = rows(this.stored).selectExpr(before.toArray(String[]::new));
    Dataset<Row> joined =
        rows(changes)
            .alias("d")
            .join(
                stored.alias("s"),
                org.apache.spark.sql.functions.expr(
                    conditions.isEmpty() ? "true" : String.join(" AND ", conditions)),
                "left_outer");
    return joined.selectExpr(kept(keys.size()).toArray(String[]::new)).selectExpr(flagged(keys.size()));
  }

  private static NamedExpression total(Sum sum, String name) {
    return alias(sum.toAggregateExpression(), name);
  }

  private static NamedExpression extreme(Kind kind, Attribute input, String name) {
    AggregateFunction function = kind == Kind.MIN ? new Min(input) : new Max(input);
    return alias(function.toAggregateExpression(), name);
  }

  /** Returns SQL for the keys, the merged values, and whether a minimum or maximum was removed. */
  private List<String> kept(int keys) {
    List<String> columns = new ArrayList<>();
    for (int position = 0; position < keys; position++) {
      columns.add("k" + position);
    }
    List<String> again = new ArrayList<>(List.of("false"));
    List<AggregateState.Value> values = query.state().values();
    for (int position = 0; position < values.size(); position++) {
      AggregateState.Value value = values.get(position);
      String type = value.result().dataType().sql();
      String own = "s%1$d".formatted(position);
      if (value.kind() == Kind.SUM) {
        String sum =
            "coalesce(s%1$d, CAST(0 AS %2$s)) + coalesce(CAST(d%1$d AS %2$s), CAST(0 AS %2$s))"
                .formatted(position, type);
        columns.add("CAST(%s AS %s) AS m%d".formatted(sum, type, position));
        if (value.present() >= 0) {
          again.add("(%s IS NULL AND s%d > 0)".formatted(own, value.present()));
        }
      } else {
        boolean min = value.kind() == Kind.MIN;
        columns.add("%s(s%2$d, a%2$d) AS m%2$d".formatted(min ? "least" : "greatest", position));
        again.add(
            "(r%1$d IS NOT NULL AND (s%1$d IS NULL OR r%1$d %2$s s%1$d))"
                .formatted(position, min ? "<=" : ">="));
      }
    }
    columns.add("coalesce(" + String.join(" OR ", again) + ", false) AS again");
    columns.add("coalesce(present, false) AS present");
    return columns;
  }

  /** Returns SQL that makes sums null that have no values, and marks inexact results. */
  private String[] flagged(int keys) {
    List<String> columns = new ArrayList<>();
    for (int position = 0; position < keys; position++) {
      columns.add("k" + position);
    }
    List<String> again = new ArrayList<>(List.of("again"));
    query.state().inexact().forEach(one -> again.add("coalesce(" + one + ", true)"));
    List<AggregateState.Value> values = query.state().values();
    for (int position = 0; position < values.size(); position++) {
      int present = values.get(position).present();
      String merged = "m" + position;
      columns.add(
          present < 0
              ? position == 0 ? checked() : merged
              : "if(m%d = 0, NULL, %s) AS %2$s".formatted(present, merged));
      if (present >= 0) {
        again.add("(m%d > 0 AND %s IS NULL)".formatted(present, merged));
      }
    }
    columns.add(String.join(" OR ", again) + " AS again");
    columns.add("present");
    return columns.toArray(String[]::new);
  }

  private static String checked() {
    return "if(m0 < 0, raise_error('the stored rows are not those of the last refresh'), m0) AS m0";
  }

  private LogicalPlan fromState(LogicalPlan groups, List<Expression> keys) {
    List<Attribute> columns = Plans.output(groups);
    List<Attribute> values = columns.subList(keys.size(), columns.size() - 2);
    return query.of(
        groups,
        part -> {
          for (int position = 0; position < keys.size(); position++) {
            if (keys.get(position).semanticEquals(part)) {
              return columns.get(position);
            }
          }
          return null;
        },
        function -> query.state().merged(function, values),
        values);
  }

  private List<String> keyNames() {
    return query.keys().stream().map(Column::name).toList();
  }

  /** Returns a plan with the names of the stored key columns. */
  private LogicalPlan named(LogicalPlan plan, List<Attribute> columns) {
    List<NamedExpression> named = new ArrayList<>();
    for (int position = 0; position < query.keys().size(); position++) {
      named.add(alias(columns.get(position), query.keys().get(position).name()));
    }
    return project(named, plan);
  }

  private Dataset<Row> rows(LogicalPlan plan) {
    return Plans.rows(spark, plan);
  }

  private Dataset<Row> rows(String sql) {
    return (Dataset<Row>) spark.sql(sql);
  }

  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }
}
