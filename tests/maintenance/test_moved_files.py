"""Two realms share a folder, and one of them was moved to another store. The old store deletes no file that the moved
realm may need."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, ids, path, rows


def deleted(catalog: PolarisCatalog, warehouse: Path) -> list[str]:
    """Age every file, remove orphans, and return the deleted files."""
    for file in warehouse.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - 10 * 86_400,) * 2)
    found = call(catalog._opened, "remove_orphans", dry_run=False)
    return [path(row[0]) for row in found if row[4] == "deleted"]


def test_files_that_a_moved_realm_wrote_since_stay(opened: Open, tmp_path: Path) -> None:
    warehouse = tmp_path / "shared"
    target = f"memory:{uuid.uuid4()}"
    moving, staying = (opened(warehouse=str(warehouse), realm=realm) for realm in ("moving", "staying"))
    for catalog, name in ((moving, "db"), (staying, "mine")):
        catalog.create_namespace(name)
        catalog.create_table(f"{name}.t", SCHEMA).append(rows(1))
    stray = Path(path(staying.load_table("mine.t").location())) / "data" / "stray.parquet"
    stray.write_bytes(b"nobody's")
    assert deleted(staying, warehouse) == [str(stray)]

    opened(store=target, warehouse=str(warehouse), realm="other")
    list(call(moving._opened, "migrate_realm", target=target))
    there = opened(store=target, warehouse=str(warehouse), realm="moving")
    there.load_table("db.t").append(rows(9))
    there.create_table("db.new", SCHEMA).append(rows(3))
    assert deleted(staying, warehouse) == []
    assert ids(there.load_table("db.t")) == [1, 9]
    assert ids(there.load_table("db.new")) == [3]
