package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.aggregate;
import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.project;
import static org.apache.spark.sql.functions.expr;

import io.polarisspark.incremental.AggregateState.Kind;
import io.polarisspark.incremental.StoredQuery.Column;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
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
  /** Column: whether a group is computed again. */
  private static final String AGAIN = "again";

  /** Column: whether there is a stored row of a group. */
  private static final String PRESENT = "present";

  private final StoredRows stored;
  private final StoredQuery query;
  private final DeltaRules rules;
  private final Evaluation evaluation;

  /** Paths of the data files with stored rows of changed groups; null if they are not known. */
  private Set<String> files;

  ChangeByState(StoredRows stored, StoredQuery query, DeltaRules rules, Evaluation evaluation) {
    this.stored = stored;
    this.query = query;
    this.rules = rules;
    this.evaluation = evaluation;
  }

  StoredRows.Change change() {
    LogicalPlan child = stored.child();
    List<Expression> keys = query.keyExpressions();
    Evaluation.Kept merged = evaluation.keep(merged(rules.net(child), keys).logicalPlan());
    Dataset<Row> groups = stored.rows(merged.plan());
    List<LogicalPlan> inserts = new ArrayList<>();
    inserts.add(
        fromState(
            groups.where(keys.isEmpty() ? "NOT again" : "NOT again AND m0 > 0").logicalPlan(), keys));
    if (hasAny(merged, AGAIN)) {
      inserts.add(computedAgain(groups, child, keys));
    }
    List<Attribute> columns = Plans.output(groups.logicalPlan()).subList(0, keys.size());
    LogicalPlan deletes =
        hasAny(merged, PRESENT)
            ? stored.named(groups.where(PRESENT).logicalPlan(), columns)
            : null;
    return new StoredRows.Change(Plans.union(inserts), deletes, stored.keyNames(), files);
  }

  private static Set<String> texts(Evaluation.Kept rows, String column) {
    int position = position(rows, column);
    return rows.rows().stream().map(row -> row.getString(position)).collect(Collectors.toSet());
  }

  private static int position(Evaluation.Kept rows, String column) {
    return Plans.output(rows.plan()).stream().map(Attribute::name).toList().indexOf(column);
  }

  /** Whether a column is true in any row. */
  private boolean hasAny(Evaluation.Kept rows, String column) {
    if (rows.rows() == null) {
      return !stored.rows(rows.plan()).where(column).isEmpty();
    }
    int position = position(rows, column);
    return rows.rows().stream().anyMatch(row -> row.getBoolean(position));
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
    Evaluation.Kept changes =
        evaluation.keep(aggregate(groups, results, project(inputs, delta.plan())));
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
    before.add(FileReplacement.FILE + " AS file");
    Dataset<Row> joined = joined(changes, before.toArray(String[]::new), conditions);
    return joined.selectExpr(kept(keys.size()).toArray(String[]::new)).selectExpr(flagged(keys.size()));
  }

  /**
   * Returns the changes of groups with the stored values of the groups.
   *
   * @param before the stored keys and values, in SQL
   * @param conditions the conditions that keys are the same, in SQL
   */
  private Dataset<Row> joined(
      Evaluation.Kept changes, String[] before, List<String> conditions) {
    Dataset<Row> last = stored.rows().selectExpr(before);
    int keys = conditions.size();
    List<Attribute> columns = Plans.output(changes.plan());
    if (changes.rows() != null) {
      LogicalPlan some = last.logicalPlan();
      if (keys > 0) {
        List<Expression> theirs = new ArrayList<>(Plans.output(some).subList(0, keys));
        some = Keys.of(changes, columns.subList(0, keys)).restrict(some, theirs);
      }
      if (columns.subList(0, keys).stream().allMatch(one -> LocalJoin.canCompare(one.dataType()))) {
        Evaluation.Kept found = evaluation.keep(some);
        if (found.rows() != null) {
          files = texts(found, "file");
          return stored.rows(LocalJoin.leftOuter(changes, found, keys));
        }
        some = found.plan();
      }
      last = stored.rows(some);
    }
    return stored
        .rows(changes.plan())
        .alias("d")
        .join(
            last.alias("s"),
            expr(conditions.isEmpty() ? "true" : String.join(" AND ", conditions)),
            "left_outer");
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
    return "if(m0 < 0, " + StoredRows.RAISE_OTHER_ROWS + ", m0) AS m0";
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
