"""Ctrl-C at every point of a commit at which Python can raise KeyboardInterrupt."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import pytest

from polaris_spark import clock
from polaris_spark.clock import ThreadSignal
from polaris_spark.commits import applier, attempts, builder, files, group, head_reader, publication, retry
from polaris_spark.commits.committer import Committer
from polaris_spark.testing.waiting import PATIENCE_S, wait_until

from .support import Add, number
from .test_attempts import Caller, Held, opened, waiting

MODULES = (applier, attempts, builder, clock, files, group, publication, head_reader, retry)
PLACES = {module.__file__ for module in MODULES}


class Interruption:
    """Interrupts the thread that enters it at the n-th point where Python checks for signals: when a function begins,
    and when a function written in C returns."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.came = False

    def __enter__(self) -> None:
        sys.setprofile(self._count)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in PLACES:
            self._left -= 1
            if self._left < 0 and not self.came:
                self.came = True
                raise KeyboardInterrupt


class Victim(Add):
    """A change whose commit is interrupted."""

    def __init__(self, committer: Committer, at: int) -> None:
        super().__init__("a")
        self.interruption = Interruption(at)
        self.result: object = None
        self.thread = threading.Thread(target=self._run, args=(committer,))
        self.thread.start()

    def _run(self, committer: Committer) -> None:
        try:
            with self.interruption:
                self.result = committer.commit(self)
        except KeyboardInterrupt as error:
            self.result = error


def idle(c: Committer) -> bool:
    found = c._attempts.group
    return (found._computes, found._waiting, found._last) == (None, [], None)


@pytest.mark.parametrize("transactional", [True, False], ids=["with transactions", "rows first, then swap"])
def test_after_an_interrupt_at_any_point_other_and_later_changes_are_made_once(
    transactional: bool,
) -> None:
    at, came = 0, True
    while came:
        held = Held(transactional=transactional)
        c = opened(held)
        held.steps = [held.hold]
        first = Caller(c, Add("first"))
        held.at_swap.wait(PATIENCE_S)
        victim = Victim(c, at)
        wait_until(lambda: victim.runs or victim.result, "the callers are where they should be")  # noqa: B023  # it is called at once
        others = [Caller(c, Add("b")), Caller(c, Add("b"))]
        wait_until(lambda: waiting(c) == 2 or victim.result, "the callers are where they should be")  # noqa: B023  # it is called at once
        held.go.set()
        assert first.join() == 1
        assert sorted(caller.join() for caller in others) == [1, 2], at
        victim.thread.join(PATIENCE_S)
        assert number(c, "a") == victim.result or isinstance(victim.result, KeyboardInterrupt), at
        assert number(c, "a") <= 1, at
        assert number(c, "b") == 2, at
        assert idle(c), at
        came = victim.interruption.came
        at += 1
    assert at > 40


def test_a_signal_stays_set_after_its_waiting_thread_was_interrupted() -> None:
    class Interrupted(ThreadSignal):
        def set(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                raise KeyboardInterrupt
            super().set()

    found: list[object] = []

    def wait(signal: ThreadSignal) -> None:
        try:
            found.append(signal.wait(1_000 * PATIENCE_S))
        except KeyboardInterrupt:
            found.append("interrupted")

    signal = Interrupted()
    waiting = threading.Thread(target=wait, args=(signal,))
    waiting.start()
    signal.set()
    waiting.join()
    assert signal.wait(0)
