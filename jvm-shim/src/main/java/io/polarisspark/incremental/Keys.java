package io.polarisspark.incremental;

import static io.polarisspark.incremental.Plans.aggregate;
import static io.polarisspark.incremental.Plans.alias;
import static io.polarisspark.incremental.Plans.join;
import static io.polarisspark.incremental.Plans.project;
import static io.polarisspark.incremental.Plans.seq;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.RowOrdering;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.DataType;

/**
 * The values of grouping, partition or join expressions in changed rows. Only rows with these values
 * can change a result that is computed for each value on its own.
 */
final class Keys {
  /** Largest number of keys that become literals in filters, so that scans skip files. */
  private static final int LITERALS = 1_000;

  private final LogicalPlan plan;
  private final List<Attribute> columns;

  /** The keys; null if there are too many. */
  private final List<InternalRow> values;

  private Keys(LogicalPlan plan, List<Attribute> columns, List<InternalRow> values) {
    this.plan = plan;
    this.columns = columns;
    this.values = values;
  }

  /** A plan, and the expressions over its columns whose values are keys. */
  record Source(LogicalPlan plan, List<Expression> expressions) {}

  /**
   * Returns the keys in the rows of the sources.
   *
   * @throws NotIncrementalException keys cannot be compared
   */
  static Keys of(List<Source> sources, Evaluation evaluation) {
    List<LogicalPlan> plans = new ArrayList<>();
    for (Source source : sources) {
      List<NamedExpression> named = new ArrayList<>();
      for (Expression one : source.expressions) {
        if (!RowOrdering.isOrderable(one.dataType())) {
          throw new NotIncrementalException("it groups rows by a " + one.dataType().typeName());
        }
        named.add(alias(one, "polaris_key"));
      }
      plans.add(project(named, source.plan));
    }
    LogicalPlan all = Plans.union(plans);
    List<Attribute> found = Plans.output(all);
    List<NamedExpression> columns = new ArrayList<>();
    found.forEach(one -> columns.add(alias(one, one.name())));
    Evaluation.Kept kept = evaluation.keep(aggregate(found, columns, all));
    return of(kept, Plans.output(kept.plan()));
  }

  /** Returns the keys in the first columns of rows, each of which has other keys. */
  static Keys of(Evaluation.Kept kept, List<Attribute> columns) {
    List<InternalRow> rows = kept.rows();
    return new Keys(kept.plan(), columns, rows == null || rows.size() > LITERALS ? null : rows);
  }

  /** Whether there are no keys. */
  boolean isEmpty() {
    return values != null && values.isEmpty();
  }

  LogicalPlan plan() {
    return plan;
  }

  List<Attribute> columns() {
    return columns;
  }

  /** Returns the rows of a plan whose values of the expressions are keys. */
  LogicalPlan restrict(LogicalPlan rows, List<Expression> expressions) {
    LogicalPlan filtered = rows;
    List<Expression> conditions = new ArrayList<>();
    for (int position = 0; position < expressions.size(); position++) {
      Expression expression = expressions.get(position);
      conditions.add(new EqualNullSafe(expression, columns.get(position)));
      if (values != null && hasLiterals(expression.dataType())) {
        filtered = new Filter(isOneOf(expression, position), filtered);
      }
    }
    boolean exact = values != null && columns.size() == 1 && hasLiterals(columns.get(0).dataType());
    return exact ? filtered : join(filtered, plan, LeftSemi$.MODULE$, Plans.all(conditions));
  }

  /** Whether filters with literals of a type find all equal values. Scans skip files with -0.0 that lack 0.0. */
  static boolean hasLiterals(DataType type) {
    return type instanceof AtomicType && !SignedRows.hasFloats(type);
  }

  private Expression isOneOf(Expression expression, int position) {
    DataType type = columns.get(position).dataType();
    Set<Object> found = new LinkedHashSet<>();
    boolean hasNull = false;
    for (InternalRow row : values) {
      if (row.isNullAt(position)) {
        hasNull = true;
      } else {
        found.add(row.get(position, type));
      }
    }
    List<Expression> literals = new ArrayList<>();
    found.forEach(value -> literals.add(new Literal(value, type)));
    if (literals.isEmpty()) {
      return hasNull ? new IsNull(expression) : Plans.literal(false);
    }
    Expression in = new In(expression, seq(literals));
    return hasNull ? new Or(in, new IsNull(expression)) : in;
  }
}
