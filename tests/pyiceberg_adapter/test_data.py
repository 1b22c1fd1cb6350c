"""Data that pyiceberg writes through the catalog and reads back."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, DoubleType, LongType

from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.content import SCHEMA, content, rows


def test_rows_are_appended_overwritten_and_deleted(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a"), (2, "b")))
    table.append(rows((3, "c")))
    assert content(catalog.load_table("db.t")) == [(1, "a"), (2, "b"), (3, "c")]
    table.delete("id = 2")
    assert content(catalog.load_table("db.t")) == [(1, "a"), (3, "c")]
    table.overwrite(rows((9, "z")), overwrite_filter="id = 1")
    assert content(catalog.load_table("db.t")) == [(3, "c"), (9, "z")]
    table.overwrite(rows((5, "e")))
    assert content(catalog.load_table("db.t")) == [(5, "e")]


def test_rows_are_upserted(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a"), (2, "b")))
    result = table.upsert(rows((2, "B"), (3, "c")), join_cols=["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert content(catalog.load_table("db.t")) == [(1, "a"), (2, "B"), (3, "c")]


def test_earlier_snapshots_stay_readable_and_can_be_named(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    first = table.current_snapshot()
    assert first is not None
    table.append(rows((2, "b")))
    table.manage_snapshots().create_tag(first.snapshot_id, "begin").create_branch(
        first.snapshot_id, "work"
    ).commit()
    loaded = catalog.load_table("db.t")
    assert content(loaded, snapshot_id=first.snapshot_id) == [(1, "a")]
    loaded.append(rows((3, "c")), branch="work")
    work = catalog.load_table("db.t").snapshot_by_name("work")
    assert work is not None
    assert content(catalog.load_table("db.t"), snapshot_id=work.snapshot_id) == [(1, "a"), (3, "c")]
    assert set(catalog.load_table("db.t").refs()) == {"main", "begin", "work"}


def test_snapshots_expire(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    for number in range(3):
        table.append(rows((number, "x")))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    assert len(catalog.load_table("db.t").snapshots()) == 2
    assert len(content(catalog.load_table("db.t"))) == 3


def test_schemas_evolve(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("price", DoubleType(), doc="in euros")
        update.rename_column("name", "label")
        update.move_first("price")
    table.append(pa.table({"price": [2.5], "id": [2], "label": ["b"]}))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
    loaded = catalog.load_table("db.t")
    assert loaded.schema().column_names == ["price", "label"]
    assert sorted(loaded.scan().to_arrow()["label"].to_pylist()) == ["a", "b"]
    assert len(loaded.schemas()) == 3


def test_partitions_evolve(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    with table.update_schema() as schema:
        schema.add_column("day", DateType())
    with table.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day_part")
    days = [date(2026, 1, 5), date(2026, 2, 6)]
    table.append(pa.table({"id": [2, 3], "name": ["b", "c"], "day": days}))
    loaded = catalog.load_table("db.t")
    assert {file.file.spec_id for file in loaded.scan().plan_files()} == {0, 1}
    assert content(loaded, row_filter="day >= '2026-02-01'", selected_fields=("id",)) == [(3,)]


def test_a_concurrent_overwrite_is_refused_and_loses_nothing(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    table.append(rows((1, "a")))
    stale = catalog.load_table("db.t")
    table.append(rows((2, "b")))
    with pytest.raises(CommitFailedException):
        stale.append(rows((3, "c")))
    assert content(catalog.load_table("db.t")) == [(1, "a"), (2, "b")]


def test_tables_describe_themselves(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a"), (2, "b")))
    loaded = catalog.load_table("db.t")
    assert loaded.inspect.files()["record_count"].to_pylist() == [2]
    assert loaded.inspect.snapshots()["operation"].to_pylist() == ["append"]
    assert isinstance(loaded.catalog, Catalog)
    assert loaded.schema().find_type("id") == LongType()
