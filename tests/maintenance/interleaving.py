"""A store, a process that sweeps it, and other processes that pause at any of their database operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from greenlet import getcurrent, greenlet

from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Split, Swapped, Table
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.log import commits
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import PolarisError, ReferenceGoneError
from polaris_spark.index import Entry
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import Swept, sweep
from polaris_spark.maintenance.trim import trim
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.registry import ROOT, References
from tests.commits.support import Add, references

REALM = "r"
ME = Operation(b"", "me")
MAIN, SIDE, GONE = "main", "side", "gone"
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
GRACE, RETENTION = MINUTE, 2 * MINUTE
BRIEF = 10 * SECOND
"""A grace period that keeps nothing of what is written meanwhile."""
_numbers = count()


class Stepping(MemoryBackend):
    """A process's handle of a store in memory. It calls `step` before each operation."""

    def __init__(self, name: str, *, transactional: bool = False) -> None:
        super().__init__(name)
        vars(self).update(transactional=transactional)  # a class variable of the interface
        self.step: Callable[[], None] = lambda: None

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        self.step()
        return super().read_objects(realm, keys)

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        self.step()
        super().write_objects(realm, rows)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        self.step()
        super().delete_objects(realm, keys)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        self.step()
        return super().read_reference(realm, name)

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        self.step()
        return super().insert_reference(realm, name, new)

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        self.step()
        return super().write_and_swap(realm, rows, name, expected_version, new)

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        self.step()
        return super().splits(table, realms, n)


class Merge(Change[dict[bytes, Entry], None]):
    """Copy the content that another reference has when this change is prepared."""

    def __init__(self, source: str, process: References) -> None:
        self.source = source
        self.process = process
        self.operation = ME

    def prepare(self, view: State) -> dict[bytes, Entry]:
        return dict(self.process.read(self.source).index("names").range())

    def apply(self, state: State, prepared: dict[bytes, Entry]) -> None:
        for key, entry in prepared.items():
            before = state.lookup("names", key)
            state.put("names", key, entry)
            state.log(LogEntry(b"", "me", 1, "merge", 7, key, before.pointer if before else 0, entry.pointer))

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


Action = Callable[[References], object]


class Place:
    """A realm with a main reference, a second one, and a dropped one. Each has a history."""

    def __init__(self, *, transactional: bool = False, dropped: bool = True) -> None:
        """
        Args:
            dropped: whether there is the one that was dropped.
        """
        self.name = f"sweeping-{next(_numbers)}"
        self.clock = ManualClock()
        self.transactional = transactional
        founder, _ = self.process()
        names = (MAIN, SIDE, GONE) if dropped else (MAIN, SIDE)
        for name in names:
            founder.create(name, ME)
            for number in range(3):
                self.clock.advance(SECOND)
                founder.commit(name, Add(f"{name}{number % 2}" + "x" * 600))
        self.clock.advance(RETENTION + MINUTE)
        for name in names:
            founder.commit(name, Add(f"{name}0" + "x" * 600))
        if dropped:
            founder.drop(GONE, ME)
        self.founder = founder
        self.behind = ManualClock(self.clock.now_ms())
        """A clock that is behind by more than the grace period of `BRIEF`: what is made by it is old at once."""
        self.clock.advance(2 * BRIEF)

    def process(self, clock: ManualClock | None = None) -> tuple[References, Stepping]:
        """Return another process, and its handle of the store."""
        backend, clock = Stepping(self.name, transactional=self.transactional), clock or self.clock
        return references(backend, realm=REALM, clock=clock, leases=NodeLeases(backend, clock)), backend

    def later(self) -> None:
        """Let time pass, commit to main and side, and trim history, so that nothing needs their earlier heads any
        more."""
        for _ in range(2):
            for name in (MAIN, SIDE):
                for number in range(2):
                    with contextlib.suppress(ReferenceGoneError):
                        self.founder.commit(name, Add(f"{name}{number}" + "x" * 600))
            self.clock.advance(RETENTION + SECOND)
        trim(self.founder, Policy(RETENTION, 0))

    def sweep(
        self,
        process: References | None = None,
        *,
        retention_ms: int = RETENTION,
        grace_ms: int = GRACE,
        dry_run: bool = False,
    ) -> Swept:
        """Run a whole sweep."""
        policy = Policy(retention_ms, grace_ms)
        return sweep(process or self.process()[0], policy, operation=ME, dry_run=dry_run)

    def heads(self) -> Iterator[Head]:
        """Heads of all rows that the registry lists, and its own."""
        found, backend = self.process()
        for row_name in (ROOT, *(one.row_name for one in found.listed())):
            row = backend.read_reference(REALM, row_name)
            if row is not None:
                yield read_head(row, row_name)

    def check(self) -> None:
        """Check that everything that history needs exists."""
        found, backend = self.process()
        completeness = Completeness(backend, REALM)
        for head in self.heads():
            ids = [id for id, _ in commits(found.store, head)]
            assert completeness.check(ids), completeness.lost_below(head.commit)

    def rows(self) -> set[tuple[int, int]]:
        """Return the keys of all rows."""
        return set(MemoryBackend(self.name)._tables.objects[REALM])


def held(reader: CommitReader) -> dict[bytes, int]:
    """Return the content of a head of a reference: pointers by key."""
    return {key: entry.pointer for key, entry in reader.index("names").range()}


class Held:
    """An action of one process. It pauses before the n-th database operation until the test continues it."""

    def __init__(self, process: tuple[References, Stepping], action: Action, stands_before: int) -> None:
        self._references, self._backend = process
        self._action = action
        self._at = stands_before
        self.operations = 0
        self.error: PolarisError | None = None
        self._thread = greenlet(self._run)

    def begin(self) -> None:
        """Start the action, and wait until it pauses or has ended."""
        self._backend.step = self._step
        self._thread.switch()

    def end(self) -> None:
        """Continue the action to its end. An error is stored in `error`."""
        if not self._thread.dead:
            self._thread.switch()
        assert self._thread.dead
        self._backend.step = lambda: None

    def _run(self) -> None:
        try:
            self._action(self._references)
        except PolarisError as error:
            self.error = error

    def _step(self) -> None:
        self.operations += 1
        if self.operations == self._at:
            getcurrent().parent.switch()
