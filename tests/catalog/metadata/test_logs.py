"""Logs have few pieces, are cheap to append to, and are trimmed only at the old end; and names of metadata files."""

from __future__ import annotations

import random

import pytest

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import is_compressed, metadata_location
from polaris_spark.catalog.metadata.rows import Log
from polaris_spark.errors import BadRequestError
from tests.catalog.metadata.memory import MemoryObjects
from tests.catalog.metadata.tables import LOCATION, UUID, Catalog


def test_a_log_agrees_with_a_list_after_any_appends_and_drops() -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    dice, objects, log = random.Random(seed), MemoryObjects(), Log()
    model: list[bytes] = []
    for number in range(400):
        if dice.random() < 0.15:
            dropped = dice.randrange(0, len(model) // 2 + 1)
            log, model = logs.drop_first(log, dropped), model[dropped:]
        new = [b'{"n":%d}' % number] * dice.choice((1, 1, 1, 2, 30))
        log, rows = logs.append(log, new, objects, objects.new_id)
        objects.write(rows)
        model += new
        assert logs.items(log, objects) == model
        assert logs.text(log, objects).replace(b"\n", b"") == b",".join(model)
        assert logs.count(log) == len(model)
        assert logs.first(log, 20, objects) == model[:20]
        assert len(log.tail) <= logs.TAIL
        assert len(rows) <= 1


def test_a_long_log_has_few_pieces() -> None:
    objects, log = MemoryObjects(), Log()
    for number in range(10_000):
        log, rows = logs.append(log, [b"%d" % number], objects, objects.new_id)
        objects.write(rows)
    assert len(log.segments) <= 12


def test_the_newest_item_is_always_inline() -> None:
    objects, log = MemoryObjects(), Log()
    for number in range(100):
        log, rows = logs.append(log, [b"%d" % number], objects, objects.new_id)
        objects.write(rows)
        assert log.tail[-1] == b"%d" % number


def test_the_metadata_log_names_the_versions_before() -> None:
    catalog = Catalog().create()
    first = catalog.table
    catalog.commit({"action": "set-location", "location": "s3://elsewhere"})
    assert catalog.json()["metadata-log"] == [
        {"timestamp-ms": first.last_updated_ms, "metadata-file": first.metadata_location}
    ]


@pytest.mark.parametrize(("most", "kept"), [("3", 3), ("0", 1), ("30", 30), ("junk", 60)])
def test_the_metadata_log_keeps_as_many_versions_as_the_property_says(most: str, kept: int) -> None:
    catalog = Catalog().create(properties={"write.metadata.previous-versions-max": most})
    locations = [catalog.table.metadata_location]
    for number in range(60):
        catalog.commit({"action": "set-properties", "updates": {"n": str(number)}})
        locations.append(catalog.table.metadata_location)
    found = [entry["metadata-file"] for entry in catalog.json()["metadata-log"]]
    assert found == locations[-kept - 1 : -1]


def test_the_metadata_log_keeps_a_hundred_versions_by_default() -> None:
    catalog = Catalog().create()
    for number in range(130):
        catalog.commit({"action": "set-properties", "updates": {"n": str(number)}})
    assert len(catalog.json()["metadata-log"]) == 100


def located(previous: str, **properties: str) -> str:
    catalog = Catalog().create(properties={k.replace("_", "."): v for k, v in properties.items()})
    table = catalog.table
    changed = type(table)(
        **{name: getattr(table, name) for name in table.__struct_fields__} | {"metadata_location": previous}
    )
    return metadata_location(TableDraft(changed, catalog.objects, now_ms=1), UUID)


@pytest.mark.parametrize(
    ("previous", "number"),
    [
        ("", "00000"),
        (f"{LOCATION}/metadata/00009-abc.metadata.json", "00010"),
        (f"{LOCATION}/metadata/99999-abc.metadata.json", "100000"),
        ("s3://a/v3.metadata.json", "00000"),
        ("s3://a/x-y.metadata.json", "00000"),
    ],
)
def test_metadata_files_are_numbered_on(previous: str, number: str) -> None:
    assert located(previous) == f"{LOCATION}/metadata/{number}-{UUID}.metadata.json"


def test_metadata_files_go_where_the_property_says() -> None:
    assert located("", write_metadata_path="s3://meta/t/") == f"s3://meta/t/00000-{UUID}.metadata.json"


def test_names_of_compressed_metadata_files_contain_the_codec() -> None:
    catalog = Catalog().create(properties={"write.metadata.compression-codec": "GZIP"})
    where = metadata_location(catalog.draft(), UUID)
    assert where.endswith(".gz.metadata.json")
    assert is_compressed(where)
    assert not is_compressed("s3://a/00000-b.metadata.json")
    with pytest.raises(BadRequestError, match="Invalid codec name: lzma"):
        catalog.commit({"action": "set-properties", "updates": {"write.metadata.compression-codec": "lzma"}})
