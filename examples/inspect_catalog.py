# %% [markdown]
# # A catalog, inspected with Spark
#
# Runs cell by cell in an editor that knows `# %%`, or as a program:
#
#     python examples/inspect_catalog.py [DIRECTORY]
#
# The directory is that of `pyspark_program.py`; where there is nothing yet, a little history is made first.

# %%
from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import polaris_spark

arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
directory = Path(arguments[0] if arguments else "polaris-example").absolute()
directory.mkdir(exist_ok=True)
STORE = f"sqlite://{directory}/catalog.db"
spark = polaris_spark.configure(
    SparkSession.builder.master("local[*]").appName("inspection"),
    store=STORE,
    warehouse=f"{directory}/warehouse",
    principal="inspector",
).getOrCreate()


def show(query: str) -> None:
    """Print what a query finds."""
    spark.sql(query).show(50, truncate=False)


# %% Some history to look at
spark.sql("CREATE NAMESPACE IF NOT EXISTS polaris.inspected")
spark.sql("CREATE OR REPLACE TABLE polaris.inspected.numbers AS SELECT id AS n FROM range(1000)")
spark.sql("DELETE FROM polaris.inspected.numbers WHERE n % 10 = 0")

# %% Which tables are there, and how large are they?
show(
    "SELECT namespace, name, snapshot_count, record_count, data_file_count, file_bytes FROM polaris.system.tables"
)

# %% Who changed what, newest first?
show(
    "SELECT number, committed_at, principal, action, namespace, name, summary['operation'] AS operation "
    "FROM polaris.system.changes ORDER BY number DESC"
)

# %% Which snapshot was made by whom? Two views, joined.
show("""
    SELECT s.namespace, s.name, s.snapshot_id, s.operation, c.principal, c.number AS commit
    FROM polaris.system.snapshots s
    JOIN polaris.system.changes c ON c.entity_id = s.entity_id AND c.summary['snapshot-id'] = s.snapshot_id
    ORDER BY c.number
""")

# %% What was the catalog before its newest commit?
newest, before = spark.sql(
    "SELECT commit_id FROM polaris.system.commits ORDER BY number DESC LIMIT 2"
).collect()
show(f"""
    SELECT namespace, name, then.record_count AS records_then, now.record_count AS records_now
    FROM polaris.system.tables VERSION AS OF {before.commit_id} AS then
    FULL JOIN polaris.system.tables AS now USING (namespace, name)
""")

# %% What does it store, by type and age? A job that reads every row where it is.
show("CALL polaris.system.storage_summary()")

# %% The same rows as a DataFrame, without any catalog configured: the references, where every history ends.
spark.read.format("polaris-objects").option("store", STORE).option("view", "references").load().select(
    "name", "kind", "catalog", "number", "committed_at"
).show(truncate=False)

# %%
spark.stop()
