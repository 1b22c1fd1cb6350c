package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.aggregate;
import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.as;
import static io.polarisspark.incremental.Plans.literal;
import static io.polarisspark.incremental.Plans.project;
import static io.polarisspark.incremental.Plans.seq;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.ArrayRepeat;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Explode;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.MapEntries;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.expressions.aggregate.First;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/**
 * The change of a plan's result: the rows that were added to it, and those that were removed from it
 * (a Z-set, as in Budiu et al., "DBSP: Automatic Incremental View Maintenance for Rich Query
 * Languages", VLDB 2023, section 2).
 *
 * @param plan returns the columns of the changed plan, under their ids, and the weight
 * @param weight 1 in each added row, -1 in each removed row
 * @param removes whether there can be removed rows
 * @param isNet whether rows that were both added and removed have been left out, as far as this pays
 */
record SignedRows(LogicalPlan plan, Attribute weight, boolean removes, boolean isNet) {
  private static final String WEIGHT = "polaris_weight";

  /** Returns the rows of a plan, all added or all removed. */
  static SignedRows of(LogicalPlan plan, boolean added) {
    Alias weight = alias(literal(added ? 1 : -1), WEIGHT);
    List<NamedExpression> columns = new ArrayList<>(Plans.output(plan));
    columns.add(weight);
    return new SignedRows(project(columns, plan), weight.toAttribute(), !added, true);
  }

  /** Returns the sum of several changes of a plan with these columns. */
  static SignedRows sum(List<Attribute> columns, List<SignedRows> terms) {
    List<LogicalPlan> plans = new ArrayList<>();
    boolean removes = false;
    boolean isNet = true;
    for (SignedRows term : terms) {
      plans.add(term.select(columns).plan);
      removes |= term.removes;
      isNet &= term.isNet;
    }
    return new SignedRows(Plans.union(plans), terms.get(0).weight, removes, isNet);
  }

  /** Returns the same change, which may have rows that were both added and removed. */
  SignedRows gross() {
    return new SignedRows(plan, weight, removes, false);
  }

  /** Returns the change of another plan, which is computed from this one row by row. */
  SignedRows with(LogicalPlan other) {
    return new SignedRows(other, weight, removes, isNet);
  }

  /** Returns the change with the weight as the last column after these columns. */
  SignedRows select(List<? extends NamedExpression> columns) {
    List<NamedExpression> all = new ArrayList<>(columns);
    all.add(weight);
    return with(project(all, plan));
  }

  /** Returns the rows without their weights. */
  LogicalPlan withoutWeight(List<Attribute> columns) {
    return project(columns, plan);
  }

  /** Returns the change without rows that were both added and removed. */
  SignedRows net(List<Attribute> columns) {
    if (!removes || isNet || !columns.stream().allMatch(one -> comparable(one.dataType()))) {
      return this;
    }
    Counted counted = counted(columns);
    Expression sign =
        new If(new GreaterThan(counted.count, literal(0L)), literal(1), literal(-1));
    Expression copies =
        new Cast(new Abs(counted.count), DataTypes.IntegerType, Option.empty());
    AttributeReference sum = weight(DataTypes.IntegerType);
    LogicalPlan repeated =
        new Generate(
            new Explode(new ArrayRepeat(sign, copies)),
            seq(),
            false,
            Option.empty(),
            seq((Attribute) sum),
            counted.plan);
    return new SignedRows(repeated, sum, true, true).select(columns);
  }

  /**
   * The distinct rows of a change.
   *
   * @param plan returns the columns, and the count
   * @param count sum of the weights of a row; never 0
   */
  record Counted(LogicalPlan plan, Attribute count) {}

  /** Returns the distinct rows of the change, each with the sum of its weights if it is not 0. */
  Counted counted(List<Attribute> columns) {
    List<NamedExpression> renamed = new ArrayList<>();
    List<Expression> keys = new ArrayList<>();
    List<NamedExpression> results = new ArrayList<>();
    for (Attribute column : columns) {
      Alias copy = alias(column, column.name());
      Attribute value = copy.toAttribute();
      renamed.add(copy);
      List<Expression> identity = identity(value);
      keys.addAll(identity);
      boolean itself = identity.size() == 1 && identity.get(0) == value;
      results.add(
          as(itself ? value : new First(value, false).toAggregateExpression(), column));
    }
    // Grouping by an expression needs a column for it.
    List<NamedExpression> computed = new ArrayList<>(renamed);
    computed.add(weight);
    LogicalPlan copied = project(computed, plan);
    List<NamedExpression> named = new ArrayList<>(Plans.output(copied));
    List<Expression> grouping = new ArrayList<>();
    for (Expression key : keys) {
      if (key instanceof Attribute) {
        grouping.add(key);
      } else {
        Alias one = alias(key, "polaris_key");
        named.add(one);
        grouping.add(one.toAttribute());
      }
    }
    Alias count = alias(new Sum(weight).toAggregateExpression(), WEIGHT);
    results.add(count);
    LogicalPlan summed = aggregate(grouping, results, project(named, copied));
    LogicalPlan changed =
        new Filter(new Not(new EqualTo(count.toAttribute(), literal(0L))), summed);
    return new Counted(changed, count.toAttribute());
  }

  /**
   * Returns the expressions that are equal for two values only if the values are the same.
   *
   * <p>Spark takes 0.0 and -0.0 for equal, and cannot compare maps.
   */
  static List<Expression> identity(Expression value) {
    if (value.dataType() instanceof MapType) {
      Expression entries = new MapEntries(value);
      return hasFloats(value.dataType()) ? List.of(entries, text(value)) : List.of(entries);
    }
    return hasFloats(value.dataType()) ? List.of(value, text(value)) : List.of(value);
  }

  /** Whether values of this type can be compared by their identity. */
  static boolean comparable(DataType type) {
    return type instanceof MapType map
        ? RowOrdering.isOrderable(map.keyType()) && RowOrdering.isOrderable(map.valueType())
        : RowOrdering.isOrderable(type);
  }

  static boolean hasFloats(DataType type) {
    if (type instanceof ArrayType array) {
      return hasFloats(array.elementType());
    }
    if (type instanceof MapType map) {
      return hasFloats(map.keyType()) || hasFloats(map.valueType());
    }
    if (type instanceof StructType struct) {
      return List.of(struct.fields()).stream().anyMatch(field -> hasFloats(field.dataType()));
    }
    return type instanceof DoubleType || type instanceof FloatType;
  }

  private static Expression text(Expression value) {
    return new Cast(value, DataTypes.StringType, Option.apply("UTC"));
  }

  private static AttributeReference weight(DataType type) {
    return (AttributeReference) alias(literal(0), WEIGHT).toAttribute();
  }
}
