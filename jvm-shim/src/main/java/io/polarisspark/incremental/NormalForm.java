package io.polarisspark.incremental;

import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases$;
import org.apache.spark.sql.catalyst.analysis.EliminateView$;
import org.apache.spark.sql.catalyst.expressions.EliminatePipeOperators$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.ColumnPruning$;
import org.apache.spark.sql.catalyst.optimizer.EliminateResolvedHint$;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.optimizer.PullOutGroupingExpressions$;
import org.apache.spark.sql.catalyst.optimizer.PullupCorrelatedPredicates$;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.optimizer.RemoveRepetitionFromGroupExpressions$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceDeduplicateWithAggregate$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceDistinctWithAggregate$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExceptWithAntiJoin$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceIntersectWithSemiJoin$;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery$;
import org.apache.spark.sql.catalyst.optimizer.RewriteExceptAll$;
import org.apache.spark.sql.catalyst.optimizer.RewriteIntersectAll$;
import org.apache.spark.sql.catalyst.optimizer.RewriteLateralSubquery$;
import org.apache.spark.sql.catalyst.optimizer.RewritePredicateSubquery$;
import org.apache.spark.sql.catalyst.optimizer.RewriteWithExpression$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.runtime.AbstractPartialFunction;

/**
 * Rewrites an analyzed plan with few kinds of operators: rules of Spark's optimizer replace set
 * operations, DISTINCT, subqueries and common table expressions by joins, aggregates and unions.
 */
final class NormalForm {
  private static final int PASSES = 10;

  private static final List<UnaryOperator<LogicalPlan>> RULES =
      List.of(
          EliminateResolvedHint$.MODULE$::apply,
          EliminatePipeOperators$.MODULE$::apply,
          new InlineCTE(true, false)::apply,
          ReplaceExpressions$.MODULE$::apply,
          PullOutGroupingExpressions$.MODULE$::apply,
          RewriteExceptAll$.MODULE$::apply,
          RewriteIntersectAll$.MODULE$::apply,
          ReplaceIntersectWithSemiJoin$.MODULE$::apply,
          ReplaceExceptWithAntiJoin$.MODULE$::apply,
          ReplaceDistinctWithAggregate$.MODULE$::apply,
          ReplaceDeduplicateWithAggregate$.MODULE$::apply,
          RemoveRepetitionFromGroupExpressions$.MODULE$::apply,
          NormalForm::withoutSubqueries,
          EliminateSubqueryAliases$.MODULE$::apply,
          EliminateView$.MODULE$::apply,
          RewriteWithExpression$.MODULE$::apply);

  private static final List<UnaryOperator<LogicalPlan>> SUBQUERIES =
      List.of(
          RewriteCorrelatedScalarSubquery$.MODULE$::apply,
          RewriteLateralSubquery$.MODULE$::apply,
          RewritePredicateSubquery$.MODULE$::apply);

  private static final List<UnaryOperator<LogicalPlan>> SIMPLER =
      List.of(PushDownPredicates$.MODULE$::apply, ColumnPruning$.MODULE$::apply);

  private NormalForm() {}

  /** Returns a plan with the same result, whose columns are in the same order. */
  static LogicalPlan of(LogicalPlan analyzed) {
    LogicalPlan plan = rewritten(analyzed);
    for (int pass = 0; pass < PASSES; pass++) {
      LogicalPlan before = plan;
      for (UnaryOperator<LogicalPlan> rule : SIMPLER) {
        plan = rule.apply(plan);
      }
      if (plan.fastEquals(before)) {
        break;
      }
    }
    return plan;
  }

  private static LogicalPlan rewritten(LogicalPlan plan) {
    LogicalPlan result = plan;
    for (UnaryOperator<LogicalPlan> rule : RULES) {
      result = rule.apply(result);
    }
    return result;
  }

  /** Replaces subqueries by joins, those inside other subqueries first, as Spark's optimizer does. */
  private static LogicalPlan withoutSubqueries(LogicalPlan plan) {
    LogicalPlan result =
        (LogicalPlan)
            PullupCorrelatedPredicates$.MODULE$
                .apply(plan)
                .transformAllExpressions(
                new AbstractPartialFunction<Expression, Expression>() {
                  @Override
                  public boolean isDefinedAt(Expression expression) {
                    return expression instanceof SubqueryExpression;
                  }

                  @Override
                  public Expression apply(Expression expression) {
                    SubqueryExpression subquery = (SubqueryExpression) expression;
                    return subquery.withNewPlan(rewritten(subquery.plan()));
                  }
                });
    for (UnaryOperator<LogicalPlan> rule : SUBQUERIES) {
      result = rule.apply(result);
    }
    return result;
  }
}
