package io.polarisspark.incremental;

import static org.apache.spark.sql.functions.expr;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;

/**
 * Finds the stored rows that a change removes by the values of all their columns.
 *
 * <p>Stored rows can have copies. If some of them are removed, all are deleted, and the rest is inserted.
 */
final class ChangeByRow {
  private final StoredRows stored;
  private final StoredQuery query;
  private final Evaluation evaluation;

  /** Columns of the query's result. In datasets they are c0, c1, and so on. */
  private final List<Attribute> columns;

  ChangeByRow(StoredRows stored, StoredQuery query, Evaluation evaluation) {
    this.stored = stored;
    this.query = query;
    this.evaluation = evaluation;
    this.columns = Plans.output(query.plan());
  }

  /**
   * Checks that the removed rows can be found.
   *
   * @throws NotIncrementalException rows are removed, but values of a column cannot be compared, or the removed rows can
   *     differ from the stored rows
   */
  void check(SignedRows delta) {
    if (delta.removes() && Exactness.addsFloats(query.plan())) {
      throw new NotIncrementalException("it contains a sum of floating point, whose last digits can differ from the stored ones");
    }
    for (Attribute column : columns) {
      if (delta.removes() && !SignedRows.comparable(column.dataType())) {
        throw new NotIncrementalException("values of column " + column.name() + " cannot be compared");
      }
    }
  }

  /**
   * @param delta the change of the query's result
   * @throws NotIncrementalException rows are removed, but values of a column cannot be compared
   */
  StoredRows.Change of(SignedRows delta) {
    check(delta);
    if (!delta.removes()) {
      return StoredRows.Change.inserts(delta.withoutWeight(columns));
    }
    LogicalPlan counted = evaluation.keep(delta.counted(columns).plan()).plan();
    Dataset<Row> changes = stored.rows(counted).toDF(names("", "n"));
    Dataset<Row> removed = changes.where("n < 0");
    Dataset<Row> inserts =
        changes
            .where("n > 0")
            .unionAll(rest(removed).where("n > 0"))
            .selectExpr(names("", "explode(array_repeat(0, CAST(n AS INT))) AS n"));
    return new StoredRows.Change(result(inserts), result(removed), query.columns(), null);
  }

  /** Returns the distinct stored rows of which copies are removed, each with the number of copies that are left. */
  private Dataset<Row> rest(Dataset<Row> removed) {
    Dataset<Row> found =
        stored
            .rows()
            .toDF(names(""))
            .alias("s")
            .join(removed.alias("g"), expr(same()), "left_semi");
    LogicalPlan counted =
        SignedRows.of(found.logicalPlan(), true).counted(Plans.output(found.logicalPlan())).plan();
    String left =
        "if(s.n IS NULL OR s.n + g.n < 0, " + StoredRows.RAISE_OTHER_ROWS + ", s.n + g.n) AS n";
    return removed
        .alias("g")
        .join(stored.rows(counted).toDF(names("", "n")).alias("s"), expr(same()), "left_outer")
        .selectExpr(names("g.", left));
  }

  private LogicalPlan result(Dataset<Row> rows) {
    return rows.drop("n").toDF(query.columns().toArray(String[]::new)).logicalPlan();
  }

  /** Returns the names of the columns with a prefix, and then other columns. */
  private String[] names(String prefix, String... more) {
    List<String> names = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      names.add(prefix + "c" + position);
    }
    names.addAll(List.of(more));
    return names.toArray(String[]::new);
  }

  /** Returns the condition, in SQL, that the rows g and s are the same. */
  private String same() {
    List<String> conditions = new ArrayList<>();
    for (int position = 0; position < columns.size(); position++) {
      String name = "c" + position;
      conditions.add(StoredRows.same("g." + name, "s." + name, columns.get(position)));
    }
    return String.join(" AND ", conditions);
  }
}
