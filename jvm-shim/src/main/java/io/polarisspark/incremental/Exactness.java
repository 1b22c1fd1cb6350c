package io.polarisspark.incremental;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.AggregateWindowFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FrameLessOffsetWindowFunction;
import org.apache.spark.sql.catalyst.expressions.RankLike;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

/**
 * Whether a plan has the same result whenever it is computed for the same rows.
 *
 * <p>Sums of floating point depend on the order of rows in their last digits. {@code row_number} and the
 * like depend on the order of rows that are equal in ORDER BY.
 */
final class Exactness {
  private Exactness() {}

  static boolean isExact(LogicalPlan plan) {
    return Plans.<Expression>list(plan.expressions()).stream().allMatch(Exactness::isExact)
        && Plans.<LogicalPlan>list(plan.children()).stream().allMatch(Exactness::isExact);
  }

  /** Whether an expression contains a window function that depends on the order of rows that are equal in ORDER BY. */
  static boolean dependsOnOrder(Expression expression) {
    return expression instanceof WindowExpression window && dependsOnOrder(window)
        || Plans.<Expression>list(expression.children()).stream().anyMatch(Exactness::dependsOnOrder);
  }

  private static boolean dependsOnOrder(WindowExpression window) {
    Expression function = window.windowFunction();
    if (function instanceof FrameLessOffsetWindowFunction
        || function instanceof AggregateWindowFunction && !(function instanceof RankLike)) {
      return true;
    }
    return window.windowSpec().frameSpecification() instanceof SpecifiedWindowFrame frame
        && frame.frameType() == RowFrame$.MODULE$
        && !window.windowSpec().orderSpec().isEmpty()
        && !(function instanceof RankLike);
  }

  private static boolean isExact(Expression expression) {
    if (expression instanceof WindowExpression window && dependsOnOrder(window)) {
      return false;
    }
    return !addsFloats(List.of(expression))
        && Plans.<Expression>list(expression.children()).stream().allMatch(Exactness::isExact);
  }

  /** Whether a plan has sums of floating point, or other aggregates that depend on the order of rows in their last digits. */
  static boolean addsFloats(LogicalPlan plan) {
    return addsFloats(Plans.<Expression>list(plan.expressions()))
        || Plans.<LogicalPlan>list(plan.children()).stream().anyMatch(Exactness::addsFloats);
  }

  private static boolean addsFloats(List<Expression> expressions) {
    return expressions.stream()
        .anyMatch(
            one ->
                one instanceof AggregateFunction function
                        && !(function instanceof Min || function instanceof Max)
                        && SignedRows.hasFloats(function.dataType())
                    ? !AggregateState.isExactAverage(function)
                    : addsFloats(Plans.list(one.children())));
  }
}
