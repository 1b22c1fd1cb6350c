"""Maintenance of a catalog as one Spark program, to be scheduled: daily, say, by cron, Airflow or the like.

    python examples/maintain.py STORE WAREHOUSE [JOB ...]

Jobs run in the order given, each by its CALL, and wait for a run of the same job that somebody else started.
Without jobs, those of a usual night run. A cluster's spark-submit takes this file just as well.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import polaris_spark

NIGHTLY = {
    "refresh_stale": "",  # materialized views whose rows are not fresh
    "expire": "",  # snapshots, as the tables' properties say, and the files that only they needed
    "purge_dropped": "",  # files of tables that were dropped with PURGE
    "remove_orphans": "dry_run => false",  # files that no table knows
    "trim": "",  # history older than history-retention
    "compact_index": "",  # shards that grew thin
    "sweep": "",  # rows that nothing needs any more
    "fsck": "",  # and is everything sound?
}
"""Jobs, with their arguments."""
OPTIONAL = {
    "drop_unused_branches": "unused_for => '90 d'",  # branches to which nobody has committed for three months
}
"""Further jobs, which run only if they are named. They do not wait for other runs, because several may run at once."""

store, warehouse, *chosen = sys.argv[1:]
spark = polaris_spark.configure(
    SparkSession.builder.appName("maintenance"), store=store, warehouse=warehouse, create=False
).getOrCreate()
faults = 0
for job in chosen or NIGHTLY:
    wait = "" if job == "refresh_stale" else "wait => true"  # any number of these calls may run at once
    arguments = OPTIONAL.get(job) or ", ".join(filter(None, (NIGHTLY.get(job, ""), wait)))
    done = spark.sql(f"CALL polaris.system.{job}({arguments})")
    print(job, flush=True)
    done.show(20, truncate=False)
    if job == "fsck":
        faults += done.count()
    if job == "refresh_stale":
        faults += done.filter("error IS NOT NULL").count()
spark.stop()
sys.exit(1 if faults else 0)
