"""Fifth chapter of the demo: SQL queries of the catalog's own history and rows."""

from __future__ import annotations

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.cli.demo.changes import FLIGHTS
from polaris_spark.cli.demo.load import PER_MONTH
from polaris_spark.cli.demo.model import per_month
from polaris_spark.cli.demo.session import CATALOG
from polaris_spark.cli.demo.stage import Stage
from polaris_spark.cli.log import realm_log
from polaris_spark.cli.output import hexadecimal
from polaris_spark.cli.stores import open_store

SHOWN_COMMITS = 12


def look_inside(stage: Stage) -> None:
    """Show the commit graph, the changes by principal, the catalog as tables, its state before the MERGE, and its
    storage."""
    _graph(stage)
    _who(stage)
    _joined(stage)
    _before(stage)
    _storage(stage)


def _graph(stage: Stage) -> None:
    stage.chapter("The commit graph of the whole catalog")
    with open_store(stage.place.store, stage.place.password) as opened:
        realm = opened.realm("default")
        name = head_name(realm.catalog(CATALOG))
        stage.notes["commits"] = realm.head(name).head.number
        realm_log(realm, name, SHOWN_COMMITS, stage.console)


def _who(stage: Stage) -> None:
    stage.chapter("Who changed what")
    rows = stage.sql(
        """
        SELECT principal, action, count(*) AS changes, collect_set(name) AS names
        FROM polaris.system.changes GROUP BY principal, action ORDER BY principal, changes DESC
        """
    )
    stage.show([{**row, "names": ", ".join(sorted(row["names"]))} for row in rows])
    by_analyst = [
        (row["action"], row["changes"], row["names"]) for row in rows if row["principal"] == "analyst"
    ]
    stage.check("changes of the analyst", by_analyst, [("update-table", 1, ["airlines"])])
    created = sum(row["changes"] for row in rows if row["action"] == "create-table")
    dropped = sum(row["changes"] for row in rows if row["action"] == "drop-table")
    stage.check("tables created, less those dropped", created - dropped, len(stage.data.frames))
    stage.notes["changes"] = stage.quiet(
        "SELECT name, kind, action, principal, changed_at FROM polaris.system.changes ORDER BY number, position"
    )


def _joined(stage: Stage) -> None:
    stage.chapter("The catalog as tables: snapshots, joined with who made them")
    rows = stage.sql(
        """
        SELECT s.name, s.operation, s.summary['added-records'] AS added, c.principal, c.number AS commit,
               t.snapshot_count AS snapshots
        FROM polaris.system.snapshots s
        JOIN polaris.system.changes c ON c.entity_id = s.entity_id AND c.summary['snapshot-id'] = s.snapshot_id
        JOIN polaris.system.tables t ON t.entity_id = s.entity_id
        ORDER BY c.number
        """
    )
    stage.show(rows, limit=14)
    snapshots = {
        name: stage.one(f"SELECT count(*) FROM polaris.nyc.{name}.snapshots") for name in stage.data.frames
    }
    found = {name: sum(row["name"] == name for row in rows) for name in snapshots}
    stage.check("snapshots whose maker is known, by table", found, snapshots)


def _before(stage: Stage) -> None:
    stage.chapter("The whole catalog as it was before the MERGE")
    head = stage.notes["before merge"]
    stage.say(f"The MERGE followed commit {head.number}, {hexadecimal(head.commit)}.")
    rows = stage.sql(
        f"""
        SELECT name, then.snapshot_count AS snapshots_then, now.snapshot_count AS snapshots_now,
               then.current_snapshot_id AS snapshot_then, now.current_snapshot_id AS snapshot_now
        FROM polaris.system.tables VERSION AS OF '{hexadecimal(head.commit)}' AS then
        FULL JOIN polaris.system.tables AS now USING (name)
        ORDER BY name
        """
    )
    stage.show(rows)
    (then,) = (row["snapshot_then"] for row in rows if row["name"] == "flights")
    query = PER_MONTH.format(table=f"{FLIGHTS} VERSION AS OF {then}")
    found = {row["month"]: row["n"] for row in stage.quiet(query)}
    stage.notes["flights by month before"] = found
    stage.check(
        "flights by month, as the catalog was before the MERGE", found, per_month(stage.flights.deleted)
    )
    (views,) = stage.sql(
        f"SELECT count(*) AS views FROM polaris.system.views TIMESTAMP AS OF timestamp_millis({head.time})"
    )
    stage.check("views before the MERGE", views["views"], 0)
    stage.check("views now", stage.one("SELECT count(*) FROM polaris.system.views"), 1)


def _storage(stage: Stage) -> None:
    stage.chapter("What the catalog stores: a job over its rows")
    stage.say("storage_summary reads every row with mapInArrow, in parallel where the rows are.")
    rows = stage.sql("CALL polaris.system.storage_summary()")
    stage.show([{name: row[name] for name in ("type", "age", "objects", "bytes")} for row in rows], limit=20)
    stage.notes["storage"] = rows
    counted = stage.one("SELECT count(*) FROM polaris.system.objects")
    stage.check("objects, by the job and by the view", sum(row["objects"] for row in rows), counted)
    commits = stage.one("SELECT count(*) FROM polaris.system.commits")
    stage.check("commits, by the view and by the head", commits, stage.notes["commits"] + 1)
