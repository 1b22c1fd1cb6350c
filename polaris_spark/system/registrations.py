"""What the registry says of names, and the changes that it takes: create, drop, undrop, end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from polaris_spark.clock import Clock
from polaris_spark.commits.change import Change, Operation, PrepareAgain
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.state import Snapshot, State
from polaris_spark.errors import AlreadyExistsError, NotFoundError, ReferenceGoneError
from polaris_spark.index import Entry, Index

if TYPE_CHECKING:
    from polaris_spark.system.registry import References

ROOT = "root"
"""Name of the registry."""

REFERENCES = "references"
"""Index of the registry: reference name -> source commit and registration."""

ENDED = "end-reference"
"""Action of the log entries that end registrations of dropped references."""


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
    time_resets: tuple[int, ...] = ()
    """The time resets of the head from which the reference started."""

    @classmethod
    def from_head(
        cls,
        head: Head,
        generation: int,
        *,
        now_ms: int,
        principal: str,
        state: Literal["live", "dropped"] = "live",
    ) -> Registration:
        """The registration of a reference that starts from, or now has, a head."""
        return cls(
            generation,
            state,
            now_ms,
            principal,
            head.number,
            head.time,
            head.floor_number,
            head.floor_time,
            head.time_resets,
        )


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
        """The value of the row at its birth. Its fence is its generation, which is not below the registry's fence: what
        was prepared for an earlier generation is not used on this one."""
        r = self.registration
        return Head(
            self.source,
            r.number,
            r.commit_time,
            r.floor_number,
            r.floor_time,
            fence=r.generation,
            sealed=sealed,
            time_resets=r.time_resets,
        )


def listed_in(index: Index) -> list[Registered]:
    """All registrations, live and dropped, by name, of a registry's index `REFERENCES`."""
    return [registered_by(key.decode(), entry) for key, entry in index.range()]


def registered_by(name: str, entry: Entry) -> Registered:
    """What an entry of the index `REFERENCES` says of its name."""
    return Registered(name, entry.pointer, _decode(entry.value))


def expired(
    listed: Iterable[Registered], now_ms: int, grace_ms: int | Callable[[str], int]
) -> list[Registered]:
    """References that were dropped longer ago than the grace period, which is given for all of them or by name."""
    return [
        one
        for one in listed
        if one.registration.state == "dropped"
        and now_ms - one.registration.time >= (grace_ms(one.name) if callable(grace_ms) else grace_ms)
    ]


class RegistryChange(Change[Registered]):
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
        return None if entry is None else registered_by(self.name, entry)

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


class Create(RegistryChange):
    action = "create-reference"

    def __init__(
        self, name: str, operation: Operation, source: Snapshot | None, references: References
    ) -> None:
        super().__init__(name, operation, references)
        self.source = source

    def prepare(self, view: State) -> tuple[int, Head | None]:
        self.seal_dropped(view)
        return self.clock.now_ms(), None if self.source is None else self._begin(view, self.source)

    def _begin(self, view: State, source: Snapshot) -> Head:
        """The head to begin with, if it is still in the history of its reference, which is read after the registry: a
        fence of the registry in between has it read again, and so has a change of its registration. Thereby no sweep
        overlooks it."""
        name, _, generation = source.row_name.rpartition("@")
        entry = view.lookup(REFERENCES, name.encode())
        found = None if entry is None else registered_by(name, entry)
        if found is None or found.row_name != source.row_name or found.registration.state != "live":
            raise ReferenceGoneError(
                f"reference {name!r} ({generation}), the source of {self.name!r}, is gone"
            )
        fresh, old = self.references.read(name), source.head
        if fresh.row_name != source.row_name:
            raise ReferenceGoneError(
                f"reference {name!r}, the source of {self.name!r}, was dropped meanwhile"
            )
        if old.number > fresh.head.number or ancestor(fresh.store, fresh.head, old.number) != old.commit:
            raise NotFoundError(f"commit {old.commit:x} is not in the history of {name!r}")
        floor = {"floor_number": fresh.head.floor_number, "floor_time": fresh.head.floor_time}
        return msgspec.structs.replace(old, **floor)

    def apply(self, state: State, prepared: object) -> Registered:
        assert isinstance(prepared, tuple)
        now, head = prepared
        found = self.found(state)
        if found is not None and found.registration.state == "live":
            raise AlreadyExistsError(f"reference {self.name!r} already exists")
        who, generation = self.operation.principal, state.new_id()
        if head is None:
            source = state.add(Commit(0, now, 0))
            registration = Registration(generation, "live", now, who, 0, now)
        else:
            source = head.commit
            registration = Registration.from_head(head, generation, now_ms=now, principal=who)
        return self.record(state, Registered(self.name, source, registration), now)


class Drop(RegistryChange):
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


class Undrop(RegistryChange):
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
        registration = Registration.from_head(
            head, state.new_id(), now_ms=now, principal=self.operation.principal
        )
        return self.record(state, Registered(self.name, head.commit, registration), now)

    def _refuse_undropped(self, state: State) -> None:
        found = self.found(state)
        if found is None or found.registration.state != "dropped":
            raise NotFoundError(
                f"there is no dropped reference {self.name!r}; one that was dropped longer ago than the grace "
                "period is given up"
            )


class End(Change[list[Registered]]):
    """End registrations of dropped references, unless they have changed."""

    def __init__(self, dropped: Sequence[Registered], operation: Operation, clock: Clock) -> None:
        self.dropped = dropped
        self.operation = operation
        self.clock = clock

    def prepare(self, view: State) -> int:
        return self.clock.now_ms()

    def apply(self, state: State, prepared: object) -> list[Registered]:
        assert isinstance(prepared, int)
        ended = []
        for registered in self.dropped:
            key, r = registered.name.encode(), registered.registration
            entry = state.lookup(REFERENCES, key)
            if entry is None or registered_by(registered.name, entry) != registered or r.state != "dropped":
                continue
            state.remove(REFERENCES, key)
            state.log(LogEntry(b"", self.operation.principal, prepared, ENDED, r.generation, key))
            ended.append(registered)
        return ended

    def repeat(self, state: State, entries: list[LogEntry]) -> list[Registered]:
        raise AssertionError("ending registrations has no operation id")
