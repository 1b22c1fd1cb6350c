"""Marks in a realm record and in references during a migration: they decide which store accepts commits.

The source's realm record decides which store serves the realm, so that clients can commit there. It changes by
compare-and-swap only. Below, *the record* is this realm record.

| property of the record | meaning |
| --- | --- |
| `moving-to`, `moving-to-instance` | the target store, and the instance id of the realm in the target |
| `moving-pause` | the token of the current attempt to switch to the target; each token is used only once |
| `moved-to` | the decision: the target serves, or will serve after a new run of the migration |

An attempt to switch writes its token to the record, then to every reference, the registry first. The token in a
reference (`Head.move`) is the *mark*. No commit can be made to a marked reference. A process that read the row before
it was marked loses its compare-and-swap, because the mark changed the row's version. A process that reads the row later
sees the mark and refuses to commit.

The attempt ends with one compare-and-swap of the record. It either adds `moved-to`, which requires that the token is
still in the record, or removes the token. A mark is removed or replaced only if its token is not in the record. Only
the token in the record is written to references, and a removed token never comes back. So if an attempt finds its token
in the record at the moment of the decision, every reference still has that token. Hence no commit is acknowledged in
the source after the decision, and no commit in the target before the decision. This holds however many runs of the
migration overlap, and however late any of them continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.commits import upkeep
from polaris_spark.commits.amendments import amend_row, insert_row
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.retry import retried
from polaris_spark.commits.rows import Head, Move
from polaris_spark.errors import RealmStateError, TaskLostError
from polaris_spark.store.references import new_version
from polaris_spark.system.lost_rows import refuse_lost
from polaris_spark.system.realms import MOVED_TO, RealmRecord, Realms, RealmState
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registry import REFERENCES, ROOT, References, Registered, listed_in

MOVING_TO: Final = "moving-to"
MOVING_TO_INSTANCE: Final = "moving-to-instance"
PAUSE: Final = "moving-pause"

_THREADS = 8
"""Number of references that are read or changed at a time, by one thread each."""

_DEADLINE_MS = 30_000.0
"""Time for which a change of a reference row is retried while the database fails, in milliseconds."""

T = TypeVar("T")
R = TypeVar("R")


class Held(NamedTuple):
    """The head of a reference, as it was read or written, with the name of the reference's row."""

    row_name: str
    head: Head


class SourceRealm:
    """The realm that is moved: its realm record and its references. Thread-safe."""

    def __init__(
        self, realms: Realms, name: str, references: References, reader: ReferenceReader | None = None
    ) -> None:
        """
        Args:
            realms: the realms of the source store.
            name: name of the realm.
            references: the realm's references, as sessions of this process use them.
            reader: reads the heads; by default, a reader that accepts missing rows.
        """
        self.name = name
        self.references = references
        self.store = references.store
        self._reader = reader or ReferenceReader(self.store)
        self._realms = realms

    # Reading

    def record(self) -> RealmRecord:
        """Return the realm record.

        Raises:
            RealmStateError: the realm does not exist any more, or a new realm has its name.
        """
        found = self._realms.find(self.name)
        if found is None or found.instance != self.store.realm:
            raise RealmStateError(
                f"realm {self.name!r} with instance id {self.store.realm} no longer exists: it was purged meanwhile"
            )
        return found

    def serving(self) -> RealmRecord:
        """Return the realm record of an ACTIVE realm.

        Raises:
            RealmMovedError: the realm has been moved to another store.
            RealmStateError: the realm is not ACTIVE for another reason.
        """
        self._realms.active(self.name)
        return self.record()

    def heads(self) -> list[Held]:
        """Return the head of the registry, and the heads of all live and dropped references that the registry lists.

        For a reference whose row has not been written yet, return the first head that its row will get.
        """
        return [Held(ROOT, self._root()), *concurrently(self._held, self._listed())]

    def _held(self, registered: Registered) -> Held:
        return Held(registered.row_name, self._reader.head_of(registered))

    def _describe(self, change: Callable[[RealmRecord], Mapping[str, str]]) -> RealmRecord:
        return retried(
            self.references.clock,
            lambda: self._realms.describe(self.name, change, instance=self.store.realm),
        )

    def _listed(self) -> list[Registered]:
        """Return the registrations of all live and dropped references. Also works after the realm was moved."""
        return listed_in(self._reader.open(self._root()).index(REFERENCES))

    def _root(self) -> Head:
        head = self._reader.head(ROOT)
        if head is None:
            raise RealmStateError(
                f"the registry of references of realm {self.name!r} is missing: either the realm was purged "
                "meanwhile, or the registry's row was lost (then run polaris-spark recover)"
            )
        return head

    # Fencing

    def fence(self) -> int:
        """Set a new fence in the row of every reference. Return the fence, which is an id.

        Later commits must not use unreferenced rows with lower ids. So every object to which a later commit points has
        a higher id than the fence, or can be reached from a commit that was in force when this method returned. The
        registry is fenced last, and then the references that were registered meanwhile.
        """
        for held in self.heads():
            self.references.ids.observe_head(held.head.commit, held.head.fence)
        fence = retried(self.references.clock, self.references.ids.next_id)

        fenced = partial(upkeep.fence, id=fence)
        done: set[str] = set()
        for last in (False, True):
            listed = [one for one in self._listed() if one.row_name not in done]
            concurrently(partial(self._amend_listed, change=fenced), listed)
            done.update(one.row_name for one in listed)
            if not last:
                self._amend(ROOT, fenced)
        return fence

    def _amend(self, name: str, change: Callable[[Head], Head]) -> Held:
        row = amend_row(
            self.store.backend,
            self.store.realm,
            name,
            change,
            clock=self.references.clock,
            deadline_ms=_DEADLINE_MS,
        )
        return Held(name, read_head(row, name))

    def _amend_listed(self, registered: Registered, change: Callable[[Head], Head]) -> Held:
        """Change the head in a reference's row. If the row was never written, write its first head with the change.

        Raises:
            CorruptionError: the reference is live, and its row was lost.
        """

        def first() -> ReferenceRow:
            live = registered.registration.state == "live"
            if live:
                refuse_lost(self.store, registered, self.references.clock)
            return ReferenceRow(new_version(), encode_head(change(registered.first_head(sealed=not live))))

        insert_row(self.store.backend, self.store.realm, registered.row_name, first)
        return self._amend(registered.row_name, change)

    # Moving

    def begin(self, to: str, instance: str) -> None:
        """Record in the realm record that this realm is being moved, and to which store.

        Args:
            to: URI of the target store.
            instance: instance id of the realm in the target store.
        Raises:
            RealmStateError: the realm is already being moved to another target, or is not ACTIVE.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            self.refuse_elsewhere(record, instance)
            if record.state is not RealmState.ACTIVE:
                raise RealmStateError(
                    f"realm {self.name!r} is {record.state.value}; only an ACTIVE realm can be moved"
                )
            return {**record.properties, MOVING_TO: to, MOVING_TO_INSTANCE: instance}

        self._describe(change)

    def refuse_elsewhere(self, record: RealmRecord, instance: str | None) -> None:
        """Raise an error if the realm is already being moved to another target.

        Args:
            record: the source's realm record.
            instance: instance id of the realm in the target; None if that realm has not been created yet.
        Raises:
            RealmStateError: the realm is being moved to another target.
        """
        if record.properties.get(MOVING_TO_INSTANCE, instance) != instance:
            raise RealmStateError(
                f"realm {self.name!r} is already being moved to {record.properties[MOVING_TO]}: "
                "finish that migration with the same target and target_realm, or abort it"
            )

    def pause(self, to: str, token: str) -> list[Held]:
        """Stop commits to every reference, the registry first.

        Args:
            to: URI of the target store.
            token: a new token that identifies this attempt to switch.
        Returns:
            the heads of all references. They do not change while the realm record contains the token.
        Raises:
            RealmStateError: the switch to the target was already decided, or the migration was aborted.
            TaskLostError: another run ended this attempt, or the migration was aborted.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if MOVED_TO in record.properties or MOVING_TO not in record.properties:
                raise RealmStateError(
                    f"realm {self.name!r} is not being moved any more: another run finished the migration, or it was "
                    "aborted"
                )
            return {**record.properties, PAUSE: token}

        self._realms.describe(self.name, change, instance=self.store.realm)
        move = Move(to, token)

        def stopped(head: Head) -> Head:
            # The record is read after the row: while it has the token, no other attempt marks the row.
            self.refuse_ended(token)
            return msgspec.structs.replace(head, move=move)

        root = self._amend(ROOT, stopped)
        return [
            root,
            *concurrently(partial(self._stop, change=stopped), self._listed()),
        ]

    def _stop(self, registered: Registered, change: Callable[[Head], Head]) -> Held:
        """Stop commits to one reference.

        The row of a dropped reference is also sealed, so that it never accepts a commit again. The process that dropped
        it may have died before it sealed the row.
        """
        dropped = registered.registration.state == "dropped"
        return self._amend_listed(
            registered, lambda head: msgspec.structs.replace(change(head), sealed=head.sealed or dropped)
        )

    def decide(self, to: str, token: str) -> None:
        """Record in the realm record that clients use the realm in the target store from now on. This cannot be undone.

        Args:
            to: URI of the target store.
            token: the token of this attempt.
        Raises:
            TaskLostError: another run ended this attempt, or the migration was aborted.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if record.properties.get(PAUSE) != token:
                raise self._ended()
            return {**record.properties, MOVED_TO: to}

        self._realms.describe(self.name, change, instance=self.store.realm)

    def refuse_ended(self, token: str) -> None:
        """Raise an error if the attempt with this token has ended.

        Raises:
            TaskLostError: another run ended the attempt, or the migration was aborted.
        """
        if self.record().properties.get(PAUSE) != token:
            raise self._ended()

    def _ended(self) -> TaskLostError:
        return TaskLostError(
            f"this attempt to move realm {self.name!r} has ended: another run of the migration ended it, or the "
            "migration was aborted"
        )

    def end_pause(self, token: str | None = None) -> bool:
        """Allow commits again after an attempt that failed.

        Args:
            token: the token of the attempt to end; None to end any attempt.
        Returns:
            True if the attempt has ended. False if nothing was changed, because the switch to the target was already
            decided.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            properties = dict(record.properties)
            if MOVED_TO not in properties and token in (None, properties.get(PAUSE)):
                properties.pop(PAUSE, None)
            return properties

        record = self._describe(change)
        if MOVED_TO in record.properties:
            return False
        self._remove_marks()
        return True

    def abort(self) -> None:
        """Abort the migration, and allow commits again. Can be repeated.

        Raises:
            RealmStateError: the switch to the target was already decided.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if MOVED_TO in record.properties:
                finished = record.state is not RealmState.ACTIVE
                raise RealmStateError(
                    f"realm {self.name!r} was already moved to {record.properties[MOVED_TO]}, which cannot be undone; "
                    + ("open it there" if finished else "run the migration again to finish it")
                )
            return _without(record.properties, MOVING_TO, MOVING_TO_INSTANCE, PAUSE)

        self._describe(change)
        self._remove_marks()

    def _remove_marks(self) -> None:
        """Remove the marks of attempts that have ended from all references, so that commits are allowed again."""

        def freed(head: Head) -> Head:
            if head.move is None:
                return head
            # The record is read after the row: a removed token never comes back.
            properties = self.record().properties
            alive = MOVED_TO in properties or properties.get(PAUSE) == head.move.pause
            return head if alive else msgspec.structs.replace(head, move=None)

        self._amend(ROOT, freed)
        concurrently(partial(self._amend_listed, change=freed), self._listed())

    def finish(self) -> None:
        """Mark all references as moved, so that processes that still use them notice, and make the realm INACTIVE."""

        def arrived(head: Head) -> Head:
            move = head.move
            return (
                head
                if move is None
                else msgspec.structs.replace(head, move=msgspec.structs.replace(move, done=True))
            )

        if self.record().state is RealmState.ACTIVE:
            root = self._root().move
            if root is not None and not root.done:
                concurrently(partial(self._amend_listed, change=arrived), self._listed())
                self._amend(ROOT, arrived)  # last: the registry lists the other references
        clock, instance = self.references.clock, self.store.realm
        retried(clock, lambda: self._realms.move(self.name, RealmState.INACTIVE, instance=instance))
        self._describe(lambda record: _without(record.properties, MOVING_TO, MOVING_TO_INSTANCE, PAUSE))


def concurrently(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call `work` for each item in several threads. Return the results in the order of the items."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(work, items))


def _without(properties: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}
