"""Letting nobody in while what all operations use is closed or replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Turnstile:
    """Runs operations, of which none begins while `changing` is locked.

    A Ctrl-C may come between any two calls. So there is no count of operations, which it would put wrong for good:
    each thread has a lock that it holds while it is in one, and only C takes and releases locks.
    """

    def __init__(self, changing: threading.Lock) -> None:
        self.changing = changing
        self._turns: dict[
            int, threading.RLock
        ] = {}  # by thread; the numbers of those that ended are used again

    def run(self, operation: Callable[[A], T], argument: A) -> T:
        """What an operation gives; it begins when `changing` is free."""
        thread = threading.get_ident()
        turn = self._turns.get(thread) or self._turns.setdefault(thread, threading.RLock())
        while True:
            with turn:
                if not self.changing.locked():
                    return operation(argument)
            with self.changing:  # which waits
                pass

    def ended(self, timeout: float) -> bool:
        """Whether every operation has ended within `timeout` seconds; for whoever has locked `changing`. One of the
        same thread cannot."""
        deadline = time.monotonic() + timeout
        return all(_free(turn, deadline) for turn in list(self._turns.values()))


def _free(turn: threading.RLock, deadline: float) -> bool:
    if turn._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks; nothing public tells
        return False
    try:
        return turn.acquire(timeout=max(0.0, deadline - time.monotonic()))
    finally:
        try:  # noqa: SIM105  # entering `suppress` could be interrupted too
            turn.release()
        except RuntimeError:  # it was not free
            pass
