"""Fourth chapter of the demo: DROP keeps the files of a table, and DROP with PURGE deletes them."""

from __future__ import annotations

from pathlib import Path

from polaris_spark.cli.demo.stage import Stage


def drop(stage: Stage) -> None:
    """Run DROP TABLE and DROP TABLE ... PURGE, and check which files are left on the disk."""
    stage.chapter("DROP and PURGE")
    before = _files(stage.place.warehouse)
    for name in ("kept", "purged"):
        stage.sql(f"CREATE TABLE polaris.nyc.{name} AS SELECT * FROM polaris.nyc.planes WHERE seats > 300")
        stage.quiet(f"INSERT INTO polaris.nyc.{name} SELECT * FROM polaris.nyc.planes WHERE seats < 10")
    kept, purged = (_of(stage.place.warehouse, name) for name in ("kept", "purged"))
    stage.check("tables made to be dropped have files", bool(kept) and bool(purged), True)
    stage.sql("DROP TABLE polaris.nyc.kept")
    stage.sql("DROP TABLE polaris.nyc.purged PURGE")
    left = _files(stage.place.warehouse)
    stage.check("files left by DROP", len(kept & left), len(kept))
    stage.check("files left by PURGE", len(purged & left), 0)
    stage.check("files of other tables left", len(before & left), len(before))
    found = {row["tableName"] for row in stage.quiet("SHOW TABLES IN polaris.nyc")} & {"kept", "purged"}
    stage.check("dropped tables still listed", sorted(found), [])
    stage.say(
        f"{len(purged)} files of the purged table are gone from the disk, {len(kept & left)} of the other stay."
    )


def _of(warehouse: Path, name: str) -> frozenset[Path]:
    """Return the files of the table `name`. The name of a table's folder is the table's name, a dash, and its UUID."""
    return frozenset(
        path for path in _files(warehouse) if any(part.startswith(f"{name}-") for part in path.parts)
    )


def _files(warehouse: Path) -> frozenset[Path]:
    return frozenset(path for path in warehouse.rglob("*") if path.is_file())
