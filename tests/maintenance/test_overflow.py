"""Tables whose refs and properties are in an index. All code that reads, keeps, copies or checks rows supports them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.overflow import PROPERTY_CODEC, REF_CODEC, all_refs, key_of
from polaris_spark.catalog.metadata.rows import Overflow, Table
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import StoredObjects
from polaris_spark.errors import CorruptionError
from polaris_spark.index import Branch, Entry, Index, IndexRoot, Leaf
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.expiry.retention import ExpiryRequest, decide_table
from polaris_spark.maintenance.fsck import rows as rows_of
from polaris_spark.maintenance.fsck.contents import WRONG_CONTENT
from polaris_spark.objects import decode, known_types
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.realms import RealmRecord, Realms
from polaris_spark.system.stores import system_references
from tests.maintenance.damage import NOW, Damaged, content, copy_rows, snapshot_updates
from tests.rest.client import Client, at_once, connect
from tests.views.catalogs import rows

TAGS = 400
DAY = 24 * 3_600_000
STEERING = {"gc.enabled": "false", "history.expire.min-snapshots-to-keep": "2"}
OTHERS = {f"team.property-{i:04d}": f"value {i}" for i in range(TAGS)}


def tag(name: str, id: int, **more: Any) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": id, **more}


class Wide:
    """A store with one table `db.t` of four snapshots, many tags on them, and many properties."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.clock = ManualClock(NOW)
        self.uri = store or f"memory:{uuid.uuid4()}"
        self.client: Client = connect(self.uri, folder, metadata_files="never", clock=self.clock)
        self.client.namespace("db")
        self.client.create("t", properties=STEERING)
        for number in range(1, 5):
            self.clock.advance(1_000)
            self.ok(*snapshot_updates(number, number, self.clock.now_ms()))
        self.ok({"action": "set-properties", "updates": OTHERS})
        self.ok(*[tag(f"v{i}", 1 + i % 4, **{"max-ref-age-ms": (1 + i % 2) * DAY}) for i in range(TAGS)])

    def ok(self, *updates: dict[str, Any]) -> None:
        answer = self.client.commit("t", *updates)
        assert answer.status == 200, answer

    def copy(self) -> Damaged:
        backend = MemoryBackend(str(uuid.uuid4()))
        copy_rows(self.client.session.connection.backend, backend)
        catalog = self.client.session.catalog
        return Damaged(backend, self.clock, catalog.references.store.realm, catalog.reference)

    def table(self) -> Table:
        return self.damaged().get(content(self.damaged(), "t"), Table)

    def damaged(self) -> Damaged:
        catalog = self.client.session.catalog
        backend = self.client.session.connection.backend
        return Damaged(backend, self.clock, catalog.references.store.realm, catalog.reference)


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[Wide]:
    made = Wide(tmp_path)
    yield made
    made.client.session.close()


def fresh(store: Damaged) -> StoredObjects:
    """Return a reader with an empty cache."""
    return StoredObjects(ObjectStore(store.backend, store.instance, ObjectCache(), store_key="fresh"))


def test_clients_get_all_refs_and_properties(wide: Wide) -> None:
    table = wide.table()
    assert table.more_refs is not None
    assert table.more_properties is not None
    for mode in ("all", "refs"):
        metadata = wide.client.load("t", snapshots=mode)["metadata"]
        assert metadata["refs"].keys() == {"main", *(f"v{i}" for i in range(TAGS))}
        assert metadata["properties"].items() >= {**OTHERS, **STEERING}.items()
        assert {one["snapshot-id"] for one in metadata["snapshots"]} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "update", [{"action": "set-properties", "updates": {"team.property-0007": "new"}}, tag("v7", 4)]
)
def test_a_commit_decodes_only_the_values_that_it_changes(
    wide: Wide, monkeypatch: pytest.MonkeyPatch, update: dict[str, Any]
) -> None:
    decoded = []
    for codec in (PROPERTY_CODEC, REF_CODEC):

        def decode_one(pointer: int, value: bytes, original: Any = codec.decode) -> Any:
            decoded.append(value)
            return original(pointer, value)

        monkeypatch.setattr(type(codec), "decode", staticmethod(decode_one))
    wide.ok(update)
    assert 0 < len(decoded) < 5


def test_fsck_finds_nothing_wrong(wide: Wide) -> None:
    assert wide.copy().problems() == []
    wide.ok(*[{"action": "remove-snapshot-ref", "ref-name": f"v{i}"} for i in range(0, TAGS, 3)])
    wide.ok({"action": "remove-properties", "removals": list(OTHERS)[::3]})
    assert wide.copy().problems() == []


def shard_of_refs(store: Damaged, table: Table) -> str:
    assert table.more_refs is not None
    return store.delete(first_leaf(store, table.more_refs))


def shard_of_properties(store: Damaged, table: Table) -> str:
    assert table.more_properties is not None
    return store.delete(first_leaf(store, table.more_properties))


def first_leaf(store: Damaged, others: Overflow) -> int:
    id = others.index.shard
    for _ in range(others.index.height):
        id = store.get(id, Branch).children[0]
    return id


def replaced(store: Damaged, **fields: Any) -> str:
    return store.alter(content(store, "t"), Table, **fields)


def wrong_count(store: Damaged, table: Table) -> str:
    others = msgspec.structs.replace(table.more_properties, count=3)  # type: ignore[type-var]
    return replaced(store, more_properties=others)


def with_entry(others: Overflow | None, key: bytes, entry: Entry, size: int) -> Overflow:
    """Return the index with one more entry in its embedded part."""
    assert others is not None
    root = others.index
    index = IndexRoot(
        root.shard,
        root.height,
        root.count,
        (*root.keys, key),
        (*root.pointers, entry.pointer),
        (*root.values, entry.value),
    )
    return Overflow(index, others.count + 1, others.size + size)


def wrong_key(store: Damaged, table: Table) -> str:
    entry = PROPERTY_CODEC.encode("other", "value")
    return replaced(store, more_properties=with_entry(table.more_properties, b"name", entry, 10))


def steering_in_the_index(store: Damaged, table: Table) -> str:
    name = "gc.enabled"
    entry = PROPERTY_CODEC.encode(name, "true")
    return replaced(store, more_properties=with_entry(table.more_properties, key_of(name), entry, 14))


def unreadable_value(store: Damaged, table: Table) -> str:
    return replaced(store, more_properties=with_entry(table.more_properties, b"name", Entry(0, b"?"), 10))


def tag_of_nowhere(store: Damaged, table: Table) -> str:
    main = table.refs[0]
    wrong = msgspec.structs.replace(main, snapshot_id=77, text=b'{"snapshot-id":77,"type":"tag"}')
    entry = REF_CODEC.encode("lost", wrong)
    size = REF_CODEC.size("lost", wrong)
    return replaced(store, more_refs=with_entry(table.more_refs, key_of("lost"), entry, size))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (rows_of.MISSING, shard_of_refs),
        (rows_of.MISSING, shard_of_properties),
        (WRONG_CONTENT, wrong_count),
        (WRONG_CONTENT, wrong_key),
        (WRONG_CONTENT, steering_in_the_index),
        (WRONG_CONTENT, unreadable_value),
        (WRONG_CONTENT, tag_of_nowhere),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_fsck_finds_damage(wide: Wide, kind: str, damage: Callable[[Damaged, Table], str]) -> None:
    store = wide.copy()
    key = damage(store, wide.table())
    problems = store.problems()
    assert (kind, key) in {(problem.kind, problem.key) for problem in problems}, problems


def test_a_request_that_needs_a_lost_shard_fails_and_changes_nothing(wide: Wide) -> None:
    table, store = wide.table(), wide.copy()
    shard_of_refs(store, table)
    with pytest.raises(CorruptionError):
        all_refs(table, fresh(store))
    collected = msgspec.structs.replace(table, properties={})
    with pytest.raises(CorruptionError):
        decide_table(collected, fresh(store), [], ExpiryRequest(NOW), lambda _: set())
    draft = TableDraft(table, fresh(store), now_ms=NOW)
    with pytest.raises(CorruptionError):
        apply_all(draft, [{"action": "remove-snapshots", "snapshot-ids": [1]}])
    with pytest.raises(CorruptionError):
        apply_all(draft, [tag("v0", 2)])
    assert "set-snapshot-ref" not in {action for action, _ in draft.changes}


def test_a_sweep_keeps_what_the_indexes_hold(wide: Wide) -> None:
    for number in range(60):
        wide.ok(tag(f"v{number * 5}", 1 + number % 4), {"action": "set-properties", "updates": {"x": "y"}})
    before = wide.client.load("t")["metadata"]
    shards = count_shards(wide.damaged())
    wide.clock.advance(60 * DAY)
    wide.ok({"action": "set-properties", "updates": {"x": "z"}})
    call(wide.client.session, "trim")
    swept = call(wide.client.session, "sweep")
    assert any(row[1] == "leaf" and row[2] > 0 for row in swept), swept
    assert 0 < count_shards(wide.damaged()) < shards
    table, reader = wide.table(), fresh(wide.damaged())
    assert {ref.name for ref in all_refs(table, reader)} == before["refs"].keys()
    assert wide.copy().problems() == []


def count_shards(store: Damaged) -> int:
    found = 0
    for split in store.backend.splits("objects", [store.instance], 1):
        for batch in store.backend.scan(split):
            for row in batch.to_pylist():
                found += isinstance(decode(row["value"], "row").value, (Leaf, Branch))
    return found


def test_a_realm_moves_with_the_indexes(wide: Wide, tmp_path: Path) -> None:
    before = wide.client.load("t")["metadata"]
    target = f"memory:{uuid.uuid4()}"
    call(wide.client.session, "migrate_realm", target=target)
    moved = connect(target, None, metadata_files="never", clock=wide.clock)
    with moved.session:
        after = moved.load("t")["metadata"]
        assert (after["refs"], after["properties"]) == (before["refs"], before["properties"])
        assert moved.commit("t", tag("moved", 1)).status == 200


def test_a_branch_of_the_catalog_has_the_same_refs_and_changes_its_own(wide: Wide) -> None:
    catalog = wide.client.session.catalog
    dev = catalog.reference.replace("main", "dev")
    catalog.references.create(dev, Operation(b"", "me"), source=catalog.head())
    other = connect(wide.uri, None, metadata_files="never", clock=wide.clock, branch="dev")
    with other.session:
        assert other.load("t")["metadata"]["refs"] == wide.client.load("t")["metadata"]["refs"]
        assert other.commit("t", {"action": "remove-snapshot-ref", "ref-name": "v1"}).status == 200
        assert "v1" not in other.load("t")["metadata"]["refs"]
    assert "v1" in wide.client.load("t")["metadata"]["refs"]


def test_tags_of_the_index_expire_at_their_own_age(wide: Wide) -> None:
    wide.clock.advance(DAY + 60_000)
    wide.ok({"action": "remove-properties", "removals": ["gc.enabled"]})
    decision = decide_table(
        wide.table(), fresh(wide.damaged()), [], ExpiryRequest(wide.clock.now_ms()), lambda _: set()
    )
    assert decision is not None
    assert set(decision.refs) == {f"v{i}" for i in range(0, TAGS, 2)}
    call(wide.client.session, "expire")
    left = wide.client.load("t")["metadata"]["refs"]
    assert left.keys() == {"main", *(f"v{i}" for i in range(1, TAGS, 2))}
    assert wide.copy().problems() == []


def test_gc_enabled_holds_beside_many_properties(wide: Wide) -> None:
    asked = ExpiryRequest(wide.clock.now_ms() + 90 * DAY)
    assert decide_table(wide.table(), fresh(wide.damaged()), [], asked, lambda _: set()) is None


def test_a_commit_that_drops_expired_snapshots_keeps_those_of_tags(wide: Wide) -> None:
    wide.ok(
        {"action": "remove-properties", "removals": ["gc.enabled"]},
        {"action": "set-properties", "updates": {"polaris.expire-on-commit": "true"}},
        *[{"action": "remove-snapshot-ref", "ref-name": f"v{i}"} for i in range(0, TAGS, 4)],
    )
    wide.clock.advance(30 * DAY)
    wide.ok(*snapshot_updates(5, 5, wide.clock.now_ms()))
    found = {one["snapshot-id"] for one in wide.client.load("t")["metadata"]["snapshots"]}
    assert found == {2, 3, 4, 5}


def test_views_show_refs_and_properties_of_the_index(tmp_path: Path) -> None:
    wide = Wide(tmp_path, f"sqlite:///{tmp_path}/store.db?synchronous=off")
    named = {"catalog": wide.client.session.catalog.name, "store": wide.uri}
    refs = rows("refs", **named)
    assert {row["ref"] for row in refs} == {"main", *(f"v{i}" for i in range(TAGS))}
    assert {row["max_reference_age_in_ms"] for row in refs} == {None, DAY, 2 * DAY}
    [table] = rows("tables", **named)
    assert dict(table["properties"]).items() >= {**OTHERS, **STEERING}.items()
    assert len(table["refs"]) == TAGS + 1
    by_snapshot = {row["snapshot_id"]: set(row["refs"]) for row in rows("snapshots", **named)}
    assert by_snapshot[4] == {"main", *(f"v{i}" for i in range(3, TAGS, 4))}
    assert by_snapshot[1] == {f"v{i}" for i in range(0, TAGS, 4)}
    wide.client.session.close()


def test_a_realm_that_allows_only_earlier_revisions_goes_on_to_work(wide: Wide) -> None:
    store = wide.client.session.catalog.references.store
    store._revisions["table"] = 2
    store._allowed.clear()
    wide.client.create("u")
    updates = [*snapshot_updates(1, 1, wide.clock.now_ms()), *[tag(f"v{i}", 1) for i in range(TAGS)]]
    assert wide.client.commit("u", *updates, {"action": "set-properties", "updates": OTHERS}).status == 200
    table = wide.damaged().get(content(wide.damaged(), "u"), Table)
    assert (table.more_refs, table.more_properties) == (None, None)
    assert len(wide.client.load("u")["metadata"]["refs"]) == TAGS + 1
    del store._revisions["table"]
    assert wide.client.commit("u", tag("one-more", 1)).status == 200
    table = wide.damaged().get(content(wide.damaged(), "u"), Table)
    assert table.more_refs is not None
    assert table.more_properties is not None


def test_a_session_opened_before_the_upgrade_keeps_the_indexes_and_commits(tmp_path: Path) -> None:
    uri, clock = f"sqlite:{tmp_path}/store.db", ManualClock(NOW)
    connect(uri, tmp_path, metadata_files="never", clock=clock).session.close()
    allow_tables_up_to(uri, 2)
    early = connect(uri, tmp_path, metadata_files="never", clock=clock)
    early.namespace("db")
    early.create("t")
    assert early.commit("t", *snapshot_updates(1, 1, clock.now_ms())).status == 200
    backend = open_backend(StoreURI.parse(uri), {})
    Realms(backend, clock).upgrade("default", known_types())
    backend.close()
    own_connection = (
        f"{uri}?synchronous=off"  # sessions of one URI share the connection, and with it the revisions
    )
    late = connect(own_connection, tmp_path, metadata_files="never", clock=clock)
    assert late.session.catalog.references.store.allows(Table)
    assert not early.session.catalog.references.store.allows(Table)
    with early.session, late.session:
        tags = [tag(f"v{i}", 1) for i in range(TAGS)]
        assert late.commit("t", *tags, {"action": "set-properties", "updates": OTHERS}).status == 200
        for updates in ({"action": "set-properties", "updates": {"early": "yes"}}, tag("early", 1)):
            answer = early.commit("t", updates)
            assert answer.status == 200, answer
        catalog = late.session.catalog
        store = Damaged(
            late.session.connection.backend, clock, catalog.references.store.realm, catalog.reference
        )
        table = store.get(content(store, "t"), Table)
        assert table.more_refs is not None
        assert table.more_properties is not None
        assert table.more_refs.count == TAGS + 1
        metadata = late.load("t")["metadata"]
        assert metadata["refs"].keys() >= {"early", *(f"v{i}" for i in range(TAGS))}
        assert metadata["properties"].items() >= {**OTHERS, "early": "yes"}.items()
        assert store.problems() == []


def allow_tables_up_to(uri: str, revision: int) -> None:
    """Set the format of a realm to that of an earlier release."""
    backend = open_backend(StoreURI.parse(uri), {})
    references = system_references(backend)
    found = references.read("realm/default", RealmRecord)
    assert found is not None
    revisions = {**found.value.revisions, "table": revision}
    row = references.row(msgspec.structs.replace(found.value, revisions=revisions))
    assert references.put("realm/default", found.version, row)
    backend.close()


def test_tags_and_properties_that_many_threads_set_at_once_are_all_there(wide: Wide) -> None:
    def work(thread: int) -> Callable[[], None]:
        def commits() -> None:
            for i in range(15):
                wide.ok(tag(f"thread-{thread}-{i}", 1 + i % 4))
                wide.ok({"action": "set-properties", "updates": {f"thread-{thread}-{i}": "set"}})
                wide.ok({"action": "remove-snapshot-ref", "ref-name": f"v{thread * 15 + i}"})

        return commits

    at_once([work(thread) for thread in range(6)])
    metadata = wide.client.load("t")["metadata"]
    new = {f"thread-{thread}-{i}" for thread in range(6) for i in range(15)}
    assert metadata["refs"].keys() == {"main", *new, *(f"v{i}" for i in range(90, TAGS))}
    assert new <= metadata["properties"].keys()
    assert wide.copy().problems() == []


def test_metadata_files_hold_everything(tmp_path: Path) -> None:
    client = connect(
        f"memory:{uuid.uuid4()}", tmp_path, metadata_files="every-commit", clock=ManualClock(NOW)
    )
    with client.session:
        client.namespace("db")
        client.create("t")
        assert client.commit("t", *snapshot_updates(1, 1, NOW)).status == 200
        updates = [tag(f"v{i}", 1) for i in range(TAGS)]
        assert client.commit("t", *updates, {"action": "set-properties", "updates": OTHERS}).status == 200
        loaded = client.load("t")
        text = Path(loaded["metadata-location"].removeprefix("file://")).read_bytes()
        assert msgspec.json.decode(text) == loaded["metadata"]
        body = {"name": "copy", "metadata-location": loaded["metadata-location"]}
        registered = client.send("POST", "v1/namespaces/db/register", body)
        assert registered.status in (200, 403), registered
        rows_exported = call(client.session, "export_metadata", table="db.t")
        assert rows_exported
        assert "unchanged" in repr(rows_exported)


def test_rows_without_their_index_are_missing(wide: Wide) -> None:
    """Marking and copying follow the pointers in headers."""
    store = wide.damaged()
    others = wide.table().more_refs
    assert others is not None
    index = Index(others.index, store.shards)
    names = {REF_CODEC.decode(*entry)[0] for _, entry in index.range()}
    assert names == {f"v{i}" for i in range(TAGS)}
    leaf = first_leaf(store, others)
    header = decode(store.row(leaf), "leaf").header
    pointers = {entry.pointer for _, entry in index.range()}
    assert set(header.strong) <= pointers
    assert header.strong
    assert store.backend.read_objects(store.instance, [ObjectKey(id) for id in pointers]).keys() == {
        ObjectKey(id) for id in pointers
    }
