"""A driver program of its own: ``driver.py STORE WAREHOUSE``. Answers SQL, one statement a line, with JSON.

Its first line says ``{"jvm": pid, "child": pid}``; an answer is ``{"rows": [...]}`` or ``{"error": "..."}``.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from polaris_spark.spark.session import configure
from tests.spark.processes import bridge_process, jvm_process


def main(store: str, warehouse: str) -> None:
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    spark = configure(builder, store=store, warehouse=warehouse).getOrCreate()
    spark.sql("SHOW NAMESPACES IN polaris").collect()
    print(json.dumps({"jvm": jvm_process(spark), "child": bridge_process(spark)}), flush=True)
    for statement in sys.stdin:
        try:
            rows = [row.asDict(recursive=True) for row in spark.sql(statement).collect()]
            print(json.dumps({"rows": rows}, default=str), flush=True)
        except Exception as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
