package io.polarisspark.incremental;

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

  private static boolean isExact(Expression expression) {
    if (expression instanceof WindowExpression window) {
      Expression function = window.windowFunction();
      if (function instanceof FrameLessOffsetWindowFunction
          || function instanceof AggregateWindowFunction && !(function instanceof RankLike)) {
        return false;
      }
      boolean ofRows =
          window.windowSpec().frameSpecification() instanceof SpecifiedWindowFrame frame
              && frame.frameType() == RowFrame$.MODULE$
              && !window.windowSpec().orderSpec().isEmpty();
      if (ofRows && !(function instanceof RankLike)) {
        return false;
      }
    }
    if (expression instanceof AggregateFunction function
        && !(function instanceof Min || function instanceof Max)
        && SignedRows.hasFloats(function.dataType())) {
      return AggregateState.isExactAverage(function);
    }
    return Plans.<Expression>list(expression.children()).stream().allMatch(Exactness::isExact);
  }
}
