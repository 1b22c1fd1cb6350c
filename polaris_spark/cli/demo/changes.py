"""Second chapter of the demo: changes of rows, columns and partitions."""

from __future__ import annotations

from polaris_spark.cli.demo.load import PER_MONTH
from polaris_spark.cli.demo.model import STORM, UNKNOWN, per_month
from polaris_spark.cli.demo.session import CATALOG
from polaris_spark.cli.demo.stage import Stage
from polaris_spark.cli.stores import open_store
from polaris_spark.commits.rows import Head
from polaris_spark.names import MAIN

FLIGHTS = "polaris.nyc.flights"


def change(stage: Stage) -> None:
    """Run UPDATE, DELETE, ALTER TABLE and MERGE, and record the results to check."""
    stage.chapter("Changes: UPDATE, DELETE, ALTER TABLE, MERGE")
    stage.sql(f"UPDATE {FLIGHTS} SET tailnum = '{UNKNOWN}' WHERE tailnum IS NULL")
    found = stage.one(f"SELECT count(*) FROM {FLIGHTS} WHERE tailnum = '{UNKNOWN}'")
    stage.check("flights updated", found, int((stage.flights.updated.tailnum == UNKNOWN).sum()))
    stage.say("Cancelled flights have no departure time; they go.")
    stage.sql(f"DELETE FROM {FLIGHTS} WHERE dep_time IS NULL")
    stage.check("flights left by DELETE", _per_month(stage), per_month(stage.flights.deleted))
    _alter(stage)
    _merge(stage)


def _alter(stage: Stage) -> None:
    stage.sql(f"ALTER TABLE {FLIGHTS} ADD COLUMN gained INT COMMENT 'minutes made up in the air'")
    stage.sql(f"ALTER TABLE {FLIGHTS} RENAME COLUMN dep_delay TO departure_delay")
    stage.sql(f"ALTER TABLE {FLIGHTS} DROP COLUMN minute")
    stage.sql(f"ALTER TABLE {FLIGHTS} ADD PARTITION FIELD origin")
    frame = stage.flights.inserted
    wanted = [_renamed(name) for name in frame.columns if name != "minute"]
    stage.check("columns of flights", [*stage.spark.table(FLIGHTS).columns], [*wanted, "gained"])


def _merge(stage: Stage) -> None:
    stage.say(
        "A corrected report for February comes in: diverted flights are removed, cancelled ones are added again."
    )
    stage.notes["before merge"] = newest_commit(stage)
    columns = [name for name in stage.flights.inserted.columns if name != "minute"]
    targets = ", ".join(_renamed(name) for name in columns)
    values = ", ".join(f"report.{name}" for name in columns)
    stage.sql(
        f"""
        MERGE INTO {FLIGHTS} AS flights
        USING (SELECT * FROM flights_source WHERE month = {STORM}) AS report
        ON flights.month = {STORM} AND flights.time_hour = report.time_hour
          AND flights.carrier = report.carrier AND flights.flight = report.flight
        WHEN MATCHED AND report.arr_delay IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET gained = report.dep_delay - report.arr_delay
        WHEN NOT MATCHED THEN INSERT ({targets})
          VALUES ({values})
        """
    )
    merged = stage.flights.merged
    stage.notes["flights by month"] = found = _per_month(stage)
    stage.check("flights by month, merged", found, per_month(merged))
    stage.check(
        "minutes gained in February",
        stage.one(f"SELECT sum(gained) FROM {FLIGHTS}"),
        int(merged.gained.sum()),
    )
    stage.check(
        "mean departure delay",
        stage.one(f"SELECT avg(departure_delay) FROM {FLIGHTS}"),
        float(merged.dep_delay.mean()),
    )


def _per_month(stage: Stage) -> dict[int, int]:
    return {row["month"]: row["n"] for row in stage.quiet(PER_MONTH.format(table=FLIGHTS))}


def _renamed(column: str) -> str:
    return "departure_delay" if column == "dep_delay" else column


def newest_commit(stage: Stage) -> Head:
    """Return the head of the catalog's branch `main`, which describes its newest commit."""
    with open_store(stage.place.store, stage.place.password) as opened:
        realm = opened.realm("default")
        return realm.catalog_head(realm.catalog(CATALOG), MAIN).head
