package io.polarisspark.incremental;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Short forms for Spark's logical plans and expressions, which are made for Scala. */
final class Plans {
  private Plans() {}

  static <T> Seq<T> seq(List<? extends T> items) {
    return CollectionConverters.<T>asScala(new ArrayList<T>(items)).toSeq();
  }

  @SafeVarargs
  static <T> Seq<T> seq(T... items) {
    return seq(Arrays.asList(items));
  }

  static <T> List<T> list(scala.collection.Iterable<? extends T> items) {
    List<T> all = new ArrayList<>();
    items.iterator().foreach(all::add);
    return all;
  }

  static List<Attribute> output(LogicalPlan plan) {
    return list(plan.output());
  }

  static Alias alias(Expression value, String name) {
    return alias(value, name, NamedExpression.newExprId());
  }

  static Alias alias(Expression value, String name, ExprId id) {
    return new Alias(value, name, id, seq(), Option.empty(), seq());
  }

  /** Returns an expression with the id of an attribute, so that it takes the attribute's place in a plan. */
  static NamedExpression as(Expression value, Attribute place) {
    return value instanceof Attribute same && same.exprId().equals(place.exprId())
        ? same
        : alias(value, place.name(), place.exprId());
  }

  static Project project(List<? extends NamedExpression> columns, LogicalPlan child) {
    return new Project(seq(columns), child);
  }

  static Aggregate aggregate(
      List<? extends Expression> keys, List<? extends NamedExpression> columns, LogicalPlan child) {
    return new Aggregate(seq(keys), seq(columns), child, Option.empty());
  }

  static Join join(LogicalPlan left, LogicalPlan right, JoinType type, Expression condition) {
    return new Join(left, right, type, Option.apply(condition), JoinHint.NONE());
  }

  /** Returns all rows of the plans, whose columns have the same order. */
  static LogicalPlan union(List<LogicalPlan> plans) {
    return plans.size() == 1 ? plans.get(0) : new Union(seq(plans), false, false);
  }

  static LogicalPlan empty(List<Attribute> columns) {
    return local(columns, List.of());
  }

  /** Returns a plan that consists of rows. */
  static LogicalPlan local(List<Attribute> columns, List<InternalRow> rows) {
    return new LocalRelation(seq(columns), seq(rows), false, Option.empty());
  }

  /** Whether Spark computes the rows of a plan without a job. */
  static boolean isLocal(LogicalPlan plan) {
    return plan instanceof LocalRelation
        || (plan instanceof Project || plan instanceof Filter)
            && isLocal(Plans.<LogicalPlan>list(plan.children()).get(0));
  }

  /** Returns the conjunction of conditions; null if there are none. */
  static Expression all(List<Expression> conditions) {
    return conditions.stream().reduce(And::new).orElse(null);
  }

  static Literal literal(Object value) {
    return Literal$.MODULE$.apply(value);
  }

  static Dataset<Row> rows(SparkSession spark, LogicalPlan plan) {
    return Dataset.ofRows(spark, plan);
  }

  /** Applies a function to the children of an expression and their children; then to the expression. */
  static Expression replaced(Expression expression, UnaryOperator<Expression> function) {
    Expression found = function.apply(expression);
    if (found != expression) {
      return found;
    }
    List<Expression> children = list(expression.children());
    List<Expression> changed =
        children.stream().map(child -> replaced(child, function)).toList();
    return changed.equals(children)
        ? expression
        : (Expression) expression.withNewChildren(seq(changed));
  }

  /** Replaces the leaves of a plan. */
  static LogicalPlan withLeaves(LogicalPlan plan, UnaryOperator<LogicalPlan> function) {
    List<LogicalPlan> children = list(plan.children());
    if (children.isEmpty()) {
      return function.apply(plan);
    }
    List<LogicalPlan> changed =
        children.stream().map(child -> withLeaves(child, function)).toList();
    return withChildren(plan, changed);
  }

  static LogicalPlan withChildren(LogicalPlan plan, List<LogicalPlan> children) {
    return (LogicalPlan) plan.withNewChildren(seq(children));
  }
}
