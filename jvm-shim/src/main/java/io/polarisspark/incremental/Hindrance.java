package io.polarisspark.incremental;

import io.polarisspark.Json;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.SQLFunctionNode;
import org.apache.spark.sql.catalyst.analysis.SQLScalarFunction;
import org.apache.spark.sql.catalyst.expressions.AesEncrypt;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BitmapAndAgg;
import org.apache.spark.sql.catalyst.expressions.BitmapConstructAgg;
import org.apache.spark.sql.catalyst.expressions.BitmapOrAgg;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CollectionGenerator;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.CumeDist;
import org.apache.spark.sql.catalyst.expressions.CurrentCatalog;
import org.apache.spark.sql.catalyst.expressions.CurrentDatabase;
import org.apache.spark.sql.catalyst.expressions.CurrentDate;
import org.apache.spark.sql.catalyst.expressions.CurrentTime;
import org.apache.spark.sql.catalyst.expressions.CurrentTimeZone;
import org.apache.spark.sql.catalyst.expressions.CurrentTimestampLike;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FrameLessOffsetWindowFunction;
import org.apache.spark.sql.catalyst.expressions.Generator;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.InheritAnalysisRules;
import org.apache.spark.sql.catalyst.expressions.JsonTuple;
import org.apache.spark.sql.catalyst.expressions.KllSketchMergeBigint;
import org.apache.spark.sql.catalyst.expressions.KllSketchMergeDouble;
import org.apache.spark.sql.catalyst.expressions.KllSketchMergeFloat;
import org.apache.spark.sql.catalyst.expressions.LocalTimestamp;
import org.apache.spark.sql.catalyst.expressions.NTile;
import org.apache.spark.sql.catalyst.expressions.NthValue;
import org.apache.spark.sql.catalyst.expressions.OuterReference;
import org.apache.spark.sql.catalyst.expressions.RankLike;
import org.apache.spark.sql.catalyst.expressions.ReplicateRows;
import org.apache.spark.sql.catalyst.expressions.RowNumber;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.expressions.SessionWindow$;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SparkVersion;
import org.apache.spark.sql.catalyst.expressions.SpecialFrameBoundary;
import org.apache.spark.sql.catalyst.expressions.Stack;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowFunction;
import org.apache.spark.sql.catalyst.expressions.WindowSpec;
import org.apache.spark.sql.catalyst.expressions.With;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Average;
import org.apache.spark.sql.catalyst.expressions.aggregate.BitAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.CentralMomentAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.CountMinSketchAgg;
import org.apache.spark.sql.catalyst.expressions.aggregate.Covariance;
import org.apache.spark.sql.catalyst.expressions.aggregate.HyperLogLogPlusPlus;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.PearsonCorrelation;
import org.apache.spark.sql.catalyst.expressions.aggregate.PercentileBase;
import org.apache.spark.sql.catalyst.expressions.aggregate.PivotFirst;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrIntercept;
import org.apache.spark.sql.catalyst.expressions.aggregate.RegrSlope;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.expressions.variant.VariantExplode;
import org.apache.spark.sql.catalyst.optimizer.SpecialDatetimeValues$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.EmptyRelation;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import scala.runtime.AbstractFunction1;

/**
 * Why a query can never be refreshed incrementally.
 *
 * <p>Only listed kinds of operators, aggregate functions, window functions, generators and expressions without a value
 * of their own ({@link Unevaluable}) are accepted, so that those of a new release of Spark are refused until somebody
 * has looked at them. Other expressions are accepted if Spark takes them for deterministic, unless they are in {@link
 * #CHANGING}.
 */
public final class Hindrance {
  /** Operators for which there are rules ({@link DeltaRules}), and those without children. */
  private static final List<Class<?>> OPERATORS =
      List.of(
          Aggregate.class,
          DataSourceV2Relation.class,
          EmptyRelation.class,
          Expand.class,
          Filter.class,
          Generate.class,
          Join.class,
          LocalRelation.class,
          LogicalRelation.class,
          OneRowRelation.class,
          Project.class,
          Range.class,
          RebalancePartitions.class,
          RepartitionOperation.class,
          Sort.class,
          Union.class,
          Window.class);

  /** Aggregate functions whose results do not depend on the order of rows, except in the last digits of floating point. */
  private static final List<Class<?>> AGGREGATES =
      List.of(
          Average.class,
          BitAggregate.class,
          BitmapAndAgg.class,
          BitmapConstructAgg.class,
          BitmapOrAgg.class,
          CentralMomentAgg.class,
          Count.class,
          CountMinSketchAgg.class,
          Covariance.class,
          HyperLogLogPlusPlus.class,
          Max.class,
          Min.class,
          PearsonCorrelation.class,
          PercentileBase.class,
          PivotFirst.class,
          RegrIntercept.class,
          RegrSlope.class,
          Sum.class);

  private static final List<Class<?>> WINDOW_FUNCTIONS =
      List.of(
          CumeDist.class,
          FrameLessOffsetWindowFunction.class,
          NTile.class,
          NthValue.class,
          RankLike.class,
          RowNumber.class);

  private static final List<Class<?>> GENERATORS =
      List.of(
          CollectionGenerator.class,
          JsonTuple.class,
          ReplicateRows.class,
          Stack.class,
          VariantExplode.class);

  /** Expressions that describe others, or that name columns and subqueries. */
  private static final List<Class<?>> PARTS =
      List.of(
          AggregateExpression.class,
          Attribute.class,
          CommonExpressionDef.class,
          CommonExpressionRef.class,
          InSubquery.class,
          OuterReference.class,
          SortOrder.class,
          SpecialFrameBoundary.class,
          SubqueryExpression.class,
          WindowExpression.class,
          WindowFrame.class,
          WindowSpec.class,
          With.class);

  /** Functions of the time, the session, the release of Spark or chance that Spark takes for deterministic. */
  private static final List<Class<?>> CHANGING =
      List.of(
          AesEncrypt.class,
          CurrentCatalog.class,
          CurrentDatabase.class,
          CurrentDate.class,
          CurrentTime.class,
          CurrentTimeZone.class,
          CurrentTimestampLike.class,
          KllSketchMergeBigint.class,
          KllSketchMergeDouble.class,
          KllSketchMergeFloat.class,
          LocalTimestamp.class,
          SparkVersion.class);

  /** Key by which Spark marks metadata columns, such as _file (METADATA_COL_ATTR_KEY). */
  private static final String METADATA_COLUMN = "__metadata_col";

  private Hindrance() {}

  /**
   * For Python: returns the functions in a query whose results can differ although they read the same rows, in JSON.
   *
   * @param analyzed Spark's plan of the query, before it is rewritten
   */
  public static String changingFunctions(LogicalPlan analyzed) {
    return Json.write(changing(analyzed));
  }

  private static Set<String> changing(LogicalPlan analyzed) {
    Set<String> found = new LinkedHashSet<>();
    addChanging(analyzed, found);
    return found;
  }

  private static void addChanging(LogicalPlan plan, Set<String> found) {
    Plans.<Expression>list(plan.expressions()).forEach(one -> addChanging(one, found));
    Plans.<LogicalPlan>list(plan.children()).forEach(one -> addChanging(one, found));
    Plans.<LogicalPlan>list(plan.subqueries()).forEach(one -> addChanging(one, found));
  }

  private static void addChanging(Expression expression, Set<String> found) {
    List<Expression> children = Plans.list(expression.children());
    boolean itself =
        !expression.deterministic() && children.stream().allMatch(Expression::deterministic);
    if (isOneOf(CHANGING, expression)
        || itself && !(expression instanceof SubqueryExpression || expression instanceof Attribute)) {
      found.add(expression.prettyName());
    } else if (expression instanceof Cast cast && isRelativeTime(cast)) {
      found.add(cast.child().eval(null).toString().trim());
    }
    children.forEach(one -> addChanging(one, found));
    if (expression instanceof RuntimeReplaceable function && !(function instanceof InheritAnalysisRules)) {
      addChanging(function.replacement(), found); // it is not a child
    }
  }

  /** Whether a cast is one of a text such as 'now' to the time at which the query runs. */
  private static boolean isRelativeTime(Cast cast) {
    DataType type = cast.dataType();
    if (!(type instanceof DateType || type instanceof TimestampType || type instanceof TimestampNTZType)
        || !(cast.child().dataType() instanceof StringType)
        || !cast.child().foldable()) {
      return false;
    }
    LogicalPlan plan = Plans.project(List.of(Plans.alias(cast, "time")), new OneRowRelation());
    return !SpecialDatetimeValues$.MODULE$.apply(plan).fastEquals(plan);
  }

  /**
   * Returns why a query can never be refreshed incrementally; an empty text if it can.
   *
   * @param analyzed Spark's plan of the query
   * @param rewritten its normal form
   */
  static String of(LogicalPlan analyzed, LogicalPlan rewritten) {
    Set<String> functions = changing(analyzed);
    return functions.isEmpty() ? of(rewritten) : "it calls " + String.join(", ", functions);
  }

  private static String of(LogicalPlan plan) {
    if (plan instanceof SQLFunctionNode node) {
      return "it calls the function " + node.function().name().unquotedString() + ", which can be replaced";
    }
    if (!isOneOf(OPERATORS, plan)) {
      return "it contains " + plan.nodeName();
    }
    if (!plan.deterministic()) {
      return "it is not deterministic";
    }
    for (Attribute column : Plans.output(plan)) {
      if (hasCollation(column.dataType())) {
        return "it has strings with a collation";
      }
      if (column.metadata().contains(SessionWindow$.MODULE$.marker())) {
        return "it contains session_window, whose groups are not computed on their own";
      }
      if (plan instanceof DataSourceV2Relation && column.metadata().contains(METADATA_COLUMN)) {
        return "it reads metadata columns";
      }
    }
    for (Expression expression : Plans.<Expression>list(plan.expressions())) {
      String why = of(expression);
      if (!why.isEmpty()) {
        return why;
      }
    }
    List<LogicalPlan> inner = new ArrayList<>(Plans.<LogicalPlan>list(plan.children()));
    inner.addAll(Plans.list(plan.subqueries()));
    return inner.stream().map(Hindrance::of).filter(text -> !text.isEmpty()).findFirst().orElse("");
  }

  private static String of(Expression expression) {
    String function = replaceable(expression);
    if (!function.isEmpty()) {
      return "it calls the function " + function + ", which can be replaced";
    }
    if (expression instanceof WindowExpression window
        && window.windowFunction() instanceof RowNumber
        && window.windowSpec().orderSpec().isEmpty()) {
      return "it contains a LIMIT in a correlated subquery"; // SQL has no such window; NormalForm makes it of a LIMIT
    }
    boolean isOfWindow = isOneOf(WINDOW_FUNCTIONS, expression);
    if (expression instanceof AggregateFunction aggregate && !isOfWindow && !isAccepted(aggregate)) {
      return "the result of " + expression.prettyName() + " can depend on the order of rows";
    }
    boolean isAggregate = expression instanceof AggregateFunction;
    if (expression instanceof WindowFunction && !isAggregate && !isOfWindow
        || expression instanceof Generator && !isOneOf(GENERATORS, expression)
        || expression instanceof Unevaluable && !isPart(expression)) {
      return "it contains " + expression.prettyName();
    }
    return Plans.<Expression>list(expression.children()).stream()
        .map(Hindrance::of)
        .filter(text -> !text.isEmpty())
        .findFirst()
        .orElse("");
  }

  private static boolean isAccepted(AggregateFunction function) {
    boolean hasCollation =
        Plans.<Expression>list(function.children()).stream().anyMatch(one -> hasCollation(one.dataType()));
    return !hasCollation && isOneOf(AGGREGATES, function);
  }

  private static boolean isPart(Expression expression) {
    return isOneOf(PARTS, expression)
        || expression instanceof AggregateFunction
        || expression instanceof WindowFunction
        || expression instanceof Generator;
  }

  private static boolean isOneOf(List<Class<?>> kinds, Object value) {
    return kinds.stream().anyMatch(kind -> kind.isInstance(value));
  }

  /** Whether values that differ can be equal by the type's collation. */
  private static boolean hasCollation(DataType type) {
    return type.existsRecursively(
        new AbstractFunction1<DataType, Object>() {
          @Override
          public Object apply(DataType one) {
            return one instanceof StringType text && !text.supportsBinaryEquality();
          }
        });
  }

  /** Returns the name of a function that the session or its catalog defines; an empty text if it is not one. */
  private static String replaceable(Expression expression) {
    if (expression instanceof SQLScalarFunction function) {
      return function.function().name().unquotedString();
    }
    return expression instanceof UserDefinedExpression function
            && !(expression instanceof ApplyFunctionExpression)
        ? function.name()
        : "";
  }
}
