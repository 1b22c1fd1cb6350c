package io.polarisspark.incremental;

import java.util.List;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.analysis.TableFunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.CurrentUser;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.VariableReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.internal.VariableSubstitution;
import scala.Option;
import scala.runtime.AbstractFunction0;

/** Finds the parts of a query whose values belong to one user or session, so that no other session can use its rows. */
public final class SessionValues {
  private SessionValues() {}

  /**
   * For Python: returns what belongs to one user or session in a query and in the views that it reads; an empty text if
   * nothing does.
   *
   * @param sql the query, with the queries of the views. Spark replaces texts such as {@code ${env:NAME}} in it.
   * @param analyzed Spark's plan of the query
   */
  public static String in(SparkSession session, String sql, LogicalPlan analyzed) {
    String replaced =
        session.withActive(
            new AbstractFunction0<String>() {
              @Override
              public String apply() {
                return new VariableSubstitution().substitute(sql);
              }
            });
    return replaced.equals(sql) ? in(analyzed) : "contains ${...}, which Spark replaces by a setting";
  }

  /**
   * For Python: whether a name without a namespace is that of a function that only this session has, also if it replaces
   * one of Spark's functions.
   */
  public static boolean isTemporaryFunction(SparkSession session, String name) {
    FunctionIdentifier function = new FunctionIdentifier(name);
    Option<ExpressionInfo> scalar = session.sessionState().functionRegistry().lookupFunction(function);
    Option<ExpressionInfo> table = session.sessionState().tableFunctionRegistry().lookupFunction(function);
    return scalar.isDefined() && !scalar.equals(FunctionRegistry$.MODULE$.builtin().lookupFunction(function))
        || table.isDefined() && !table.equals(TableFunctionRegistry$.MODULE$.builtin().lookupFunction(function));
  }

  private static String in(LogicalPlan plan) {
    for (Expression expression : Plans.<Expression>list(plan.expressions())) {
      String found = in(expression);
      if (!found.isEmpty()) {
        return found;
      }
    }
    List<LogicalPlan> inner = Plans.list(plan.children());
    inner.addAll(Plans.list(plan.subqueries()));
    return inner.stream().map(SessionValues::in).filter(text -> !text.isEmpty()).findFirst().orElse("");
  }

  private static String in(Expression expression) {
    if (expression instanceof CurrentUser user) {
      return "calls " + user.prettyName();
    }
    if (expression instanceof VariableReference) {
      return "reads a session variable";
    }
    return Plans.<Expression>list(expression.children()).stream()
        .map(SessionValues::in)
        .filter(text -> !text.isEmpty())
        .findFirst()
        .orElse("");
  }
}
