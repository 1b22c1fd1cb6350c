package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Converts values of Spark's rows to values that can be written as JSON, and back. Times are microseconds since 1970.
 */
final class Values {
  private Values() {}

  /** Returns a value of a row or array in a form that Jackson can write. */
  static Object read(SpecializedGetters from, int position, DataType type) {
    if (from.isNullAt(position)) {
      return null;
    }
    Object value = from.get(position, type);
    if (type instanceof ArrayType array) {
      return list((ArrayData) value, array.elementType());
    }
    if (type instanceof MapType map) {
      List<Object> keys = list(((MapData) value).keyArray(), map.keyType());
      Iterator<Object> values = list(((MapData) value).valueArray(), map.valueType()).iterator();
      Map<Object, Object> read = new LinkedHashMap<>();
      keys.forEach(key -> read.put(key, values.next()));
      return read;
    }
    return type instanceof StringType ? value.toString() : value;
  }

  /** Returns the value of a Spark type from its JSON. */
  static Object of(JsonNode json, DataType type) {
    if (json.isNull()) {
      return null;
    } else if (type instanceof StringType) {
      return UTF8String.fromString(json.textValue());
    } else if (type instanceof BooleanType) {
      return json.booleanValue();
    } else if (type instanceof IntegerType) {
      return json.intValue();
    } else if (type instanceof DoubleType) {
      return Double.parseDouble(json.asText());
    } else if (type instanceof ArrayType array) {
      List<Object> values = new ArrayList<>();
      json.forEach(element -> values.add(of(element, array.elementType())));
      return new GenericArrayData(values.toArray());
    } else if (type instanceof MapType map) {
      List<Object> keys = new ArrayList<>();
      List<Object> values = new ArrayList<>();
      json.fields()
          .forEachRemaining(
              entry -> {
                keys.add(UTF8String.fromString(entry.getKey()));
                values.add(of(entry.getValue(), map.valueType()));
              });
      return new ArrayBasedMapData(
          new GenericArrayData(keys.toArray()), new GenericArrayData(values.toArray()));
    }
    return json.longValue();
  }

  private static List<Object> list(ArrayData array, DataType type) {
    List<Object> values = new ArrayList<>();
    for (int i = 0; i < array.numElements(); i++) {
      values.add(read(array, i, type));
    }
    return values;
  }
}
