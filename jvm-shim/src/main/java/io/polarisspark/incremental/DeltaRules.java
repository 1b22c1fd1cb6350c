package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.join;
import static io.polarisspark.incremental.Plans.list;
import static io.polarisspark.incremental.Plans.seq;

import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.plans.Cross$;
import org.apache.spark.sql.catalyst.plans.FullOuter$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftOuter$;
import org.apache.spark.sql.catalyst.plans.RightOuter$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;

/**
 * The change of a plan's result, computed from the changes of its tables, for each operator.
 *
 * <p>Projections, filters, generators and unions are linear: the change of their result is their
 * result for the change of their input. The change of an inner join has a term for each side (Budiu
 * et al., "DBSP", VLDB 2023, sections 3 and 4). Of aggregates, windows and outer joins, the results
 * for the changed keys are computed for both states, and those of the earlier state are removed.
 */
final class DeltaRules {
  private final Sources sources;
  private final Evaluation evaluation;

  /** The windows of which all partitions have been checked ({@link #requireOrder}). */
  private final Set<LogicalPlan> ordered = Collections.newSetFromMap(new IdentityHashMap<>());

  DeltaRules(Sources sources, Evaluation evaluation) {
    this.sources = sources;
    this.evaluation = evaluation;
  }

  /** Whether a plan reads a table that has changed. */
  boolean isChanged(LogicalPlan plan) {
    return sources.isChanged(plan);
  }

  /**
   * Checks that no subquery in an expression of a plan reads a table that has changed. Such subqueries are those that
   * Spark cannot replace by joins.
   *
   * @throws NotIncrementalException a subquery reads such a table
   */
  void requireUnchangedSubqueries(LogicalPlan plan) {
    if (Plans.<LogicalPlan>list(plan.subqueries()).stream().anyMatch(this::isChanged)) {
      throw new NotIncrementalException(
          "a table that a subquery in an expression reads has changed");
    }
    Plans.<LogicalPlan>list(plan.children()).forEach(this::requireUnchangedSubqueries);
  }

  /**
   * Returns the change of a plan's result. The plan reads a table that has changed.
   *
   * @throws NotIncrementalException the plan has an operator for which there is no rule
   */
  SignedRows delta(LogicalPlan plan) {
    if (plan instanceof DataSourceV2Relation relation) {
      return sources.delta(relation);
    }
    if (plan instanceof Project node) {
      return delta(node.child()).select(list(node.projectList()));
    }
    if (plan instanceof Filter node) {
      return linear(node, node.child());
    }
    if (plan instanceof Generate node) {
      return linear(node, node.child());
    }
    if (plan instanceof Expand node) {
      return expand(node);
    }
    if (plan instanceof Union node) {
      return union(node);
    }
    if (plan instanceof Sort || plan instanceof RepartitionOperation || plan instanceof RebalancePartitions) {
      return delta(Plans.<LogicalPlan>list(plan.children()).get(0));
    }
    if (plan instanceof Join node) {
      return join(node);
    }
    if (plan instanceof Aggregate node) {
      return byKey(node, node.child(), list(node.groupingExpressions()));
    }
    if (plan instanceof Window node) {
      require(!node.partitionSpec().isEmpty(), "it contains a window without PARTITION BY");
      return window(node);
    }
    throw new NotIncrementalException("it contains " + plan.nodeName());
  }

  /** Returns the keys in the changed rows of a plan; all columns of the expressions are the plan's. */
  Keys keys(LogicalPlan plan, List<Expression> expressions) {
    requireOrder(plan);
    return Keys.of(List.of(changed(plan, expressions)), evaluation);
  }

  /** Returns the change of a plan without rows that were both added and removed. */
  SignedRows net(LogicalPlan plan) {
    return delta(plan).net(Plans.output(plan));
  }

  private SignedRows linear(LogicalPlan node, LogicalPlan child) {
    SignedRows inner = delta(child).select(Plans.output(child));
    return inner.with(Plans.withChildren(node, List.of(inner.plan())));
  }

  private SignedRows expand(Expand node) {
    SignedRows inner = delta(node.child());
    List<scala.collection.immutable.Seq<Expression>> rows = new ArrayList<>();
    for (scala.collection.immutable.Seq<Expression> one :
        Plans.<scala.collection.immutable.Seq<Expression>>list(node.projections())) {
      List<Expression> values = list(one);
      values.add(inner.weight());
      rows.add(seq(values));
    }
    List<Attribute> columns = Plans.output(node);
    Attribute weight = Plans.alias(inner.weight(), inner.weight().name()).toAttribute();
    columns.add(weight);
    return new SignedRows(
        new Expand(seq(rows), seq(columns), inner.plan()), weight, inner.removes(), inner.isNet());
  }

  private SignedRows union(Union node) {
    List<Attribute> columns = Plans.output(node);
    List<SignedRows> terms = new ArrayList<>();
    for (LogicalPlan child : Plans.<LogicalPlan>list(node.children())) {
      if (isChanged(child)) {
        List<Attribute> theirs = Plans.output(child);
        List<NamedExpression> renamed = new ArrayList<>();
        for (int position = 0; position < columns.size(); position++) {
          renamed.add(Plans.as(theirs.get(position), columns.get(position)));
        }
        terms.add(delta(child).select(renamed));
      }
    }
    return SignedRows.sum(columns, terms);
  }

  private SignedRows join(Join node) {
    JoinType type = node.joinType();
    if (type == Inner$.MODULE$ || type == Cross$.MODULE$) {
      return innerJoin(node);
    }
    if (type == RightOuter$.MODULE$) {
      Join mirrored =
          Plans.join(
              node.right(), node.left(), LeftOuter$.MODULE$, node.condition().getOrElse(() -> null));
      return leftJoin(mirrored).select(Plans.output(node));
    }
    return type == FullOuter$.MODULE$ ? fullJoin(node) : leftJoin(node);
  }

  /** With L' and R' as the later states: (L' x R') - (L x R) = dL x R' + L x dR. */
  private SignedRows innerJoin(Join node) {
    requireOrder(node);
    List<SignedRows> terms = new ArrayList<>();
    if (isChanged(node.left())) {
      terms.add(joined(node, net(node.left()), node.right()));
    }
    if (isChanged(node.right())) {
      SignedRows right = net(node.right());
      LogicalPlan plan =
          Plans.withChildren(node, List.of(sources.before(node.left()), right.plan()));
      terms.add(right.with(plan));
    }
    return SignedRows.sum(Plans.output(node), terms);
  }

  /**
   * The change of an outer, semi or anti join that returns the rows of its left side. It is linear in
   * the left side. Where the right side has changed, rows of the left side with the keys of the changed
   * rows are joined with both states of the right side.
   */
  private SignedRows leftJoin(Join node) {
    requireOrder(node);
    List<SignedRows> terms = new ArrayList<>();
    if (isChanged(node.left())) {
      terms.add(joined(node, net(node.left()), node.right()));
    }
    if (isChanged(node.right())) {
      Equalities equal = Equalities.of(node);
      LogicalPlan left = sources.before(node.left());
      LogicalPlan right = node.right();
      LogicalPlan rightBefore = sources.before(right);
      if (!equal.left.isEmpty()) {
        Keys keys = keys(right, equal.right);
        left = keys.restrict(left, equal.left);
        right = keys.restrict(right, equal.right);
        rightBefore = keys.restrict(rightBefore, equal.right);
      }
      terms.add(SignedRows.of(Plans.withChildren(node, List.of(left, right)), true));
      terms.add(SignedRows.of(Plans.withChildren(node, List.of(left, rightBefore)), false).gross());
    }
    return SignedRows.sum(Plans.output(node), terms);
  }

  private SignedRows fullJoin(Join node) {
    requireOrder(node);
    Equalities equal = Equalities.of(node);
    if (equal.left.isEmpty()) {
      return difference(node, sources.before(node));
    }
    List<Keys.Source> changed = new ArrayList<>();
    if (isChanged(node.left())) {
      changed.add(changed(node.left(), equal.left));
    }
    if (isChanged(node.right())) {
      changed.add(changed(node.right(), equal.right));
    }
    Keys keys = Keys.of(changed, evaluation);
    Function<LogicalPlan, LogicalPlan> restricted =
        plan -> {
          List<LogicalPlan> sides = list(plan.children());
          return Plans.withChildren(
              plan,
              List.of(
                  keys.restrict(sides.get(0), equal.left),
                  keys.restrict(sides.get(1), equal.right)));
        };
    return difference(restricted.apply(node), restricted.apply(sources.before(node)));
  }

  private static SignedRows joined(Join node, SignedRows left, LogicalPlan right) {
    LogicalPlan plan = Plans.withChildren(node, List.of(left.plan(), right));
    return left.with(plan);
  }

  /** The change of a window. The rows of its partitions with changed rows are computed again. */
  private SignedRows window(Window node) {
    List<Expression> partition = list(node.partitionSpec());
    Keys keys = keys(node.child(), partition);
    LogicalPlan before = keys.restrict(sources.before(node.child()), partition);
    requireOrder(node, before);
    return difference(
        Plans.withChildren(node, List.of(keys.restrict(node.child(), partition))),
        Plans.withChildren(node, List.of(before)));
  }

  /**
   * Checks the windows in a plan, of which rows are computed again although their partitions have not changed.
   *
   * @throws NotIncrementalException a window gave one of several possible results
   */
  private void requireOrder(LogicalPlan plan) {
    if (plan instanceof Window node && ordered.add(node)) {
      requireOrder(node, sources.before(node.child()));
    }
    Plans.<LogicalPlan>list(plan.children()).forEach(this::requireOrder);
  }

  /**
   * Checks that the result of a window is the only possible one. Rows that are equal in ORDER BY can have another order now
   * than when the stored rows were computed. Then a row that the earlier state seems to have may be missing in the stored
   * rows, or may be there only as a row of another partition. This runs a query over the rows.
   *
   * @param rows the rows of some partitions of the window in the earlier state
   * @throws NotIncrementalException a function depends on the order of rows that differ, but are equal in ORDER BY
   */
  private void requireOrder(Window node, LogicalPlan rows) {
    boolean depends =
        Plans.<NamedExpression>list(node.windowExpressions()).stream()
            .anyMatch(one -> Exactness.dependsOnOrder((Expression) one));
    require(
        !depends || evaluation.isEstimate() || !hasEqualRows(node, rows),
        "rows that differ are equal in the ORDER BY of a window inside another query");
  }

  /** Whether rows of a window's partition differ, but are equal in ORDER BY. */
  private boolean hasEqualRows(Window node, LogicalPlan rows) {
    List<Attribute> columns = Plans.output(rows);
    LogicalPlan distinct =
        columns.stream().allMatch(one -> RowOrdering.isOrderable(one.dataType()))
            ? Plans.aggregate(columns, columns, rows)
            : rows;
    List<NamedExpression> named = new ArrayList<>();
    Plans.<Expression>list(node.partitionSpec()).forEach(one -> named.add(Plans.alias(one, "polaris_key")));
    Plans.<SortOrder>list(node.orderSpec()).forEach(one -> named.add(Plans.alias(one.child(), "polaris_key")));
    LogicalPlan sorted = Plans.project(named, distinct);
    Alias count = Plans.alias(new Count(seq(Plans.literal(1))).toAggregateExpression(), "polaris_count");
    LogicalPlan counted = Plans.aggregate(Plans.output(sorted), List.of(count), sorted);
    LogicalPlan equal = new Filter(new GreaterThan(count.toAttribute(), Plans.literal(1L)), counted);
    return evaluation.collected(equal, 0) == null;
  }

  /** The change of a plan that computes its result separately for each value of the expressions. */
  private SignedRows byKey(LogicalPlan node, LogicalPlan child, List<Expression> expressions) {
    requireOrder(child);
    LogicalPlan before = sources.before(child);
    if (expressions.isEmpty()) {
      return difference(node, Plans.withChildren(node, List.of(before)));
    }
    Keys keys = keys(child, expressions);
    return difference(
        Plans.withChildren(node, List.of(keys.restrict(child, expressions))),
        Plans.withChildren(node, List.of(keys.restrict(before, expressions))));
  }

  private static SignedRows difference(LogicalPlan after, LogicalPlan before) {
    return SignedRows.sum(
            Plans.output(after), List.of(SignedRows.of(after, true), SignedRows.of(before, false)))
        .gross();
  }

  private Keys.Source changed(LogicalPlan plan, List<Expression> expressions) {
    return new Keys.Source(net(plan).plan(), expressions);
  }

  private static void require(boolean condition, String message) {
    if (!condition) {
      throw new NotIncrementalException(message);
    }
  }

  /** The expressions of both sides that a join compares for equality, by position. */
  private record Equalities(List<Expression> left, List<Expression> right) {
    static Equalities of(Join node) {
      Equalities found = new Equalities(new ArrayList<>(), new ArrayList<>());
      if (node.condition().isDefined()) {
        found.add(node, node.condition().get());
      }
      return found;
    }

    private void add(Join node, Expression condition) {
      if (condition instanceof And both) {
        add(node, both.left());
        add(node, both.right());
      } else if (condition instanceof EqualTo equal) {
        add(node, equal.left(), equal.right());
      } else if (condition instanceof EqualNullSafe equal) {
        add(node, equal.left(), equal.right());
      }
    }

    private void add(Join node, Expression one, Expression other) {
      if (reads(one, node.left()) && reads(other, node.right())) {
        left.add(one);
        right.add(other);
      } else if (reads(other, node.left()) && reads(one, node.right())) {
        left.add(other);
        right.add(one);
      }
    }

    private static boolean reads(Expression expression, LogicalPlan plan) {
      return !expression.references().isEmpty()
          && expression.references().subsetOf(plan.outputSet());
    }
  }
}
