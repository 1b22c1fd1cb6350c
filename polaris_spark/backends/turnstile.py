"""A gate that lets no new operation begin while a resource that all operations use is closed or replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Turnstile:
    """Runs operations. No operation begins while `changing` is locked.

    A Ctrl-C may come between any two calls, and could make a count of operations wrong permanently. So there is no
    count: each thread holds its own lock during an operation. Locks are acquired and released in C code only, where no
    Ctrl-C comes in between.
    """

    def __init__(self, changing: threading.Lock) -> None:
        self.changing = changing
        self._turns: dict[
            int, threading.RLock
        ] = {}  # by thread identifier; identifiers of ended threads are reused

    def run(self, operation: Callable[[A], T], argument: A) -> T:
        """Wait until `changing` is unlocked, run the operation, and return its result."""
        thread = threading.get_ident()
        turn = self._turns.get(thread) or self._turns.setdefault(thread, threading.RLock())
        while True:
            with turn:
                if not self.changing.locked():
                    return operation(argument)
            with self.changing:  # wait until it is unlocked
                pass

    def ended(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until every operation has ended. Return True if all have ended, and False
        otherwise; also False if the calling thread itself is in an operation, which cannot end during the wait. The
        caller must have locked `changing`."""
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
