package io.polarisspark.incremental;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataType;

/** Joins few rows by the first columns of both sides, without a Spark job. */
final class LocalJoin {
  private LocalJoin() {}

  /** Whether equal values of a type are equal in Java. */
  static boolean canCompare(DataType type) {
    return Keys.hasLiterals(type);
  }

  /**
   * Returns the rows of the left side, with those of the right side that have the same keys; nulls if there are none.
   *
   * @param keys number of columns that are compared
   * @throws IllegalStateException two rows of the right side have the same keys
   */
  static LogicalPlan leftOuter(Evaluation.Kept left, Evaluation.Kept right, int keys) {
    List<Attribute> ours = Plans.output(left.plan());
    List<Attribute> theirs = Plans.output(right.plan());
    Map<List<Object>, InternalRow> byKey = new HashMap<>();
    for (InternalRow row : right.rows()) {
      if (byKey.put(key(row, theirs.subList(0, keys)), row) != null) {
        throw new IllegalStateException(StoredRows.OTHER_ROWS);
      }
    }
    List<InternalRow> joined = new ArrayList<>();
    for (InternalRow row : left.rows()) {
      Object[] values = new Object[ours.size() + theirs.size()];
      copy(row, ours, values, 0);
      InternalRow found = byKey.get(key(row, ours.subList(0, keys)));
      if (found != null) {
        copy(found, theirs, values, ours.size());
      }
      joined.add(new GenericInternalRow(values));
    }
    List<Attribute> columns = new ArrayList<>(ours);
    theirs.forEach(one -> columns.add(one.withNullability(true)));
    return Plans.local(columns, joined);
  }

  private static List<Object> key(InternalRow row, List<Attribute> columns) {
    Object[] values = new Object[columns.size()];
    copy(row, columns, values, 0);
    for (int position = 0; position < values.length; position++) {
      if (values[position] instanceof byte[] bytes) {
        values[position] = ByteBuffer.wrap(bytes);
      }
    }
    return Arrays.asList(values);
  }

  private static void copy(InternalRow row, List<Attribute> columns, Object[] into, int start) {
    for (int position = 0; position < columns.size(); position++) {
      into[start + position] =
          row.isNullAt(position) ? null : row.get(position, columns.get(position).dataType());
    }
  }
}
