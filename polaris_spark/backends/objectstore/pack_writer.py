"""Reading, writing and deleting rows in packs. A pack is an object that holds many rows (see `packs`).

A pack changes only by conditional PUTs of its whole content, so its states form a sequence, and no update is lost:

- **Write.** The rows that are missing from the pack are added to it. If two processes write to a pack at the same time,
  the second is refused, reads the pack, and adds its rows to the new content. A lost answer is harmless: the pack is
  read again, and missing rows are added again. Concurrent writes of one process to a pack are combined in one PUT.
- **Delete.** The rows are removed in the same way. If the store has no conditional DELETE, an empty pack of about 50
  bytes remains, because a DELETE could remove rows that another process added in between.
- **Read.** One GET reads all rows of a pack. If a requested row is missing from a closed pack, another GET reads the
  pack at the level that the closed pack names. Rows that are in no pack are read as single objects, with one GET each.

A process caches the last state of a pack that it saw, which saves the read before the next PUT. The cache does not
decide whether a row exists: the store always confirms this. The cache does decide whether a pack is closed, because a
pack stays closed until its realm is dropped. So after a realm is dropped, the processes that wrote to the realm must
end before rows with the same ids are written to a realm of the same name.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.backends.objectstore import keys, packs
from polaris_spark.backends.objectstore.packs import OPEN, SINGLE, Content, PackRange, R
from polaris_spark.backends.objectstore.requests import Mark, Requests
from polaris_spark.errors import OutcomeUnknownError, PolarisError, TryAgainError

_REMEMBERED: Final = 64
_LONGEST_PAUSE_S: Final = 0.01
"""Maximum pause between attempts to change a pack, in seconds. During a longer pause, other writers would often fill
the pack."""
_Left = tuple[list[R], int]
"""Rows that are not in a pack, and the level at which to look for them next. `SINGLE`: each row is a separate
object."""


class PackedRows:
    """Reads and writes the rows of the table `objects` of one store. Thread-safe."""

    def __init__(self, requests: Requests, patience_ms: int) -> None:
        """
        Args:
            patience_ms: maximum time for repeated attempts to change a pack, in milliseconds. Attempts are repeated if
                other writers change the pack, or if an answer was lost.
        """
        self._requests = requests
        self._patience_s = patience_ms / 1_000
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def read(self, realm: str, wanted: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        """Return the values of the rows that exist among `wanted`, by key."""
        segment, skipped = keys.segment(realm), len(keys.body_prefix(realm))
        found: dict[ObjectKey, bytes] = {}

        def look(place: PackRange, some: list[ObjectKey]) -> _Left[ObjectKey]:
            stored = self._read(keys.pack_key(segment, place))
            held = stored.content if stored else Content()
            found.update((key, held.rows[key]) for key in some if key in held.rows)
            return [key for key in some if key not in held.rows], held.next or SINGLE

        alone = self._descend(dict.fromkeys(wanted), look)
        got = self._requests.each(self._requests.get, [keys.object_key(segment, key) for key in alone])
        found.update((key, one[0][skipped:]) for key, one in zip(alone, got, strict=True) if one is not None)
        return found

    def write(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        """Store rows. Existing rows are not changed."""
        segment, first = keys.segment(realm), keys.body_prefix(realm)
        small = {ObjectKey(row.id, row.part): row for row in rows if len(row.value) <= packs.LARGEST}
        large = [row for row in rows if len(row.value) > packs.LARGEST]

        def put(row: ObjectRow) -> None:
            self._requests.put(keys.object_key(segment, ObjectKey(row.id, row.part)), first + row.value)

        def add(place: PackRange, some: list[ObjectRow]) -> _Left[ObjectRow]:
            key = keys.pack_key(segment, place)
            seen = self._remembered(key)
            return seen.together(some, partial(self._add, realm, key, place, seen))

        alone = self._descend(small.values(), add, [partial(put, row) for row in large])
        self._requests.each(put, alone)

    def delete(self, realm: str, unwanted: Collection[ObjectKey]) -> None:
        """Delete rows. Missing rows are not an error."""
        segment = keys.segment(realm)

        def remove(place: PackRange, some: list[ObjectKey]) -> _Left[ObjectKey]:
            key = keys.pack_key(segment, place)
            seen = self._remembered(key)
            with seen.changing:
                return self._remove(realm, key, seen, some)

        alone = self._descend(dict.fromkeys(unwanted), remove)
        self._requests.delete([keys.object_key(segment, key) for key in alone])

    def forget(self) -> None:
        """Clear the cache of packs, because the packs are being deleted."""
        with self._lock:
            self._seen.clear()

    def _descend(
        self,
        rows: Collection[R],
        use: Callable[[PackRange, list[R]], _Left[R]],
        beside: Sequence[Callable[[], None]] = (),
    ) -> list[R]:
        """Distribute rows to packs, level by level from level 0. Return the rows that belong in separate objects.

        At each level, `use` is called for every pack in parallel, with the pack and the rows that belong in it. `use`
        returns the remaining rows, and the level at which to try them next (`SINGLE`: each row belongs in a separate
        object). The functions `beside` are called in parallel with the first level.
        """
        groups: dict[PackRange, list[R]] = packs.by_place(rows, 0)
        alone: list[R] = []
        while groups or beside:
            calls: list[Callable[[], _Left[R] | None]] = list(beside)
            calls += [partial(use, place, some) for place, some in groups.items()]
            done = self._requests.each(lambda call: call(), calls)
            groups, beside = {}, ()
            for left, level in (each for each in done if each is not None):
                if level == SINGLE:
                    alone += left
                else:
                    for place, some in packs.by_place(left, level).items():
                        groups.setdefault(place, []).extend(some)
        return alone

    def _read(self, key: str) -> _Stored | None:
        got = self._requests.get(key)
        return None if got is None else _Stored(packs.content(got[0], key), got[1])

    def _read_again(self, key: str, seen: _Seen) -> _Stored | None:
        with _keeping_doubt(seen):
            return self._read(key)

    def _add(
        self, realm: str, key: str, place: PackRange, seen: _Seen, rows: Collection[ObjectRow]
    ) -> _Left[ObjectRow]:
        """Add rows to a pack. Rows that the pack already holds are not added again. If the pack is closed, add no rows;
        otherwise add as many as fit. Return the rows that are still not in the pack, and the level of the packs to try
        next (`SINGLE`: each row becomes a separate object)."""
        stored, fresh = seen.stored, False
        for _ in self._tries(seen):
            if not fresh and stored is not None and _settled(stored.content, rows):
                stored = self._read(key)
            old = stored.content if stored else Content()
            lacking = [row for row in rows if (row.id, row.part) not in old.rows]
            if old.next or not lacking:
                seen.stored = stored
                return lacking, old.next or SINGLE
            new, left = packs.filled(place, old, lacking)
            if self._put(seen, realm, key, new, stored):
                return left, new.next or SINGLE
            stored, fresh = self._read_again(key, seen), True
        raise self._given_up(key, seen)

    def _remove(self, realm: str, key: str, seen: _Seen, unwanted: Collection[ObjectKey]) -> _Left[ObjectKey]:
        """Remove rows from a pack. Return the rows that the pack did not hold, and the level of the packs that can hold
        them (`SINGLE`: they can only be separate objects)."""
        for _ in self._tries(seen):
            stored = self._read_again(key, seen)
            old = stored.content if stored else Content()
            gone = set(unwanted) & old.rows.keys()
            rows = {kept: value for kept, value in old.rows.items() if kept not in gone}
            if not gone or self._replace(seen, realm, key, Content(rows, old.next), stored):
                return [each for each in unwanted if each not in gone], old.next or SINGLE
        raise self._given_up(key, seen)

    def _replace(self, seen: _Seen, realm: str, key: str, new: Content, old: _Stored | None) -> bool:
        """Replace a pack's content with `new`, the content that remains after a removal of rows. Delete the pack
        instead if no rows remain, the pack is open, and the storage has conditional deletes. Return whether the change
        certainly succeeded."""
        if old is None or new.rows or new.next or not self._requests.conditional_deletes:
            return self._put(seen, realm, key, new, old)
        seen.stored = None
        return self._requests.delete_if(key, old.mark)

    def _put(self, seen: _Seen, realm: str, key: str, new: Content, old: _Stored | None) -> bool:
        """Replace the content of a pack with `new` if the pack is still in the state `old`. Return whether the
        replacement certainly succeeded."""
        seen.stored = None
        try:
            with _keeping_doubt(seen):
                mark = self._requests.put_if(key, packs.encode(realm, new), old.mark if old else None)
        except OutcomeUnknownError as doubt:
            if doubt is seen.doubt:
                raise
            seen.doubt = doubt
            return False
        if mark is not None:
            seen.stored = _Stored(new, mark)
        return mark is not None

    def _tries(self, seen: _Seen) -> Iterator[None]:
        """Yield once for each attempt to change a pack, until the time-out. Pause before each attempt except the first
        two."""
        seen.doubt = None
        end, attempt = time.monotonic() + self._patience_s, 0
        while not attempt or time.monotonic() < end:
            yield
            attempt += 1
            if attempt > 1:
                time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))

    def _given_up(self, key: str, seen: _Seen) -> PolarisError:
        return seen.doubt or TryAgainError(
            f"too many other writers are changing the object {key!r}; try again"
        )

    def _remembered(self, key: str) -> _Seen:
        with self._lock:
            seen = self._seen.setdefault(key, _Seen())
            self._seen.move_to_end(key)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            return seen


class _Stored(NamedTuple):
    content: Content
    mark: Mark


@dataclass(slots=True)
class _Batch:
    """Rows that one call of `_Seen.together` adds to a pack, and the result of the call."""

    rows: list[ObjectRow]
    left: _Left[ObjectRow] | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Seen:
    """The latest state of a pack that this process has seen, and the calls in this process that wait to add rows to
    it."""

    stored: _Stored | None = None
    doubt: OutcomeUnknownError | None = None
    changing: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Batch] = field(default_factory=list)
    queue: threading.Lock = field(default_factory=threading.Lock)

    def together(
        self, rows: list[ObjectRow], add: Callable[[Collection[ObjectRow]], _Left[ObjectRow]]
    ) -> _Left[ObjectRow]:
        """Add rows to the pack by `add`. One call of `add` gets these rows and the rows of all other calls that are
        waiting. Return the rows of this call that were not added, and the level at which to add them.

        Raises:
            OutcomeUnknownError: another call, which was adding the rows of this call, was interrupted.
        """
        own = _Batch(rows)
        with self.queue:
            self.waiting.append(own)
        with self.changing:
            if own.left is None and own.error is None:
                self._lead(add)
        if own.left is None:
            raise own.error or _broken_off()
        return own.left

    def _lead(self, add: Callable[[Collection[ObjectRow]], _Left[ObjectRow]]) -> None:
        with self.queue:
            batches, self.waiting = self.waiting, []
        rows = {(row.id, row.part): row for batch in batches for row in batch.rows}
        try:
            left, level = add(rows.values())
        except BaseException as error:
            for batch in batches:
                batch.error = error if isinstance(error, PolarisError) else _broken_off()
            raise
        remaining = {(row.id, row.part) for row in left}
        for batch in batches:
            batch.left = [row for row in batch.rows if (row.id, row.part) in remaining], level


@contextlib.contextmanager
def _keeping_doubt(seen: _Seen) -> Iterator[None]:
    """If the block raises a `TryAgainError`, and the answer to an earlier attempt was lost, raise the
    `OutcomeUnknownError` of that attempt instead. A `TryAgainError` would wrongly say that nothing was changed."""
    try:
        yield
    except TryAgainError:
        if seen.doubt is not None:
            raise seen.doubt from None
        raise


def _settled(content: Content, rows: Collection[ObjectRow]) -> bool:
    """Whether `_add` must read a pack before it relies on the cached content. `_add` does not write rows that the
    cached content holds, but this content may be outdated. So the pack must be read if the cached content holds all of
    the rows, or if it is closed and holds some of them."""
    held = sum((row.id, row.part) in content.rows for row in rows)
    return held == len(rows) or (held > 0 and content.next != OPEN)


def _broken_off() -> OutcomeUnknownError:
    return OutcomeUnknownError("another call that was writing these rows was interrupted; write them again")
