"""Columns of the view `objects` that are read in bulk are equal to those of objects that are read one by one."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql.types import StructType

from polaris_spark import objects
from polaris_spark.ids import MAX_ID
from polaris_spark.spark.datasource import PolarisObjects
from polaris_spark.spark.views.object_columns import COLUMNS
from tests.views.catalogs import Catalog, Row, batches


def read(catalog: Catalog, names: Sequence[str], **options: str) -> list[Row]:
    source = PolarisObjects({"view": "objects", "store": catalog.store, **options})
    fields = {field.name: field for field in source.schema().fields}
    found = source.reader(StructType([fields[name] for name in names]))
    return [row for batch in batches(found) for row in batch.to_pylist()]


def row(revision: int, *pointers: int, parts: int = 1) -> bytes:
    """Return a row of an object with pointers to others."""
    header = msgspec.msgpack.encode(["x", revision, pointers, pointers[1:]])
    return struct.pack(">BHI", objects.FORMAT, parts, len(header)) + header


def store_with(tmp_path: Path, *values: bytes) -> Catalog:
    """Return a store with only these rows."""
    catalog = Catalog(tmp_path / "c.db")
    catalog.session.close()
    with sqlite3.connect(tmp_path / "c.db") as database:
        [instance] = database.execute("SELECT max(realm) FROM objects").fetchone()
        for id, value in enumerate(values):
            database.execute("INSERT INTO objects VALUES (?, ?, 0, ?)", (instance, id, value))
    return catalog


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A catalog with an object that has lost its last row, and with rows that this package did not write."""
    path: Path = tmp_path_factory.mktemp("sizes") / "c.db"
    catalog = Catalog(path)
    catalog.namespace("db")
    for name in ("large", "cut"):
        catalog.table("db", name, properties={"big": "x" * (2 * objects.MAX_ROW_BYTES)})
    catalog.session.close()
    with sqlite3.connect(path) as database:
        [instance, last] = database.execute("SELECT realm, max(id) FROM objects WHERE part = 2").fetchone()
        database.execute("DELETE FROM objects WHERE id = ? AND part = 2", (last,))
        whole = bytes(objects.ONE_PART)
        ids = range(MAX_ID - 5_000, MAX_ID)
        good = [row(1, *ids[:n]) for n in (0, 1, 15, 16, len(ids))] + [row(200, ids[0]), row(1, 1, 2, ids[0])]
        bad = [b"", whole[:2], whole, whole + b"\xff" * 9, b"\x09" + whole[1:] + bytes(9)]
        for id, value in enumerate([*bad, *good]):
            database.execute("INSERT INTO objects VALUES (?, ?, 0, ?)", (instance, id, value))
    return catalog


def test_they_are_the_same(damaged: Catalog) -> None:
    every = read(damaged, list(COLUMNS), content="true")  # decoding content takes them one by one
    assert sum(row["error"] is not None for row in every) == 6
    assert max(row["parts"] for row in every) == 3
    assert max(len(row["strong_ids"] or ()) for row in every) == 5_000
    for row in every:
        row["content"] = None
    sizes = [["bytes"], ["created_at", "id"], ["realm"], ["type", "id"], ["revision"], ["parts"], ["content"]]
    pointers = [["strong_ids"], ["weak_ids", "type"], ["error"]]
    for names in (list(COLUMNS), *sizes, *pointers):
        found = read(damaged, names)
        expected = [{name: row[name] for name in names} for row in every]
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_no_header_is_decoded_for_them(damaged: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    original = objects.decode_header

    def noted(part_0: bytes, key: str) -> objects.Header:
        decoded.append(key)
        return original(part_0, key)

    monkeypatch.setattr(objects, "decode_header", noted)
    rows = read(damaged, ["bytes", "type"])
    assert len(rows) > 10
    assert len(decoded) < 6  # those of several rows, and those that are none of ours


def test_numbers_that_no_column_holds_make_a_row_unreadable(tmp_path: Path) -> None:
    good = [row(0, 0), row(127, 1), row(128, 1), row(2**31 - 1, 2**63 - 1)]
    bad = [row(-1, 1), row(2**31, 1), row(2**64 - 1, 1), row(1, -1), row(1, 2**63)]
    catalog = store_with(tmp_path, *good, *bad)
    found = {one["id"]: one for one in read(catalog, ["id", "type", "revision", "strong_ids", "error"])}
    assert [found[id]["revision"] for id in range(4)] == [0, 127, 128, 2**31 - 1]
    assert found[3]["strong_ids"] == [2**63 - 1]
    assert all("unreadable header" in found[id]["error"] for id in range(4, 9))
    revisions = {one["id"]: one["revision"] for one in read(catalog, ["id", "revision"])}
    assert [revisions[id] for id in range(7)] == [0, 127, 128, 2**31 - 1, None, None, None]


def test_a_row_that_claims_many_parts_has_a_short_error(tmp_path: Path) -> None:
    catalog = store_with(tmp_path, row(1, 0, parts=500))
    [error] = [one["error"] for one in read(catalog, ["id", "error"]) if one["id"] == 0]
    assert "and 489 more" in error
    assert len(error) < 200


def test_a_header_that_ends_early_points_to_nothing(tmp_path: Path) -> None:
    whole = [row(1, *range(MAX_ID - n, MAX_ID)) for n in (1, 5_000)]
    catalog = store_with(tmp_path, *(value[:-1] for value in whole))
    found = {one["id"]: one for one in read(catalog, ["id", "strong_ids", "error"])}
    for id in (0, 1):
        assert found[id]["strong_ids"] is None
        assert "unreadable header" in found[id]["error"]
