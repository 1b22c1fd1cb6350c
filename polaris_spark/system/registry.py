"""Creating and dropping references by commits to the registry, which is the reference `root` of a realm.

To create a reference, a process first commits its registration to the registry; the registration points to an existing
source commit. Then it writes the reference's row, whose name contains the registration's generation. If another process
finds the row missing, it writes the row. A reference that is created again under an old name gets a new generation and
hence a new row: an old row is never recreated. To drop a reference, a process commits to the registry, then *seals* the
row by a swap. A process that reads a sealed row looks in the registry again.

Rows are never deleted: otherwise a delayed process that began to create a reference long ago could recreate the row.
A dropped reference can be restored until its registration *ends*, which means that the registration is removed from the
registry. After that, a sweep replaces the reference's row by a *tombstone*: a sealed row without a commit.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.applier import Applied
from polaris_spark.commits.builder import Builder, Built
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.mailbox import Mailbox
from polaris_spark.commits.private import PrivateCommitter
from polaris_spark.commits.publication import encode_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Commit, Head, RecentHead
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import (
    AlreadyExistsError,
    CommitFailedError,
    ForbiddenError,
    NotFoundError,
    OutcomeUnknownError,
    PolarisError,
    ProtectedBranchError,
    RealmMovedError,
    ReferenceGoneError,
    RequestError,
    TryAgainError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version
from polaris_spark.store.unwritten import UnwrittenObjects
from polaris_spark.system.reference_rows import ReferenceRows
from polaris_spark.system.registrations import (
    NO_DESCRIPTION,
    Description,
    expired,
    is_tag,
    name_parts,
    registered_by,
    was_dropped_with_catalog,
)
from polaris_spark.system.registrations import REFERENCES as REFERENCES
from polaris_spark.system.registrations import ROOT as ROOT
from polaris_spark.system.registrations import Registered as Registered
from polaris_spark.system.registrations import Registration as Registration
from polaris_spark.system.registrations import encode_registration as encode_registration
from polaris_spark.system.registrations import listed_in as listed_in
from polaris_spark.system.registry_changes import (
    AlterReference,
    CreateReference,
    DropCatalogReferences,
    DropReference,
    EndReference,
    FirstChange,
    RenameReference,
    RestoreCatalogReferences,
    UndropReference,
    head_in,
)

log = logging.getLogger("polaris_spark")

P = TypeVar("P")
R = TypeVar("R")

_LOOKUPS = 10
"""Maximum number of times that one read or commit opens a reference, if other processes keep dropping it and creating
it again. After that, the read or commit fails."""


class References(ReferenceRows):
    """Reads, creates, drops and commits to the references of one realm. The committer of each reference is cached by
    name, until the reference's row turns out to be sealed."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter | None = None,
        rng: random.Random | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        super().__init__(store, ids=ids, clock=clock, settings=settings, rng=rng)
        self._files = files
        self._mailbox = mailbox
        self._open: dict[str, Committer] = {}
        self._private: dict[str, PrivateCommitter] = {}
        """The committers of the references that exist only in this process (`open_private`), by name."""
        self._guard = threading.Lock()
        self.root = self._committer(ROOT)

    def writing(self, files: FileWriter) -> References:
        """Return another `References` of this realm. It writes metadata files with `files`, and does not batch its
        commits with the commits of this object."""
        return References(
            self.store,
            ids=self.ids,
            clock=self.clock,
            settings=self._settings,
            files=files,
            rng=self._rng,
            mailbox=self._mailbox,
        )

    def _committer(self, row_name: str) -> Committer:
        return Committer(
            self.store,
            row_name,
            ids=self.ids,
            clock=self.clock,
            settings=self._settings,
            files=self._files,
            rng=self._rng,
            mailbox=self._mailbox,
        )

    def initialize(self) -> None:
        """Create the registry with an empty first commit, unless it exists. If several processes do this at once, the
        row of one of them is kept."""
        backend, realm = self.store.backend, self.store.realm
        if backend.read_reference(realm, ROOT) is not None:
            return
        now = self.clock.now_ms()
        id = self.ids.next_id()
        self.store.write([(id, Commit(0, now, 0))])
        backend.insert_reference(realm, ROOT, ReferenceRow(new_version(), encode_head(Head(id, 0, now))))

    def lookup(self, name: str) -> Registered | None:
        """Return the registration of a name, live or dropped, in the registry's newest commit; None if not found."""
        entry = self.root.read().index(REFERENCES).get(name.encode())
        return None if entry is None else registered_by(name, entry)

    def listed(self) -> list[Registered]:
        """Return all registrations, live and dropped, ordered by name."""
        return listed_in(self.root.read().index(REFERENCES))

    def is_open(self, name: str) -> bool:
        """Whether this process has opened the reference `name`, so that `read` need not look in the registry."""
        return name in self._open

    def open(self, name: str) -> Committer:
        """Return the committer of a live reference. If the process that was creating or renaming the reference died
        before it had finished, finish this.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
            CorruptionError: the row existed and was lost.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        registered = self.lookup(name)
        if registered is None or registered.registration.state != "live":
            self.complete_renames(name)
            registered = self.lookup(name)
        if registered is None or registered.registration.state != "live":
            raise ReferenceGoneError(f"reference {name!r} does not exist")
        self.complete(registered)
        with self._guard:
            return self._open.setdefault(name, self._committer(registered.row_name))

    def open_private(
        self, name: str, store: UnwrittenObjects, begin: CommitReader, files: FileWriter
    ) -> PrivateCommitter:
        """Create a reference that exists only in this process, until `close_private`, and return its committer. It is
        not registered.

        Args:
            store: has its objects.
            begin: the commit at which it begins.
            files: writes the files of its commits.
        """
        self._private[name] = opened = PrivateCommitter(
            store, name, begin, ids=self.ids, clock=self.clock, settings=self._settings, files=files
        )
        return opened

    def close_private(self, name: str) -> None:
        """Forget a reference that exists only in this process. Do nothing if there is none of this name."""
        self._private.pop(name, None)

    @property
    def deadline_ms(self) -> float:
        """Time limit of a commit, in milliseconds."""
        return self._settings.deadline_ms

    def is_private(self, name: str) -> bool:
        """Whether a reference exists only in this process."""
        return name in self._private

    def store_of(self, name: str) -> ObjectStore:
        """Return the `ObjectStore` that holds the objects of a reference: the realm's, or the reference's own if it is
        private."""
        private = self._private.get(name)
        return self.store if private is None else private.store

    def forget(self, name: str) -> None:
        """Remove the committer of `name` from the cache, so that the next `open` looks in the registry again."""
        with self._guard:
            self._open.pop(name, None)

    def read(self, name: str) -> CommitReader:
        """Read the row of a live reference, and return a reader of its newest commit.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
            CorruptionError: the reference's row was lost.
        """
        for committer in self._live(name):
            try:
                return committer.read()
            except ReferenceGoneError:
                continue
        raise _dropped_again(name)

    def commit(self, name: str, change: Change[P, R]) -> R:
        """Commit a change to a reference, and return the change's result. If the reference was dropped and created
        again, commit to the new reference of that name.

        Raises:
            ForbiddenError: the reference is a tag.
        """
        if is_tag(name):
            raise ForbiddenError(f"reference {name!r} is a tag, which accepts no commits; commit to a branch")
        try:
            return self._commit(name, change)
        except ProtectedBranchError as error:
            parts = name_parts(name)
            what = f"branch {name if parts is None else parts.name!r}"
            if self.is_private(name):
                what = "the branch of this transaction"
            error.args = (
                f"{what} is protected: {error}; make the change on another "
                "branch and merge it, or call unprotect_branch first",
            )
            raise

    def _commit(self, name: str, change: Change[P, R]) -> R:
        try:
            for committer in self._live(name):
                try:
                    return committer.commit(change)
                except ReferenceGoneError:
                    continue
            raise _dropped_again(name)
        except (ReferenceGoneError, RealmMovedError) as error:
            registry = self.root.last()
            entry = None if registry is None else registry.index(REFERENCES).get(name.encode())
            if entry is None:
                raise
            return self._committer(registered_by(name, entry).row_name).result_if_already_done(change, error)

    def _live(self, name: str) -> Iterator[Committer | PrivateCommitter]:
        """Yield the committer of a live reference. If the caller finds that the reference's row is sealed, it continues
        the iteration, which then looks up the name in the registry again. The iteration ends after `_LOOKUPS`
        committers.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
            CorruptionError: the reference's row was lost.
        """
        for _ in range(_LOOKUPS):
            yield self._private.get(name) or self.open(name)
            self.forget(name)

    def create(
        self,
        name: str,
        operation: Operation,
        *,
        source: CommitReader | None = None,
        description: Description = NO_DESCRIPTION,
        rivals: tuple[str, ...] = (),
        first: FirstChange | None = None,
    ) -> Registered:
        """Create a reference, and return its registration.

        Args:
            source: the present or an earlier head of another reference, from which the new reference starts; if None,
                the new reference starts with an empty commit.
            rivals: names of references that must not be live.
            first: the change with which the reference begins, after the commit of `source`. No process ever sees the
                reference without it. Its id is the reference's generation.
        Raises:
            AlreadyExistsError: a live reference has this name, or one of the names `rivals`.
            ReferenceGoneError: the source reference was dropped.
            HistoryTrimmedError: the head `source` is below the history floor of its reference: its commit may be
                deleted.
            NotFoundError: the head `source` is not in the history of its reference.
        """
        registered = self.root.commit(
            CreateReference(
                name, operation, source, self, description=description, rivals=rivals, first=first
            )
        )
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        return registered

    def drop(self, name: str, operation: Operation) -> Registered:
        """Drop a reference, and return its registration. When this returns, the reference's row is sealed: no process
        can commit to it.

        Raises:
            NotFoundError: no live reference has this name.
        """
        return self._drop(DropReference(name, operation, self))

    def _drop(self, change: DropReference) -> Registered:
        registered, name = self.root.commit(change), change.name
        # If the registration is live, this is a repeated drop of a reference that was created or restored since then.
        if registered.registration.state == "dropped":
            self._afterwards(name, lambda: self._seal(registered))
        self.forget(name)
        return registered

    def undrop(self, name: str, operation: Operation, *, rivals: tuple[str, ...] = ()) -> Registered:
        """Restore a dropped reference with its last head, under a new generation, which means with a new row. Return
        its new registration.

        Args:
            rivals: names of references that must not be live.
        Raises:
            AlreadyExistsError: one of the references `rivals` is live.
            NotFoundError: no dropped reference has this name. If there was one, its registration may have ended after
                the grace period.
        """
        registered = self.root.commit(UndropReference(name, operation, self, rivals=rivals))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        self.forget(name)
        return registered

    def drop_all(self, prefix: str, operation: Operation) -> None:
        """Drop all live references whose names begin with a prefix, because their catalog was dropped. When this
        returns, their rows are sealed.

        Args:
            prefix: the prefix, which ends with a slash.
            operation: the principal for the log; it has no id.
        """
        listed = self._below(prefix)
        if any(one.registration.state == "live" for one in listed):
            self.root.commit(DropCatalogReferences(prefix, operation, self.clock))
        for registered in self._below(prefix):
            if was_dropped_with_catalog(registered):
                self._afterwards(registered.name, partial(self._seal, registered))
            self.forget(registered.name)

    def restore_all(self, prefix: str, operation: Operation) -> None:
        """Restore all references whose names begin with a prefix and which were dropped with their catalog. The
        arguments are those of `drop_all`.

        Raises:
            ReferenceGoneError: one of them was dropped longer ago than the grace period, and cannot be restored.
        """
        if not any(map(was_dropped_with_catalog, self._below(prefix))):
            return
        for registered in self.root.commit(RestoreCatalogReferences(prefix, operation, self)):
            self._afterwards(registered.name, partial(self._complete_unless_dropped, registered))
            self.forget(registered.name)

    def _below(self, prefix: str) -> list[Registered]:
        return [one for one in self.listed() if one.name.startswith(prefix)]

    def rename(self, name: str, to: str, operation: Operation, *, rivals: tuple[str, ...] = ()) -> Registered:
        """Rename a reference, and return its new registration. It gets a new row; nothing else changes.

        The reference is dropped, then restored under the new name. If this process dies between these commits, another
        process continues (`complete_rename`).

        Args:
            rivals: names of references that must not be live, besides `to`.
        Raises:
            AlreadyExistsError: a live reference has the name `to`, or one of the names `rivals`.
            NotFoundError: no live reference has this name.
            ProtectedBranchError: the reference is a protected branch.
        """
        for other in (to, *rivals):
            found = self.lookup(other)
            if found is not None and found.registration.state == "live":
                raise AlreadyExistsError(f"reference {other!r} already exists")
        dropped = self._drop(DropReference(name, operation, self, renaming=to))
        return self.complete_rename(dropped, operation, rivals=rivals)

    def complete_rename(
        self, dropped: Registered, operation: Operation, *, rivals: tuple[str, ...] = ()
    ) -> Registered:
        """Give a reference that was dropped by a rename its new name, and return its new registration. If this is not
        possible, restore it under the old name.

        Raises:
            AlreadyExistsError: a live reference has the new name, or one of the names `rivals`.
            NotFoundError: the reference was restored meanwhile.
        """
        try:
            renamed = self.root.commit(RenameReference(dropped, operation, self, rivals=rivals))
        except RequestError:
            with contextlib.suppress(NotFoundError):
                self.undrop(dropped.name, operation)
            raise
        self._afterwards(renamed.name, lambda: self._complete_unless_dropped(renamed))
        self.forget(renamed.name)
        return renamed

    def complete_renames(self, prefix: str) -> None:
        """Continue the renames of branches and tags that have begun and whose old or new names begin with a prefix: the
        processes that began them may have died. If that fails, log a warning."""
        for one in self.listed():
            to = one.registration.renaming
            parts = name_parts(to)
            if parts is None or not (one.name.startswith(prefix) or to.startswith(prefix)):
                continue
            try:
                self.complete_rename(one, Operation(b"", one.registration.principal), rivals=(parts.rival,))
            except PolarisError as error:
                log.warning("the rename of reference %r to %r was not completed: %s", one.name, to, error)

    def alter(self, name: str, operation: Operation, changes: Mapping[str, str | int]) -> Registered:
        """Change the owner, comment, protection or retention of a reference, and return its registration.

        Args:
            changes: new values of fields of the registration: `owner`, `comment`, `protected`, `keep_ms` and
                `keep_commits`.
        Raises:
            NotFoundError: no live reference has this name.
        """
        return self.root.commit(AlterReference(name, operation, self, changes))

    def first_commit(self, at: Head, change: Change[Any, None]) -> Built:
        """Build a commit of a change that follows a commit of another reference. Nothing is written."""
        state = State(CommitReader(self.store, b"", at, self.store.get(at.commit, Commit)), self.ids.next_id)
        prepared = change.prepare(state)
        state.begin()
        change.apply(state, prepared)
        applied = Applied(state, self.ids.next_id())
        applied.effects.append(state.effects)
        applied.entries += state.effects.entries
        return Builder(self.store, self.ids, self._settings).build(applied)

    def move(self, name: str, target: CommitReader, *, expected: int, first: FirstChange) -> CommitReader:
        """Make a live reference point to another commit, by one swap of its row. If another process is committing to
        the reference, its swap then fails, and it tries again on the new head.

        The row is read before the history of the target's reference. A sweep trims histories first, and then fences
        every row. So if the target was trimmed since it was read, the row has another version by now, and the swap
        fails. If the row is fenced after the swap, the sweep sees the new head. The first commit is written before the
        swap, under ids above the fence of the row that was read.

        Args:
            target: the present or an earlier head of a reference.
            expected: id of the commit to which the reference points now.
            first: the change with which the reference begins, after the commit of `target`. Its id is the new fence.
        Returns:
            the new head.
        Raises:
            CommitFailedError: the reference points to another commit than `expected`.
            ProtectedBranchError: the reference is a protected branch.
            ReferenceGoneError: the reference, or that of the target, was dropped.
            NotFoundError, HistoryTrimmedError: the target is not, or no longer, in the history of its reference.
        """
        self.read(name)  # opens the reference again if it was dropped and created again
        fences: set[int] = set()

        def moved(head: Head) -> Head:
            if head.fence in fences:  # by an earlier attempt
                return head
            if head.sealed:
                raise ReferenceGoneError(f"reference {name!r} was dropped")
            if head.move is not None:
                raise TryAgainError(
                    f"reference {name!r} cannot be moved while its realm moves to another store; try again later"
                )
            if head.commit != expected:
                raise CommitFailedError(
                    f"reference {name!r} is at commit {head.commit} (number {head.number}), not at the expected "
                    f"commit {expected}"
                )
            now = CommitReader(self.store, b"", head, self.store.get(head.commit, Commit))
            if State(now, self.ids.next_id).is_protected:
                raise ProtectedBranchError("the branch must not be moved")
            to = head_in(self, target, f"cannot move {name!r}")
            self.ids.observe(head.fence)
            fence = self.ids.next_id()  # lets every process replace a head with a higher number
            fences.add(fence)
            built = self.first_commit(to, first(fence, to))
            self.store.write(built.objects)
            begun = built.reader.head
            recent = (RecentHead(begun.time, begun.number, begun.commit),)
            return msgspec.structs.replace(
                begun, recent=recent, fence=fence, sealed=False, move=None, slots=()
            )

        return self.open(name).amend(moved)

    def end_expired(
        self,
        grace_ms: int | Callable[[str], int],
        operation: Operation,
        *,
        may_end: Callable[[Sequence[Registered]], Sequence[Registered]] = lambda found: found,
    ) -> None:
        """End the registrations of the references that were dropped at least the grace period ago.

        These references can no longer be restored, so their objects and files can be deleted. Jobs that delete objects
        or files look in the registry to see whether a reference can still be restored. They do not decide this by their
        own clocks.

        Args:
            grace_ms: the grace period in milliseconds, for all references, or as a function of a reference's name.
            may_end: function that takes these references, and returns those of them whose registrations may end.
        """
        self.end(may_end(expired(self.listed(), self.ids.now_ms(), grace_ms)), operation)

    def end(self, dropped: Sequence[Registered], operation: Operation) -> None:
        """End the registrations of dropped references, so that they can no longer be restored. Skip registrations that
        have changed since they were read.

        Rows are sealed first, so that the last head of each reference contains every change that was committed to it.
        """
        for registered in dropped:
            self._seal(registered)
        if dropped:
            self.root.commit(EndReference(dropped, operation, self.clock))

    def _afterwards(self, name: str, once: Callable[[], None]) -> None:
        """Call `once`, which changes a row after a commit to the registry, and call it again while the database fails.

        The registry commit has already taken place, so an error must not say that nothing was changed.

        Raises:
            OutcomeUnknownError: the deadline passed. Repeating the change with the same operation id completes it.
        """
        try:
            retried(self.clock, once, deadline_ms=self._settings.deadline_ms, rng=self._rng)
        except (TryAgainError, OutcomeUnknownError) as error:
            raise OutcomeUnknownError(
                f"the change of reference {name!r} is committed to the registry, but its row may be unchanged; repeat "
                f"the request with the same operation id: {error}"
            ) from error

    def _complete_unless_dropped(self, registered: Registered) -> None:
        # The reference was created. If another process has dropped it since then, this call still succeeded.
        with contextlib.suppress(ReferenceGoneError):
            self._insert(registered)


def _dropped_again(name: str) -> ReferenceGoneError:
    return ReferenceGoneError(
        f"reference {name!r} was found dropped {_LOOKUPS} times in a row, because other processes keep dropping it and "
        "creating it again; nothing was changed"
    )
