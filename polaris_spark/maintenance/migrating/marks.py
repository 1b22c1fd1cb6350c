"""What a realm's record and references say while the realm moves to another store: who may commit where.

The record of the source is where it is decided which store serves; it changes by compare-and-swap only.

| property of the source's record | says |
| --- | --- |
| `moving-to`, `moving-to-instance` | which store, and which realm's instance there, is being filled |
| `moving-pause` | the attempt to switch over that is under way: a token that is used once |
| `moved-to` | it is decided: the other store serves, or will when the migration is run again |

An attempt to switch puts its token into the record, then into every reference (`Head.move`), the registry first: no
commit can be made to such a reference, since its row has another version by then. The attempt ends in one swap of the
record: either `moved-to` comes in, which needs that the token is still there, or the token goes. Only marks whose token
the record does not hold are ever removed or replaced, only the token that it holds is put in, and none comes back. So
whoever finds its token in the record at the moment of the decision knows that every reference still carries it. Hence
no commit is acknowledged in the source after the decision, and none in the target before it, however many runs meet,
and however late any of them wakes up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.commits import upkeep
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.publishing import encode_head, read_head
from polaris_spark.commits.rows import Commit, Head, Move
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import OutcomeUnknownError, RealmStateError, TaskLostError
from polaris_spark.maintenance.migrating.copy import retried
from polaris_spark.store.references import new_version
from polaris_spark.system.realms import MOVED_TO, RealmRecord, Realms, RealmState
from polaris_spark.system.recovery.lost import refuse_lost
from polaris_spark.system.registry import REFERENCES, ROOT, References, Registered, listed_in

MOVING_TO: Final = "moving-to"
MOVING_TO_INSTANCE: Final = "moving-to-instance"
PAUSE: Final = "moving-pause"

_THREADS = 8
"""References are read and swapped so many at a time."""

_DEADLINE_MS = 30_000.0
"""How long trouble of the database is retried, milliseconds."""

T = TypeVar("T")
R = TypeVar("R")


class Held(NamedTuple):
    """A reference with its head as it was read or left."""

    row_name: str
    head: Head


class SourceRealm:
    """The realm that is moved: its record and its references. Thread-safe."""

    def __init__(self, realms: Realms, name: str, references: References) -> None:
        """
        Args:
            realms: of the source store.
            name: of the realm.
            references: of the realm, as its sessions use them.
        """
        self.name = name
        self.references = references
        self.store = references.store
        self._realms = realms

    # Reading

    def record(self) -> RealmRecord:
        """The realm's record.

        Raises:
            RealmStateError: the realm is gone, or its name belongs to another instance by now.
        """
        found = self._realms.find(self.name)
        if found is None or found.instance != self.store.realm:
            raise RealmStateError(f"realm {self.name!r} of instance {self.store.realm} is gone")
        return found

    def serving(self) -> RealmRecord:
        """The realm's record, as long as it is ACTIVE.

        Raises:
            RealmMovedError: the move is finished.
            RealmStateError: it does not serve.
        """
        self._realms.active(self.name)
        return self.record()

    def heads(self) -> list[Held]:
        """The heads of the registry, and of every live and dropped reference that the registry lists.

        A reference whose row is missing is in the list as it was born: whoever needs it will write that.
        """
        root = self._row(ROOT)
        return [Held(ROOT, read_head(root, ROOT)), *concurrently(self._held, self._listed())]

    def _held(self, registered: Registered) -> Held:
        name = registered.row_name
        row = self.store.backend.read_reference(self.store.realm, name)
        return Held(name, _first_head(registered) if row is None else read_head(row, name))

    def _describe(self, change: Callable[[RealmRecord], Mapping[str, str]]) -> RealmRecord:
        return retried(
            self.references.clock,
            lambda: self._realms.describe(self.name, change, instance=self.store.realm),
        )

    def _listed(self) -> list[Registered]:
        """All registrations, live and dropped; readable when the realm has moved, too."""
        row = self._row(ROOT)
        head = read_head(row, ROOT)
        return listed_in(
            Snapshot(self.store, row.version, head, self.store.get(head.commit, Commit)).index(REFERENCES)
        )

    def _row(self, name: str) -> ReferenceRow:
        row = self.store.backend.read_reference(self.store.realm, name)
        if row is None:
            raise RealmStateError(f"realm {self.name!r} has no reference {name!r}")
        return row

    # Fencing

    def fence(self) -> int:
        """Fence every reference, the registry last; then those that were registered meanwhile.

        Returns:
            the fence, an id. What later commits point to is reachable from commits that were in force when this
            returned, or has a higher id (DESIGN, section 11).
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
        """Amend the row of a reference; one that nobody has written yet is written so.

        Raises:
            CorruptionError: the row of a live one was lost.
        """
        backend, realm, name = self.store.backend, self.store.realm, registered.row_name
        first = change(_first_head(registered))
        checked = registered.registration.state != "live"
        while backend.read_reference(realm, name) is None:
            if not checked:
                refuse_lost(self.store, registered, self.references.clock)
                checked = True
                continue
            with contextlib.suppress(OutcomeUnknownError):  # the next read tells
                backend.insert_reference(realm, name, ReferenceRow(new_version(), encode_head(first)))
        return self._amend(name, change)

    # Moving

    def begin(self, to: str, instance: str) -> None:
        """Note where the realm is being moved to.

        Raises:
            RealmStateError: it is being moved somewhere else, or does not serve.
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
        """Refuse a second target.

        Args:
            instance: of the realm there; None if it is yet to be made.
        Raises:
            RealmStateError: the realm is being moved to another one.
        """
        if record.properties.get(MOVING_TO_INSTANCE, instance) != instance:
            raise RealmStateError(
                f"realm {self.name!r} is being moved to {record.properties[MOVING_TO]} already: "
                "finish that with the same target and name, or abort it"
            )

    def pause(self, to: str, token: str) -> list[Held]:
        """Stop commits to every reference, the registry first.

        Args:
            token: of this attempt, never used before.
        Returns:
            the heads, which do not change any more while the record holds the token.
        Raises:
            RealmStateError: it is decided already, or the migration was aborted.
            TaskLostError: this attempt was ended by somebody else.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if MOVED_TO in record.properties or MOVING_TO not in record.properties:
                raise RealmStateError(f"realm {self.name!r} is not being moved any more")
            return {**record.properties, PAUSE: token}

        self._realms.describe(self.name, change, instance=self.store.realm)
        move = Move(to, token)

        def stopped(head: Head) -> Head:
            self.refuse_ended(token)  # read after the row, which nobody else marks meanwhile
            return msgspec.structs.replace(head, move=move)

        root = self._amend(ROOT, stopped)
        return [
            root,
            *concurrently(partial(self._stop, change=stopped), self._listed()),
        ]

    def _stop(self, registered: Registered, change: Callable[[Head], Head]) -> Held:
        """Stop one reference; one that was dropped is sealed, too, should whoever dropped it have died before that."""
        dropped = registered.registration.state == "dropped"
        return self._amend_listed(
            registered, lambda head: msgspec.structs.replace(change(head), sealed=head.sealed or dropped)
        )

    def decide(self, to: str, token: str) -> None:
        """From here on the other store serves, and nothing leads back.

        Raises:
            TaskLostError: the attempt was ended by somebody else.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if record.properties.get(PAUSE) != token:
                raise self._ended()
            return {**record.properties, MOVED_TO: to}

        self._realms.describe(self.name, change, instance=self.store.realm)

    def refuse_ended(self, token: str) -> None:
        """Refuse to go on with an attempt that is not under way any more.

        Raises:
            TaskLostError: it was ended by somebody else.
        """
        if self.record().properties.get(PAUSE) != token:
            raise self._ended()

    def _ended(self) -> TaskLostError:
        return TaskLostError(f"this attempt to move realm {self.name!r} was ended by another run, or aborted")

    def end_pause(self, token: str | None = None) -> bool:
        """Let commits go on, after an attempt that failed.

        Args:
            token: of the attempt; whichever it was, if None.
        Returns:
            False if it was decided that the other store serves; then nothing was changed.
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
        """Forget that the realm was to be moved, and let commits go on. May be repeated.

        Raises:
            RealmStateError: it is decided already that the other store serves.
        """

        def change(record: RealmRecord) -> Mapping[str, str]:
            if MOVED_TO in record.properties:
                finished = record.state is not RealmState.ACTIVE
                raise RealmStateError(
                    f"realm {self.name!r} was moved to {record.properties[MOVED_TO]} already, which cannot be undone; "
                    + ("open it there" if finished else "run the migration again to finish it")
                )
            return _without(record.properties, MOVING_TO, MOVING_TO_INSTANCE, PAUSE)

        self._describe(change)
        self._remove_marks()

    def _remove_marks(self) -> None:
        """Remove every mark whose attempt has ended."""

        def freed(head: Head) -> Head:
            if head.move is None:
                return head
            properties = self.record().properties  # read after the row: a token never comes back
            alive = MOVED_TO in properties or properties.get(PAUSE) == head.move.pause
            return head if alive else msgspec.structs.replace(head, move=None)

        self._amend(ROOT, freed)
        concurrently(partial(self._amend_listed, change=freed), self._listed())

    def finish(self) -> None:
        """Tell everybody who still uses the references where the realm is now, and let nobody open it any more."""

        def arrived(head: Head) -> Head:
            move = head.move
            return (
                head
                if move is None
                else msgspec.structs.replace(head, move=msgspec.structs.replace(move, done=True))
            )

        if self.record().state is RealmState.ACTIVE:
            root = read_head(self._row(ROOT), ROOT).move
            if root is not None and not root.done:
                concurrently(partial(self._amend_listed, change=arrived), self._listed())
                self._amend(ROOT, arrived)  # last: the others are found through it
        clock, instance = self.references.clock, self.store.realm
        retried(clock, lambda: self._realms.move(self.name, RealmState.INACTIVE, instance=instance))
        self._describe(lambda record: _without(record.properties, MOVING_TO, MOVING_TO_INSTANCE, PAUSE))


def _first_head(registered: Registered) -> Head:
    return registered.first_head(sealed=registered.registration.state == "dropped")


def concurrently(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What `work` gives for each of many items, in their order; several at a time."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(work, items))


def _without(properties: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}
