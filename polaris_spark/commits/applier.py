"""Step 3 of the commit protocol: apply the changes of a batch, one after another, to a working copy of the head commit.
If a change fails, only that change is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import msgspec

from polaris_spark.clock import Clock, unlimited
from polaris_spark.commits.change import Change, Operation, PrepareAgain
from polaris_spark.commits.group import Memo, Pending
from polaris_spark.commits.rows import Entries, LogEntry, Slot
from polaris_spark.commits.settings import OPERATIONS
from polaris_spark.commits.state import CommitReader, Effects, State
from polaris_spark.errors import (
    BadRequestError,
    MissingObjectError,
    NewerFormatError,
    ObjectTooLargeError,
    OutcomeUnknownError,
    ProtectedBranchError,
    ReferenceGoneError,
    RequestError,
    TryAgainError,
    UnprocessableError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.index import Entry
from polaris_spark.store.objects import ObjectRows

SLOW_MS, SLOW_COMMITS = 20.0, 2.0
"""Duration of a run of `Change.apply` above which the change counts as slow: `SLOW_MS` milliseconds, or `SLOW_COMMITS`
times the usual duration of a commit if that is longer, because the change may have to read rows of a database that is
far away. A slow change is not run again in a batch with other changes."""

TURN_MS, TURN_COMMITS = 200.0, 3.0
"""Time limit for applying all changes of a batch: `TURN_MS` milliseconds, or `TURN_COMMITS` times the usual duration
of a commit if that is longer. After this time, each remaining change still gets `SLOW_MS`. A change that exceeds its
limit is applied outside the batch, by the thread that submitted it, so that the other changes of the batch do not wait
for it."""

P = TypeVar("P")
R = TypeVar("R")
Encode = Callable[[Sequence[tuple[int, msgspec.Struct]]], ObjectRows]
"""A function that encodes objects, given as (id, value) (`ObjectStore.rows`)."""

_encode_mark = msgspec.msgpack.Encoder().encode


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    """Record of an operation that was carried out: the value of the operation's entry in the index `operations`. The
    entry's pointer is the id of the `Entries` object with the log entries of a commit. The operation's own log entries
    are the `count` entries from position `first` on."""

    digest: bytes
    first: int
    count: int


_decode_mark = msgspec.msgpack.Decoder(_Mark).decode


class Redone(Enum):
    """The outcome of a change in an intent of another process."""

    MADE = "the commit contains it"
    VOID = "the change fails, has no effect, or was carried out before; its process finds this out itself"
    LEFT_OUT = "this process can no longer make the change, but its own process can"


class Requested(NamedTuple):
    """The effects of a request of another process that this process has applied."""

    entries: list[LogEntry]
    rows: ObjectRows


class Decision:
    """What a commit decides about the intents of other processes (`intents`)."""

    def __init__(self) -> None:
        self.slots: tuple[Slot, ...] = ()
        """Slots of the new head."""
        self.own_slot = 0
        """Id of this process's next intent according to `slots`; 0 if they have no slot of this process."""
        self.intents = 0
        """Number of intents that the commit decides."""
        self.yields_to: set[int] = set()
        """Node numbers of the processes for which this one waits next: it could not make a change in their intents, or
        their intents ask for a turn."""
        self.rows = ObjectRows()
        """Rows of the objects of all changes in the intents."""
        self.requested: dict[int, dict[int, Requested]] = {}
        """The effects of the requests of other processes, by the intent's id and the position in the intent."""

        self.answers: dict[int, int] = {}
        """Ids of the answers that the commit writes to the database, by the intent's id."""

    def add_request(self, intent: int, position: int, entries: list[LogEntry], rows: ObjectRows) -> None:
        """Add the effects of the request at a position of an intent."""
        self.rows += rows
        self.rows.decoded += rows.decoded
        self.requested.setdefault(intent, {})[position] = Requested(entries, rows)


NOTHING_DECIDED: Final = Decision()
"""The decision of a commit of a process without rivals. It is never changed."""


class Applied:
    """Result of applying the changes of a batch: the changed working copy of the base commit, and the effects (objects
    and files to write) and log entries of the changes that succeeded."""

    def __init__(self, state: State, entries_id: int) -> None:
        self.state = state
        self.entries_id = entries_id
        """Id of the object that will hold the log entries."""
        self.entries: list[LogEntry] = []
        self.effects: list[Effects] = []
        self.pendings: list[Pending] = []
        self.failed = False
        """Whether any change failed."""
        self.decision: Decision | None = None
        """Set when changes of other processes are added, at least in part. Then no further change can be added."""
        self.spent_ms = 0.0
        """Total duration of the runs of `Change.apply` in this batch, in milliseconds."""

    @property
    def base(self) -> CommitReader:
        """The commit that the changes were applied to."""
        return self.state.base


class _BatchTimeExceeded(PrepareAgain):  # a signal, not an error, like its base
    """Raised to stop a change that has used up its time in a batch."""


class Applier:
    """Applies changes to commits of one reference, in memory."""

    def __init__(
        self,
        name: str,
        ids: IdGenerator,
        clock: Clock,
        operation_lifetime_ms: int,
        *,
        commit_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        Args:
            commit_ms: returns the usual duration of a commit, in milliseconds.
        """
        self._name = name
        self._ids = ids
        self._clock = clock
        self._lifetime_ms = operation_lifetime_ms
        self._commit_ms = commit_ms

    @property
    def _slow_ms(self) -> float:
        """The duration above which a change counts as slow (`SLOW_MS`), in milliseconds."""
        return max(SLOW_MS, SLOW_COMMITS * self._commit_ms())

    @property
    def _turn_ms(self) -> float:
        """The time limit for applying a batch (`TURN_MS`), in milliseconds."""
        return max(TURN_MS, TURN_COMMITS * self._commit_ms())

    def begin(self, base: CommitReader) -> Applied:
        """Return an `Applied` without changes, whose working state is a copy of the commit `base`.

        Raises:
            ReferenceGoneError: the reference was dropped.
        """
        if base.head.sealed:
            raise ReferenceGoneError(f"reference {self._name!r} was dropped")
        return self._on(base)

    def _on(self, base: CommitReader) -> Applied:
        return Applied(State(base, self._ids.next_id), self._ids.next_id())

    def repeated(self, change: Change[P, R], head: CommitReader | None) -> tuple[R] | None:
        """Return `(result,)` if the change's operation (its idempotency key) was already carried out, else None.

        Args:
            head: the commit in which to look up the operation: the newest commit, or the last commit of a dropped
                reference; None if that commit no longer exists.
        Raises:
            OutcomeUnknownError: the operation may have been carried out so long ago that its record was deleted.
        """
        if not change.operation.id:
            return None
        if head is None:  # the reference was dropped longer ago than keys are remembered
            self._refuse_forgotten(change.operation, 0)
            return None
        applied = self._on(head)
        before = self._done_before(applied, change.operation)
        return None if before is None else (change.repeat(applied.state, before),)

    def apply(self, applied: Applied, pendings: Sequence[Pending]) -> None:
        """Apply `pendings` after the changes that `applied` already contains. Set the result or the error of each
        change, or mark the change to be prepared again."""
        state = applied.state
        alone = len(applied.pendings) + len(pendings) == 1
        for pending in pendings:
            applied.pendings.append(pending)
            if pending.refused is not None:
                pending.fail(pending.refused)
                continue
            state.begin()
            try:
                self._apply_one(applied, pending, alone=alone)
            except PrepareAgain as reason:
                pending.too_long = isinstance(reason, _BatchTimeExceeded)
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

    def _apply_one(self, applied: Applied, pending: Pending, *, alone: bool) -> None:
        state, change, operation = applied.state, pending.change, pending.change.operation
        pending.must_prepare, pending.error = False, None
        if operation.id:
            before = self._done_before(applied, operation)
            if before is not None:
                pending.memo = None
                pending.succeed(change.repeat(state, before))
                return
        _refuse_protected(state, change)
        fence = state.base.head.fence
        unchanged = pending.prepared_on is state.base and not applied.effects
        if not unchanged and (pending.prepared_fence != fence or not state.holds(pending.prepared_reads)):
            pending.must_prepare = True
            return
        memo = pending.memo
        if memo is not None and memo.fence == fence and state.holds(memo.reads):
            state.redo(memo.effects)
            state.reads = memo.reads
            result = memo.result
        elif pending.too_long or (pending.slow and not alone):
            pending.must_prepare = (
                True  # its submitter submits it again; the batch does not wait for a second run
            )
            return
        else:
            try:
                result = self._run(state, pending, max(SLOW_MS, self._turn_ms - applied.spent_ms), _turn_over)
            finally:
                applied.spent_ms += pending.took_ms
        _log(applied, operation)
        pending.succeed(result)

    def redo(self, applied: Applied, operation: Operation, memo: Memo) -> Redone:
        """Make a change that another process applied, after the changes that `applied` already contains. If data that
        the change read has changed since, leave the change out."""
        state = applied.state
        state.begin()
        if operation.id and (
            operation.made_ms < state.base.commit.operations_floor
            or state.lookup(OPERATIONS, operation.key) is not None
        ):
            return Redone.VOID
        if memo.fence != state.base.head.fence or state.is_protected or not state.holds(memo.reads):
            return Redone.LEFT_OUT
        state.redo(memo.effects)
        _log(applied, operation)
        applied.effects.append(state.effects)
        return Redone.MADE

    def apply_request(
        self,
        applied: Applied,
        operation: Operation,
        request: bytes,
        request_id: bytes,
        *,
        encode: Encode,
    ) -> ObjectRows | Redone:
        """Apply the request of a change of another process, after the changes that `applied` already contains. Return
        the rows of the change's objects, or why the change was not made. The change is not made if this process has
        other settings, if the change writes files, or if it takes too long.

        Args:
            request: see `Change.as_request`.
            request_id: id for the log entries, if the client gave no id.
            encode: encodes objects, and raises ObjectTooLargeError or NewerFormatError if they cannot be written.
        """
        state, begun = applied.state, self._clock.monotonic_ms()
        state.begin()
        made: ObjectRows | Redone
        try:
            made = self._try_request(applied, operation, request, request_id, encode)
        except (RequestError, ObjectTooLargeError, NewerFormatError):  # its process reports the error
            made = Redone.VOID
        except (PrepareAgain, MissingObjectError):  # its rows may be in an intent before it
            made = Redone.LEFT_OUT
        finally:
            applied.spent_ms += self._clock.monotonic_ms() - begun
        if isinstance(made, Redone):
            state.undo()
            return made
        _log(applied, operation)
        effects = state.effects.copy()
        effects.objects = []  # they are encoded already
        applied.effects.append(effects)
        return made

    def _try_request(
        self,
        applied: Applied,
        operation: Operation,
        request: bytes,
        request_id: bytes,
        encode: Encode,
    ) -> ObjectRows | Redone:
        left = self._turn_ms - applied.spent_ms
        if left <= 0:
            return Redone.LEFT_OUT
        logged = operation if operation.id else operation._replace(id=request_id)
        made = (pending.change.from_request(request, logged) for pending in applied.pendings)
        change = next((one for one in made if one is not None), None)
        if change is None:
            return Redone.LEFT_OUT
        state, now = applied.state, self._clock.monotonic_ms()
        _refuse_protected(state, change)
        try:
            if operation.id and self._done_before(applied, operation) is not None:
                return Redone.VOID
        except OutcomeUnknownError:  # its process reports the error
            return Redone.VOID
        pending = Pending(change, now, now + left, self._clock.signal())
        self._run(state, pending, min(left, self._slow_ms), _turn_over, prepare=True)
        effects = state.effects
        if not effects.entries or effects.files or effects.trees:
            return Redone.LEFT_OUT if effects else Redone.VOID
        return encode(effects.objects)

    def apply_outside_batch(self, pending: Pending, base: CommitReader) -> None:
        """Apply a change to the commit `base` outside any batch, and store the outcome in `pending.memo`.

        `base` may be outdated: a later batch uses the stored outcome only if everything that the change read is still
        the same. If `base` is the last commit of a dropped reference, the change is not applied.

        Raises:
            TryAgainError: the change's deadline passed.
            Exception: any error that `Change.apply` raises.
        """
        if base.head.sealed:
            return
        state = State(base, self._ids.next_id)
        left = pending.deadline - self._clock.monotonic_ms()
        self._run(state, pending, left, _deadline_passed)
        pending.too_long = pending.took_ms > self._turn_ms

    def _run(
        self,
        state: State,
        pending: Pending,
        most_ms: float,
        refuse: Callable[[], NoReturn],
        *,
        prepare: bool = False,
    ) -> Any:
        """Apply a change to `state`, return its result, and store the outcome in `pending.memo`.

        Args:
            most_ms: time limit for the change, in milliseconds.
            refuse: called to raise an error when the change exceeds the limit.
            prepare: whether to prepare the change first, within the same limit.
        """
        state.begin()
        monotonic_ms = self._clock.monotonic_ms
        begun = monotonic_ms()
        end = begun + most_ms

        def check_time() -> None:
            if monotonic_ms() > end:
                refuse()

        state.check_time = check_time
        try:
            if prepare:
                pending.prepared = pending.change.prepare(state)
                check_time()
            result = pending.change.apply(state, pending.prepared)
        finally:
            state.check_time = unlimited
            pending.took_ms = monotonic_ms() - begun
            pending.slow = pending.took_ms > self._slow_ms
        pending.memo = Memo(state.reads, state.effects.copy(), result, state.base.head.fence)
        return result

    def _done_before(self, applied: Applied, operation: Operation) -> list[LogEntry] | None:
        state = applied.state
        entry = state.lookup(OPERATIONS, operation.key)
        if entry is None:
            self._refuse_forgotten(operation, state.base.commit.operations_floor)
            return None
        mark = _decode_mark(entry.value)
        if mark.digest != operation.digest:
            raise UnprocessableError(
                "this idempotency key was used before with a different request; send this request with a new key"
            )
        same_commit = entry.pointer == applied.entries_id
        listed = applied.entries if same_commit else state.get(entry.pointer, Entries).entries
        return list(listed[mark.first : mark.first + mark.count])

    def _refuse_forgotten(self, operation: Operation, floor: int) -> None:
        """Raise an error if the time in an operation's id is too long ago or too far in the future.

        An old operation may have been carried out, and its record deleted. A future operation would be remembered for
        too long.

        Args:
            floor: time in milliseconds since 1970. Records of operations made before this time may have been deleted.
        """
        age = self._clock.now_ms() - operation.made_ms
        lifetime = self._lifetime_ms
        if age > lifetime or operation.made_ms < floor:
            raise OutcomeUnknownError(
                f"this idempotency key was made {max(0, age) / 60_000:.0f} minutes ago; keys are remembered for "
                f"{lifetime / 60_000:.0f} minutes, or for less if another process sets a shorter lifetime: "
                "find out whether the request was carried out; if it was not, send it with a new key"
            )
        if -age > lifetime:
            raise BadRequestError(
                f"this idempotency key was made {-age / 60_000:.0f} minutes ahead of this clock, and would be "
                f"remembered for longer than {lifetime / 60_000:.0f} minutes: send the request with a new key"
            )


def _log(applied: Applied, operation: Operation) -> None:
    """Add the log entries of the change that was applied last, and record that its operation was carried out."""
    mine = applied.state.effects.entries
    if operation.id and mine:
        mark = _Mark(operation.digest, len(applied.entries), len(mine))
        applied.state.put(OPERATIONS, operation.key, Entry(applied.entries_id, _encode_mark(mark)))
    applied.entries += mine


def _refuse_protected(state: State, change: Change[Any, Any]) -> None:
    """Refuse a change of a protected branch.

    The head contains the protection, and the swap compares the head. If the branch is protected after this check, the
    swap therefore fails.
    """
    if state.is_protected and not change.onto_protected:
        raise ProtectedBranchError("only merges, reverts and cherry-picks may change it")


def _turn_over() -> NoReturn:
    raise _BatchTimeExceeded


def _deadline_passed() -> NoReturn:
    raise TryAgainError(
        "the time limit of commits (commit-timeout) passed while the change was being computed; nothing was "
        "changed: try again, or set a longer commit-timeout"
    )
