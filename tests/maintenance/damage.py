"""A store with objects of every type, copies of the store, and functions that damage rows in a way that the database
does not detect."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, ReferenceRow
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.catalog.entities.entities import TableName, namespace_key, table_key
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.metadata.pieces import key_of
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import NAMES, VIEW
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.index import Branch, Entry, Index, IndexRoot, Leaf, Shard
from polaris_spark.maintenance.fsck.checker import RealmCheck
from polaris_spark.maintenance.fsck.entities import row_of
from polaris_spark.maintenance.fsck.rows import Problem
from polaris_spark.objects import MAX_ROW_BYTES
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version
from polaris_spark.system.stores import SYSTEM_REALM
from tests.rest.client import Client, connect, path, rename, table, view, view_request
from tests.rest.materialized import create_materialized_view, refresh, snapshot_commit

S = TypeVar("S", bound=msgspec.Struct)
Json = dict[str, Any]

NOW = 1_800_000_000_000
TABLES = 35
LONG_NAMES = 60
LARGE = namespace_key(("large",))
SNAPSHOTS = 60


def snapshot_updates(id: int, number: int, time: int) -> list[Json]:
    """The updates that add a snapshot to branch main."""
    snapshot = {
        "snapshot-id": id,
        "sequence-number": number,
        "timestamp-ms": time,
        "summary": {"operation": "append"},
        "manifest-list": f"/manifests/{id}",
        "schema-id": 0,
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
    return [{"action": "add-snapshot", "snapshot": snapshot}, ref]


def fill(client: Client, clock: ManualClock) -> None:
    """Fill the store with objects of every type."""
    client.namespace("db")
    client.namespace("db", "inner")
    client.namespace("large", properties={"text": "x" * (2 * MAX_ROW_BYTES)})
    for number in range(TABLES):
        client.create(f"t{number:03}")
    for number in range(LONG_NAMES):
        client.create(f"long{number:03}" + "x" * 100)
    for number in range(SNAPSHOTS):
        clock.advance(1_000)
        updates = snapshot_updates(1_000 + number, number + 1, clock.now_ms())
        assert client.commit("t001", *updates).status == 200
    assert (
        client.commit(
            "t001", {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 1_003}
        ).status
        == 200
    )
    client.ok("POST", "v1/tables/rename", rename("t002", "renamed"))
    client.ok("DELETE", table("t003"))
    client.ok("POST", f"{path('db')}/views", view_request("v"))
    create_materialized_view(client.session.catalog, "mv", properties={"time-travel": "true"})
    storage, uuid = (
        f"{path('db', 'mv')}/tables/storage",
        client.ok("GET", view("mv"))["metadata"]["view-uuid"],
    )
    client.ok("POST", storage, refresh(uuid, 100, 1, state={"source-states": []}))
    client.ok("POST", storage, refresh(uuid, 101, 2, replaces=100))
    client.ok("POST", storage, snapshot_commit(102, 3, 101, operation="replace"))
    client.ok("POST", f"{path('db')}/properties", {"updates": {"owner": "me"}, "removals": []})
    references = client.session.catalog.references
    head = client.session.catalog.head()
    reference = client.session.catalog.reference
    for name in ("dev", "old", "again"):
        references.create(reference.replace("main", name), Operation(b"", "me"), source=head)
    references.drop(reference.replace("main", "old"), Operation(b"", "me"))
    references.drop(reference.replace("main", "again"), Operation(b"", "me"))
    references.create(reference.replace("main", "again"), Operation(b"", "me"), source=head)


class Sound:
    """An undamaged store, filled once."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(NOW)
        self.store = f"memory:{uuid.uuid4()}"
        self.client = connect(self.store, folder, metadata_files="never", clock=self.clock)
        fill(self.client, self.clock)
        self.instance = self.client.session.catalog.references.store.realm
        self.reference = self.client.session.catalog.reference

    def copy(self) -> Damaged:
        """Return another store with the same rows."""
        backend = MemoryBackend(str(uuid.uuid4()))
        copy_rows(self.client.session.connection.backend, backend)
        return Damaged(backend, self.clock, self.instance, self.reference)


def copy_rows(source: Backend, target: Backend) -> None:
    """Copy every row of a store."""
    for split in source.splits("objects", None, 1):
        for batch in source.scan(split):
            rows = batch.to_pylist()
            for realm in {row["realm"] for row in rows}:
                mine = [row for row in rows if row["realm"] == realm]
                target.write_objects(realm, [ObjectRow(row["id"], row["part"], row["value"]) for row in mine])
    for split in source.splits("references", None, 1):
        for batch in source.scan(split):
            for row in batch.to_pylist():
                target.insert_reference(row["realm"], row["name"], ReferenceRow(row["version"], row["value"]))


class InParts(LocalEngine):
    """An engine in this process. A check divides all work into parts for it."""

    number = 1

    @property
    def parts(self) -> int:
        return self.number


class Damaged:
    """A store whose rows are changed in ways that no writer would."""

    def __init__(self, backend: Backend, clock: ManualClock, instance: str, reference: str) -> None:
        self.backend = backend
        self.clock = clock
        self.instance = instance
        self.reference = reference

    def problems(self, *, parts: int = 1, **options: Any) -> list[Problem]:
        """Return the problems that a check finds if it divides the work into this number of parts."""
        own = ObjectStore(self.backend, self.instance, process_cache(), store_key="damaged")
        engine = InParts(Reach(own, Files({})))
        engine.number = parts
        return RealmCheck(self.backend, self.clock, engine=engine, **options).run()

    # Looking

    def row(self, id: int, part: int = 0) -> bytes:
        return self.backend.read_objects(self.instance, [ObjectKey(id, part)])[ObjectKey(id, part)]

    def get(self, id: int, cls: type[S]) -> S:
        part_0 = self.row(id)
        data = b"".join(self.row(id, part) for part in range(objects.part_count(part_0, str(id))))
        value = objects.decode(data, str(id)).value
        assert isinstance(value, cls)
        return value

    def shards(self, ids: Any) -> dict[int, Shard]:
        return {id: objects.decode(self.row(id), str(id)).value for id in ids}  # type: ignore[misc]

    def row_name(self, name: str = "") -> str:
        """The name of the newest row of a reference."""
        wanted = name or self.reference
        found = [row for row in self.references(self.instance) if row.rpartition("@")[0] == wanted]
        return max(found, key=lambda row: int(row.rpartition("@")[2], 16))

    def references(self, realm: str) -> Iterator[str]:
        for split in self.backend.splits("references", [realm], 1):
            for batch in self.backend.scan(split):
                yield from batch["name"].to_pylist()

    def head(self, name: str = "") -> Head:
        row_name = name if name == "root" else self.row_name(name)
        row = self.backend.read_reference(self.instance, row_name)
        assert row is not None
        return read_head(row, row_name)

    def commit(self, back: int = 0, name: str = "") -> tuple[int, Commit]:
        """Return the commit that is this far before the head, with its id."""
        id = self.head(name).commit
        for _ in range(back):
            id = self.get(id, Commit).parents[0]
        return id, self.get(id, Commit)

    def root(self, index: str, name: str = "") -> IndexRoot:
        commit = self.commit(0, name)[1]
        return commit.index_roots[commit.index_names.index(index)]

    def entry(self, key: bytes, index: str = NAMES) -> Entry:
        found = Index(self.root(index), self.shards).get(key)
        assert found is not None
        return found

    def holder(self, key: bytes, index: str = NAMES) -> int:
        """Return the object that contains an entry of the head."""
        return row_of(self.root(index), self.commit()[0], key, self.shards)

    def shard(self, index: str, kind: type[Leaf] | type[Branch], position: int = 1) -> tuple[int, Any]:
        """Return a shard of an index of the head."""
        root = self.root(index)
        level = [root.shard]
        for height in range(root.height, -1, -1):
            found = self.shards(level)
            if kind is Branch or not height:
                id = level[min(position, len(level) - 1)]
                return id, found[id]
            level = [child for id in level for child in found[id].children]  # type: ignore[union-attr]
        raise AssertionError

    # Damaging

    def put(self, id: int, data: bytes) -> None:
        """Replace the row of an object by these bytes."""
        old = self.backend.read_objects(self.instance, [ObjectKey(id, part) for part in range(10)])
        self.backend.delete_objects(self.instance, list(old))
        self.backend.write_objects(self.instance, objects.rows_of(id, data))

    def rewrite(self, id: int, value: msgspec.Struct) -> str:
        self.put(id, objects.encode(value))
        return f"{id}/0"

    def alter(self, id: int, cls: type[S], **fields: Any) -> str:
        """Replace fields of an object."""
        return self.rewrite(id, msgspec.structs.replace(self.get(id, cls), **fields))

    def delete(self, id: int, part: int = 0) -> str:
        self.backend.delete_objects(self.instance, [ObjectKey(id, part)])
        return f"{id}/{part}"

    def put_reference(self, name: str, value: bytes, realm: str = "") -> str:
        where = realm or self.instance
        row = self.backend.read_reference(where, name)
        new = ReferenceRow(new_version(), value)
        if row is None:
            self.backend.insert_reference(where, name, new)
        else:
            self.backend.swap_reference(where, name, row.version, new)
        return name

    def alter_head(self, name: str = "", **fields: Any) -> str:
        head = msgspec.structs.replace(self.head(name), **fields)
        return self.put_reference(name if name == "root" else self.row_name(name), encode_head(head))

    def delete_reference(self, name: str, realm: str = "") -> str:
        where = realm or self.instance
        row = self.backend.read_reference(where, name)
        assert row is not None
        self.backend.delete_reference(where, name, row.version)
        return name

    def system_record(self, name: str) -> Json:
        row = self.backend.read_reference(SYSTEM_REALM, name)
        assert row is not None
        found: Json = msgspec.msgpack.decode(row.value)
        return found

    def alter_record(self, record: str, /, **fields: Any) -> str:
        value = msgspec.msgpack.encode(self.system_record(record) | fields)
        return self.put_reference(record, value, SYSTEM_REALM)

    def alter_embedded(self, change: Callable[[IndexRoot], IndexRoot], index: str = NAMES) -> str:
        """Change the root of an index of the head's commit."""
        id, commit = self.commit()
        roots = list(commit.index_roots)
        position = commit.index_names.index(index)
        roots[position] = change(roots[position])
        return self.alter(id, Commit, index_roots=tuple(roots))


class Planted(NamedTuple):
    """A corruption: a function that makes it and returns the key of the damaged row, and the expected problem."""

    name: str
    kind: str
    damage: Callable[[Damaged], str]


def texts(piece: bytes) -> Json:
    """Return the JSON of a piece."""
    found: Json = json.loads(piece)
    return found


def key(name: str) -> bytes:
    return table_key(TableName(("db",), name))


def content(store: Damaged, name: str = "t001") -> int:
    return store.entry(key(name)).pointer


def view_content(store: Damaged, name: str) -> int:
    """The content of a view in `db`."""
    return store.entry(table_key(TableName(("db",), name), VIEW)).pointer


def snapshot_leaf(store: Damaged) -> tuple[int, Leaf]:
    root = store.get(content(store), Table).snapshots
    id = root.shard
    for _ in range(root.height):
        branch = store.get(id, Branch)
        id = branch.children[0]
    return id, store.get(id, Leaf)


def snapshot(store: Damaged, id: int) -> int:
    found = Index(store.get(content(store), Table).snapshots, store.shards).get(key_of(id))
    assert found is not None
    return found.pointer
