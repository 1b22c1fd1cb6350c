"""A gate for operations on a shared resource. While the resource is being closed or replaced, no operation can
begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Turnstile:
    """Runs operations. No operation begins while the lock `changing` is held.

    A Ctrl-C may interrupt Python code between any two calls, and could make a count of operations wrong permanently. So
    there is no count: each thread holds its own lock during an operation. Locks are acquired and released in C code,
    which a Ctrl-C cannot interrupt halfway.
    """

    def __init__(self, changing: threading.Lock) -> None:
        self.changing = changing
        self._turns: dict[
            int, threading.RLock
        ] = {}  # by thread identifier; identifiers of ended threads are reused

    def run(self, operation: Callable[[A], T], argument: A) -> T:
        """Wait until the lock `changing` is free, call `operation` with `argument`, and return its result."""
        thread = threading.get_ident()
        turn = self._turns.get(thread) or self._turns.setdefault(thread, threading.RLock())
        while True:
            with turn:
                if not self.changing.locked():
                    return operation(argument)
            with self.changing:  # wait until it is unlocked
                pass

    def ended(self, timeout: float) -> bool:
        """Wait until every operation has ended, but at most `timeout` seconds. Return whether all operations have
        ended. The result is False at once if the calling thread itself runs an operation, because that operation cannot
        end during the wait. The caller must hold the lock `changing`."""
        deadline = time.monotonic() + timeout
        return all(_free(turn, deadline) for turn in list(self._turns.values()))


def _free(turn: threading.RLock, deadline: float) -> bool:
    if turn._is_owned():  # type: ignore[attr-defined]  # no public API; `threading.Condition` uses it, too
        return False
    try:
        return turn.acquire(timeout=max(0.0, deadline - time.monotonic()))
    finally:
        try:  # noqa: SIM105  # entering `suppress` could be interrupted too
            turn.release()
        except RuntimeError:  # this thread did not acquire it
            pass
