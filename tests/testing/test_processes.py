"""Work in other processes that crash, or never end."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Conflict
from polaris_spark.errors import StateError
from polaris_spark.testing import processes, waiting
from polaris_spark.testing.processes import exit_status, in_processes, increments
from polaris_spark.testing.stores import row


def crash(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> int:
    if number:
        raise StateError(f"refused {number}")
    return number


def forever(_: int) -> None:
    while True:
        time.sleep(1)


def test_each_gives_its_own_result_in_the_order_of_the_arguments() -> None:
    assert in_processes(divmod, [(7, 2), (9, 5)]) == [(3, 1), (1, 4)]


def test_a_process_that_crashes_is_reported() -> None:
    with pytest.raises(BrokenProcessPool):
        in_processes(crash, [(0,), (1,)])


def test_an_error_of_one_process_is_raised() -> None:
    with pytest.raises(StateError, match="refused 1"):
        in_processes(refuse, [(0,), (1,)])


def test_processes_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LONGEST_S", 0.5)
    with pytest.raises(AssertionError, match="2 processes did not end"):
        in_processes(forever, [(0,), (1,)])


def test_a_child_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.2)
    child = os.fork()
    if child == 0:
        forever(0)
    with pytest.raises(AssertionError, match="ends"):
        exit_status(child)
    with pytest.raises(ChildProcessError):
        os.waitpid(child, 0)


def test_a_store_that_calls_every_swap_a_conflict_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.2)
    backend = open_backend("memory:refusing")
    backend.insert_reference("realm", "name", row(b"0"))
    monkeypatch.setattr(backend, "swap_reference", lambda *_: Conflict(None))
    with pytest.raises(AssertionError, match="lost each swap"):
        increments(backend, "realm", "name", 1)
