package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.aggregate;
import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.project;
import static org.apache.spark.sql.functions.expr;

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

/**
 * Computes the results of groups with changed rows from the stored values of the groups (see {@link
 * AggregateState}) and the changed rows. Groups for which this is not exact are computed again.
 *
 * <p>Columns of datasets: the keys k0, k1 and so on, and for each stored value the value before (s),
 * its change (d; for a minimum or maximum, the one of the added rows, a, and of the removed rows, r),
 * and the merged value (m).
 */
final class ChangeByState {
  private final StoredRows stored;
  private final StoredQuery query;
  private final DeltaRules rules;
  private final Evaluation evaluation;

  ChangeByState(StoredRows stored, StoredQuery query, DeltaRules rules, Evaluation evaluation) {
    this.stored = stored;
    this.query = query;
    this.rules = rules;
    this.evaluation = evaluation;
  }

  StoredRows.Change change() {
    LogicalPlan child = Plans.<LogicalPlan>list(query.core().children()).get(0);
    List<Expression> keys = query.keyExpressions();
    SignedRows delta = rules.net(child);
    Dataset<Row> merged = merged(delta, keys);
    LogicalPlan kept = evaluation.keep(merged.logicalPlan());
    Dataset<Row> groups = stored.rows(kept);
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
            : stored.named(groups.where("present").logicalPlan(), columns);
    return new StoredRows.Change(Plans.union(inserts), deletes, stored.keyNames());
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
      before.add(StoredRows.quoted(key.name()) + " AS o" + position);
      conditions.add("d.k" + position + " <=> s.o" + position);
    }
    for (Column column : query.stateColumns()) {
      before.add(StoredRows.quoted(column.name()) + " AS s" + (before.size() - keys.size()));
    }
    before.add("true AS present");
    Dataset<Row> last = stored.rows().selectExpr(before.toArray(String[]::new));
    Dataset<Row> joined =
        stored
            .rows(changes)
            .alias("d")
            .join(
                last.alias("s"),
                expr(
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
    return "if(m0 < 0, " + StoredRows.OTHER_ROWS + ", m0) AS m0";
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
}
