package io.polarisspark.incremental;

import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.analysis.SQLFunctionNode;
import org.apache.spark.sql.catalyst.analysis.SQLScalarFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Range;

/** Finds functions of a query that read tables. The query does not name these tables, so their changes go unnoticed. */
public final class SqlFunctions {
  private SqlFunctions() {}

  /**
   * For Python: returns the name of a function in a query that was created with {@code CREATE FUNCTION} and whose body
   * reads a table; an empty text if there is none.
   *
   * @param analyzed Spark's plan of the query
   */
  public static String readingTables(LogicalPlan analyzed) {
    return names(analyzed).findFirst().orElse("");
  }

  private static Stream<String> names(LogicalPlan plan) {
    String own = null;
    if (plan instanceof SQLFunctionNode node
        && Plans.<LogicalPlan>list(node.child().collectLeaves()).stream().anyMatch(SqlFunctions::isTable)) {
      own = node.function().name().unquotedString();
    }
    Stream<String> inPlan =
        Stream.concat(
            Stream.ofNullable(own),
            Plans.<Expression>list(plan.expressions()).stream().flatMap(SqlFunctions::names));
    Stream<LogicalPlan> below =
        Stream.concat(
            Plans.<LogicalPlan>list(plan.children()).stream(),
            Plans.<LogicalPlan>list(plan.subqueries()).stream());
    return Stream.concat(inPlan, below.flatMap(SqlFunctions::names));
  }

  private static Stream<String> names(Expression expression) {
    if (expression instanceof SQLScalarFunction call && SubqueryExpression.hasSubquery(call.child())) {
      return Stream.of(call.function().name().unquotedString());
    }
    return Plans.<Expression>list(expression.children()).stream().flatMap(SqlFunctions::names);
  }

  private static boolean isTable(LogicalPlan leaf) {
    return !(leaf instanceof OneRowRelation || leaf instanceof LocalRelation || leaf instanceof Range);
  }
}
