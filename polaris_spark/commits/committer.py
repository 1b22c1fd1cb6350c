"""The commit protocol on one reference.

| step | a crash right after it leaves behind |
| --- | --- |
| 1. start from the known head | nothing |
| 2. prepare, apply | nothing: effects are in memory (prepare may read files, never writes any) |
| 3. write every new object and file, the commit object among them | what nothing points to: swept later |
| 4. swap the reference to the new commit | the commit, acknowledged to nobody; its operation id tells |
| 5. on a conflict: again from 1 with the fresh head | rows that nothing points to: swept later |

Where the database has transactions, 3 and 4 are one. Nothing that an attempt wrote is ever deleted by it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from polaris_spark.backends.base import Backend, ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.change import Change, Operation, PrepareAgain
from polaris_spark.commits.group import Group, Memo, Pending
from polaris_spark.commits.heads import thin
from polaris_spark.commits.publishing import Built, Publisher, read_head
from polaris_spark.commits.retry import backoff_ms
from polaris_spark.commits.rows import Commit, Entries, Head, LogEntry, RecentHead, child_pointers
from polaris_spark.commits.state import Effects, Snapshot, State
from polaris_spark.errors import (
    BadRequestError,
    CorruptionError,
    ReferenceGoneError,
    TryAgainError,
    UnprocessableError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.index import Entry
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version

R = TypeVar("R")

OPERATIONS = "operations"
"""Name of the index of recent operation ids; every reference may have it."""

_encode_mark = msgspec.msgpack.Encoder().encode


class FileWriter(Protocol):
    """Writes metadata files; durable enough to be read by others once it returns."""

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write (location, content) pairs, replacing what is there."""
        ...


class CommitSettings(NamedTuple):
    """Tunable behaviour of the protocol."""

    quotas: dict[str, int]
    """Bytes that each index may keep embedded in the commit; others have `default_quota`."""
    default_quota: int = 2_048
    operation_lifetime_ms: int = 30 * 60 * 1_000
    deadline_ms: float = 60_000.0
    """How long one batch may try before its callers are told to try again (or that the outcome is unknown)."""
    max_batch: int = 256


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    """Value of an entry of the index `operations`; its pointer is the `Entries` object."""

    digest: bytes
    first: int
    count: int


_decode_mark = msgspec.msgpack.Decoder(_Mark).decode


class Committer:
    """Commits changes to one reference row, from any number of threads, grouped."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._backend: Backend = store.backend
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._files = files
        self._known: Snapshot | None = None
        self._group = Group(self._run, max_batch=settings.max_batch)
        self._rng = rng or random.Random()
        self._publisher = Publisher(store, name, clock=clock, rng=self._rng, deadline_ms=settings.deadline_ms)

    # Reading

    def read(self) -> Snapshot:
        """The head as it is now: one read of the reference row, and of the commit if it has moved.

        Raises:
            ReferenceGoneError: the row is missing or sealed.
        """
        row = self._backend.read_reference(self._store.realm, self.name)
        return self._adopt(row)

    def known(self) -> Snapshot:
        """The head that this process knows, perhaps no longer the newest; read now if it knows none."""
        return self._known or self.read()

    def _adopt(self, row: ReferenceRow | None) -> Snapshot:
        known = self._known
        if known is not None and row is not None and row.version == known.version:
            return known
        if row is None:
            raise ReferenceGoneError(f"reference {self.name!r} of realm {self._store.realm!r} does not exist")
        head = read_head(row, self.name)
        self._ids.observe(max(head.commit, head.fence))
        snapshot = Snapshot(self._store, row.version, head, self._store.get(head.commit, Commit))
        if known is None or head.number >= known.head.number:
            self._known = snapshot
        return snapshot

    def amend(self, change: Callable[[Head], Head]) -> Snapshot:
        """Change the row without a commit: its floor, its fence, its seal.

        Args:
            change: gives the same when applied to its own result, because it is applied again while it is not
                known whether the swap took place.
        Returns:
            the amended head. Commits that others began before fail their swap and begin again on it.
        Raises:
            ReferenceGoneError: the row is missing.
            TryAgainError, OutcomeUnknownError: from the database, until the deadline passed.
        """
        row = amend_row(
            self._backend,
            self._store.realm,
            self.name,
            change,
            clock=self._clock,
            deadline_ms=self._settings.deadline_ms,
            rng=self._rng,
        )
        return self._adopt(row)

    # Committing

    def commit(self, change: Change[R]) -> R:
        """Carry out a change: all of it, once, or an error and nothing of it.

        Raises:
            RequestError: a requirement failed, judged against a fresh head.
            TryAgainError: nothing was changed before the deadline.
            OutcomeUnknownError: it may have been done; the same operation id will tell.
            ReferenceGoneError: the reference was dropped meanwhile.
        """
        pending = Pending(change, self._clock.monotonic_ms())
        view = self.known()
        while True:
            state = State(view, self._ids.next_id)
            try:
                pending.prepared = change.prepare(state)
            except Exception:
                newest = self.read()
                if newest.version == view.version:
                    raise
                view = newest
                continue
            pending.prepared_reads, pending.prepared_fence = state.reads, view.head.fence
            pending.memo, pending.must_prepare = None, False
            self._group.submit(pending)
            if pending.error is not None:
                raise pending.error
            if not pending.must_prepare:
                return pending.result  # type: ignore[no-any-return]  # a Pending carries any change's result
            view = self.read()

    def _run(self, batch: list[Pending]) -> None:
        started = self._clock.monotonic_ms()
        base, fresh, attempt = self.known(), False, 0
        written: dict[str, bytes] = {}
        while True:
            applied = self._apply_all(base, batch)
            if (
                applied.failed or not applied.effects
            ) and not fresh:  # no swap would find out that the head has moved
                newest = self.read()
                fresh = True
                if newest.version != base.version:
                    base = newest
                    continue
            if not applied.effects:
                return
            unwritable = self._write_files(batch, written)
            if unwritable:
                batch = [pending for pending in batch if pending not in unwritable]
                continue
            built = self._build(base, applied)
            if self._publisher.publish(base, built, started):
                self._known = built.snapshot
                return
            attempt += 1
            now = self._clock.monotonic_ms()
            if now - started > self._settings.deadline_ms:
                raise TryAgainError(
                    f"{self.name!r} is contended: nothing was changed in {now - started:.0f} ms"
                )
            self._clock.sleep_ms(backoff_ms(attempt, now - min(p.since for p in batch), self._rng))
            base, fresh = self.read(), True

    # Applying

    def _apply_all(self, base: Snapshot, batch: list[Pending]) -> _Applied:
        """Apply every change on its own savepoint of one working state."""
        if base.head.sealed:
            raise ReferenceGoneError(f"reference {self.name!r} was dropped")
        applied = _Applied(State(base, self._ids.next_id), self._ids.next_id())
        state = applied.state
        for pending in batch:
            state.begin()
            try:
                self._apply_one(applied, pending)
            except PrepareAgain:
                state.undo()
                pending.must_prepare = True
                continue
            except Exception as error:
                state.undo()
                pending.fail(error)
                applied.failed = True
                continue
            if state.effects:
                applied.effects.append(state.effects)
        return applied

    def _apply_one(self, applied: _Applied, pending: Pending) -> None:
        state, change, operation = applied.state, pending.change, pending.change.operation
        pending.must_prepare, pending.error = False, None
        if operation.id:
            before = self._done_before(applied, operation)
            if before is not None:
                pending.memo = None
                pending.succeed(change.repeat(state, before))
                return
        fence = state.base.head.fence
        if pending.prepared_fence != fence or not state.holds(pending.prepared_reads):
            pending.must_prepare = True
            return
        memo = pending.memo
        if memo is not None and memo.fence == fence and state.holds(memo.reads):
            state.redo(memo.effects)
            state.reads = memo.reads
            result = memo.result
        else:
            state.begin()
            result = change.apply(state, pending.prepared)
            pending.memo = Memo(state.reads, state.effects.copy(), result, fence)
        mine = state.effects.entries
        if operation.id and mine:
            mark = _Mark(operation.digest, len(applied.entries), len(mine))
            state.put(OPERATIONS, operation.key, Entry(applied.entries_id, _encode_mark(mark)))
        applied.entries += mine
        pending.succeed(result)

    def _done_before(self, applied: _Applied, operation: Operation) -> list[LogEntry] | None:
        state = applied.state
        entry = state.lookup(OPERATIONS, operation.key)
        if entry is None:
            self._refuse_forgotten(operation, state.base.commit.operations_floor)
            return None
        mark = _decode_mark(entry.value)
        if mark.digest != operation.digest:
            raise UnprocessableError("this idempotency key was used before with a different request")
        same_commit = entry.pointer == applied.entries_id
        listed = applied.entries if same_commit else state.get(entry.pointer, Entries).entries
        return list(listed[mark.first : mark.first + mark.count])

    def _refuse_forgotten(self, operation: Operation, floor: int) -> None:
        """Refuse an operation that may have been done and forgotten, or that would be remembered for too long."""
        made = int.from_bytes(operation.id[:6], "big")
        age = self._clock.now_ms() - made
        lifetime = self._settings.operation_lifetime_ms
        if abs(age) > lifetime or made < floor:
            raise BadRequestError(
                f"this idempotency key was made {abs(age) / 60_000:.0f} minutes "
                f"{'ago' if age > 0 else 'ahead of this clock'}; keys are remembered for {lifetime / 60_000:.0f} "
                "minutes, or for less where another process says so: find out whether the request was carried out, "
                "then send it with a new key"
            )

    # Writing

    def _write_files(self, batch: list[Pending], written: dict[str, bytes]) -> list[Pending]:
        """Write the files of each change that was applied; one whose files cannot be written fails alone.

        Args:
            written: what this batch wrote in the attempt before, by location; afterwards, what it has in this one.
                Contended changes may come with other files in each attempt, which are not to pile up in memory.
        Returns:
            the changes that failed.
        """
        failed = []
        before = dict(written)
        written.clear()
        for pending in batch:
            if pending.error is not None or pending.must_prepare or pending.memo is None:
                continue
            mine = pending.memo.effects.files
            files = [file for file in mine if before.get(file[0]) != file[1]]
            if files:
                try:
                    if self._files is None:
                        raise CorruptionError(f"reference {self.name!r} cannot carry files")
                    self._files.write_all(files)
                except Exception as error:
                    pending.fail(error)
                    failed.append(pending)
                    continue
            written.update(mine)
        return failed

    def _build(self, base: Snapshot, applied: _Applied) -> Built:
        # What a newer release says in its commit would not be carried on.
        self._store.get_for_rewrite(base.head.commit, Commit)
        entries_id = applied.entries_id
        objects = [item for effects in applied.effects for item in effects.objects]
        objects.append((entries_id, Entries(tuple(applied.entries))))
        time = max(self._clock.now_ms(), base.commit.time + 1)
        roots = dict(zip(base.commit.index_names, base.commit.index_roots, strict=True))
        forgotten = base.commit.operations_floor
        for name, index in applied.state.indexes.items():
            quota = self._settings.quotas.get(name, self._settings.default_quota)
            floor = None
            if name == OPERATIONS:
                oldest = max(0, time - self._settings.operation_lifetime_ms)
                floor, forgotten = oldest.to_bytes(6, "big"), max(forgotten, oldest)
            roots[name], shards = index.freeze(quota, self._ids.next_id, floor=floor)
            objects += shards
        parents, skips = child_pointers(base.head.number, base.head.commit, base.commit)
        number = base.head.number + 1
        commit = Commit(
            number, time, entries_id, parents, skips, (), tuple(roots), tuple(roots.values()), forgotten
        )
        commit_id = self._ids.next_id()
        objects.append((commit_id, commit))
        head = msgspec.structs.replace(
            base.head,
            commit=commit_id,
            number=number,
            time=time,
            recent=thin(base.head.recent, RecentHead(time, number, commit_id)),
        )
        return Built(Snapshot(self._store, new_version(), head, commit), objects)


class _Applied:
    """What a batch came to: the working state, and the effects and log entries of the changes that succeeded."""

    def __init__(self, state: State, entries_id: int) -> None:
        self.state = state
        self.entries_id = entries_id
        """Id of the object that will hold the log entries."""
        self.entries: list[LogEntry] = []
        self.effects: list[Effects] = []
        self.failed = False
        """Whether any change failed."""
