package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.list;
import static io.polarisspark.incremental.Plans.project;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import org.apache.iceberg.spark.SparkSchemaUtil;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;

/**
 * The query of a view, with more columns that an incremental refresh needs: the keys of its outermost
 * aggregate or window if the view does not show them, and the state of its aggregate functions.
 */
final class StoredQuery {
  /** Beginning of the names of columns that the view does not show. */
  static final String HIDDEN = "polaris_state_";

  /** How the stored rows are changed. */
  enum Method {
    /** Changed rows are found by all their columns. */
    BY_ROW,
    /** Rows with changed keys are computed again. */
    BY_KEY,
    /** Rows with changed keys are computed from the stored rows and the change. */
    BY_STATE
  }

  /**
   * A stored column.
   *
   * @param name its name
   * @param holds SQL of the key or aggregate function whose values it has
   * @param attribute the column in the result of the query
   */
  record Column(String name, String holds, Attribute attribute) {}

  /** Operators above the outermost aggregate or window, the uppermost first: projections and filters. */
  private final List<LogicalPlan> above = new ArrayList<>();

  private final List<Attribute> visible;
  private final List<String> names;
  private final List<Column> hidden = new ArrayList<>();

  private final LogicalPlan core;
  private final Method method;

  /** Columns of the keys, by position. */
  private final List<Column> keys = new ArrayList<>();

  /** Columns of the values of the state, by position. */
  private final List<Column> stateColumns = new ArrayList<>();

  private final AggregateState state;

  /** The outermost aggregate or window with the columns that are stored; or the query itself. */
  private LogicalPlan extended;

  /** See {@link #plan}; null before its first use. */
  private LogicalPlan whole;

  /** Columns of the child of the extended window, over those of the child of the window; null for others. */
  private List<NamedExpression> below;

  /**
   * @param plan the normal form of the query
   * @param names names of the view's columns; the query can have more
   */
  StoredQuery(LogicalPlan plan, List<String> names) {
    this.names = names;
    this.visible = Plans.output(plan).subList(0, names.size());
    LogicalPlan node = plan;
    while (node instanceof Project || node instanceof Filter || node instanceof Sort) {
      if (!(node instanceof Sort)) {
        above.add(node);
      }
      node = Plans.<LogicalPlan>list(node.children()).get(0);
    }
    boolean filtered = above.stream().anyMatch(Filter.class::isInstance);
    LogicalPlan below = node.children().isEmpty() ? null : Plans.<LogicalPlan>list(node.children()).get(0);
    boolean keyed = below != null && Exactness.isExact(below) && canStore(node);
    if (keyed && node instanceof Aggregate aggregate && hasKeys(aggregate)) {
      this.core = node;
      AggregateState found =
          filtered ? null : AggregateState.of(functions(Plans.<Expression>list(expressions(aggregate))));
      this.state = found;
      this.method = found == null ? Method.BY_KEY : Method.BY_STATE;
      extend(aggregate);
    } else if (keyed && node instanceof Window window && !window.partitionSpec().isEmpty()) {
      this.core = node;
      this.state = null;
      this.method = Method.BY_KEY;
      extend(window);
    } else {
      this.core = plan;
      this.state = null;
      this.method = Method.BY_ROW;
      this.extended = plan;
      above.clear();
    }
  }

  Method method() {
    return method;
  }

  /** The outermost aggregate or window; the whole query for the method BY_ROW. */
  LogicalPlan core() {
    return core;
  }

  /** The expressions whose values are keys, over the columns of the child of {@link #core}. */
  List<Expression> keyExpressions() {
    return core instanceof Aggregate aggregate
        ? list(aggregate.groupingExpressions())
        : list(((Window) core).partitionSpec());
  }

  List<Column> keys() {
    return keys;
  }

  AggregateState state() {
    return state;
  }

  List<Column> stateColumns() {
    return stateColumns;
  }

  /** The columns that the view does not show. */
  List<Column> hidden() {
    return hidden;
  }

  /** Returns the names of all stored columns. */
  List<String> columns() {
    List<String> all = new ArrayList<>(names);
    hidden.forEach(one -> all.add(one.name));
    return all;
  }

  /** Returns the number of columns that the view shows. */
  int width() {
    return names.size();
  }

  /** Returns the whole result. */
  LogicalPlan plan() {
    if (whole == null) {
      whole = stored(extended);
    }
    return whole;
  }

  /** Returns the result for other rows than those of the child of {@link #core}. */
  LogicalPlan over(LogicalPlan rows) {
    LogicalPlan child = below == null ? rows : project(below, rows);
    return stored(Plans.withChildren(extended, List.of(child)));
  }

  /**
   * Returns the result for groups whose values are known.
   *
   * @param rows a row for each group
   * @param group returns the value of a grouping expression
   * @param result returns the result of an aggregate function
   * @param values the values of the state, by position
   */
  LogicalPlan of(
      LogicalPlan rows,
      Function<Expression, Expression> group,
      Function<AggregateExpression, Expression> result,
      List<Attribute> values) {
    Aggregate aggregate = (Aggregate) extended;
    List<NamedExpression> columns = new ArrayList<>();
    for (NamedExpression one : Plans.<NamedExpression>list(aggregate.aggregateExpressions())) {
      Expression value = one instanceof Alias alias ? alias.child() : (Expression) one;
      int position = positionOf(one.toAttribute());
      Expression computed =
          position >= 0
              ? AggregateState.cast(values.get(position), value.dataType())
              : Plans.replaced(
                  value,
                  part -> {
                    if (part instanceof AggregateExpression function) {
                      return result.apply(function);
                    }
                    Expression key = group.apply(part);
                    return key == null ? part : key;
                  });
      columns.add(alias(computed, one.name(), one.exprId()));
    }
    return stored(project(columns, rows));
  }

  private int positionOf(Attribute attribute) {
    for (int position = 0; position < stateColumns.size(); position++) {
      if (stateColumns.get(position).attribute.exprId().equals(attribute.exprId())) {
        return position;
      }
    }
    return -1;
  }

  private static scala.collection.Iterable<Expression> expressions(Aggregate aggregate) {
    return (scala.collection.Iterable) aggregate.aggregateExpressions();
  }

  /** Whether Iceberg has types for everything that an aggregate or window computes or groups by. */
  private static boolean canStore(LogicalPlan node) {
    List<Expression> values = new ArrayList<>();
    if (node instanceof Aggregate aggregate) {
      values.addAll(list(aggregate.groupingExpressions()));
      for (NamedExpression one : Plans.<NamedExpression>list(aggregate.aggregateExpressions())) {
        values.addAll(functions(List.of((Expression) one)));
      }
    } else if (node instanceof Window window) {
      values.addAll(list(window.partitionSpec()));
    }
    StructType types = new StructType();
    for (Expression value : values) {
      types = types.add("c" + types.length(), value.dataType());
    }
    try {
      SparkSchemaUtil.convert(types);
      return true;
    } catch (UnsupportedOperationException error) {
      return false;
    }
  }

  private static boolean hasKeys(Aggregate aggregate) {
    return Plans.<Expression>list(aggregate.groupingExpressions()).stream()
        .noneMatch(one -> one.dataType() instanceof MapType);
  }

  private static List<AggregateExpression> functions(List<? extends Expression> expressions) {
    List<AggregateExpression> found = new ArrayList<>();
    for (Expression one : expressions) {
      if (one instanceof AggregateExpression function) {
        found.add(function);
      } else {
        found.addAll(functions(list(one.children())));
      }
    }
    return found;
  }

  private void extend(Aggregate aggregate) {
    List<NamedExpression> results = list(aggregate.aggregateExpressions());
    for (Expression key : Plans.<Expression>list(aggregate.groupingExpressions())) {
      keys.add(column(key, "key " + text(key), results));
    }
    if (state != null) {
      for (AggregateState.Value value : state.values()) {
        stateColumns.add(column(value.result(), text(value.result()), results));
      }
    }
    extended = Plans.aggregate(list(aggregate.groupingExpressions()), results, aggregate.child());
  }

  private void extend(Window window) {
    List<NamedExpression> columns = new ArrayList<>(Plans.output(window.child()));
    for (Expression key : Plans.<Expression>list(window.partitionSpec())) {
      keys.add(column(key, "key " + text(key), columns));
    }
    below = columns;
    extended = Plans.withChildren(window, List.of(project(columns, window.child())));
  }

  /** Returns an expression as SQL with plain names of columns. */
  private static String text(Expression expression) {
    return Plans.replaced(
            expression,
            one -> one instanceof Attribute column ? column.withQualifier(Plans.seq()) : one)
        .sql();
  }

  /** Returns the stored column with the value of an expression; adds one to the results if there is none. */
  private Column column(Expression value, String holds, List<NamedExpression> results) {
    for (NamedExpression one : results) {
      Expression found = one instanceof Alias alias ? alias.child() : (Expression) one;
      if (found.semanticEquals(value)) {
        String name = visibleName(one.toAttribute());
        if (name != null) {
          return new Column(name, holds, one.toAttribute());
        }
      }
    }
    String name = HIDDEN + hidden.size();
    Alias added = alias(value, name);
    results.add(added);
    Column column = new Column(name, holds, added.toAttribute());
    hidden.add(column);
    return column;
  }

  /** Returns the name under which the view shows a column of the aggregate or window; null if it does not. */
  private String visibleName(Attribute attribute) {
    Set<ExprId> same = new HashSet<>(Set.of(attribute.exprId()));
    for (int level = above.size() - 1; level >= 0; level--) {
      if (above.get(level) instanceof Project node) {
        Set<ExprId> next = new HashSet<>();
        for (NamedExpression one : Plans.<NamedExpression>list(node.projectList())) {
          Expression value = one instanceof Alias alias ? alias.child() : (Expression) one;
          if (value instanceof Attribute found && same.contains(found.exprId())) {
            next.add(one.exprId());
          }
        }
        same = next;
      }
    }
    for (int position = 0; position < names.size(); position++) {
      if (same.contains(visible.get(position).exprId())) {
        return names.get(position);
      }
    }
    return null;
  }

  /** Returns the stored columns, given the result of the aggregate or window. */
  private LogicalPlan stored(LogicalPlan result) {
    LogicalPlan plan = result;
    for (int level = above.size() - 1; level >= 0; level--) {
      LogicalPlan node = above.get(level);
      if (node instanceof Project columns) {
        List<NamedExpression> all = list(columns.projectList());
        hidden.forEach(one -> all.add(one.attribute));
        plan = project(all, plan);
      } else {
        plan = Plans.withChildren(node, List.of(plan));
      }
    }
    List<NamedExpression> columns = new ArrayList<>();
    for (int position = 0; position < names.size(); position++) {
      columns.add(alias(visible.get(position), names.get(position)));
    }
    hidden.forEach(one -> columns.add(alias(one.attribute, one.name)));
    return project(columns, plan);
  }
}
