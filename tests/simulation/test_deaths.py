"""A process dies at one of its database operations. The next process repeats the requests, and each takes effect
once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.upkeep import fence, raise_floor
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.registry import References
from polaris_spark.testing.faults import FaultyBackend, Network, ProcessDied
from polaris_spark.testing.schedules import Fault, FixedSchedule, Kind, Schedule
from tests.commits.support import Add, Box, references

_numbers = count()


class DiesAt:
    """A schedule that ends the process at one operation, and counts the operations."""

    def __init__(self, at: int, kind: Kind) -> None:
        self.at, self.kind = at, kind
        self.operations = 0

    def next(self, operation: str) -> Fault:
        self.operations += 1
        return Fault(self.kind if self.operations == self.at else "")


def _adds(name: str) -> Callable[[References, Operation], object]:
    return lambda found, operation: found.commit("main", Add(name, operation=operation))


def _fences(found: References, operation: Operation) -> None:
    id = found.ids.next_id()
    found.open("main").amend(lambda head: fence(head, id))


def _trims(found: References, operation: Operation) -> None:
    reader = found.read("main")
    commit = reader.store.get(reader.commit.parents[0], Commit)
    found.open("main").amend(lambda head: raise_floor(head, commit))


class Story:
    """A sequence of requests with operation ids. After the death of a process, the next one continues with the first
    unanswered request."""

    def __init__(self, *, transactional: bool) -> None:
        self.clock = ManualClock()
        self.network = Network(open_backend(f"memory:deaths-{next(_numbers)}"), self.clock)
        self.transactional = transactional
        self.answered = 0
        self.steps: list[Callable[[References, Operation], object]] = [
            lambda found, operation: found.create("main", operation),
            *(_adds(f"k{number % 3}" + "x" * 300) for number in range(8)),
            lambda found, operation: found.drop("main", operation),
            lambda found, operation: found.undrop("main", operation),
            _fences,
            *(_adds("after") for _ in range(3)),
            _trims,
            lambda found, operation: found.ids.release(),
        ]

    def go_on(self, schedule: Schedule) -> References:
        """Send the remaining requests from a new process."""
        backend = FaultyBackend(self.network, schedule, self.clock, transactional=self.transactional)
        found = references(backend, clock=self.clock, leases=NodeLeases(backend, self.clock))
        while self.answered < len(self.steps):
            id = self.clock.now_ms().to_bytes(6, "big") + bytes([self.answered]) * 10
            self.steps[self.answered](found, Operation(id, "tester"))
            self.answered += 1
        return found

    def check(self, found: References) -> None:
        """Check that every request took effect once."""
        reader = found.read("main")
        names = dict(reader.index("names").range())
        boxes = {
            key.rstrip(b"x"): reader.store.get(entry.pointer, Box).number for key, entry in names.items()
        }
        assert boxes == {b"k0": 3, b"k1": 3, b"k2": 2, b"after": 3}
        assert reader.head.number == 8 + 3
        logged = [entry.key for *_, entry in entries(reader.store, reader.head)]
        assert logged == [b"after"] * 2
        assert Completeness(self.network.inner, reader.store.realm).check([reader.head.commit])


def _lengths() -> dict[bool, int]:
    """Return the number of database operations of the whole sequence, with transactions and without."""
    found = {}
    for transactional in (True, False):
        schedule = DiesAt(0, "")
        Story(transactional=transactional).go_on(schedule)
        found[transactional] = schedule.operations
    return found


@pytest.mark.parametrize("kind", ["dies before", "dies after"])
@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
def test_a_process_may_die_anywhere(kind: Kind, transactional: bool) -> None:
    length = _lengths()[transactional]
    assert length > 40
    for at in range(1, length + 1):
        story = Story(transactional=transactional)
        with pytest.raises(ProcessDied):
            story.go_on(DiesAt(at, kind))
        story.check(story.go_on(FixedSchedule([])))
