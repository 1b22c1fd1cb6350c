"""Two processes compete, and one of them dies or is paused at one of its database operations. Every change takes effect
once, and the other process does not wait for long."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.commits.change import Operation
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.intents import Intents, Published
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Head
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.faults import FaultyBackend, Network, ProcessDied
from polaris_spark.testing.schedules import Fault
from tests.commits.rivals import Pausing, compete
from tests.commits.support import Add, Requested, committer, number
from tests.mailboxes import Office

_numbers = count()

MOST_WAIT_MS = 1_000.0
"""Longest time for which a process may wait for another one that died or is paused, in milliseconds."""

FAULTS = {
    "dies before": Fault("dies before"),
    "dies after": Fault("dies after"),
    "paused before": Fault(before_ms=2_000.0),
    "paused after": Fault(after_ms=2_000.0),
    "paused beyond the time limit": Fault(before_ms=600_000.0),
}


class FaultAt:
    """A schedule with one fault, at one operation. It counts the operations from `begin` on."""

    def __init__(self) -> None:
        self.operations = self.at = 0
        self.fault = Fault()

    def begin(self, at: int, fault: Fault) -> None:
        """Let operation number `at` from now on have a fault; none if it is 0."""
        self.operations, self.at, self.fault = 0, at, fault

    def next(self, operation: str) -> Fault:
        self.operations += 1
        return self.fault if self.operations == self.at else Fault()


class Story:
    """Changes of two processes, `a` and `b`, and of a third one that commits while `b` is paused."""

    def __init__(self, way: str, *, transactional: bool) -> None:
        clocks = {"a": Pausing(), "b": Pausing()}
        self.clock, self.other_clock = clocks["a"], clocks["b"]
        self.network = Network(open_backend(f"memory:rivals-{next(_numbers)}"), self.clock)
        self.schedules = {name: FaultAt() for name in clocks}
        office = Office() if way == "messages" else None
        self.processes = {
            name: committer(
                FaultyBackend(self.network, self.schedules[name], clock, transactional=transactional),
                clock=clock,
                office=office,
            )
            for name, clock in clocks.items()
        }
        self.third = committer(self.network.inner, clock=self.clock)
        compete(self.processes["a"], self.processes["b"], self.clock)
        self.ids = count(1)
        self.dead: set[str] = set()
        self.unanswered: list[Add] = []
        self.longest = 0.0
        """Longest time that a commit of `a` took, in milliseconds."""

    def operation(self) -> Operation:
        """Return a new operation."""
        return Operation(
            self.clock.now_ms().to_bytes(6, "big") + bytes([0x70, *[0] * 8, next(self.ids)]), "tester"
        )

    def commit(self, name: str, change: Add) -> None:
        """Commit a change in a process. If it dies or gets no definite answer, remember the change."""
        self.unanswered.append(change)
        if name in self.dead:
            return
        begun = self.clock.monotonic_ms()
        try:
            self.processes[name].commit(change)
        except ProcessDied:
            self.dead.add(name)
        except (OutcomeUnknownError, TryAgainError):
            pass
        else:
            self.unanswered.remove(change)
        if name == "a" and name not in self.dead:
            self.longest = max(self.longest, self.clock.monotonic_ms() - begun)

    def run(self) -> None:
        """Let both processes commit: first changes that can be included as they are, then changes of one key."""
        rounds: list[tuple[type[Add], str, str]] = [(Add, "mine", "theirs"), (Requested, "same", "same")]
        for kind, mine, theirs in rounds * 2:
            first, second = (
                kind(mine, 1, operation=self.operation()),
                Add(theirs, 10, operation=self.operation()),
            )
            third = Add("third", 100, operation=self.operation())
            self.other_clock.meanwhile = [partial(self.third.commit, third)]
            self.clock.meanwhile = [partial(self.commit, "b", second)]
            self.commit("a", first)
            while self.clock.meanwhile:
                self.clock.meanwhile.pop()()
            while self.other_clock.meanwhile:
                self.other_clock.meanwhile.pop()()

    def check(self) -> None:
        """Repeat the changes without an answer in a new process, and check that every change took effect once."""
        after = committer(self.network.inner, clock=self.clock)
        for change in self.unanswered:
            after.commit(change)
        found = {name: number(after, name) for name in ("mine", "theirs", "same", "third")}
        assert found == {"mine": 2, "theirs": 20, "same": 22, "third": 400}
        head = after.read()
        logged = [entry.operation for *_, entry in entries(head.store, head.head) if entry.operation]
        assert len(logged) == len(set(logged)) == 12
        assert Completeness(self.network.inner, head.store.realm).check([head.head.commit])


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the intents that were published."""
    ids: list[int] = []
    publish = Intents.publish

    def noted(self: Intents, one: Published, head: Head, *, write: bool = False) -> None:
        ids.append(one.id)
        publish(self, one, head, write=write)

    monkeypatch.setattr(Intents, "publish", noted)
    return ids


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("way", ["rows", "messages"])
@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_rival_may_die_or_be_paused_anywhere(
    kind: str, way: str, victim: str, published: list[int], *, transactional: bool
) -> None:
    calm = Story(way, transactional=transactional)
    calm.schedules[victim].begin(0, Fault())
    published.clear()
    calm.run()
    assert published
    calm.check()
    assert not calm.unanswered
    length = calm.schedules[victim].operations
    assert length >= 4
    longest = 0.0
    for at in range(1, length + 1):
        story = Story(way, transactional=transactional)
        story.schedules[victim].begin(at, FAULTS[kind])
        story.run()
        assert (victim in story.dead) == kind.startswith("dies")
        story.check()
        if victim == "b":
            longest = max(longest, story.longest)
    assert longest <= MOST_WAIT_MS
