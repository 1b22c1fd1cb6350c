package io.polarisspark.incremental;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Whether the storage table of a materialized view can store the values of the view's query. The types of the query change
 * with those of its tables, the types of the view do not.
 */
public final class StoredTypes {
  private StoredTypes() {}

  /**
   * For Python: returns which column of a query is missing, or has a type of which Spark would change values when it
   * stores them; an empty text if there is none.
   *
   * @param analyzed the query; it can have more columns than the view
   * @param table name of the storage table, as in SQL
   */
  public static String misfit(SparkSession session, LogicalPlan analyzed, String table) {
    String policy = session.sessionState().conf().getConfString("spark.sql.storeAssignmentPolicy");
    boolean checked = !policy.equalsIgnoreCase("LEGACY");
    StructField[] now = analyzed.schema().fields();
    int position = 0;
    for (StructField stored : session.table(table).schema().fields()) {
      if (stored.name().startsWith(StoredQuery.HIDDEN)) {
        continue;
      }
      if (position == now.length) {
        return "the query now has no column for %s, because a table or view that it reads has fewer columns; replace the view"
            .formatted(stored.name());
      }
      DataType type = now[position++].dataType();
      if (!fits(type, stored.dataType(), checked)) {
        return "column %s of the query now has the type %s instead of %s; replace the view"
            .formatted(stored.name(), type.simpleString(), stored.dataType().simpleString());
      }
    }
    return "";
  }

  private static boolean fits(DataType now, DataType then, boolean checked) {
    if (now.equals(then) || Cast.canUpCast(now, then) && names(now).equals(names(then))) {
      return true;
    }
    // Spark checks for overflow when it writes these.
    return checked
        && (now instanceof IntegralType && then instanceof IntegralType
            || now instanceof DecimalType one && then instanceof DecimalType other && one.scale() == other.scale());
  }

  /** Whether each value that the stored type accepts without an error can be read again unchanged. */
  static boolean keeps(DataType values, DataType stored) {
    if (values instanceof StructType some && stored instanceof StructType other) {
      StructField[] fields = some.fields();
      boolean keeps = fields.length == other.fields().length;
      for (int position = 0; keeps && position < fields.length; position++) {
        keeps = keeps(fields[position].dataType(), other.fields()[position].dataType());
      }
      return keeps;
    }
    if (values instanceof ArrayType some && stored instanceof ArrayType other) {
      return keeps(some.elementType(), other.elementType());
    }
    if (values instanceof MapType some && stored instanceof MapType other) {
      return keeps(some.keyType(), other.keyType()) && keeps(some.valueType(), other.valueType());
    }
    return values.equals(stored)
        || values instanceof StringType && stored instanceof StringType
        || values instanceof IntegralType && stored instanceof IntegralType
        || values instanceof FloatType && stored instanceof DoubleType
        || values instanceof DecimalType one && stored instanceof DecimalType another && one.scale() == another.scale();
  }

  /** Returns the names of the fields in a nested type. */
  private static List<Object> names(DataType type) {
    List<Object> found = new ArrayList<>();
    if (type instanceof StructType struct) {
      for (StructField field : struct.fields()) {
        found.add(field.name());
        found.add(names(field.dataType()));
      }
    } else if (type instanceof ArrayType array) {
      found.add(names(array.elementType()));
    } else if (type instanceof MapType map) {
      found.add(names(map.keyType()));
      found.add(names(map.valueType()));
    }
    return found;
  }
}
