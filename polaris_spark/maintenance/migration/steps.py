"""The steps of a migration that copy rows, and the switch to the target.

The module `migration` describes the order of the steps, and why it is safe.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from polaris_spark.backends.base import Backend, ReferenceRow
from polaris_spark.catalog.engine import Engine
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Head
from polaris_spark.errors import CorruptionError, RealmStateError, TaskLostError, TryAgainError
from polaris_spark.maintenance.migration.check import Compared, RowDifference, compare
from polaris_spark.maintenance.migration.copy import (
    Copied,
    RealmRows,
    copy_all,
    copy_since,
    highest_id,
)
from polaris_spark.maintenance.migration.marks import Held, SourceRealm, concurrently
from polaris_spark.store.references import ReferenceStore, new_version
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.realms import RealmRecord, RealmState

COPIED: Final = "moving-copied"
"""Property of the target's realm record: two ids. The first id is the last fence that the migration set in the source;
all rows that were needed at that time have been copied. The second id is the highest id that was copied."""


class MigrationStep(NamedTuple):
    """A finished step of a migration, as reported to the caller."""

    name: str
    references: int = 0
    """Number of references that the step read."""
    rows: int = 0
    """Number of rows that were copied or compared."""
    bytes: int = 0
    """Total size of the rows that were copied, in bytes."""
    milliseconds: float = 0.0
    """Duration of the step. For the step `switch`, the time in which no commit could be made in either store."""
    differences: Sequence[RowDifference] = ()
    """The first differences between the source and the target."""
    different: int = 0
    """Total number of differences."""


class PauseTooLongError(TryAgainError):
    """An attempt to switch took longer than the maximum pause and was given up. The source continues to serve."""


class RealmCopy:
    """Copy of a realm's rows to the target. The target's realm record states which rows have been copied."""

    def __init__(
        self,
        source: SourceRealm,
        target: StoreConnection,
        record: RealmRecord,
        engine: Engine,
        open_target: Callable[[], Backend],
        heads: Sequence[Held] = (),
    ) -> None:
        """
        Args:
            record: the realm record in the target.
            engine: copies and compares rows; its store is the source.
            open_target: returns the target's database; called in every process in which the engine works.
            heads: heads whose objects have all been copied already; empty if none are known.
        """
        self.source = source
        self.target = target
        self.record = record
        self.heads: Sequence[Held] = heads
        """Heads of the source whose objects have all been copied."""
        self.clock = source.references.clock
        self.highest = 0
        """The highest id of a row that was copied."""
        self._fence = 0
        """The id that was last set as the fence of the source's references. All objects that the source's commits
        needed at that time have been copied."""
        self._engine = engine
        self._open_target = open_target
        self._rounds = 0
        self._from = RealmRows(source.store.backend, source.store.realm, self.clock)
        self._to = RealmRows(target.backend, record.instance, target.clock)

    def everything(self) -> Iterator[MigrationStep]:
        """Copy every row, unless an earlier run has done this. Yield the step if rows were copied."""
        noted = self.record.properties.get(COPIED)
        if noted is not None:
            self._fence, self.highest = (int(number, 16) for number in noted.split())
            return
        begun = self.clock.monotonic_ms()
        left = highest_id(self._to)  # a run that died may have copied rows that the source has swept since
        fence = self.source.fence()
        copied = copy_all(self._from, self._to, self._engine, self._open_target)
        self._fence, self.highest = fence, max(left, copied.highest)
        self._note()
        yield MigrationStep("copy", 0, copied.rows, copied.bytes, self.clock.monotonic_ms() - begun)

    def catch_up(self) -> MigrationStep:
        """Copy the commits that were made since the last round, and all objects that they need.

        First set a new fence in the source, which marks where the next round begins.
        """
        self._rounds += 1
        begun = self.clock.monotonic_ms()
        fence = self.source.fence()
        heads = self.source.heads()
        while True:
            try:
                copied = self.since(heads, lambda done: self._engine.progress("catching up", done, 0))
                break
            except CorruptionError:
                now = self.source.heads()
                if not floors_raised(heads, now):
                    raise
                heads = now  # the missing object may have been swept
        self._fence, self.heads = fence, heads
        self._note()
        took = self.clock.monotonic_ms() - begun
        return MigrationStep(f"catch up {self._rounds}", len(heads), copied.rows, copied.bytes, took)

    def since(self, heads: Sequence[Held], watch: Callable[[int], None]) -> Copied:
        """Copy the objects that can be reached from `heads` and have ids above the last fence.

        Args:
            watch: called with the number of objects that have been copied.
        """
        copied = copy_since(self._from, self._to, [held.head for held in heads], self._fence, watch)
        self.highest = max(self.highest, copied.highest)
        return copied

    def compared(self) -> Compared:
        """Compare all objects that can be reached from `self.heads` with their copies."""
        return compare(self._engine, self._open_target, self._from, self._to, self.heads)

    def _note(self) -> None:
        noted = f"{self._fence:x} {self.highest:x}"

        def change(record: RealmRecord) -> Mapping[str, str]:
            self.refuse_served(record)
            return {**record.properties, COPIED: noted}

        realms, record = self.target.realms, self.record
        retried(self.clock, lambda: realms.describe(record.name, change, instance=record.instance))

    def refuse_served(self, record: RealmRecord) -> None:
        """Raise an error if the target's realm is not in the state LOADING any more.

        Raises:
            TaskLostError: another run finished the migration, or it was aborted.
        """
        if record.state is not RealmState.LOADING:
            raise TaskLostError(
                f"realm {record.name!r} of {self.target.uri} is now {record.state.value}: another run finished this "
                "migration, or it was aborted"
            )


class Switch:
    """One attempt to switch a realm from the source to the target. After a success, clients use the target's realm."""

    def __init__(self, copy: RealmCopy, to: str, max_pause_ms: float) -> None:
        self._copy = copy
        self._source = copy.source
        self._to = to
        self._token = secrets.token_hex(16)
        self._max_pause_ms = max_pause_ms
        self._clock = copy.clock
        self._begun = 0.0

    def run(self) -> MigrationStep:
        """Stop commits in the source, copy the last commits, and make the target's realm ACTIVE.

        Raises:
            PauseTooLongError: the switch took longer than the maximum pause; the source continues to serve.
            TaskLostError: another run of the migration ended this attempt, or the migration was aborted.
        """
        target, record = self._copy.target, self._copy.record
        self._begun = self._clock.elapsed_ms()
        try:
            heads = self._source.pause(self._to, self._token)
            copied = self._copy.since(heads, lambda _: self._check_time())
            self._write_references(heads)
            self._check_time()
            self._source.decide(self._to, self._token)
        except BaseException:
            if self._source.end_pause(self._token):
                raise
            # The decision took effect, but the database's answer was lost.
            heads, copied = self._source.heads(), Copied()
        retried(
            self._clock,
            lambda: target.realms.move(record.name, RealmState.ACTIVE, instance=record.instance),
        )
        paused = self._clock.elapsed_ms() - self._begun
        return MigrationStep("switch", len(heads), copied.rows, copied.bytes, paused)

    def _check_time(self) -> None:
        took = self._clock.elapsed_ms() - self._begun
        if took > self._max_pause_ms:
            raise PauseTooLongError(
                f"the switch to {self._to} was given up after {took:.0f} ms, because commits may be stopped for at "
                f"most {self._max_pause_ms:.0f} ms: allow a longer pause, or try again when there are fewer commits"
            )

    def _write_references(self, heads: Sequence[Held]) -> None:
        """Write the heads to the target's reference rows.

        See `write_references`.
        """
        target, record = self._copy.target, self._copy.record

        def ready(references: ReferenceStore) -> None:
            found = target.realms.find(record.name)
            if found is None or found.instance != record.instance:
                raise RealmStateError(
                    f"realm {record.name!r} of {self._to}, which this migration was filling, no longer exists: abort "
                    "the migration, and begin again"
                )
            self._copy.refuse_served(found)
            self._remove_others(references, {held.row_name for held in heads})

        write_references(target, record.instance, heads, self._copy.highest, ready)

    def _remove_others(self, references: ReferenceStore, kept: Collection[str]) -> None:
        """Remove the target's reference rows whose names are not in `kept`.

        An earlier attempt wrote these rows, for references that no longer exist in the source. The rows are read first;
        then it is checked that this attempt has not ended. If it has not, no later attempt has written any of the rows
        that were read. If a later attempt replaces a row afterwards, the row has another version and is not deleted.
        """
        others = [(name, row.version) for name, row in references.rows() if name not in kept]
        self._source.refuse_ended(self._token)
        for name, version in others:
            references.delete(name, version)


def write_references(
    target: StoreConnection,
    instance: str,
    heads: Sequence[Held],
    highest: int,
    ready: Callable[[ReferenceStore], None],
) -> None:
    """Write heads to the reference rows of a realm in the state LOADING.

    Each gets a fence above every id that was copied. A process makes no id below a fence that it has read, so it does
    not use any of these ids again.

    Args:
        instance: instance id of the realm.
        highest: the highest id of an object that was copied.
        ready: called after the versions of the rows were read. It raises an error unless the realm is still LOADING: a
            commit to a realm that became ACTIVE meanwhile changes one of these versions.
    Raises:
        TaskLostError: another run has changed a row since it was read, or a row already contains a later head.
    """
    target.ids.observe(max(highest, *(max(held.head.commit, held.head.fence) for held in heads)))
    fence = retried(target.clock, target.ids.next_id)
    backend = target.backend
    versions = concurrently(lambda held: backend.read_reference(instance, held.row_name), heads)
    references = ReferenceStore(backend, instance)
    ready(references)
    pairs = list(zip(heads, versions, strict=True))
    concurrently(partial(write_reference, references, fence), pairs)


def write_reference(references: ReferenceStore, fence: int, item: tuple[Held, ReferenceRow | None]) -> None:
    """Write the head of a reference to the target.

    Args:
        references: the references of the realm in the target.
        fence: the fence (an id) that the head gets in the target.
        item: the head in the source, and the target's row as it was read; None if the row did not exist.
    Raises:
        TaskLostError: another run has changed the row since it was read, or the row already contains a later head.
    """
    held, before = item
    if before is not None and _is_later(read_head(before, held.row_name), held.head):
        raise TaskLostError(
            f"reference {held.row_name!r} of the target was written by a later run, so this run stopped; if the "
            "later run has ended, start this command again, which continues it"
        )
    head = msgspec.structs.replace(held.head, fence=fence, move=None, slots=())
    new = ReferenceRow(new_version(), encode_head(head))
    if not references.put(held.row_name, None if before is None else before.version, new):
        raise TaskLostError(
            f"reference {held.row_name!r} of the target was changed by another run, so this run stopped; if the "
            "other run has ended, start this command again, which continues it"
        )


def _is_later(there: Head, head: Head) -> bool:
    """Whether the head `there`, found in the target, is later in the source's history than `head`."""
    return (
        there.number > head.number
        or there.floor_number > head.floor_number
        or (there.sealed and not head.sealed)
    )


def floors_raised(before: Sequence[Held], now: Sequence[Held]) -> bool:
    """Return whether the history of a reference was trimmed, or the reference ended, between two reads of the heads.

    A sweep may then have deleted objects that only this history needed.
    """
    floors = {held.row_name: held.head.floor_number for held in now}
    return any(floors.get(held.row_name) != held.head.floor_number for held in before)
