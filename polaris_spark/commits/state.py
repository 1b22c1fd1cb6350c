"""What a change sees and does: one commit's indexes and objects, a record of what was read, and pending effects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.errors import WrongTypeError
from polaris_spark.index import Entry, Index, IndexRoot, Shard
from polaris_spark.index.compaction import Compacted, compact
from polaris_spark.objects import refuse_newer, type_name
from polaris_spark.store.objects import ObjectStore

S = TypeVar("S", bound=msgspec.Struct)

_EMPTY = IndexRoot()


class Point(NamedTuple):
    """A key that was looked up, and the entry found there (None where it was absent)."""

    name: str
    """Of the index."""
    key: bytes
    found: Entry | None


class Range(NamedTuple):
    """A range that was read up to `limit` entries, and what was in it."""

    name: str
    """Of the index."""
    start: bytes
    end: bytes | None
    reverse: bool
    limit: int | None
    found: tuple[tuple[bytes, Entry], ...]


class Tree(NamedTuple):
    """A tree that was rewritten, and the embedded changes of a range that went into it."""

    name: str
    """Of the index."""
    tree: IndexRoot
    start: bytes
    end: bytes | None
    found: dict[bytes, Entry | None]


class Replanted(NamedTuple):
    """A tree put in the place of another that holds the same but for the changes `absorbed`."""

    name: str
    """Of the index."""
    tree: IndexRoot
    absorbed: tuple[bytes, ...]


class StoredObjects:
    """Objects and index shards of a store, through its cache: what renders and reads committed content."""

    def __init__(self, store: ObjectStore, *, rewrites: bool = False) -> None:
        """
        Args:
            rewrites: refuse index shards of a newer release, for whoever may write changed copies of them.
        """
        self._store = store
        self._rewrites = rewrites

    def get(self, id: int, cls: type[S]) -> S:
        """The object `id`, which is a `cls`."""
        return self._store.get(id, cls)

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Objects by id."""
        return self._store.get_many(ids, cls)

    def prefetch(self, ids: Collection[int]) -> None:
        """Have objects in the cache, by one read of those that are not there."""
        self._store.prefetch(ids)

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        """Index shards by id."""
        found = self._store.read(ids)
        if self._rewrites:
            for id, decoded in found.items():
                refuse_newer(decoded.header, self._store.key(id))
        return {id: decoded.value for id, decoded in found.items()}  # type: ignore[misc]  # Index checks


class Snapshot:
    """One commit of a reference, opened for reading. Indexes are opened on first use and shared by all readers."""

    def __init__(
        self,
        store: ObjectStore,
        version: bytes,
        head: Head,
        commit: Commit,
        *,
        row_name: str = "",
        ours: bool = False,
        indexes: dict[str, Index] | None = None,
    ) -> None:
        """
        Args:
            row_name: of the reference whose head it is, or was; empty where that does not matter.
            ours: whether this process made it, and maybe has not written it yet.
            indexes: those that are open already.
        """
        self.row_name = row_name
        self.ours = ours
        self.store = store
        self.version = version
        self.head = head
        self.commit = commit
        self._indexes = {} if indexes is None else indexes

    def index(self, name: str) -> Index:
        """An index of this commit; not to be changed (copy it first)."""
        found = self._indexes.get(name)
        if found is None:
            commit = self.commit
            position = commit.index_names.index(name) if name in commit.index_names else -1
            root = commit.index_roots[position] if position >= 0 else _EMPTY
            found = self._indexes[name] = Index(root, StoredObjects(self.store).read_shards)
        return found


class _Shards:
    """Reads index shards, including new ones that are not written yet.

    It holds no reference to the state that its index belongs to. Such a cycle would keep the state, with all its
    objects, in memory until Python's cycle collector runs.
    """

    def __init__(self, new: Mapping[int, Any], stored: StoredObjects) -> None:
        self._new = new
        self._stored = stored

    def __call__(self, ids: Collection[int]) -> Mapping[int, Any]:
        mine = {id: self._new[id] for id in ids if id in self._new}
        rest = [id for id in ids if id not in mine]
        return mine | dict(self._stored.read_shards(rest)) if rest else mine


class State:
    """A working copy of a snapshot that records reads and collects effects.

    Several changes may be applied to one state, one after the other, each between `begin` and `end` (or `undo`).
    Readers use it too: an object reader (`get`, `get_many`, `read_shards`) and lookups in indexes.
    """

    def __init__(self, base: Snapshot, new_id: Callable[[], int], *, rewrites: bool = True) -> None:
        """
        Args:
            rewrites: whether changes may be made on it: index shards of a newer release are then refused.
        """
        self.base = base
        self.new_id = new_id
        self._stored = StoredObjects(base.store, rewrites=rewrites)
        self.reads: list[Point | Range | Tree] = []
        self.effects = Effects()
        self.indexes: dict[str, Index] = {}
        self._objects: dict[int, msgspec.Struct] = {}
        self._shards = _Shards(self._objects, self._stored)
        self._savepoints: dict[str, Any] = {}
        self.check_time: CheckTime = unlimited
        """Called by a change at each of its steps; raises an error if the change has taken too long."""

    # Reading

    def lookup(self, index: str, key: bytes) -> Entry | None:
        """The entry of `key`, recorded as read."""
        found = self._open(index).get(key)
        self.reads.append(Point(index, key, found))
        return found

    def lookup_many(self, index: str, keys: list[bytes]) -> list[Entry | None]:
        """The entries of `keys`, in their order, recorded as read."""
        found = self._open(index).get_many(keys)
        self.reads.extend(Point(index, key, entry) for key, entry in zip(keys, found, strict=True))
        return found

    def scan(
        self,
        index: str,
        start: bytes,
        end: bytes | None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> tuple[tuple[bytes, Entry], ...]:
        """Up to `limit` entries with start <= key < end, in order (or backwards), recorded as read."""
        found = _take(self._open(index).range(start, end, reverse=reverse), limit)
        self.reads.append(Range(index, start, end, reverse, limit, found))
        return found

    def get(self, id: int, cls: type[S]) -> S:
        """An object written by this state or stored before.

        Raises:
            WrongTypeError: it is of another type.
            CorruptionError: there is none.
        """
        mine = self._mine(id, cls)
        return self.base.store.get(id, cls) if mine is None else mine

    def get_for_rewrite(self, id: int, cls: type[S]) -> S:
        """An object of which a changed copy is to be written; refused if a newer release wrote it."""
        mine = self._mine(id, cls)
        return self.base.store.get_for_rewrite(id, cls) if mine is None else mine

    def allows(self, cls: type[msgspec.Struct]) -> bool:
        """Whether the realm allows the newest revision of an object type to be written."""
        return self.base.store.allows(cls)

    def _mine(self, id: int, cls: type[S]) -> S | None:
        """An object written by this state; None if it wrote none of this id."""
        mine = self._objects.get(id)
        if mine is None or isinstance(mine, cls):
            return mine
        found, wanted = type_name(type(mine)), type_name(cls)
        raise WrongTypeError(
            f"new object {id} is of type {found!r} where {wanted!r} belongs", id=id, found=found
        )

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Objects by id, those written by this state among them."""
        mine = {id: o for id in ids if isinstance(o := self._objects.get(id), cls)}
        rest = [id for id in ids if id not in mine]
        return mine | self.base.store.get_many(rest, cls) if rest else mine

    def prefetch(self, ids: Collection[int]) -> None:
        """Have stored objects in the cache, by one read of those that are not there."""
        self.base.store.prefetch([id for id in ids if id not in self._objects])

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Any]:
        """Index shards by id, those written by this state among them."""
        return self._shards(ids)

    # Writing

    def put(self, index: str, key: bytes, entry: Entry) -> None:
        """Map `key` to `entry`."""
        self._writable(index).put(key, entry)
        self.effects.puts.append((index, key, entry))

    def remove(self, index: str, key: bytes) -> None:
        """Map `key` to nothing."""
        self._writable(index).remove(key)
        self.effects.puts.append((index, key, None))

    def compact(self, index: str, start: bytes, leaves: int) -> Compacted:
        """Rewrite some consecutive leaves of an index, from the one of key `start` on, to fewer fuller ones."""
        found = self._open(index)
        compacted = compact(found, start, leaves, self._shards, self.new_id)
        embedded = found.embedded(compacted.start, compacted.end)
        self.reads.append(Tree(index, found.tree, compacted.start, compacted.end, embedded))
        if compacted.tree != found.tree:
            self.add_all(compacted.shards)
            self._replant(Replanted(index, compacted.tree, tuple(embedded)))
        return compacted

    def _replant(self, replanted: Replanted) -> None:
        self._writable(replanted.name).replant(replanted.tree, replanted.absorbed)
        self.effects.trees.append(replanted)

    def add(self, value: msgspec.Struct) -> int:
        """A new object; its id."""
        id = self.new_id()
        self.add_all([(id, value)])
        return id

    def add_all(self, objects: Iterable[tuple[int, msgspec.Struct]]) -> None:
        """New objects under ids that `new_id` gave."""
        for id, value in objects:
            self._objects[id] = value
            self.effects.objects.append((id, value))

    def write_file(self, location: str, data: bytes) -> None:
        """A file to be written before the swap."""
        self.effects.files.append((location, data))

    def log(self, entry: LogEntry) -> None:
        """A log entry of this change."""
        self.effects.entries.append(entry)

    # Savepoints

    def begin(self) -> None:
        """Start a change: what it reads and does is collected from here on."""
        self.reads = []
        self.effects = Effects()
        self._savepoints = {}

    def undo(self) -> None:
        """Take back everything since `begin`."""
        for name, savepoint in self._savepoints.items():
            self.indexes[name].rollback(savepoint)
        for id, _ in self.effects.objects:
            self._objects.pop(id, None)
        self.begin()

    def holds(self, reads: Iterable[Point | Range | Tree]) -> bool:
        """Whether everything that was read before would be read the same now."""
        return all(self._same(read) for read in reads)

    def redo(self, effects: Effects) -> None:
        """Apply the effects of an earlier run whose reads still hold."""
        for index, key, entry in effects.puts:
            if entry is None:
                self.remove(index, key)
            else:
                self.put(index, key, entry)
        self.add_all(effects.objects)
        for replanted in effects.trees:
            self._replant(replanted)
        self.effects.files += effects.files
        self.effects.entries += effects.entries

    def _same(self, read: Point | Range | Tree) -> bool:
        index = self._open(read.name)
        if isinstance(read, Tree):
            return index.tree == read.tree and index.embedded(read.start, read.end) == read.found
        if isinstance(read, Point):
            return index.get(read.key) == read.found
        return _take(index.range(read.start, read.end, reverse=read.reverse), read.limit) == read.found

    def _open(self, name: str) -> Index:
        return self.indexes.get(name) or self.base.index(name)

    def _writable(self, name: str) -> Index:
        index = self.indexes.get(name)
        if index is None:
            index = self.indexes[name] = self.base.index(name).copy(self._shards)
        if name not in self._savepoints:
            self._savepoints[name] = index.savepoint()
        return index


class Effects:
    """What one change does, in the order in which it did it."""

    __slots__ = ("entries", "files", "objects", "puts", "trees")

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes, Entry | None]] = []
        self.objects: list[tuple[int, msgspec.Struct]] = []
        self.files: list[tuple[str, bytes]] = []
        self.entries: list[LogEntry] = []
        self.trees: list[Replanted] = []

    def copy(self) -> Effects:
        """The same effects, apart from what is added to these later."""
        copy = Effects()
        copy.puts, copy.objects = list(self.puts), list(self.objects)
        copy.files, copy.entries = list(self.files), list(self.entries)
        copy.trees = list(self.trees)
        return copy

    def __bool__(self) -> bool:
        return bool(self.puts or self.objects or self.files or self.entries or self.trees)


def _take(items: Iterable[tuple[bytes, Entry]], limit: int | None) -> tuple[tuple[bytes, Entry], ...]:
    taken: list[tuple[bytes, Entry]] = []
    for item in items:
        if limit is not None and len(taken) >= limit:
            break
        taken.append(item)
    return tuple(taken)
