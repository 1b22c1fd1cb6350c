"""The view `deletions`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from tests.views.catalogs import rows


def test_every_file_that_a_job_deletes_is_a_row(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/c.db"
    with PolarisCatalog("c", store=store, warehouse=f"{tmp_path}/w", principal="ann") as catalog:
        catalog.create_namespace("db")
        data = pa.table({"n": [1, 2]})
        table = catalog.create_table("db.t", data.schema)
        table.append(data)
        table.overwrite(data)
        before = set((tmp_path / "w").rglob("*.*"))
        assert rows("deletions", store=store) == []
        expired = call(catalog._opened, "expire", older_than="0 s", retain_last=1)
        assert len(expired) == 1
        gone = {f"file://{path}" for path in before if not path.exists()}
        uuid, entity = table.metadata.table_uuid, rows("tables", store=store)[0]["entity_id"]
    assert uuid
    found = rows("deletions", store=store)
    assert {row["location"] for row in found} == gone != set()
    assert {row["kind"] for row in found} == {"data", "manifest", "manifest-list"}
    assert {(r["catalog"], r["principal"], r["job"], r["outcome"], r["entity_id"]) for r in found} == {
        ("c", "ann", "expire", "deleted", entity)
    }
    assert {row["table"] for row in found} == {"db.t"}
    assert rows("deletions", store=store, catalog="c") == found
    kinds = {row["name"]: (row["kind"], row["catalog"]) for row in rows("references", store=store)}
    assert ("deletions", "c") in kinds.values()
