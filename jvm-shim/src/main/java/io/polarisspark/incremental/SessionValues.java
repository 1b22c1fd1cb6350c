package io.polarisspark.incremental;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.CurrentUser;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.VariableReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

/** Finds the parts of a query whose values belong to one user or session, so that no other session can use its rows. */
public final class SessionValues {
  private SessionValues() {}

  /**
   * For Python: returns what belongs to one user or session in a query and in the views that it reads; an empty text if
   * nothing does.
   */
  public static String in(LogicalPlan analyzed) {
    for (Expression expression : Plans.<Expression>list(analyzed.expressions())) {
      String found = in(expression);
      if (!found.isEmpty()) {
        return found;
      }
    }
    List<LogicalPlan> inner = Plans.list(analyzed.children());
    inner.addAll(Plans.list(analyzed.subqueries()));
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
