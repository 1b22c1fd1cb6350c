"""Third chapter of the demo: a view, branches and tags, time travel, metadata tables, and rollback."""

from __future__ import annotations

from polaris_spark.cli.demo.changes import FLIGHTS
from polaris_spark.cli.demo.model import delays_by_airline
from polaris_spark.cli.demo.stage import Row, Stage

VIEW = "polaris.nyc.delays"

OPERATIONS = ("append", "append", "overwrite", "delete", "overwrite", "delete")
"""Expected operations of the snapshots that CREATE, INSERT, UPDATE, DELETE, MERGE, and the DELETE on the branch create,
in this order."""


def query(stage: Stage) -> None:
    """Run CREATE VIEW, branch and tag DDL, time travel, queries of metadata tables, and a rollback."""
    _view(stage)
    _branches(stage)
    _time_travel(stage)
    _metadata_tables(stage)
    _roll_back(stage)


def _view(stage: Stage) -> None:
    stage.chapter("A view over three tables")
    stage.sql(
        f"""
        CREATE VIEW {VIEW} COMMENT 'Arrivals with airline and plane' AS
        SELECT f.month, f.origin, f.dest, f.arr_delay, a.name AS airline, p.manufacturer
        FROM {FLIGHTS} f
        JOIN polaris.nyc.airlines a ON f.carrier = a.carrier
        JOIN polaris.nyc.planes p ON f.tailnum = p.tailnum
        """
    )
    rows = stage.sql(
        f"SELECT airline, avg(arr_delay) AS mean_delay FROM {VIEW} GROUP BY airline ORDER BY 2 DESC"
    )
    stage.show(rows, limit=4)
    found = {row["airline"]: row["mean_delay"] for row in rows}
    stage.check(
        "mean arrival delay by airline, by the view",
        found,
        delays_by_airline(stage.flights.merged, stage.data.frames),
    )


def _branches(stage: Stage) -> None:
    stage.chapter("Branches and tags of a table")
    merged = stage.flights.merged
    stage.sql(f"ALTER TABLE {FLIGHTS} CREATE TAG audited RETAIN 30 DAYS")
    stage.sql(f"ALTER TABLE {FLIGHTS} CREATE BRANCH without_islands")
    stage.sql(
        f"DELETE FROM {FLIGHTS}.branch_without_islands WHERE dest IN ('HNL', 'SJU', 'STT', 'BQN', 'PSE')"
    )
    islands = merged.dest.isin(["HNL", "SJU", "STT", "BQN", "PSE"])
    count = "SELECT count(*) FROM " + FLIGHTS + " VERSION AS OF '{}'"
    stage.check("flights on the branch", stage.one(count.format("without_islands")), int((~islands).sum()))
    stage.check("flights at the tag", stage.one(count.format("audited")), len(merged))
    stage.check("flights on main", stage.one(f"SELECT count(*) FROM {FLIGHTS}"), len(merged))


def _time_travel(stage: Stage) -> None:
    stage.chapter("Time travel by version and by timestamp")
    history = _snapshots(stage)
    first, loaded, updated = history[0], history[1], history[2]
    rows = stage.sql(f"SELECT count(*) AS flights FROM {FLIGHTS} VERSION AS OF {first['snapshot_id']}")
    stage.check("flights by version, as created", rows[0]["flights"], len(stage.flights.created))
    rows = stage.sql(
        f"SELECT count(*) AS flights, count(tailnum) AS tail_numbers FROM {FLIGHTS} "
        f"TIMESTAMP AS OF '{loaded['committed_at']}'"
    )
    stage.show(rows)
    stage.check("flights by timestamp, as loaded", rows[0]["flights"], len(stage.flights.inserted))
    stage.check(
        "tail numbers by timestamp, as loaded",
        rows[0]["tail_numbers"],
        int(stage.flights.inserted.tailnum.notna().sum()),
    )
    found = stage.one(f"SELECT count(tailnum) FROM {FLIGHTS} VERSION AS OF {updated['snapshot_id']}")
    stage.check("tail numbers by version, as updated", found, len(stage.flights.updated))


def _metadata_tables(stage: Stage) -> None:
    stage.chapter("Iceberg's metadata tables")
    rows = stage.sql(
        f"""
        SELECT committed_at, operation, summary['added-records'] AS added, summary['deleted-records'] AS deleted,
               summary['total-records'] AS total
        FROM {FLIGHTS}.snapshots ORDER BY committed_at
        """
    )
    stage.show(rows)
    stage.check("operations of flights", [row["operation"] for row in rows], list(OPERATIONS))
    stage.show(stage.sql(f"SELECT name, type, snapshot_id FROM {FLIGHTS}.refs ORDER BY name"))
    rows = stage.sql(
        f"""
        SELECT spec_id, if(content = 0, 'data', 'deletes') AS content, count(*) AS files, sum(record_count) AS records
        FROM {FLIGHTS}.files GROUP BY ALL ORDER BY spec_id, content
        """
    )
    stage.show(rows)
    loaded = f"{FLIGHTS}.files VERSION AS OF {_snapshots(stage)[1]['snapshot_id']}"
    records = stage.one(f"SELECT sum(record_count) FROM {loaded}")
    stage.check("records in the files, as loaded", records, len(stage.flights.inserted))
    partitions = stage.one(f"SELECT count(DISTINCT partition.month) FROM {FLIGHTS}.partitions")
    stage.check("months among the partitions", partitions, 12)


def _roll_back(stage: Stage) -> None:
    stage.chapter("A mistake, and Iceberg's own rollback")
    before = stage.one("SELECT max_by(snapshot_id, committed_at) FROM polaris.nyc.airlines.snapshots")
    stage.say("The analyst uses the same catalog under another name.")
    stage.sql("DELETE FROM analyst.nyc.airlines WHERE name LIKE '%Air%'")
    left = stage.one("SELECT count(*) FROM polaris.nyc.airlines")
    names = stage.data.frames["airlines"].name
    stage.check("airlines left by the mistake", left, int((~names.str.contains("Air")).sum()))
    stage.sql(f"CALL polaris.system.rollback_to_snapshot('nyc.airlines', {before})")
    found = stage.one("SELECT count(*) FROM polaris.nyc.airlines")
    stage.check("airlines after the rollback", found, len(names))


def _snapshots(stage: Stage) -> list[Row]:
    return stage.quiet(f"SELECT snapshot_id, committed_at FROM {FLIGHTS}.snapshots ORDER BY committed_at")
