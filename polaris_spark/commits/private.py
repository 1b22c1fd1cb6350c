"""`PrivateCommitter`: commits changes to a reference that only this process has, such as the copy of a branch in a
transaction."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from polaris_spark.clock import Clock
from polaris_spark.commits.applier import Applier
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
    swapped. But files are written.
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
        self._deadline_ms = settings.deadline_ms
        self._files = files
        self._applier = Applier(name, ids, clock, settings.operation_lifetime_ms)
        self._builder = Builder(store, ids, settings)
        self._closed_because = ""
        self._nobody = clock.signal()
        """A signal for which no thread waits, because each thread commits its own changes."""
        self._lock = clock.lock()
        """Held by a commit, and while commits are refused or accepted again."""

    def read(self) -> CommitReader:
        """Return the newest head of the reference."""
        self.used_ms = self._clock.now_ms()
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
        deadline = begun + self._deadline_ms
        with self._lock:
            if self._closed_because:
                raise BadRequestError(self._closed_because)
            self.used_ms = self._clock.now_ms()
            pending, apart = Pending(change, begun, deadline, self._nobody), change.size > APART_SIZE
            while not self._carried_out(pending, apart=apart):
                apart = apart or pending.too_long
                if self._clock.monotonic_ms() >= deadline:
                    raise TryAgainError(
                        "the time limit of commits (commit-timeout) passed before the change was made; nothing "
                        "was changed: try again, or set a longer commit-timeout"
                    )
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
            repeated = self._applier.repeated(change, base)
            if repeated is None:
                raise
            pending.succeed(repeated[0])  # the change may fail only because it was already carried out
            return True
        applied = self._applier.begin(base)
        self._applier.apply(applied, [pending])
        if pending.must_prepare:
            return False
        if applied.effects and pending.error is None:
            if applied.effects[0].files:
                self._files.write_all(applied.effects[0].files)
            built = self._builder.build(applied)
            self.store.keep(built.objects)
            self._head = built.reader
        return True
