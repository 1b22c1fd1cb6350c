"""The view `refs`, compared with what pyiceberg reads from the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from polaris_spark.pyiceberg import PolarisCatalog
from tests.views.catalogs import Catalog, rows


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PolarisCatalog, str]]:
    """A table with branches and tags, and the store's URI."""
    directory = tmp_path_factory.mktemp("lake")
    store = f"sqlite://{directory / 'c.db'}?synchronous=off"
    with PolarisCatalog("lake", store=store, warehouse=str(directory / "files")) as catalog:
        catalog.create_namespace("db")
        catalog.create_namespace(("db", "a.b"))
        counted = catalog.create_table(("db", "a.b", "plain"), schema=Schema(NestedField(1, "n", LongType())))
        for n in range(3):
            counted.append(pa.table({"n": [n]}))
        first, second, _ = (one.snapshot_id for one in counted.snapshots())
        with counted.manage_snapshots() as manage:
            manage.create_branch(first, "audit", 3_600_000, 60_000, 5)
            manage.create_tag(second, "two", 86_400_000)
            manage.create_tag(second, "kept")
        yield catalog, store


def test_refs_are_those_that_pyiceberg_reads(lake: tuple[PolarisCatalog, str]) -> None:
    catalog, store = lake
    table = catalog.load_table(("db", "a.b", "plain"))
    made = {one.snapshot_id: one.timestamp_ms for one in table.snapshots()}
    expected = [
        {
            "namespace": "db.`a.b`",
            "name": "plain",
            "ref": name,
            "type": ref.snapshot_ref_type.value.upper(),
            "snapshot_id": ref.snapshot_id,
            "snapshot_at": datetime.fromtimestamp(made[ref.snapshot_id] / 1_000, timezone.utc),
            "max_reference_age_in_ms": ref.max_ref_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
            "max_snapshot_age_in_ms": ref.max_snapshot_age_ms,
        }
        for name, ref in table.metadata.refs.items()
    ]
    found = [{name: row[name] for name in expected[0]} for row in rows("refs", store=store)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert {(row["ref"], row["max_reference_age_in_ms"]) for row in found} == {
        ("main", None),
        ("audit", 3_600_000),
        ("two", 86_400_000),
        ("kept", None),
    }


def test_refs_are_shown_as_of_a_commit(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    catalog.snapshot("db", "t", 1)
    before = str(catalog.head())
    catalog.snapshot("db", "t", 2)
    assert [row["snapshot_id"] for row in catalog.read("refs")] == [2]
    assert [row["snapshot_id"] for row in catalog.read("refs", as_of=before)] == [1]
    catalog.session.close()
