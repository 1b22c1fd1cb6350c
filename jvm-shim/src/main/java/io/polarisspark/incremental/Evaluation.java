package io.polarisspark.incremental;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.storage.StorageLevel;
import scala.runtime.AbstractFunction0;

/**
 * Runs the parts of a plan whose rows are needed several times, or decide how the plan goes on, and keeps their rows
 * until it is closed. Few rows become part of the plan, so that Spark knows how few they are; many rows are kept by the
 * executors.
 *
 * <p>An estimate runs nothing, and assumes that all parts are large.
 */
final class Evaluation implements AutoCloseable {
  /** Largest number of rows that become part of a plan. */
  private static final int FEW = 5_000;

  private final SparkSession spark;
  private final boolean estimate;
  private final List<RDD<?>> kept = new ArrayList<>();

  Evaluation(SparkSession spark, boolean estimate) {
    this.spark = spark;
    this.estimate = estimate;
  }

  /**
   * Rows that have been computed.
   *
   * @param plan returns them
   * @param rows the rows; null if there are many, or in an estimate
   */
  record Kept(LogicalPlan plan, List<InternalRow> rows) {}

  /** Whether nothing is run. */
  boolean isEstimate() {
    return estimate;
  }

  /** Returns a plan with the same columns, whose rows have been computed. */
  Kept keep(LogicalPlan plan) {
    if (estimate) {
      return new Kept(plan, null);
    }
    List<Attribute> columns = Plans.output(plan);
    List<InternalRow> local = Plans.isLocal(plan) ? collected(plan, FEW) : null;
    if (local != null) {
      return new Kept(Plans.local(columns, local), local);
    }
    Dataset<Row> rows = Plans.rows(spark, plan);
    InternalRow[] found = run(() -> rows.queryExecution().executedPlan().executeTake(FEW + 1));
    if (found.length <= FEW) {
      return new Kept(Plans.local(columns, Arrays.asList(found)), Arrays.asList(found));
    }
    // This uses what the shuffles of executeTake() have written. Not persist(): Spark computes what is cached with all
    // its shuffle partitions, however few rows there are.
    LogicalPlan computed =
        rows.localCheckpoint(true, StorageLevel.MEMORY_AND_DISK()).logicalPlan();
    if (computed instanceof LogicalRDD checkpoint) {
      kept.add(checkpoint.rdd());
    }
    return new Kept(named(computed, columns), null);
  }

  /** Returns a plan whose columns have other ids. The analyzer may have given new ids to the columns. */
  private static LogicalPlan named(LogicalPlan plan, List<Attribute> columns) {
    List<Attribute> found = Plans.output(plan);
    List<NamedExpression> renamed = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      renamed.add(Plans.as(found.get(position), columns.get(position)));
    }
    return renamed.equals(found) ? plan : Plans.project(renamed, plan);
  }

  /** Returns the rows of a plan, if there are at most {@code limit}; otherwise null. */
  List<InternalRow> collected(LogicalPlan plan, int limit) {
    if (estimate) {
      return null;
    }
    Dataset<Row> rows = Plans.rows(spark, plan).limit(limit + 1);
    InternalRow[] found = run(() -> rows.queryExecution().executedPlan().executeCollect());
    return found.length > limit ? null : Arrays.asList(found);
  }

  /** Runs a plan with the settings of the session. Without this, executors use Spark's defaults. */
  private InternalRow[] run(Supplier<InternalRow[]> plan) {
    return SQLExecution.withSQLConfPropagated(
        spark,
        new AbstractFunction0<InternalRow[]>() {
          @Override
          public InternalRow[] apply() {
            return plan.get();
          }
        });
  }

  @Override
  public void close() {
    kept.forEach(rows -> rows.unpersist(false));
    kept.clear();
  }
}
