"""If a table has too many refs and properties for its row, they are stored in an index. Clients see no difference."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.catalog.metadata.overflow import (
    BOUND,
    PROPERTY_CODEC,
    REF_CODEC,
    all_properties,
    all_refs,
    current_piece,
    key_of,
)
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.rows import Snapshot, Table
from polaris_spark.catalog.metadata.snapshot_sets import all_named
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.tables.metadata_files import read_rows
from polaris_spark.errors import BadRequestError, CorruptionError
from polaris_spark.index import Branch, Index, Leaf
from polaris_spark.objects import decode, encode, encode_with_header, written_revision
from tests.catalog.metadata.tables import NOW, Catalog, add, point, snapshot

_FEW_KB = 4_000


def set_all(properties: dict[str, str]) -> dict[str, Any]:
    return {"action": "set-properties", "updates": properties}


def remove(*names: str) -> dict[str, Any]:
    return {"action": "remove-properties", "removals": list(names)}


def unset(name: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": name}


def many(n: int) -> dict[str, str]:
    return {f"owner.team-{i:05d}": f"value {i}" for i in range(n)}


def tagged(n: int) -> Catalog:
    """A table of two snapshots with `n` tags."""
    catalog = Catalog().create()
    catalog.append(1)
    catalog.append(2)
    catalog.commit(*[point(f"v{i}", 1 + i % 2, "tag") for i in range(n)])
    return catalog


def old_row(table: Table, objects: Any) -> Table:
    """The same table as earlier releases write it: everything in the row."""
    return msgspec.structs.replace(
        table,
        refs=all_refs(table, objects),
        properties=all_properties(table, objects),
        more_refs=None,
        more_properties=None,
    )


@pytest.mark.parametrize("n", [0, 5, 1_000, 9_900])
def test_a_row_and_a_commit_stay_small_however_many_refs_and_properties(n: int) -> None:
    catalog = tagged(n)
    if n:
        catalog.commit(set_all(many(n)))
    objects = catalog.objects
    assert len(objects.rows[catalog.id]) < 8_000
    sizes = []
    for i in range(40):
        before = set(objects.rows)
        catalog.commit(point(f"new{i * 7919}", 1, "tag") if i % 2 else set_all({f"new{i * 7919}": "x"}))
        sizes.append(sum(len(row) for id, row in objects.rows.items() if id not in before))
    assert sum(sizes) / len(sizes) < 8_000 + _FEW_KB
    assert sorted(sizes)[len(sizes) // 2] < 8_000


def test_an_append_writes_nothing_of_many_tags_and_properties() -> None:
    catalog = tagged(2_000)
    catalog.commit(set_all(many(2_000)))
    before = catalog.table
    shards = {id for id, row in catalog.objects.rows.items() if isinstance(value_of(row), (Leaf, Branch))}
    read = catalog.objects.read
    catalog.append(3)
    assert (catalog.table.more_refs, catalog.table.more_properties) == (
        before.more_refs,
        before.more_properties,
    )
    after = {id for id, row in catalog.objects.rows.items() if isinstance(value_of(row), (Leaf, Branch))}
    assert after == shards
    assert catalog.objects.read - read < 20
    assert [ref.name for ref in catalog.table.refs] == ["main"]


def value_of(row: bytes) -> object:
    return decode(row, "row").value


def test_a_document_is_the_same_from_the_index_and_from_an_old_row() -> None:
    catalog = tagged(500)
    catalog.commit(set_all(many(500)))
    old = old_row(catalog.table, catalog.objects)
    for mode in ("all", "refs"):
        new = msgspec.json.decode(catalog.text(mode))
        assert msgspec.json.decode(render(old, catalog.objects, snapshots=mode)) == new  # type: ignore[arg-type]
    assert len(catalog.json()["refs"]) == 501
    assert many(500).items() <= catalog.json()["properties"].items()


def test_an_old_row_is_read_and_the_next_commit_moves_its_values() -> None:
    catalog = tagged(500)
    catalog.commit(set_all(many(500)))
    found = catalog.json()
    old = Catalog(old_row(catalog.table, catalog.objects), catalog.objects)
    assert old.json() == found
    assert old.table.more_refs is None
    old.commit({"action": "set-location", "location": "s3://elsewhere/t"})
    assert old.table.more_refs is not None
    assert old.table.more_properties is not None
    assert old.json()["refs"] == found["refs"]
    assert old.json()["properties"] == found["properties"]


def test_refs_and_properties_move_back_into_the_row_when_they_are_few_again() -> None:
    catalog = tagged(500)
    catalog.commit(set_all(many(500)))
    catalog.commit(remove(*list(many(500))[3:]), *[unset(f"v{i}") for i in range(3, 500)])
    table = catalog.table
    assert (table.more_refs, table.more_properties) == (None, None)
    assert {ref.name for ref in table.refs} == {"main", "v0", "v1", "v2"}
    assert catalog.json()["properties"].items() >= many(3).items()
    assert written_revision(table) == 1


def test_a_table_whose_values_are_few_is_written_as_earlier_releases_do() -> None:
    catalog = tagged(5)
    assert decode(catalog.objects.rows[catalog.id], "row").header.revision == 1
    catalog.commit(*[point(f"w{i}", 1, "tag") for i in range(500)])
    assert decode(catalog.objects.rows[catalog.id], "row").header.revision == 3


def test_an_imported_file_with_many_refs_and_properties_comes_out_again() -> None:
    catalog = tagged(400)
    catalog.commit(set_all(many(400)))
    metadata = catalog.json()
    metadata["refs"]["v7"]["later"] = {"deep": [1, {"unknown": "field"}]}
    imported = Catalog().register(metadata)
    assert imported.table.more_refs is not None
    assert imported.json() == metadata
    assert imported.commit(point("v8", 2, "tag")).changed
    assert imported.json()["refs"]["v7"] == metadata["refs"]["v7"]


def test_a_file_is_imported_into_the_row_where_the_realm_allows_no_index(tmp_path: Path) -> None:
    catalog = tagged(400)
    file = tmp_path / "v1.metadata.json"
    file.write_bytes(catalog.text())
    for allowed in (True, False):
        found = read_rows(
            Files({}),
            f"file://{file}",
            None,
            count(1).__next__,
            entity_id=7,
            now_ms=NOW,
            allows_overflow=allowed,
        )
        assert isinstance(found.value, Table)
        assert (found.value.more_refs is not None) == allowed


def test_a_realm_that_does_not_allow_the_revision_keeps_everything_in_the_row() -> None:
    catalog = tagged(5)
    draft = catalog.draft()
    draft.overflow_bound = float("inf")
    draft.own_properties().update(many(500))
    draft.record("set-properties")
    catalog.store(draft)
    assert catalog.table.more_properties is None
    assert catalog.json()["properties"].items() >= many(500).items()


def test_properties_that_the_catalog_reads_stay_in_the_row() -> None:
    steering = {
        "gc.enabled": "false",
        "history.expire.max-snapshot-age-ms": "1",
        "polaris.append-rebase": "true",
        "write.data.path": "s3://data/t",
        "write.metadata.path": "s3://metadata/t",
        "write.metadata.previous-versions-max": "3",
        "encryption.key-id": "k",
    }
    catalog = Catalog().create()
    catalog.commit(set_all({**many(1_000), **steering, "write.metadata.metrics.column.a": "full"}))
    assert steering.items() <= catalog.table.properties.items()
    assert "write.metadata.metrics.column.a" not in catalog.table.properties
    catalog.commit(remove("gc.enabled"), set_all({"write.data.path": "s3://other/t"}))
    assert "gc.enabled" not in catalog.table.properties
    assert catalog.table.properties["write.data.path"] == "s3://other/t"
    assert catalog.json()["properties"]["write.data.path"] == "s3://other/t"


def test_a_draft_reads_values_of_the_index_by_name() -> None:
    catalog = tagged(500)
    catalog.commit(set_all(many(500)))
    draft = catalog.draft()
    read = catalog.objects.read
    assert draft.properties["owner.team-00042"] == "value 42"
    assert draft.properties.get("missing") is None
    assert draft.refs["v7"].snapshot_id == 2
    assert "v9999" not in draft.refs
    assert (len(draft.refs), "main" in draft.refs) == (501, True)
    assert catalog.objects.read - read < 15
    with pytest.raises(KeyError):
        _ = draft.refs["v9999"]
    with pytest.raises(KeyError):
        del draft.own_properties()["missing"]


def test_a_requirement_on_a_tag_in_the_index_is_checked() -> None:
    catalog = tagged(500)
    requirement = {"type": "assert-ref-snapshot-id", "ref": "v7", "snapshot-id": 2}
    catalog.commit(point("v7", 1, "tag"), requirements=(requirement,))
    assert catalog.json()["refs"]["v7"] == {"snapshot-id": 1, "type": "tag"}
    with pytest.raises(Exception, match="v7"):
        catalog.commit(point("v7", 2, "tag"), requirements=(requirement,))


def test_removing_a_snapshot_removes_its_tags_from_the_index() -> None:
    catalog = tagged(500)
    catalog.commit({"action": "remove-snapshots", "snapshot-ids": [1]})
    assert catalog.json()["refs"].keys() == {"main", *(f"v{i}" for i in range(1, 500, 2))}


def test_a_tag_of_a_new_snapshot_points_to_it() -> None:
    catalog = tagged(500)
    catalog.commit(add(snapshot(9, 3, parent=2)), point("main", 9), point("new", 9, "tag"))
    found = {ref.name: ref for ref in all_refs(catalog.table, catalog.objects)}
    assert found["new"].snapshot == found["main"].snapshot != 0
    assert b'"snapshot-id":9' in catalog.objects.get(found["new"].snapshot, Snapshot).text
    assert current_piece(catalog.table, catalog.objects) == found["main"].snapshot


def test_the_current_snapshot_of_a_table_without_main_is_found_by_its_tags() -> None:
    catalog = tagged(500)
    lost = msgspec.structs.replace(catalog.table, refs=())
    place = next(ref for ref in all_refs(lost, catalog.objects) if ref.snapshot_id == 2)
    assert current_piece(lost, catalog.objects) == place.snapshot


def test_every_snapshot_that_a_tag_names_is_a_strong_pointer_below_the_table() -> None:
    catalog = tagged(500)
    seen, waiting = set(), [catalog.id]
    while waiting:
        id = waiting.pop()
        if id not in seen:
            seen.add(id)
            waiting += decode(catalog.objects.rows[id], str(id)).header.strong
    named = {ref.snapshot for ref in all_refs(catalog.table, catalog.objects)}
    root = catalog.table.more_refs
    assert root is not None
    assert {root.index.shard, *named} <= seen
    header = encode_with_header(catalog.table)[0]
    assert root.index.shard in header.strong


def test_a_lost_shard_is_corruption_and_no_empty_set() -> None:
    catalog = tagged(1_000)
    catalog.commit(set_all(many(1_000)))

    class Losing:
        def __init__(self, lost: int) -> None:
            self.lost = lost

        def __getattr__(self, name: str) -> Any:
            return getattr(catalog.objects, name)

        def read_shards(self, ids: Any) -> Any:
            return catalog.objects.read_shards([id for id in ids if id != self.lost])

    for others, read in (
        (catalog.table.more_refs, all_refs),
        (catalog.table.more_properties, all_properties),
    ):
        assert others is not None
        shard = catalog.objects.read_shards([others.index.shard])[others.index.shard]
        assert isinstance(shard, Branch)
        for lost in (others.index.shard, *shard.children):
            with pytest.raises(CorruptionError, match=str(lost)):
                read(catalog.table, Losing(lost))  # type: ignore[operator]


def test_an_entry_that_cannot_be_decoded_is_corruption() -> None:
    for codec in (PROPERTY_CODEC, REF_CODEC):
        entry = codec.encode("a", REF_CODEC.decode(*ref_entry())[1] if codec is REF_CODEC else "b")  # type: ignore[arg-type]
        for value in (b"", b"\x00", entry.value[:-1], entry.value + b"," + entry.value[:-1] + b"x"):
            with pytest.raises(CorruptionError, match="cannot be decoded"):
                codec.decode(entry.pointer, value)


def ref_entry() -> Any:
    table = tagged(1).table
    return REF_CODEC.encode("v0", table.refs[1])


def test_names_and_values_of_any_length_and_text_come_back() -> None:
    texts = {
        "": "empty name",
        "é" * 600: "cut within a letter",
        "x" * 5_000: "long",
        "x" * 5_000 + "y": "as long, and another",
        "\x00\xff\U0001f600": "\x00",
        "large": "z" * 400_000,
        "blank": "",
    }
    catalog = Catalog().create()
    catalog.commit(set_all({**many(300), **texts}))
    assert catalog.json()["properties"].items() >= texts.items()
    assert len({key_of(name) for name in texts}) == len(texts)
    catalog.commit(remove("x" * 5_000))
    left = catalog.json()["properties"]
    assert "x" * 5_000 not in left
    assert left["x" * 5_000 + "y"] == "as long, and another"
    assert len(catalog.objects.rows[catalog.id]) < 8_000


def test_bounds_hold_for_values_in_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = tagged(300)
    catalog.commit(set_all(many(300)))
    held = len(catalog.json()["properties"])
    monkeypatch.setitem(BOUNDS, "properties", held)  # type: ignore[misc]
    monkeypatch.setitem(BOUNDS, "branches and tags of a table", 301)  # type: ignore[misc]
    with pytest.raises(BadRequestError, match="too many properties"):
        catalog.commit(set_all({"one": "more"}))
    with pytest.raises(BadRequestError, match="too many branches and tags"):
        catalog.commit(point("one-more", 1, "tag"))
    catalog.commit(set_all({"owner.team-00001": "another"}), point("v1", 1, "tag"))
    catalog.commit(remove("owner.team-00002"))
    catalog.commit(set_all({"one": "more"}))
    size = sum(len(name) + len(value) for name, value in catalog.json()["properties"].items())
    monkeypatch.setitem(BOUNDS, "bytes of properties", size)  # type: ignore[misc]
    with pytest.raises(BadRequestError, match="too many bytes of properties"):
        catalog.commit(set_all({"one": "more and more"}))


def test_snapshots_of_many_tags_are_asked_for() -> None:
    assert not all_named(tagged(500).table)
    assert all_named(tagged(2).table)


_NAMES = st.sampled_from([*(f"n{i}" for i in range(12)), "gc.enabled", "write.data.path", "é" * 700])
_VALUES = st.dictionaries(_NAMES, st.text(max_size=40), min_size=1, max_size=8).map(
    lambda chosen: {name: "false" if name == "gc.enabled" else text for name, text in chosen.items()}
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _VALUES),
        st.tuples(st.just("remove"), st.lists(_NAMES, min_size=1, max_size=8)),
        st.tuples(st.just("tag"), st.sampled_from([f"t{i}" for i in range(15)])),
        st.tuples(st.just("untag"), st.sampled_from([f"t{i}" for i in range(15)])),
        st.tuples(st.just("bound"), st.sampled_from([0, 40, 200, BOUND])),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=80)
@given(_STEPS)
def test_any_sequence_of_changes_has_the_same_result_as_a_dictionary(steps: list[tuple[str, Any]]) -> None:
    catalog = Catalog().create()
    catalog.append(1)
    catalog.append(2)
    properties, refs = dict(catalog.json()["properties"]), {"main": 2}
    bound: float = 40
    for number, (what, value) in enumerate(steps):
        draft = catalog.draft()
        if what == "bound":
            bound = value
            continue
        if what == "set":
            updates = [set_all(value)]
            properties.update(value)
        elif what == "remove":
            updates = [remove(*value)]
            properties = {name: text for name, text in properties.items() if name not in value}
        elif what == "tag":
            updates = [point(value, 1 + number % 2, "tag")]
            refs[value] = 1 + number % 2
        else:
            updates = [unset(value)]
            refs.pop(value, None)
        draft.overflow_bound = bound
        commit_draft(catalog, draft, updates)
        found = catalog.json()
        assert found["properties"] == properties
        assert {name: ref["snapshot-id"] for name, ref in found["refs"].items()} == refs
        require_consistent(catalog)


def commit_draft(catalog: Catalog, draft: Any, updates: list[Any]) -> None:
    catalog.now += 1000
    apply_all(draft, updates)
    if draft.changed:
        catalog.store(draft)


def require_consistent(catalog: Catalog) -> None:
    """Check that the counts in the row are equal to the counts of index entries."""
    table = catalog.table
    assert encode(table) == catalog.objects.rows[catalog.id]
    for others, codec in ((table.more_refs, REF_CODEC), (table.more_properties, PROPERTY_CODEC)):
        if others is not None:
            found = [
                codec.decode(*entry) for _, entry in Index(others.index, catalog.objects.read_shards).range()
            ]
            assert others.count == len(found)
            assert others.size == sum(codec.size(*one) for one in found)  # type: ignore[arg-type]
            assert not any(codec.stays(name) for name, _ in found)
