"""An index: a persistent sorted map from keys (bytes) to entries, as a working copy over an immutable root.

The structure is a B+-tree of immutable shards with a log of recent changes above it. The log is embedded in the
object that holds the root, so that a small change writes no shard. This is a one-level buffer tree (Arge, "The buffer
tree", 1995) whose buffer is in an object that every commit writes anyway.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from polaris_spark.errors import InputError, ObjectTooLargeError
from polaris_spark.index.cursor import Scan, find, find_many
from polaris_spark.index.entries import Entry, PendingEntry, embedded_size, embedded_total
from polaris_spark.index.keys import MAX_KEY_BYTES
from polaris_spark.index.root import IndexRoot, IndexSettings, ShardReader
from polaris_spark.index.shards import Shard
from polaris_spark.index.spill import Limits, spill

DEFAULT_SETTINGS = IndexSettings()


class Columns(NamedTuple):
    """Entries of an index, in three lists of equal length."""

    keys: list[bytes]
    pointers: list[int]
    values: list[bytes]


class Index:
    """A working copy of an index: changes stay in memory until `freeze` returns them as a new root. Not thread-safe.

    Every method that reads raises CorruptionError if a shard is missing or unreadable, in addition to the errors that
    the reader raises.
    """

    __slots__ = (
        "_changed",
        "_next",
        "_ordered",
        "_pending",
        "_read",
        "_root",
        "_settings",
        "_size",
        "_sorted",
        "_undo",
    )

    def __init__(
        self, root: IndexRoot, read: ShardReader, settings: IndexSettings = DEFAULT_SETTINGS
    ) -> None:
        self._root = root
        self._read = read
        self._settings = settings
        changes = zip(count(), root.pointers, root.values, strict=False)
        self._pending: dict[bytes, PendingEntry] = dict(zip(root.keys, changes, strict=True))
        self._next = len(root.keys)
        self._size: int | None = None
        self._sorted: list[bytes] | None = None
        self._undo: list[tuple[bytes, PendingEntry | None] | IndexRoot] | None = None
        self._changed = False
        self._ordered = True

    def copy(self, read: ShardReader | None = None) -> Index:
        """Return an independent working copy with the same content, but without the savepoints.

        Args:
            read: another reader of the same shards, for example one that raises an error for shards that must not be
                rewritten.
        """
        copy = object.__new__(Index)
        copy._root, copy._read, copy._settings = self._root, read or self._read, self._settings
        copy._pending = self._pending.copy()
        copy._next, copy._size = self._next, self._size
        copy._changed, copy._ordered = self._changed, self._ordered
        copy._sorted = copy._undo = None
        return copy

    def reopened(self, root: IndexRoot, read: ShardReader) -> Index:
        """Return a working copy of `root`, which `freeze` of this index returned. The result equals `Index(root,
        read)`. If `freeze` moved no changes into the tree, this is faster, because it copies the embedded changes of
        this index instead of decoding those of the root."""
        if root.shard != self._root.shard or len(root.keys) != len(self._pending):
            return Index(root, read, self._settings)
        copy = self.copy(read)
        copy._root, copy._changed = root, False
        return copy

    def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key; None if the key is absent."""
        change = self._pending.get(key)
        if change is not None:
            return _entry(change)
        root = self._root
        return find(self._read, root.shard, root.height, key) if root.shard else None

    def get_many(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entries of several keys (None: absent), in the order of `keys`. Each level of the tree takes one
        batched read."""
        pending, root = self._pending, self._root
        result = [_entry(pending[key]) if key in pending else None for key in keys]
        if root.shard:
            places = [place for place, key in enumerate(keys) if key not in pending]
            if places:
                found = find_many(self._read, root.shard, root.height, [keys[place] for place in places])
                for place, entry in zip(places, found, strict=True):
                    result[place] = entry
        return result

    def range(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Entry]]:
        """Return an iterator over (key, entry) from `start`, inclusive, to `end`, exclusive (None: to the last);
        ascending, or descending if `reverse`.

        The iterator shows the content at the time of the call. Shards are read during the iteration: first one leaf,
        then batches of growing size.
        """
        if end is not None and start >= end:
            return iter(())
        low, high = self._span(start, end)
        changes = [(key, self._pending[key]) for key in self._sorted_keys()[low:high]]
        if reverse:
            changes.reverse()
        if not self._root.shard:
            return iter(
                [(key, Entry(change[1], change[2])) for key, change in changes if change[2] is not None]
            )
        tree = Scan(self._read, start, end, reverse=reverse).entries(self._root.shard, self._root.height)
        return _merged(changes, tree, reverse=reverse) if changes else tree

    def keys(self, start: bytes, end: bytes | None, limit: int | None = None) -> list[bytes]:
        """Return the keys from `start`, inclusive, to `end`, exclusive (None: to the last), ascending: all of them, or
        only the first `limit`.

        For many keys, this is several times as fast as `range`.
        """
        if end is not None and start >= end:
            return []
        low, high = self._span(start, end)
        pending = self._pending
        changed = self._sorted_keys()[low:high]
        found = [key for key in changed if pending[key][2] is not None]
        if not self._root.shard:
            return found if limit is None else found[:limit]
        stored: list[bytes] = []
        for keys in Scan(self._read, start, end, reverse=False).keys(self._root.shard, self._root.height):
            stored += [key for key in keys if key not in pending] if changed else keys
            if limit is not None and len(stored) >= limit:
                break
        # The first `limit` keys of the two sorted lists together are among the first `limit` keys of each list.
        both = sorted(stored + found) if found else stored
        return both if limit is None else both[:limit]

    def columns(self) -> Columns:
        """Return all keys, pointers and values, ascending by key.

        For many entries, this is several times as fast as `range`.
        """
        keys: list[bytes] = []
        pointers: list[int] = []
        values: list[bytes] = []
        if self._root.shard:
            scan = Scan(self._read, b"", None, reverse=False)
            for leaf in scan.leaves(self._root.shard, self._root.height):
                keys += leaf.keys
                pointers += leaf.pointers
                values += leaf.values
        for key, (_, pointer, value) in self._pending.items():
            at = bisect_left(keys, key)
            present = slice(at, at + (at < len(keys) and keys[at] == key))
            keys[present] = [] if value is None else [key]
            pointers[present] = [] if value is None else [pointer]
            values[present] = [] if value is None else [value]
        return Columns(keys, pointers, values)

    def put(self, key: bytes, entry: Entry) -> None:
        """Set the entry of a key.

        Raises:
            ObjectTooLargeError: the key is over `MAX_KEY_BYTES`.
        """
        if len(key) > MAX_KEY_BYTES:
            raise ObjectTooLargeError(
                f"an index key has {len(key)} bytes; the maximum is {MAX_KEY_BYTES}: use shorter names"
            )
        self._set(key, (self._next, entry.pointer, entry.value))

    def remove(self, key: bytes) -> None:
        """Remove a key. Removing an absent key is allowed."""
        if self._root.shard:
            self._set(key, (self._next, 0, None))
        elif key in self._pending:
            self._set(key, None)

    def savepoint(self) -> int:
        """Return a token with which `rollback` restores the current content."""
        if self._undo is None:
            self._undo = []
        return len(self._undo)

    def rollback(self, token: int) -> None:
        """Undo every change since the savepoint that returned the token. Tokens of later savepoints become invalid.

        Raises:
            InputError: the token is not from this working copy, or a rollback to an earlier savepoint invalidated it.
        """
        undo = self._undo
        if undo is None or not 0 <= token <= len(undo):
            raise InputError(
                f"savepoint {token} does not belong to this index, or a rollback to an earlier savepoint removed it"
            )
        self._ordered = self._ordered and len(undo) == token
        while len(undo) > token:
            done = undo.pop()
            if isinstance(done, IndexRoot):
                self._root = done
            else:
                key, change = done
                self._replace(key, change, self._pending.get(key))

    @property
    def tree(self) -> IndexRoot:
        """The tree without the embedded changes, as a root whose embedded part is empty."""
        return IndexRoot(self._root.shard, self._root.height, self._root.count)

    def embedded(self, start: bytes = b"", end: bytes | None = None) -> dict[bytes, Entry | None]:
        """Return the embedded changes (those not yet in the tree) from `start`, inclusive, to `end`, exclusive (None:
        to the last), by key. The value is None for a removed key."""
        low, high = self._span(start, end)
        return {key: _entry(self._pending[key]) for key in self._sorted_keys()[low:high]}

    def replace_tree(self, tree: IndexRoot, absorbed: Iterable[bytes]) -> None:
        """Replace the tree with one that already contains the embedded changes to the keys in `absorbed`, and remove
        those changes from the embedded part. The content of the index does not change."""
        self._size = (
            self.embedded_bytes
        )  # computed now, because it is computed from the root, which changes below
        if self._undo is not None:
            self._undo.append(self._root)
        self._root, self._changed = tree, True
        for key in absorbed:
            self._set(key, None)

    @property
    def embedded_bytes(self) -> int:
        """Approximate size of the embedded changes in the row of the index root, in bytes; off by a few percent."""
        if self._size is None:
            self._size = embedded_total(self._root.keys, self._root.pointers, self._root.values)
        return self._size

    def freeze(
        self, quota: int, new_id: Callable[[], int], *, floor: bytes | None = None
    ) -> tuple[IndexRoot, list[tuple[int, Shard]]]:
        """Return the content as a new root, with the new shards to write (children first).

        If the embedded changes take at most `quota` bytes, no shard changes. Otherwise changes are moved into the tree
        until about half the quota stays embedded. In that case, keys below `floor` are also dropped: whole old leaves,
        and embedded keys. (Entries below `floor` in the leaf that contains `floor` stay until that leaf is rewritten.)
        The working copy itself does not change; to continue, use a new working copy of the new root.

        Args:
            quota: maximum size of the embedded changes, in bytes.
            new_id: returns a new object id at each call.
            floor: keys below `floor` are dropped when changes are moved into the tree; None drops no keys.
        """
        if self.embedded_bytes <= quota:
            return (_rooted(self._root, self._in_order()) if self._changed else self._root), []
        limits = Limits(quota, floor)
        spilled = spill(self._root, self._in_order(), limits, self._read, new_id, self._settings)
        return _rooted(spilled.tree, spilled.embedded), spilled.shards

    def _set(self, key: bytes, change: PendingEntry | None) -> None:
        before = self._pending.get(key)
        if self._undo is not None:
            self._undo.append((key, before))
        self._next += 1
        self._replace(key, change, before)

    def _replace(self, key: bytes, change: PendingEntry | None, before: PendingEntry | None) -> None:
        """Replace the embedded change of a key, which is `before`."""
        pending, keys = self._pending, self._sorted
        size = self.embedded_bytes if self._size is None else self._size
        if before is not None:
            size -= embedded_size(key, before[1], before[2])
            del pending[key]
        if change is not None:
            pending[key] = change
            size += embedded_size(key, change[1], change[2])
            if before is None and keys is not None:
                insort(keys, key)
        elif before is not None and keys is not None:
            del keys[bisect_left(keys, key)]
        self._size = size
        self._changed = True

    def _in_order(self) -> dict[bytes, PendingEntry]:
        """Return the pending changes, oldest first. They are sorted only if a rollback has broken their order."""
        if not self._ordered:
            self._pending = dict(sorted(self._pending.items(), key=lambda item: item[1][0]))
            self._ordered = True
        return self._pending

    def _sorted_keys(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._pending)
        return self._sorted

    def _span(self, start: bytes, end: bytes | None) -> tuple[int, int]:
        keys = self._sorted_keys()
        return bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)


def _entry(change: PendingEntry) -> Entry | None:
    _, pointer, value = change
    return None if value is None else Entry(pointer, value)


def _rooted(tree: IndexRoot, pending: dict[bytes, PendingEntry]) -> IndexRoot:
    """Return a root that has the same tree as `tree`, and embeds the changes `pending` in their order."""
    if not pending:
        return IndexRoot(tree.shard, tree.height, tree.count)
    _, pointers, values = zip(*pending.values(), strict=True)
    return IndexRoot(tree.shard, tree.height, tree.count, tuple(pending), pointers, values)


def _merged(
    changes: list[tuple[bytes, PendingEntry]], tree: Iterator[tuple[bytes, Entry]], *, reverse: bool
) -> Iterator[tuple[bytes, Entry]]:
    """Yield the entries of the tree with the embedded changes applied. Both inputs are ascending or, if `reverse`,
    descending."""
    upcoming = iter(changes)
    change = next(upcoming, None)
    for key, entry in tree:
        while change is not None and (change[0] > key if reverse else change[0] < key):
            if (changed := _entry(change[1])) is not None:
                yield change[0], changed
            change = next(upcoming, None)
        if change is not None and change[0] == key:
            continue
        yield key, entry
    while change is not None:
        if (changed := _entry(change[1])) is not None:
            yield change[0], changed
        change = next(upcoming, None)
