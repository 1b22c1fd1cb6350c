"""`PrivateCommitter`: commits changes to a reference that only this process has, such as the copy of a branch in a
transaction."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from polaris_spark.clock import Clock
from polaris_spark.commits.applier import Applied, Applier
from polaris_spark.commits.builder import Builder
from polaris_spark.commits.change import Change, PrepareAgain
from polaris_spark.commits.committer import APART_SIZE
from polaris_spark.commits.group import Pending
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import BadRequestError, TryAgainError
from polaris_spark.ids import IdGenerator
from polaris_spark.store.references import new_version
from polaris_spark.store.unwritten import UnwrittenObjects

P = TypeVar("P")
R = TypeVar("R")


class PrivateCommitter:
    """Commits changes one after the other, and keeps the commits in memory. Thread-safe.

    Nothing else changes the reference. So a change is prepared and applied once, no rows are written, and nothing is
    swapped. But files are written. Successive changes that read nothing to prepare are one commit, which is built when
    something reads the head.
    """

    def __init__(
        self,
        store: UnwrittenObjects,
        name: str,
        begin: CommitReader,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter,
    ) -> None:
        """
        Args:
            store: has the objects of the reference.
            begin: the commit at which the reference begins.
            files: writes the files of its commits.
        """
        self.store = store
        self.used_ms = clock.now_ms()
        """Time of the last read or commit, in milliseconds since 1970."""
        self._head = CommitReader(
            store,
            new_version(),
            msgspec.structs.replace(begin.head, slots=(), move=None),
            begin.commit,
            row_name=name,
            ours=begin.ours,
            indexes=begin.open_indexes(),
        )
        self._ids = ids
        self._clock = clock
        self._deadline_ms, self._max_batch = settings.deadline_ms, settings.max_batch
        self._files = files
        self._applier = Applier(name, ids, clock, settings.operation_lifetime_ms)
        self._builder = Builder(store, ids, settings)
        self.changed: dict[str, set[bytes]] = {}
        """The keys that its commits have set or removed, by index."""
        self._applied: Applied | None = None
        """Changes that are not in a commit yet. All have succeeded, unless `_unfinished` is set."""
        self._unfinished: int | None = None
        """Number of the changes in `_applied` that have succeeded, if a change after them was not finished."""
        self._closed_because = ""
        self.until = math.inf
        """Time after which changes are refused, in milliseconds on the monotonic clock."""
        self._nobody = clock.signal()
        """A signal for which no thread waits, because each thread commits its own changes."""
        self._lock = clock.lock()
        """Held by a commit, and while commits are refused or accepted again."""

    def read(self) -> CommitReader:
        """Return the newest head of the reference."""
        self.used_ms = self._clock.now_ms()
        if self._applied is not None:
            with self._lock:
                self._build()
        return self._head

    def close(self, reason: str) -> None:
        """Refuse all commits from now on. When this returns, earlier commits have ended.

        Args:
            reason: message of the BadRequestError that they raise.
        """
        with self._lock:
            self._closed_because = reason

    def reopen(self) -> None:
        """Accept commits again."""
        with self._lock:
            self._closed_because = ""

    def commit(self, change: Change[P, R]) -> R:
        """Carry out a change, and return its result.

        Raises:
            BadRequestError: commits are refused (`close`).
            RequestError: a requirement of the change is not met by the newest head.
            TryAgainError: the change could not be made before the deadline; nothing was changed.
        """
        begun = self._clock.monotonic_ms()
        deadline = min(begun + self._deadline_ms, self.until)
        with self._lock:
            if self._closed_because:
                raise BadRequestError(self._closed_because)
            if begun > self.until:
                raise _late()
            self.used_ms = self._clock.now_ms()
            pending, apart = Pending(change, begun, deadline, self._nobody), change.size > APART_SIZE
            if apart or change.reads_to_prepare or self._is_full():
                self._build()
            while not self._carried_out(pending, apart=apart):
                self._build()  # `_carried_out` may have prepared the change on an older head
                apart = apart or pending.too_long
                if self._clock.monotonic_ms() >= deadline:
                    raise _late()
            if pending.error is not None:
                raise pending.error
            return pending.result  # type: ignore[no-any-return]  # a Pending carries any change's result

    def _carried_out(self, pending: Pending, *, apart: bool) -> bool:
        """Prepare and apply a change. Return False if the change must be prepared again.

        Args:
            apart: whether the change may take longer than a change in a batch.
        """
        base, change = self._head, pending.change
        try:
            pending.prepared = change.prepare(State(base, self._ids.next_id))
            pending.prepared_on, pending.prepared_fence = base, base.head.fence
            if apart:
                self._applier.apply_outside_batch(pending, base)
        except PrepareAgain:
            return False
        except Exception:
            self._build()
            repeated = self._applier.repeated(change, self._head)
            if repeated is None:
                raise
            pending.succeed(repeated[0])  # the change may fail only because it was already carried out
            return True
        self._drop_unfinished()
        applied = self._applied
        if applied is None:
            self._builder.require_supported(base)
            applied = self._applier.begin(base)
        made = self._unfinished = len(applied.effects)
        self._applier.apply(applied, [pending])
        applied.pendings.clear()  # only the effects are needed for the commit
        for effects in applied.effects[made:]:
            if effects.files:
                self._files.write_all(effects.files)
            self.store.keep(effects.objects)
            for index, key, _ in effects.puts:
                self.changed.setdefault(index, set()).add(key)
        if applied.effects and change.reads_to_prepare:
            self._publish(applied)
        elif applied.effects:
            self._applied = applied
        self._unfinished = None
        return not pending.must_prepare

    def _drop_unfinished(self) -> None:
        """Remove what an interrupted change has left in `_applied`, by applying the changes before it again. If this is
        interrupted, the next call does it."""
        if self._unfinished is not None:
            if self._applied is not None:
                self._applied = self._repeated(self._applied, self._unfinished)
            self._unfinished = None

    def _repeated(self, applied: Applied, made: int) -> Applied | None:
        """Return the first `made` changes of `applied`, applied again. Return None if there are none."""
        if not made:
            return None
        again = Applied(State(applied.base, self._ids.next_id), applied.entries_id)
        for effects in applied.effects[:made]:
            again.state.begin()
            again.state.redo(effects)
            again.effects.append(again.state.effects)
            again.entries += effects.entries
        return again

    def _is_full(self) -> bool:
        return self._applied is not None and len(self._applied.effects) >= self._max_batch

    def _build(self) -> None:
        """Build a commit of the changes that are not in one yet. The caller must hold `_lock`."""
        self._drop_unfinished()
        if self._applied is not None:
            self._publish(self._applied)

    def _publish(self, applied: Applied) -> None:
        """Build a commit of these changes, and make it the head."""
        built = self._builder.build(applied)
        self.store.keep(built.objects)
        self._head, self._applied = built.reader, None


def _late() -> TryAgainError:
    return TryAgainError(
        "the time limit of commits (commit-timeout) passed before the change was made; nothing was changed: try "
        "again, or set a longer commit-timeout"
    )
