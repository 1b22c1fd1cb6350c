package io.polarisspark.incremental;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.storage.StorageLevel;

/**
 * Runs the parts of a plan whose rows are needed several times, or decide how the plan goes on, and
 * keeps their rows until it is closed.
 *
 * <p>An estimate runs nothing. It takes all parts for large.
 */
final class Evaluation implements AutoCloseable {
  private final SparkSession spark;
  private final boolean estimate;
  private final List<Dataset<Row>> kept = new ArrayList<>();

  Evaluation(SparkSession spark, boolean estimate) {
    this.spark = spark;
    this.estimate = estimate;
  }

  boolean isEstimate() {
    return estimate;
  }

  SparkSession spark() {
    return spark;
  }

  /** Returns a plan with the same columns, whose rows are computed once. */
  LogicalPlan keep(LogicalPlan plan) {
    if (estimate) {
      return plan;
    }
    Dataset<Row> rows = Plans.rows(spark, plan);
    rows.persist(StorageLevel.MEMORY_AND_DISK());
    kept.add(rows);
    // The analyzer may have given new ids to columns.
    List<org.apache.spark.sql.catalyst.expressions.NamedExpression> columns = new ArrayList<>();
    var before = Plans.output(plan);
    var after = Plans.output(rows.logicalPlan());
    for (int position = 0; position < before.size(); position++) {
      columns.add(Plans.as(after.get(position), before.get(position)));
    }
    return before.equals(after) ? rows.logicalPlan() : Plans.project(columns, rows.logicalPlan());
  }

  /** Returns the rows of a plan, if there are at most {@code limit}; otherwise null. */
  List<InternalRow> collected(LogicalPlan plan, int limit) {
    if (estimate) {
      return null;
    }
    Dataset<Row> rows = Plans.rows(spark, plan).limit(limit + 1);
    InternalRow[] found = rows.queryExecution().executedPlan().executeCollect();
    return found.length > limit ? null : Arrays.asList(found);
  }

  @Override
  public void close() {
    kept.forEach(rows -> rows.unpersist(false));
    kept.clear();
  }
}
