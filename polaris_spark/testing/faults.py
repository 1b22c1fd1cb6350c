"""A backend that injects the failures of databases and networks, for tests of code that uses a backend.

A schedule, which can be random with a seed, determines the failures:

    network = Network(open_backend("memory:"), clock)
    backend = FaultyBackend(network, Seeded(Random(7), Rates(unheard=0.05, late=0.02)), clock)

Create one `FaultyBackend` for each process that a test simulates. All of them share the database's `Network`. The
network can delay a write: the caller gets `OutcomeUnknownError` at once, and the write is executed later. The contract
in `polaris_spark.backends.base` allows all injected faults, so correct callers handle them.

| fault | the caller sees | the database |
| --- | --- | --- |
| `busy` | `TryAgainError` | unchanged |
| `lost` | `OutcomeUnknownError` | unchanged: the request never arrived |
| `unheard` | `OutcomeUnknownError` | changed, but the answer was lost |
| `late` | `OutcomeUnknownError` | changes later, perhaps after changes by other processes |
| `partial` | `OutcomeUnknownError` | some rows of a batch are written or deleted; other operations: as with `lost` |
| `stale` | rows missing | unchanged: a read may miss objects whose write was not acknowledged yet |
| `dies before`, `dies after` | `ProcessDied` | unchanged, or changed; this process sends no more requests |
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, NoReturn, TypeVar

from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
    Table,
)
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError
from polaris_spark.testing.schedules import Fault, Schedule

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R", ObjectKey, ObjectRow)


class ProcessDied(BaseException):  # not an Exception, so that callers do not handle it, as with SystemExit
    """The simulated process of this backend died. This is raised by the operation during which the process died, and by
    all later operations."""


class Network:
    """One database and its delayed writes. All `FaultyBackend` objects of a database share one `Network`."""

    def __init__(self, inner: Backend, clock: Clock | None = None, *, stale: bool = False) -> None:
        """
        Args:
            inner: the database, without faults.
            clock: the clock by which delayed writes are executed.
            stale: whether to track the objects whose write was not acknowledged. The fault `stale` needs this. It costs
                one read for each write.
        """
        self.inner = inner
        self._clock = clock or SystemClock()
        self._stale = stale
        self._late: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._unseen: set[tuple[str, ObjectKey]] = set()
        self._guard = threading.RLock()

    def later(self, delay_ms: float, effect: Callable[[], object]) -> None:
        """Execute the write `effect` after `delay_ms` milliseconds, even if the process that sent it dies before."""
        with self._guard:
            heapq.heappush(self._late, (self._clock.monotonic_ms() + delay_ms, next(self._numbers), effect))

    def settle(self, *, everything: bool = False) -> None:
        """Execute the delayed writes that are due, in the order of their times.

        Args:
            everything: whether to execute also the delayed writes that are not due yet.
        """
        while self._late:
            with self._guard:
                if not self._late or (not everything and self._late[0][0] > self._clock.monotonic_ms()):
                    return
                _, _, effect = heapq.heappop(self._late)
                effect()

    def write(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        """Write rows. They count as not acknowledged until `acknowledged` is called."""
        if self._stale:
            keys = [ObjectKey(row.id, row.part) for row in rows]
            with self._guard:
                present = self.inner.read_objects(realm, keys)
                self._unseen.update([(realm, key) for key in keys if key not in present])
        self.inner.write_objects(realm, rows)

    def acknowledged(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        """Record that the write of these rows was acknowledged: from now on every reader finds them."""
        if self._stale:
            self._unseen.difference_update([(realm, ObjectKey(row.id, row.part)) for row in rows])

    def unseen(self, realm: str, keys: Collection[ObjectKey]) -> list[ObjectKey]:
        """Return the keys whose write was not acknowledged. A reader may miss these objects."""
        return [key for key in keys if (realm, key) in self._unseen]


class FaultyBackend(Backend):
    """The backend of one simulated process, which accesses a database through a faulty network. Thread-safe."""

    scope = "process"  # `__init__` sets the scope of the wrapped backend

    def __init__(
        self,
        network: Network,
        schedule: Schedule,
        clock: Clock | None = None,
        *,
        transactional: bool | None = None,
        died: Callable[[], None] | None = None,
        noted: Callable[[str, str, str, object], None] | None = None,
    ) -> None:
        """
        Args:
            network: the database and its delayed writes, shared by all simulated processes.
            schedule: the faults to inject.
            clock: clock for delays.
            transactional: False if this backend must not offer `write_and_swap`. None: as the database.
            died: called once when this simulated process dies.
            noted: called after each operation took effect or failed. Arguments: name of the operation, realm, reference
                name or object ids, and the result or kind of fault.
        """
        inner = network.inner
        offered = inner.transactional if transactional is None else transactional and inner.transactional
        # The interface's class variables get the values of the wrapped database.
        vars(self).update(
            scope=inner.scope,
            transactional=offered,
            transaction_rows=inner.transaction_rows,
            transaction_bytes=inner.transaction_bytes,
        )
        self._network = network
        self._inner = inner
        self._schedule = schedule
        self._clock = clock or SystemClock()
        self._died = died
        self._noted = noted
        self.dead = False
        self._closed = False

    def setup(self) -> None:
        self._alive()
        self._inner.setup()

    def close(self) -> None:
        """Close this object. The database stays open for the other simulated processes, until `Network.inner` is
        closed."""
        self._closed = True

    def die(self) -> NoReturn:
        """Let this simulated process die. Writes that were sent are executed; all later operations raise `ProcessDied`.

        Raises:
            ProcessDied: always.
        """
        if not self.dead:
            self.dead = True
            if self._died is not None:
                self._died()
        raise ProcessDied

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        def read(missed: Collection[ObjectKey] = ()) -> dict[ObjectKey, bytes]:
            found = self._inner.read_objects(realm, keys)
            for key in missed:
                found.pop(key, None)
            return found

        def read_some(fault: Fault) -> dict[ObjectKey, bytes]:
            return read(_some(self._network.unseen(realm, keys), fault.draw))

        return self._do("read_objects", realm, keys, read, stale=read_some)

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        def write_some(fault: Fault) -> None:
            self._network.write(realm, _some(rows, fault.draw))

        self._do(
            "write_objects",
            realm,
            rows,
            lambda: self._network.write(realm, rows),
            changes=True,
            partial=write_some,
        )
        self._network.acknowledged(realm, rows)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        def delete_some(fault: Fault) -> None:
            self._inner.delete_objects(realm, _some(list(keys), fault.draw))

        def delete() -> None:
            self._inner.delete_objects(realm, keys)

        self._do("delete_objects", realm, keys, delete, changes=True, partial=delete_some)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        return self._do("read_reference", realm, name, lambda: self._inner.read_reference(realm, name))

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        return self._do(
            "insert_reference",
            realm,
            name,
            lambda: self._inner.insert_reference(realm, name, new),
            changes=True,
        )

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self._do(
            "swap_reference",
            realm,
            name,
            lambda: self._inner.swap_reference(realm, name, expected_version, new),
            changes=True,
        )

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        return self._do(
            "delete_reference",
            realm,
            name,
            lambda: self._inner.delete_reference(realm, name, expected_version),
            changes=True,
        )

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        if not self.transactional:
            return super().write_and_swap(realm, rows, name, expected_version, new)
        return self._do(
            "write_and_swap",
            realm,
            name,
            lambda: self._inner.write_and_swap(realm, rows, name, expected_version, new),
            changes=True,
        )

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        self._alive()
        return self._inner.splits(table, realms, n)

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        self._alive()
        self._network.settle()
        return self._inner.scan(split)

    def now_ms(self) -> int | None:
        self._alive()
        return self._inner.now_ms()

    def drop_realm(self, realm: str) -> bool:
        self._alive()
        return self._inner.drop_realm(realm)

    def _do(
        self,
        operation: str,
        realm: str,
        subject: object,
        effect: Callable[[], T],
        *,
        changes: bool = False,
        partial: Callable[[Fault], None] | None = None,
        stale: Callable[[Fault], T] | None = None,
    ) -> T:
        self._alive()
        fault = self._schedule.next(operation)
        kind = fault.kind
        self._pause(fault.before_ms)
        self._network.settle()
        if kind == "dies before":
            self._note(operation, realm, subject, kind)
            self.die()
        if kind in ("busy", "lost", "late", "partial"):
            self._note(operation, realm, subject, kind)
            if kind == "late" and changes:
                self._network.later(fault.late_ms, effect)
            elif kind == "partial" and partial is not None:
                partial(fault)
            self._pause(fault.after_ms)
            if kind == "busy":
                raise TryAgainError(f"injected: the database is too busy for {operation}")
            raise OutcomeUnknownError(f"injected: no answer to {operation} ({kind})")
        result = stale(fault) if kind == "stale" and stale is not None else effect()
        self._note(operation, realm, subject, kind or result)
        if kind == "dies after":
            self.die()
        self._pause(fault.after_ms)
        if kind == "unheard":
            raise OutcomeUnknownError(f"injected: no answer to {operation} (unheard)")
        return result

    def _note(self, operation: str, realm: str, subject: object, outcome: object) -> None:
        if self._noted is not None:
            self._noted(operation, realm, _subject(subject), outcome)

    def _pause(self, ms: float) -> None:
        if ms:
            self._clock.sleep_ms(ms)
            self._alive()

    def _alive(self) -> None:
        if self.dead:
            raise ProcessDied
        if self._closed:
            raise StateError("this FaultyBackend is closed")


def _some(items: Sequence[R], draw: int) -> list[R]:
    rng = Random(draw)
    return [item for item in items if rng.random() < 0.5]


def _subject(subject: object) -> str:
    if isinstance(subject, str):
        return subject
    assert isinstance(subject, Collection)
    return ",".join(str(key.id) for key in subject)
