"""References are born and die by commits on `root`, the registry of a realm.

The registry commit comes first and names an existing source commit; the row, named by the registration's
generation, follows, or is completed by whoever finds it missing. A name that is created again gets a new
generation, hence a new row: an old row is never recreated. Dropping commits to the registry, then *seals* the
row by a swap; whoever meets a sealed row looks in the registry again.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.change import Change, Operation, PrepareAgain
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.publishing import encode_head, read_head
from polaris_spark.commits.retry import backoff_ms
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import Snapshot, State
from polaris_spark.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    ReferenceGoneError,
    TryAgainError,
)
from polaris_spark.ids import IdGenerator
from polaris_spark.index import Entry, Index
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version

R = TypeVar("R")

ROOT = "root"
_LOOKUPS = 10
"""How often a reference is looked up that others drop and create again meanwhile."""

REFERENCES = "references"
"""Index of the registry: reference name -> source commit and registration."""


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """What the registry says of a name. The entry's pointer is the commit that the reference started from."""

    generation: int
    state: Literal["live", "dropped"]
    time: int
    """Milliseconds since 1970 of the last change of this registration."""
    principal: str
    number: int
    commit_time: int
    floor_number: int = 0
    floor_time: int = 0


encode_registration = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Registration).decode


class Registered(NamedTuple):
    """A registration with the commit that its reference started from."""

    name: str
    source: int
    registration: Registration

    @property
    def row_name(self) -> str:
        """Name of the reference row of this generation."""
        return f"{self.name}@{self.registration.generation:x}"

    def first_head(self, *, sealed: bool = False) -> Head:
        """The value of the row at its birth."""
        r = self.registration
        return Head(self.source, r.number, r.commit_time, r.floor_number, r.floor_time, sealed=sealed)


class References:
    """The references of one realm, as one process uses them: committers are cached by name until sealed."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        ids: IdGenerator,
        clock: Clock,
        settings: CommitSettings,
        files: FileWriter | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self._settings = settings
        self._files = files
        self._rng = rng or random.Random()
        self._open: dict[str, Committer] = {}
        self._guard = threading.Lock()
        self.root = self._committer(ROOT)

    def _committer(self, row_name: str) -> Committer:
        return Committer(
            self.store,
            row_name,
            ids=self.ids,
            clock=self.clock,
            settings=self._settings,
            files=self._files,
            rng=self._rng,
        )

    def initialize(self) -> None:
        """Create `root` with an empty first commit; a race is won by one and used by all."""
        backend, realm = self.store.backend, self.store.realm
        if backend.read_reference(realm, ROOT) is not None:
            return
        now = self.clock.now_ms()
        id = self.ids.next_id()
        self.store.write([(id, Commit(0, now, 0))])
        backend.insert_reference(realm, ROOT, ReferenceRow(new_version(), encode_head(Head(id, 0, now))))

    def lookup(self, name: str) -> Registered | None:
        """The registration of a name, live or dropped, from a fresh head of the registry."""
        entry = self.root.read().index(REFERENCES).get(name.encode())
        return None if entry is None else _registered(name, entry)

    def listed(self) -> list[Registered]:
        """All registrations, live and dropped, by name."""
        return listed_in(self.root.read().index(REFERENCES))

    def open(self, name: str) -> Committer:
        """The committer of a live reference; its row is completed if its creator did not get that far.

        Raises:
            ReferenceGoneError: the registry lists no live reference of that name.
        """
        found = self._open.get(name)
        if found is not None:
            return found
        registered = self.lookup(name)
        if registered is None or registered.registration.state != "live":
            raise ReferenceGoneError(f"reference {name!r} does not exist")
        self._complete(registered)
        with self._guard:
            return self._open.setdefault(name, self._committer(registered.row_name))

    def forget(self, name: str) -> None:
        """Look in the registry again when `name` is opened next."""
        with self._guard:
            self._open.pop(name, None)

    def read(self, name: str) -> Snapshot:
        """A fresh head of a reference."""
        return self._retrying(name, _read_live)

    def commit(self, name: str, change: Change[R]) -> R:
        """Commit a change to a reference, found again by the registry if it was dropped and created anew."""
        return self._retrying(name, lambda committer: committer.commit(change))

    def _retrying(self, name: str, use: Callable[[Committer], R]) -> R:
        for _ in range(_LOOKUPS):
            committer = self.open(name)
            try:
                return use(committer)
            except ReferenceGoneError:
                self.forget(name)
        raise ReferenceGoneError(f"reference {name!r} is dropped and created again and again")

    def create(self, name: str, operation: Operation, *, source: Snapshot | None = None) -> Registered:
        """Create a reference from `source`, or with an empty first commit.

        Raises:
            AlreadyExistsError: the name is live.
        """
        registered = self.root.commit(_Create(name, operation, source, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        return registered

    def drop(self, name: str, operation: Operation) -> Registered:
        """Drop a reference; returns after its row is sealed, so that nobody commits to it any more.

        Raises:
            NotFoundError: the name is not live.
        """
        registered = self.root.commit(_Drop(name, operation, self))
        if (
            registered.registration.state == "dropped"
        ):  # else sent again after the name came back; that row lives
            self._afterwards(name, lambda: self._seal(registered))
        self.forget(name)
        return registered

    def undrop(self, name: str, operation: Operation) -> Registered:
        """Bring a dropped reference back, with its last head, under a new generation.

        Raises:
            NotFoundError: no such dropped reference.
        """
        registered = self.root.commit(_Undrop(name, operation, self))
        self._afterwards(name, lambda: self._complete_unless_dropped(registered))
        self.forget(name)
        return registered

    def _afterwards(self, name: str, once: Callable[[], None]) -> None:
        """Do what follows a registry commit, which is done by now whatever the database says next.

        Raises:
            OutcomeUnknownError: the deadline passed; the same operation id will tell.
        """
        started = self.clock.monotonic_ms()
        attempt = 0
        while True:
            try:
                return once()
            except (TryAgainError, OutcomeUnknownError) as error:
                age = self.clock.monotonic_ms() - started
                if age > self._settings.deadline_ms:
                    raise OutcomeUnknownError(
                        f"the registry has the change of reference {name!r}, its row may not: {error}"
                    ) from error
            attempt += 1
            self.clock.sleep_ms(backoff_ms(attempt, age, self._rng))

    def _complete_unless_dropped(self, registered: Registered) -> None:
        with contextlib.suppress(ReferenceGoneError):  # it did live; what others did then is another matter
            self._complete(registered)

    def _complete(self, registered: Registered) -> None:
        """Insert the row of a live registration unless it is there already.

        Raises:
            ReferenceGoneError: the registration is not live any more; its row must never come back.
        """
        backend, realm = self.store.backend, self.store.realm
        first = ReferenceRow(new_version(), encode_head(registered.first_head()))
        while backend.read_reference(realm, registered.row_name) is None:
            current = self.lookup(registered.name)
            if current is None or current.registration != registered.registration:
                raise ReferenceGoneError(f"reference {registered.name!r} was dropped meanwhile")
            with contextlib.suppress(OutcomeUnknownError):  # the next read tells
                backend.insert_reference(realm, registered.row_name, first)

    def _seal(self, registered: Registered) -> None:
        """Swap the row to sealed; a row that its creator has not written yet is written sealed."""
        backend, realm, name = self.store.backend, self.store.realm, registered.row_name
        sealed = ReferenceRow(new_version(), encode_head(registered.first_head(sealed=True)))
        while backend.read_reference(realm, name) is None:
            with contextlib.suppress(OutcomeUnknownError):  # the next read tells
                backend.insert_reference(realm, name, sealed)
        amend_row(
            backend,
            realm,
            name,
            lambda head: msgspec.structs.replace(head, sealed=True),
            clock=self.clock,
            deadline_ms=self._settings.deadline_ms,
            rng=self._rng,
        )

    def sealed_head(self, registered: Registered) -> Head:
        """The last head of a dropped reference."""
        self._seal(registered)
        row = self.store.backend.read_reference(self.store.realm, registered.row_name)
        if row is None:
            raise ReferenceGoneError(f"the row of dropped reference {registered.name!r} was swept")
        return read_head(row, registered.row_name)


def listed_in(index: Index) -> list[Registered]:
    """All registrations, live and dropped, by name, of a registry's index `REFERENCES`."""
    return [_registered(key.decode(), entry) for key, entry in index.range()]


def _read_live(committer: Committer) -> Snapshot:
    snapshot = committer.read()
    if snapshot.head.sealed:
        raise ReferenceGoneError(f"reference {committer.name!r} was dropped")
    return snapshot


def _registered(name: str, entry: Entry) -> Registered:
    return Registered(name, entry.pointer, _decode(entry.value))


class _RegistryChange(Change[Registered]):
    action: str

    def __init__(self, name: str, operation: Operation, references: References) -> None:
        self.name = name
        self.operation = operation
        self.references = references
        self.clock = references.clock

    def seal_dropped(self, view: State) -> None:
        """Seal the row of a dropped registration: who dropped it may have died before that, and others may still
        commit to it."""
        found = self.found(view)
        if found is not None and found.registration.state == "dropped":
            self.references.sealed_head(found)

    def found(self, state: State) -> Registered | None:
        entry = state.lookup(REFERENCES, self.name.encode())
        return None if entry is None else _registered(self.name, entry)

    def record(self, state: State, registered: Registered, now: int) -> Registered:
        key, r = self.name.encode(), registered.registration
        state.put(REFERENCES, key, Entry(registered.source, encode_registration(r)))
        state.log(
            LogEntry(
                self.operation.id,
                self.operation.principal,
                now,
                self.action,
                r.generation,
                key,
                after=registered.source if r.state == "live" else 0,
                before=registered.source if r.state == "dropped" else 0,
            )
        )
        return registered

    def repeat(self, state: State, entries: list[LogEntry]) -> Registered:
        found = self.found(state)
        if found is None:
            raise NotFoundError(f"reference {self.name!r} does not exist")
        return found


class _Create(_RegistryChange):
    action = "create-reference"

    def __init__(
        self, name: str, operation: Operation, source: Snapshot | None, references: References
    ) -> None:
        super().__init__(name, operation, references)
        self.source = source

    def prepare(self, view: State) -> int:
        self.seal_dropped(view)
        return self.clock.now_ms()

    def apply(self, state: State, prepared: object) -> Registered:
        assert isinstance(prepared, int)
        found = self.found(state)
        if found is not None and found.registration.state == "live":
            raise AlreadyExistsError(f"reference {self.name!r} already exists")
        who, generation = self.operation.principal, state.new_id()
        if self.source is None:
            source = state.add(Commit(0, prepared, 0))
            registration = Registration(generation, "live", prepared, who, 0, prepared)
        else:
            head = self.source.head
            source = head.commit
            registration = Registration(
                generation, "live", prepared, who, head.number, head.time, head.floor_number, head.floor_time
            )
        return self.record(state, Registered(self.name, source, registration), prepared)


class _Drop(_RegistryChange):
    action = "drop-reference"

    def prepare(self, view: State) -> int:
        self.seal_dropped(view)
        return self.clock.now_ms()

    def apply(self, state: State, prepared: object) -> Registered:
        assert isinstance(prepared, int)
        found = self.found(state)
        if found is None or found.registration.state != "live":
            raise NotFoundError(f"reference {self.name!r} does not exist")
        dropped = msgspec.structs.replace(
            found.registration, state="dropped", time=prepared, principal=self.operation.principal
        )
        return self.record(state, found._replace(registration=dropped), prepared)


class _Undrop(_RegistryChange):
    action = "undrop-reference"

    def prepare(self, view: State) -> tuple[int, Head | None]:
        # Sent again after it was done, it finds nothing dropped here, and its answer in the log: `apply` judges.
        found = self.found(view)
        dropped = found is not None and found.registration.state == "dropped"
        return self.clock.now_ms(), self.references.sealed_head(found) if found and dropped else None

    def apply(self, state: State, prepared: object) -> Registered:
        assert isinstance(prepared, tuple)
        now, head = prepared
        self._refuse_undropped(state)
        if head is None:
            raise PrepareAgain
        registration = Registration(
            state.new_id(),
            "live",
            now,
            self.operation.principal,
            head.number,
            head.time,
            head.floor_number,
            head.floor_time,
        )
        return self.record(state, Registered(self.name, head.commit, registration), now)

    def _refuse_undropped(self, state: State) -> None:
        found = self.found(state)
        if found is None or found.registration.state != "dropped":
            raise NotFoundError(f"there is no dropped reference {self.name!r}")
