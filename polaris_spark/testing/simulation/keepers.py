"""Upkeep by simulated processes: trimming, fencing, sweeping, and tasks of which one of a kind runs."""

from __future__ import annotations

import contextlib
from random import Random

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import ObjectKey
from polaris_spark.clock import EPOCH_MS
from polaris_spark.commits.amending import amend_row
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.log import commit_at
from polaris_spark.commits.publishing import read_head
from polaris_spark.commits.rows import Commit, LogEntry
from polaris_spark.commits.state import State
from polaris_spark.commits.upkeep import fence, raise_floor
from polaris_spark.errors import (
    CorruptionError,
    HistoryTrimmedError,
    NotFoundError,
    OutcomeUnknownError,
    PolarisError,
    ReferenceGoneError,
)
from polaris_spark.ids import IdParts, pack
from polaris_spark.system.registry import REFERENCES, ROOT, Registered, Registration
from polaris_spark.testing.simulation.clients import operation_id
from polaris_spark.testing.simulation.observer import REALM
from polaris_spark.testing.simulation.registry import PURGE
from polaris_spark.testing.simulation.world import Process, World

_DEADLINE_MS = 60_000.0
_BATCH = 100
_decode = msgspec.msgpack.Decoder(Registration).decode


class _Purge(Change[None]):
    """End the registration of a dropped reference."""

    def __init__(self, registered: Registered, operation: Operation) -> None:
        self.registered = registered
        self.operation = operation

    def apply(self, state: State, prepared: object) -> None:
        name, registration = self.registered.name.encode(), self.registered.registration
        found = state.lookup(REFERENCES, name)
        if found is None or _decode(found.value) != registration:
            raise NotFoundError(f"{self.registered.name} is not as it was")
        state.remove(REFERENCES, name)
        operation, source = self.operation, self.registered.source
        state.log(
            LogEntry(operation.id, operation.principal, 0, PURGE, registration.generation, name, source)
        )

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class Keeper:
    """One thread that keeps the store in order."""

    def __init__(self, world: World, process: Process, rng: Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng

    def act(self) -> None:
        """Trim, fence, sweep or hold a task; trouble ends it early."""
        process, began = self._process, self._world.tick()
        action = self._rng.choice((self.trim_one, self.fence_one, self.sweep, self.sweep, self.hold_task))
        try:
            action()
        except CorruptionError as error:
            gone = self._world.deleted
            if not any(str(id) in str(error) for id, when in gone.items() if when > began):
                self._world.observer.blame(f"upkeep by {process.name} found the store corrupt: {error}")
        except PolarisError as error:
            self._world.note(process.name, "gave up", action.__name__, type(error).__name__)

    def trim_one(self) -> None:
        """Raise the floor of one reference."""
        self._trim(self._rng.choice(self._rows()))

    def fence_one(self) -> None:
        """Fence one reference."""
        row, id = self._rng.choice(self._rows()), self._process.ids.next_id()
        self._fence(row, id)

    def hold_task(self) -> None:
        """Run a task of which one at a time runs, renewing it or not, and perhaps without a word at the end."""
        process, rng = self._process, self._rng
        held = process.tasks.acquire("sweep", "all", holder=process.name, duration_ms=2_000, renew=False)
        for _ in range(rng.randrange(3)):
            process.clock.sleep_ms(rng.uniform(0, 3_000))
            with contextlib.suppress(OutcomeUnknownError):
                held.renew()
        if rng.random() < 0.8:
            held.release()

    def sweep(self) -> None:
        """Delete what nothing needs, in the order that makes it safe."""
        process = self._process
        for row in self._rows():
            self._trim(row)
        limit = process.ids.next_id()
        rows = self._fence_all(limit)
        listed = process.references.listed()
        marked = self._marked(rows)
        self._delete_rows(listed)
        old = int(process.clock.now_ms() - self._world.plan.grace_ms)
        limit = min(limit, pack(IdParts(max(EPOCH_MS, old), 0, 0)))
        unmarked = [key for key in self._keys() if key.id < limit and key.id not in marked]
        for start in range(0, len(unmarked), _BATCH):
            some = unmarked[start : start + _BATCH]
            when = self._world.tick()
            for key in some:
                self._world.deleted.setdefault(key.id, when)
            process.backend.delete_objects(REALM, some)
        self._world.note(process.name, "swept", len(unmarked), "of", len(unmarked) + len(marked))

    def _rows(self) -> list[str]:
        return [ROOT, *(registered.row_name for registered in self._process.references.listed())]

    def _trim(self, row: str) -> None:
        process = self._process
        found = process.backend.read_reference(REALM, row)
        if found is None:
            return
        head, store = read_head(found, row), process.references.store
        with contextlib.suppress(HistoryTrimmedError):
            id = commit_at(store, head, int(process.clock.now_ms() - self._world.plan.retention_ms))
            commit = store.get(id, Commit)
            with contextlib.suppress(ReferenceGoneError):
                amend_row(
                    process.backend,
                    REALM,
                    row,
                    lambda head: raise_floor(head, commit),
                    clock=process.clock,
                    deadline_ms=_DEADLINE_MS,
                    rng=self._rng,
                )

    def _fence(self, row: str, id: int) -> None:
        process = self._process
        with contextlib.suppress(ReferenceGoneError):
            amend_row(
                process.backend,
                REALM,
                row,
                lambda head: fence(head, id),
                clock=process.clock,
                deadline_ms=_DEADLINE_MS,
                rng=self._rng,
            )

    def _fence_all(self, id: int) -> list[str]:
        """Fence every reference, the registry last; then those that came meanwhile, until none did. The rows."""
        references = self._process.references
        fenced: set[str] = set()
        while True:
            listed = references.listed()
            new = [one for one in listed if one.row_name not in fenced]
            for registered in new:
                if registered.registration.state == "live":
                    references._complete(registered)
                    self._fence(registered.row_name, id)
                else:
                    references.sealed_head(registered)
                fenced.add(registered.row_name)
            if not new and ROOT in fenced:
                return [ROOT, *(one.row_name for one in listed)]
            if ROOT not in fenced:
                self._fence(ROOT, id)
                fenced.add(ROOT)

    def _marked(self, rows: list[str]) -> set[int]:
        """Every object that a reference's history needs."""
        pending: list[int] = []
        for row in rows:
            found = self._process.backend.read_reference(REALM, row)
            if found is None:
                raise NotFoundError(f"{row} vanished")
            head = read_head(found, row)
            pending += self._history(head.commit, head.number, head.floor_number)
        marked: set[int] = set()
        while pending:
            new = {id for id in pending if id and id not in marked}
            marked |= new
            pending = [id for strong in self._pointers(new).values() for id in strong]
        return marked

    def _history(self, id: int, number: int, floor: int) -> list[int]:
        """Ids of the commits from the head back to the floor."""
        found = [id]
        store = self._process.references.store
        while number > floor:
            commit = store.get(found[-1], Commit)
            some = commit.parents[: number - floor]
            found += some
            number -= len(some)
        return found

    def _pointers(self, ids: set[int]) -> dict[int, tuple[int, ...]]:
        rows = self._process.backend.read_objects(REALM, [ObjectKey(id) for id in sorted(ids)])
        for id in ids:
            if ObjectKey(id) not in rows:
                raise CorruptionError(f"object {id} is missing, found by a sweep")
        return {key.id: objects.decode_header(row, str(key.id)).strong for key, row in rows.items()}

    def _delete_rows(self, listed: list[Registered]) -> None:
        """End registrations that were dropped long ago, and delete their rows."""
        process, plan = self._process, self._world.plan
        for registered in listed:
            dropped = registered.registration.state == "dropped"
            age = process.clock.now_ms() - registered.registration.time
            if not dropped or age < max(plan.grace_ms, plan.row_grace_ms):
                continue
            operation = Operation(operation_id(process, self._rng), "sweep", b"d")
            self._world.observer.operations[operation.id] = -len(self._world.observer.operations) - 1
            with contextlib.suppress(NotFoundError):
                process.references.root.commit(_Purge(registered, operation))
                row = process.backend.read_reference(REALM, registered.row_name)
                if row is not None:
                    process.backend.delete_reference(REALM, registered.row_name, row.version)

    def _keys(self) -> list[ObjectKey]:
        backend = self._process.backend
        return sorted(
            ObjectKey(id, part)
            for split in backend.splits("objects", [REALM], 1)
            for batch in backend.scan(split)
            for id, part in zip(batch["id"].to_pylist(), batch["part"].to_pylist(), strict=True)
        )
