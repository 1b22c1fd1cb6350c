"""Who changed what, kept in a table for ever: a stream of a catalog's log, run whenever there may be something new.

    python examples/audit_stream.py [DIRECTORY]

The directory is that of `pyspark_program.py`. Each run adds what happened since the one before; run it at least as
often as `history-retention` says (3 days unless it is set), because older history may be trimmed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import polaris_spark

directory = Path(sys.argv[1] if len(sys.argv) > 1 else "polaris-example").absolute()
directory.mkdir(exist_ok=True)
builder = SparkSession.builder.master("local[*]").appName("audit")
spark = polaris_spark.configure(
    builder,
    store=f"sqlite://{directory}/catalog.db",
    warehouse=f"{directory}/warehouse",
    principal="auditor",
).getOrCreate()

spark.sql("CREATE NAMESPACE IF NOT EXISTS polaris.audit")
spark.sql("""
    CREATE TABLE IF NOT EXISTS polaris.audit.log (
        committed_at TIMESTAMP, number BIGINT, position INT, principal STRING,
        action STRING, kind STRING, namespace STRING, name STRING, summary MAP<STRING, STRING>
    ) PARTITIONED BY (days(committed_at))
""")

# The checkpoint says how far the log has been read. The audit's own commits are in it, too; they are left out.
changes = spark.readStream.table("polaris.system.changes").where("principal <> 'auditor'")
query = (
    changes.select(*spark.table("polaris.audit.log").columns)
    .writeStream.option("checkpointLocation", str(directory / "audit-checkpoint"))
    .option("fanout-enabled", "true")
    .trigger(availableNow=True)
    .toTable("polaris.audit.log")
)
query.awaitTermination()

spark.sql(
    "SELECT number, committed_at, principal, action, name FROM polaris.audit.log ORDER BY number, position"
).show(50, truncate=False)
spark.stop()
