"""A PySpark program that keeps its tables in a catalog of one file.

    python examples/pyspark_program.py [DIRECTORY]

Run it twice: the second run finds what the first one left.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import polaris_spark

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "polaris-example").absolute()
directory.mkdir(exist_ok=True)
builder = SparkSession.builder.master("local[*]").appName("polaris_spark example")
spark = polaris_spark.configure(
    builder, store=f"sqlite://{directory}/catalog.db", warehouse=f"{directory}/warehouse"
).getOrCreate()

spark.sql("CREATE NAMESPACE IF NOT EXISTS polaris.shop")
spark.sql("CREATE TABLE IF NOT EXISTS polaris.shop.orders (id BIGINT, item STRING, price DECIMAL(9, 2))")

# DataFrames are written as to any other table.
orders = spark.createDataFrame([(1, "tea", 4.5), (2, "coffee", 7.25)], "id BIGINT, item STRING, price DOUBLE")
orders.selectExpr("id", "item", "CAST(price AS DECIMAL(9, 2)) AS price").writeTo(
    "polaris.shop.orders"
).append()
spark.sql("UPDATE polaris.shop.orders SET price = price * 2 WHERE item = 'tea'")
spark.table("polaris.shop.orders").show()

# The catalog itself is tables, too.
spark.sql(
    "SELECT number, committed_at, principal, action, name FROM polaris.system.changes ORDER BY number"
).show(truncate=False)
spark.stop()
