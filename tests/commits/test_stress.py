"""Threads that are interrupted at any point, on a failing database: no change is lost or duplicated, no thread
hangs."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Conflict, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import SystemClock
from polaris_spark.commits.change import Operation, PrepareAgain
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import CommitFailedError, OutcomeUnknownError, TryAgainError

from .support import Add, Box, committer

CLOCK = SystemClock()
LONG_MS = 30_000.0
"""A deadline that only a stuck thread misses."""


class Troubled:
    """A backend that fails at random: with a certain error, or with an unknown outcome before or after the
    operation."""

    def __init__(self, rng: random.Random, *, transactional: bool, rate: float) -> None:
        self.inner = open_backend(f"memory:{uuid.uuid4()}")
        self.transactional = transactional
        self._rng, self._rate = rng, rate

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def _do(self, deed: Callable[[], Any]) -> Any:
        dice = self._rng.random() / self._rate if self._rate else 1.0
        if dice < 0.3:
            raise TryAgainError("the database is busy")
        if dice < 0.5:
            raise OutcomeUnknownError("lost on the way there")
        result = deed()
        if dice < 0.8:
            CLOCK.sleep_ms(self._rng.uniform(0, 3))
        elif dice < 1.0:
            raise OutcomeUnknownError("lost on the way back")
        return result

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self._do(lambda: self.inner.write_and_swap(realm, rows, name, expected, new))  # type: ignore[no-any-return]  # what the swap gives

    def swap_reference(self, realm: str, name: str, expected: bytes, new: ReferenceRow) -> Swapped | Conflict:
        return self._do(lambda: self.inner.swap_reference(realm, name, expected, new))  # type: ignore[no-any-return]  # what the swap gives

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        self._do(lambda: self.inner.write_objects(realm, rows))


class Tagged(Add):
    """An addition with a tag in its log entry. It must see all additions that were acknowledged before it."""

    def __init__(self, tag: str, name: str, *, floor: int, kind: str, operation: Operation) -> None:
        super().__init__(name, operation=operation)
        self.tag, self.floor, self.kind = tag, floor, kind

    def prepare(self, view: State) -> object:
        found = view.lookup("names", self.name) if self.kind == "prepared" else None
        return found and found.pointer

    def apply(self, state: State, prepared: object) -> int:
        found = state.lookup("names", self.name)
        number = state.get(found.pointer, Box).number if found else 0
        if number < self.floor:
            raise CommitFailedError(f"{self.tag} sees {number}, and {self.floor} was acknowledged before")
        if self.kind == "prepared":
            assert prepared == (found and found.pointer)
        if self.kind == "again" and self.runs == 0:
            self.runs = 1
            raise PrepareAgain
        if self.kind == "read":
            return number
        result = super().apply(state, prepared)
        last = state.effects.entries.pop()
        state.log(LogEntry(last.operation, self.tag, 1, "add", 7, last.key, last.before, last.after))
        if self.kind == "fail":
            raise ValueError("fails whatever it finds")
        return result


class Deed:
    """A requested change and its outcome, as far as the outcome is known."""

    def __init__(self, tag: str, kind: str, deadline_ms: float) -> None:
        self.tag, self.kind, self.deadline_ms = tag, kind, deadline_ms
        self.outcome: object = "unknown"


class Stage:
    """Committers of one reference in several processes, and the threads that use them."""

    def __init__(self, seed: int, *, processes: int, transactional: bool, rate: float) -> None:
        self.rng = random.Random(seed)
        self.backend: Any = Troubled(random.Random(seed + 1), transactional=transactional, rate=rate)
        self.committers = [self._committer() for _ in range(processes)]
        self.deeds: list[Deed] = []
        self.floors: dict[str, int] = {}
        self.wrong: list[BaseException] = []
        self.over = threading.Event()

    def _committer(self) -> Committer:
        while True:
            with contextlib.suppress(TryAgainError, OutcomeUnknownError):
                return committer(self.backend, clock=CLOCK, deadline_ms=LONG_MS, default_quota=600)

    def work(self, number: int, seed: float, deeds: int) -> None:
        """Commit changes in one thread."""
        with contextlib.suppress(KeyboardInterrupt):  # it came between two deeds
            self._work(number, random.Random(seed), deeds)

    def _work(self, number: int, rng: random.Random, deeds: int) -> None:
        c = self.committers[number % len(self.committers)]
        done = 0
        while done < deeds:
            try:
                while done < deeds:
                    done += 1
                    self._do(c, rng, f"{number}-{done}")
            except KeyboardInterrupt:
                continue
            except BaseException as error:
                self.wrong.append(error)

    def _do(self, c: Committer, rng: random.Random, tag: str) -> None:
        name = rng.choice(["a", "b", "c", f"n{tag}"])
        kind = rng.choice(["add"] * 6 + ["prepared", "again", "read", "fail"])
        id = (CLOCK.now_ms().to_bytes(6, "big") + rng.randbytes(10)) if rng.random() < 0.5 else b""
        operation = Operation(id, "tester", tag.encode())
        floor = self.floors.get(name, 0)
        deed = Deed(tag, kind, rng.choice([LONG_MS, LONG_MS, rng.uniform(0, 20)]))
        self.deeds.append(deed)
        began = CLOCK.monotonic_ms()
        trying, doubted = True, False
        while trying:
            trying = False
            change = Tagged(tag, name, floor=floor, kind=kind, operation=operation)
            try:
                deed.outcome = result = c.commit(change, deadline_ms=deed.deadline_ms)
                if result > self.floors.get(name, 0):
                    self.floors[name] = result
            except (TryAgainError, ValueError) as error:
                if not doubted:
                    deed.outcome = error
            except OutcomeUnknownError as error:
                trying = doubted = id != b"" and rng.random() < 0.7
                if deed.deadline_ms == LONG_MS:
                    raise AssertionError(f"{tag} was stuck") from error
        late = CLOCK.monotonic_ms() - began - deed.deadline_ms
        if isinstance(deed.outcome, TryAgainError) and (deed.deadline_ms == LONG_MS or late > LONG_MS):
            raise AssertionError(f"{tag} was stuck, {late:.0f} ms too late") from deed.outcome

    def run(self, threads: int, deeds: int, interrupts_per_s: float) -> None:
        """Run this number of threads. Each of them commits this number of changes, and is interrupted at random."""
        workers = [
            threading.Thread(target=self.work, args=(n, self.rng.random(), deeds), daemon=True)
            for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            if interrupts_per_s:
                self.over.wait(self.rng.expovariate(interrupts_per_s))
                interrupt(self.rng.choice(workers))
            else:
                self.over.wait(0.01)

    def check(self) -> None:
        """Check that every acknowledged change was committed once, that no refused change was, and that no group
        hangs."""
        if self.wrong:
            raise self.wrong[0]
        self.backend._rate = 0.0
        for c in self.committers:
            group = c._attempts.group
            assert (group._computes, list(group._waiting), group._last) == (None, [], None)
            assert c.commit(Add("last"), deadline_ms=LONG_MS) > 0
        head = self.committers[0].read()
        listed = [entry for _, _, _, entry in entries(head.store, head.head)]
        times = Counter(entry.principal for entry in listed)
        after = {entry.principal: head.store.get(entry.after, Box).number for entry in listed}
        for deed in self.deeds:
            tag, outcome = deed.tag, deed.outcome
            if outcome == "unknown":
                assert times[tag] <= 1, tag
            elif isinstance(outcome, Exception) or deed.kind == "read":
                assert times[tag] == 0, (tag, outcome)
            else:
                assert (times[tag], after[tag]) == (1, outcome), tag
        totals = Counter(entry.key for entry in listed)
        for key, total in totals.items():
            found = head.index("names").get(key)
            assert found is not None
            assert head.store.get(found.pointer, Box).number == total


def interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread, at any point."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
        )


@pytest.fixture(autouse=True)
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # between two deeds
@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
@pytest.mark.parametrize("processes", [1, 3])
def test_interrupted_threads_over_a_troubled_database_lose_and_double_nothing(
    processes: int, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interrupt in a destructor or in a callback of the garbage collector cannot be raised. pytest's hook for it is
    # Python code, which the next interrupt would break off.
    monkeypatch.setattr(sys, "unraisablehook", id)
    stage = Stage(7, processes=processes, transactional=transactional, rate=0.1)
    stage.run(threads=8, deeds=40, interrupts_per_s=200)
    stage.check()
