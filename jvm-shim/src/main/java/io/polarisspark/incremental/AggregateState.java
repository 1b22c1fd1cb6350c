package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.list;
import static io.polarisspark.incremental.Plans.literal;
import static io.polarisspark.incremental.Plans.seq;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.UnaryMinus;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.LongType;
import scala.Option;

/**
 * What is stored for each group, so that the results of aggregate functions can be computed from the
 * stored values and the change of the group's rows.
 *
 * <p>Sums of integers and decimals, and counts, are kept. The result of {@code avg} is computed from
 * both. Minimum and maximum are kept; a group is computed again if its minimum or maximum was removed.
 */
final class AggregateState {
  /** Sums of integers in doubles are exact up to this value. */
  private static final long EXACT_DOUBLE = 1L << 53;

  /** Sums of decimals with at most this precision can be added without loss of digits. */
  private static final int MAX_PRECISION = 37;

  private static final int SUM_DIGITS = 10;

  /** How a stored value is merged with the change of its group. */
  enum Kind {
    SUM,
    MIN,
    MAX
  }

  /**
   * A stored value.
   *
   * @param kind how it is merged
   * @param input what is summed up, or compared, of each row; null values do not count
   * @param result the aggregate that computes the value from all rows of a group
   * @param present position of the number of values that are not null, of which a sum is null if it
   *     is 0; -1 if the value is never null
   */
  record Value(Kind kind, Expression input, Expression result, int present) {}

  /**
   * An aggregate function of the query, and the positions of the values from which it is computed.
   *
   * @param values positions of the stored values that {@link #merged} needs
   */
  private record Function(AggregateExpression expression, List<Integer> values) {}

  private final List<Value> values = new ArrayList<>();
  private final List<Function> functions = new ArrayList<>();

  /** Conditions, in SQL over the merged values {@code m0}, {@code m1}, ..., under which results of doubles are not exact. */
  private final List<String> inexact = new ArrayList<>();

  private AggregateState() {}

  /**
   * Returns the state for aggregate functions. The first value is the number of rows.
   *
   * @return null if a function has no state from which its result can be computed
   */
  static AggregateState of(List<AggregateExpression> expressions) {
    AggregateState state = new AggregateState();
    state.count(List.of(), Option.empty());
    return expressions.stream().allMatch(state::add) ? state : null;
  }

  List<Value> values() {
    return values;
  }

  List<String> inexact() {
    return inexact;
  }

  /** Returns the result of an aggregate function of the query. */
  Expression merged(AggregateExpression expression, List<Attribute> merged) {
    for (Function function : functions) {
      if (function.expression.semanticEquals(expression)) {
        return result(function, merged);
      }
    }
    throw new IllegalStateException("the state has no " + expression);
  }

  private static Expression result(Function function, List<Attribute> merged) {
    Attribute first = merged.get(function.values.get(0));
    if (!(function.expression.aggregateFunction() instanceof Average average)) {
      return cast(first, function.expression.dataType());
    }
    List<Attribute> buffer = list(average.aggBufferAttributes());
    Attribute count = merged.get(function.values.get(1));
    return Plans.replaced(
        average.evaluateExpression(),
        one -> {
          if (!(one instanceof Attribute attribute)) {
            return one;
          }
          Attribute value = attribute.exprId().equals(buffer.get(0).exprId()) ? first : count;
          return cast(value, attribute.dataType());
        });
  }

  private boolean add(AggregateExpression expression) {
    if (expression.isDistinct()) {
      return false;
    }
    AggregateFunction function = expression.aggregateFunction();
    Option<Expression> filter = expression.filter();
    List<Integer> positions = new ArrayList<>();
    if (function instanceof Count count) {
      positions.add(count(list(count.children()), filter));
    } else if (function instanceof Sum sum && isExact(sum)) {
      int present = count(List.of(sum.child()), filter);
      positions.add(sum(sum.child(), sum.dataType(), filter, present));
    } else if (function instanceof Min min && isOrdered(min.dataType())) {
      positions.add(extreme(Kind.MIN, min.child(), filter));
    } else if (function instanceof Max max && isOrdered(max.dataType())) {
      positions.add(extreme(Kind.MAX, max.child(), filter));
    } else if (function instanceof Average average && isExact(average)) {
      average(average, filter, positions);
    } else {
      return false;
    }
    functions.add(new Function(expression, positions));
    return true;
  }

  private static boolean isExact(Sum sum) {
    return sum.evalContext().evalMode() != EvalMode$.MODULE$.TRY() && isExact(sum.child().dataType());
  }

  /** Whether a function is an average that does not depend on the order of values. */
  static boolean isExactAverage(AggregateFunction function) {
    return function instanceof Average average
        && isExact(average)
        && !(average.child().dataType() instanceof LongType);
  }

  private static boolean isExact(Average average) {
    return average.evalMode() != EvalMode$.MODULE$.TRY() && isExact(average.child().dataType());
  }

  private static boolean isExact(DataType type) {
    return type instanceof IntegralType
        || type instanceof DecimalType decimal && decimal.precision() + SUM_DIGITS <= MAX_PRECISION;
  }

  private static boolean isOrdered(DataType type) {
    return type instanceof AtomicType
        && !SignedRows.hasFloats(type)
        && SignedRows.comparable(type);
  }

  private int count(List<Expression> children, Option<Expression> filter) {
    List<Expression> conditions = new ArrayList<>();
    filter.foreach(conditions::add); // it comes first, because it may exclude rows with errors
    children.stream().filter(Expression::nullable).map(IsNotNull::new).forEach(conditions::add);
    Expression condition = Plans.all(conditions);
    Expression one = literal(1L);
    Expression input =
        condition == null ? one : new If(condition, one, new Literal(null, DataTypes.LongType));
    List<Expression> counted =
        condition == null ? List.of(literal(1)) : filter.isEmpty() ? children : List.of(input);
    return value(Kind.SUM, input, new Count(seq(counted)).toAggregateExpression(), -1);
  }

  /**
   * @param present position of the number of values that are not null
   */
  private int sum(Expression child, DataType type, Option<Expression> filter, int present) {
    Expression input = filtered(cast(child, type), filter);
    Expression result = new Sum(filtered(child, filter)).toAggregateExpression();
    return value(Kind.SUM, input, result, present);
  }

  private int extreme(Kind kind, Expression child, Option<Expression> filter) {
    Expression input = filtered(child, filter);
    AggregateFunction function = kind == Kind.MIN ? new Min(input) : new Max(input);
    return value(kind, input, function.toAggregateExpression(), -1);
  }

  /** Spark sums integers for {@code avg} as doubles, which is exact while the sum of their absolute values is small. */
  private void average(Average average, Option<Expression> filter, List<Integer> positions) {
    Expression child = average.child();
    DataType type = child.dataType();
    int count = count(List.of(child), filter);
    if (type instanceof DecimalType decimal) {
      positions.add(
          sum(
              child,
              new DecimalType(decimal.precision() + SUM_DIGITS, decimal.scale()),
              filter,
              count));
    } else if (type instanceof LongType) {
      Expression wide = cast(child, new DecimalType(20, 0));
      positions.add(sum(wide, new DecimalType(30, 0), filter, count));
      int size = sum(new Abs(wide), new DecimalType(30, 0), filter, count);
      inexact.add("m" + size + " > " + EXACT_DOUBLE);
    } else {
      positions.add(sum(child, DataTypes.LongType, filter, count));
      inexact.add("m" + count + " > " + (EXACT_DOUBLE >> 31));
    }
    positions.add(count);
  }

  private int value(Kind kind, Expression input, Expression result, int present) {
    for (int position = 0; position < values.size(); position++) {
      Value one = values.get(position);
      if (one.kind == kind && one.result.semanticEquals(result)) {
        return position;
      }
    }
    values.add(new Value(kind, input, result, present));
    return values.size() - 1;
  }

  private static Expression filtered(Expression value, Option<Expression> filter) {
    return filter.isEmpty()
        ? value
        : new If(filter.get(), value, new Literal(null, value.dataType()));
  }

  /**
   * Returns what a row adds to a value: of a sum, its input with the sign of the row. In ANSI mode this fails for the
   * smallest BIGINT, whose negative value is none; the sum of a group would otherwise overflow unnoticed.
   */
  static Expression signed(Value value, Attribute weight) {
    return new If(
        new GreaterThan(weight, literal(0)),
        value.input,
        new UnaryMinus(value.input, SQLConf.get().ansiEnabled()));
  }

  /** Returns the input of a value in rows that were added, or in rows that were removed. */
  static Expression only(Value value, Attribute weight, boolean added) {
    Expression isAdded = new GreaterThan(weight, literal(0));
    Literal none = new Literal(null, value.input.dataType());
    return added ? new If(isAdded, value.input, none) : new If(isAdded, none, value.input);
  }

  static Expression cast(Expression value, DataType type) {
    return value.dataType().equals(type)
        ? value
        : new Cast(value, type, Option.empty(), EvalMode$.MODULE$.LEGACY());
  }
}
