"""The working state of a change: the indexes and objects of one commit, a record of all reads, and the effects to
write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.commits.log import ancestor, entries
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.settings import PROTECTED, PROTECTION
from polaris_spark.errors import HistoryTrimmedError, MissingObjectError, WrongTypeError
from polaris_spark.index import Entry, Index, IndexRoot, Shard
from polaris_spark.index.compaction import Compacted, compact
from polaris_spark.objects import refuse_newer, type_name
from polaris_spark.store.objects import ObjectStore

S = TypeVar("S", bound=msgspec.Struct)

_EMPTY = IndexRoot()

NO_VERSION: Final = b"forecast"
"""Version token of a forecast (`HeadReader.forecast`). No swap expects it."""


class Point(NamedTuple):
    """Record of the look-up of one key: the key, and the entry that was found (None if the key was absent). Look-ups of
    keys that the same change has written are not recorded."""

    name: str
    """Name of the index."""
    key: bytes
    found: Entry | None


class Range(NamedTuple):
    """Record of a scan of a key range: its bounds, and the first entries found, at most `limit`, as (key, entry)."""

    name: str
    """Name of the index."""
    start: bytes
    end: bytes | None
    reverse: bool
    limit: int | None
    found: tuple[tuple[bytes, Entry], ...]


class RangeOfOthers(NamedTuple):
    """Record of a scan of a key range in which the change itself had written keys. It contains the result of the scan
    without these keys."""

    scan: Range
    own: frozenset[bytes]
    """The keys in the range that the change itself had written before the scan."""


class Tree(NamedTuple):
    """Record of a read of the stored form of an index: its tree, and the embedded changes in a key range."""

    name: str
    """Name of the index."""
    tree: IndexRoot
    start: bytes
    end: bytes | None
    found: dict[bytes, Entry | None]


class Kept(NamedTuple):
    """Record of a check that a commit is still in the reference's history, and not trimmed."""

    number: int
    """Number of the commit."""


class Unlogged(NamedTuple):
    """Record that the reference's log has no entries about certain entities after a given commit.

    Index entries cannot show this: if an entity is absent, it may have been added and removed again meanwhile.
    """

    entities: frozenset[int]
    commit: int
    """Id of the commit."""
    number: int
    """Number of the commit."""


class Newest(NamedTuple):
    """Record that a commit was the newest one of the reference, and that no change came after it."""

    commit: int
    """Id of the commit."""


class ReplacedTree(NamedTuple):
    """The tree with which a compaction replaces the tree of an index. It has the same entries, with the embedded
    changes of the keys `absorbed` applied."""

    name: str
    """Name of the index."""
    tree: IndexRoot
    absorbed: tuple[bytes, ...]
    """Keys of the embedded changes that the new tree contains."""


Read: TypeAlias = Point | Range | RangeOfOthers | Tree | Kept | Unlogged | Newest
"""Record of one read of a change."""


class StoredObjects:
    """Reader of committed objects and index shards, through the store's cache."""

    def __init__(self, store: ObjectStore, *, rewrites: bool = False) -> None:
        """
        Args:
            rewrites: whether the caller may write changed copies of index shards. If so, index shards that a newer
                release wrote are refused.
        """
        self._store = store
        self._rewrites = rewrites

    def get(self, id: int, cls: type[S]) -> S:
        """Return the object `id` of type `cls`."""
        return self._store.get(id, cls)

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Return the objects with these ids and the type `cls`, by id."""
        return self._store.get_many(ids, cls)

    def prefetch(self, ids: Collection[int]) -> None:
        """Load objects into the cache; the objects that are not cached take one read."""
        self._store.prefetch(ids)

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Shard]:
        """Return index shards (nodes of an index tree) by id."""
        found = self._store.read(ids)
        if self._rewrites:
            for id, decoded in found.items():
                refuse_newer(decoded.header, self._store.key(id))
        return {id: decoded.value for id, decoded in found.items()}  # type: ignore[misc]  # Index checks


class CommitReader:
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
            row_name: name of the row of the reference that the commit belongs to; empty if the name is not needed.
            ours: whether this process made the commit, which may not be written yet.
            indexes: the indexes that are already open, by name.
        """
        self.row_name = row_name
        self.ours = ours
        self.store = store
        self.version = version
        self.head = head
        self.commit = commit
        self._indexes = {} if indexes is None else indexes

    def index(self, name: str) -> Index:
        """Return an index of this commit, shared by all readers. Do not change the index; change a copy."""
        found = self._indexes.get(name)
        if found is None:
            commit = self.commit
            position = commit.index_names.index(name) if name in commit.index_names else -1
            root = commit.index_roots[position] if position >= 0 else _EMPTY
            found = self._indexes[name] = Index(root, StoredObjects(self.store).read_shards)
        return found

    def open_indexes(self) -> dict[str, Index]:
        """Return the open indexes, by name. A child commit can reuse those that it does not change."""
        return self._indexes.copy()  # one step, because other threads may open indexes at the same time


class _Shards:
    """Reader of index shards, including new shards that are not written yet.

    It does not refer to the `State` that owns the index. This avoids a reference cycle, which would keep the state and
    all its objects in memory until Python's cycle collector runs.
    """

    def __init__(self, new: Mapping[int, Any], stored: StoredObjects) -> None:
        self._new = new
        self._stored = stored

    def __call__(self, ids: Collection[int]) -> Mapping[int, Any]:
        mine = {id: self._new[id] for id in ids if id in self._new}
        rest = [id for id in ids if id not in mine]
        return mine | dict(self._stored.read_shards(rest)) if rest else mine


class State:
    """A working copy of a commit that records all reads and collects the effects of changes.

    Several changes may be applied to one state, one after the other, each after a call of `begin`; `undo` undoes the
    last change. Code that only reads also uses a state, to read objects (`get`, `get_many`, `read_shards`) and indexes.
    """

    def __init__(self, base: CommitReader, new_id: Callable[[], int], *, rewrites: bool = True) -> None:
        """
        Args:
            rewrites: whether changes may be made on this state. If so, index shards that a newer release wrote are
                refused.
        """
        self.base = base
        self.new_id = new_id
        self._stored = StoredObjects(base.store, rewrites=rewrites)
        self.reads: list[Read] = []
        self.effects = Effects()
        self.indexes: dict[str, Index] = {}
        self._objects: dict[int, msgspec.Struct] = {}
        self._shards = _Shards(self._objects, self._stored)
        self._savepoints: dict[str, Any] = {}
        self._written: dict[str, set[bytes]] = {}
        """Keys that the change has written, by index."""
        self._logged: set[int] = set()
        """Ids of the entities in the log entries of earlier changes on this state."""
        self.check_time: CheckTime = unlimited
        """Called by a change at each of its steps; raises an error if the change has taken too long."""

    # Reading

    def lookup(self, index: str, key: bytes) -> Entry | None:
        """Return the entry of `key` in an index, or None if the key is absent. Record the read, unless this change
        wrote the key itself."""
        found = self._open(index).get(key)
        written = self._written.get(index)
        if written is None or key not in written:
            self.reads.append(Point(index, key, found))
        return found

    def lookup_many(self, index: str, keys: list[bytes]) -> list[Entry | None]:
        """Return the entry of each key in an index (None: absent), in the order of `keys`, and record the reads."""
        found, own = self._open(index).get_many(keys), self._written.get(index, ())
        self.reads.extend(
            Point(index, key, entry) for key, entry in zip(keys, found, strict=True) if key not in own
        )
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
        """Return up to `limit` entries with start <= key < end, in key order or reverse order, and record the read."""
        opened, written = self._open(index), self._written.get(index, ())
        found = _take(opened.range(start, end, reverse=reverse), limit)
        read = Range(index, start, end, reverse, limit, found)
        own = frozenset(key for key in written if start <= key and (end is None or key < end))
        if own:
            self.reads.append(RangeOfOthers(read._replace(found=_scanned(opened, read, own)), own))
        else:
            self.reads.append(read)
        return found

    def require_kept(self, number: int) -> None:
        """Check that a commit of the reference's history is not trimmed, and record this. A change that restores
        content of an earlier commit calls this, because jobs may delete files that only trimmed commits need.

        Raises:
            HistoryTrimmedError: the commit is trimmed.
        """
        floor = self.base.head.floor_number
        if number < floor:
            raise HistoryTrimmedError(f"commit {number} was trimmed; the history begins at commit {floor}")
        self.reads.append(Kept(number))

    def require_unlogged(self, entities: Iterable[int]) -> None:
        """Require that the reference's log has no entries about these entities after this state when the change is
        committed."""
        self.reads.append(Unlogged(frozenset(entities), self.base.head.commit, self.base.head.number))

    def require_newest(self) -> None:
        """Record that no change came after the base of this state. The change then fails if any other change is
        committed first."""
        is_forecast = self.base.version == NO_VERSION  # it lacks changes, so the record must not hold
        self.reads.append(Newest(0 if is_forecast else self.base.head.commit))

    def record_indexes(self, *names: str) -> list[Read]:
        """Record that each of these indexes was read as a whole, and return the records. A record holds only as long as
        the index has the same stored form, which means the same tree and the same embedded changes."""
        opened = [(name, self._open(name)) for name in names]
        found: list[Read] = [Tree(name, one.tree, b"", None, one.embedded()) for name, one in opened]
        self.reads.extend(found)
        return found

    def get(self, id: int, cls: type[S]) -> S:
        """Return an object, which is stored or was added to this state.

        Raises:
            WrongTypeError: the object has another type.
            CorruptionError: the object does not exist.
        """
        mine = self._mine(id, cls)
        return self.base.store.get(id, cls) if mine is None else mine

    def get_for_rewrite(self, id: int, cls: type[S]) -> S:
        """Return an object of which the caller will write a changed copy.

        Raises:
            NewerFormatError: a newer release wrote the object, so a copy would lose fields that are unknown here.
        """
        mine = self._mine(id, cls)
        return self.base.store.get_for_rewrite(id, cls) if mine is None else mine

    def allows(self, cls: type[msgspec.Struct]) -> bool:
        """Whether the realm allows the newest revision of an object type to be written."""
        return self.base.store.allows(cls)

    def _mine(self, id: int, cls: type[S]) -> S | None:
        """Return the object `id` if it was added to this state, else None."""
        mine = self._objects.get(id)
        if mine is None or isinstance(mine, cls):
            return mine
        found, wanted = type_name(type(mine)), type_name(cls)
        raise WrongTypeError(f"new object {id} has type {found!r} instead of {wanted!r}", id=id, found=found)

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Return objects by id, including those that were added to this state."""
        mine = {id: o for id in ids if isinstance(o := self._objects.get(id), cls)}
        rest = [id for id in ids if id not in mine]
        return mine | self.base.store.get_many(rest, cls) if rest else mine

    def prefetch(self, ids: Collection[int]) -> None:
        """Load stored objects into the cache; the objects that are not cached take one read."""
        self.base.store.prefetch([id for id in ids if id not in self._objects])

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Any]:
        """Return index shards by id, including those that were added to this state."""
        return self._shards(ids)

    @property
    def is_protected(self) -> bool:
        """Whether the reference is a protected branch, which accepts only changes that are `Change.onto_protected`.

        This is not recorded as a read, because it is checked again for each head to which a change is applied.
        """
        if PROTECTION not in self.indexes and PROTECTION not in self.base.commit.index_names:
            return False
        found = self._open(PROTECTION).get(PROTECTED)
        return found is not None and found.value.startswith(b"\x01")

    # Writing

    def put(self, index: str, key: bytes, entry: Entry) -> None:
        """Set the entry of `key` in an index."""
        self._writable(index).put(key, entry)
        self._written[index].add(key)
        self.effects.puts.append((index, key, entry))

    def remove(self, index: str, key: bytes) -> None:
        """Remove `key` from an index."""
        self._writable(index).remove(key)
        self._written[index].add(key)
        self.effects.puts.append((index, key, None))

    def compact(self, index: str, start: bytes, leaves: int) -> Compacted:
        """Rewrite consecutive leaves of an index, at most `leaves` of them from the leaf of the key `start` on, as
        fewer and fuller leaves. Return the result."""
        found = self._open(index)
        compacted = compact(found, start, leaves, self._shards, self.new_id)
        embedded = found.embedded(compacted.start, compacted.end)
        self.reads.append(Tree(index, found.tree, compacted.start, compacted.end, embedded))
        if compacted.tree != found.tree:
            self.add_all(compacted.shards)
            self._replant(ReplacedTree(index, compacted.tree, tuple(embedded)))
        return compacted

    def _replant(self, replanted: ReplacedTree) -> None:
        self._writable(replanted.name).replace_tree(replanted.tree, replanted.absorbed)
        self.effects.trees.append(replanted)

    def add(self, value: msgspec.Struct) -> int:
        """Add a new object and return its id."""
        id = self.new_id()
        self._objects[id] = value
        self.effects.objects.append((id, value))
        return id

    def add_all(self, objects: Iterable[tuple[int, msgspec.Struct]]) -> None:
        """Add new objects, given as (id, value); the ids come from `new_id`."""
        for id, value in objects:
            self._objects[id] = value
            self.effects.objects.append((id, value))

    def write_file(self, location: str, data: bytes) -> None:
        """Add a file. It is written before the reference's row is swapped."""
        self.effects.files.append((location, data))

    def log(self, entry: LogEntry) -> None:
        """Add a log entry of this change."""
        self.effects.entries.append(entry)

    def record_merge(self, commit: int) -> None:
        """Record that this change merges the content of a commit of another reference (`Commit.merged`)."""
        self.effects.merged.append(commit)

    # Savepoints

    def begin(self) -> None:
        """Start a change: reads and effects are collected from now on, without those of earlier changes."""
        self._logged.update(entry.entity for entry in self.effects.entries)
        self.reads = []
        self.effects = Effects()
        self._savepoints = {}
        self._written = {}

    def undo(self) -> None:
        """Undo every effect of the change that started with the last `begin`."""
        for name, savepoint in self._savepoints.items():
            self.indexes[name].rollback(savepoint)
        for id, _ in self.effects.objects:
            self._objects.pop(id, None)
        self.effects = Effects()
        self.begin()

    def holds(self, reads: Iterable[Read]) -> bool:
        """Return True if each of these recorded reads would have the same result now."""
        return all(self._same(read) for read in reads)

    def redo(self, effects: Effects) -> None:
        """Apply the effects of an earlier run of a change, after `holds` has shown that the run's reads have the same
        results."""
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
        self.effects.merged += effects.merged

    def _same(self, read: Read) -> bool:
        if isinstance(read, Kept):
            return self.base.head.floor_number <= read.number
        if isinstance(read, Newest):
            return read.commit == self.base.head.commit and not self._logged
        if isinstance(read, Unlogged):
            return read.entities.isdisjoint(self._logged) and self._is_unlogged(read)
        if isinstance(read, RangeOfOthers):
            return _scanned(self._open(read.scan.name), read.scan, read.own) == read.scan.found
        index = self._open(read.name)
        if isinstance(read, Tree):
            return index.tree == read.tree and index.embedded(read.start, read.end) == read.found
        if isinstance(read, Point):
            return index.get(read.key) == read.found
        return _scanned(index, read) == read.found

    def _is_unlogged(self, read: Unlogged) -> bool:
        """Whether the log has no entries about the entities of `read` after the commit of `read`. False if this is not
        known."""
        store, head = self.base.store, self.base.head
        if head.commit == read.commit:
            return True
        if not head.floor_number <= read.number < head.number:
            return False
        later = msgspec.structs.replace(head, floor_number=read.number + 1)
        try:
            return ancestor(store, head, read.number) == read.commit and all(
                entry.entity not in read.entities for *_, entry in entries(store, later)
            )
        except MissingObjectError:  # the base is not written yet, or was swept
            return False

    def _open(self, name: str) -> Index:
        return self.indexes.get(name) or self.base.index(name)

    def _writable(self, name: str) -> Index:
        index = self.indexes.get(name)
        if index is None:
            index = self.indexes[name] = self.base.index(name).copy(self._shards)
        if name not in self._savepoints:
            self._savepoints[name] = index.savepoint()
            self._written[name] = set()
        return index


class Effects:
    """Everything that one change writes: index entries, objects, files, log entries, compacted trees and merged
    commits, each kind in the order in which it was added."""

    __slots__ = ("entries", "files", "merged", "objects", "puts", "trees")

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes, Entry | None]] = []
        self.objects: list[tuple[int, msgspec.Struct]] = []
        self.files: list[tuple[str, bytes]] = []
        self.entries: list[LogEntry] = []
        self.trees: list[ReplacedTree] = []
        self.merged: list[int] = []

    def copy(self) -> Effects:
        """Return a copy. Effects that are added to this object later are not added to the copy."""
        copy = Effects()
        copy.puts, copy.objects = list(self.puts), list(self.objects)
        copy.files, copy.entries = list(self.files), list(self.entries)
        copy.trees, copy.merged = list(self.trees), list(self.merged)
        return copy

    def __bool__(self) -> bool:
        return bool(self.puts or self.objects or self.files or self.entries or self.trees or self.merged)


def _scanned(index: Index, scan: Range, own: Collection[bytes] = ()) -> tuple[tuple[bytes, Entry], ...]:
    """Return the entries that a scan finds in an index, without those whose keys are in `own`."""
    entries: Iterable[tuple[bytes, Entry]] = index.range(scan.start, scan.end, reverse=scan.reverse)
    if own:
        entries = ((key, entry) for key, entry in entries if key not in own)
    return _take(entries, scan.limit)


def _take(items: Iterable[tuple[bytes, Entry]], limit: int | None) -> tuple[tuple[bytes, Entry], ...]:
    taken: list[tuple[bytes, Entry]] = []
    for item in items:
        if limit is not None and len(taken) >= limit:
            break
        taken.append(item)
    return tuple(taken)


def reading_state(base: CommitReader) -> State:
    """Return a state for reading a commit. Adding an object to it raises an error."""
    return State(base, _no_id, rewrites=False)


def _no_id() -> int:
    raise AssertionError("this state is read-only: no object can be added to it")
