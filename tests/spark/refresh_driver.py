"""Changes tables and refreshes a materialized view until it is killed.

`refresh_driver.py STORE WAREHOUSE NUMBER [PYTHON [FULL]]`; PYTHON is the interpreter of the shim, and with FULL the
refreshes are full.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from polaris_spark.spark.session import configure

QUERY = "SELECT k % 5 AS g, sum(n) AS s, count(*) AS c, max(n) AS m FROM t GROUP BY k % 5"
STRATEGY = "TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '1000')"


def main(store: str, warehouse: str, number: int, python: str = sys.executable, full: str = "") -> None:
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = configure(builder, store=store, warehouse=warehouse, python=python).getOrCreate()
    for statement in (
        "CREATE NAMESPACE IF NOT EXISTS polaris.db",
        "USE polaris.db",
        "CREATE TABLE IF NOT EXISTS t (k BIGINT, n BIGINT)",
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS mv {STRATEGY} AS {QUERY}",
        "REFRESH MATERIALIZED VIEW mv",
    ):
        spark.sql(statement)
    for turn in count():
        spark.sql(f"INSERT INTO t SELECT id * 7, id + {turn} FROM range(20)")
        spark.sql(f"DELETE FROM t WHERE n = {turn % 20}")
        spark.sql(f"REFRESH MATERIALIZED VIEW mv {full}")
        Path(warehouse, f"refreshed-{number}").write_text(str(turn))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
