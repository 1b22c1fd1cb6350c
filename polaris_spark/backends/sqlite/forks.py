"""Forking a process that uses SQLite.

SQLite keeps its file locks per process in memory, and a fork copies that memory but not the locks: even a connection
that the child opens for itself would believe in locks that nobody holds, and lose what it commits once the parent
closes the file (https://sqlite.org/howtocorrupt.html, section 2.6). So all connections are closed before a fork, when
no operation is in progress, and both sides open new ones.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Final

PATIENCE_S: Final = 10.0
"""How long a fork waits for operations in progress, seconds; after that its child may not use the file."""


class Turnstile:
    """Counts operations in progress, each of which is a `with` block, and holds new ones back during a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._active = 0
        self._held = False

    def __enter__(self) -> None:
        with self._lock:
            while self._held:
                self._condition.wait()
            self._active += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active -= 1
            if self._held:
                self._condition.notify_all()

    @property
    def active(self) -> int:
        """Operations in progress."""
        return self._active

    def hold(self, timeout: float) -> bool:
        """Let nothing new begin; whether everything begun has ended within `timeout` seconds."""
        with self._condition:
            self._held = True
            return self._condition.wait_for(lambda: not self._active, timeout)

    def let_go(self) -> None:
        """Let operations begin again."""
        with self._condition:
            self._held = False
            self._condition.notify_all()


class Forkable(ABC):
    """What has connections to close before the process forks. Registers itself; forgotten when garbage."""

    def __init__(self) -> None:
        _all.add(self)

    @abstractmethod
    def before_fork(self) -> None:
        """Close everything; called in the thread that forks."""

    @abstractmethod
    def after_fork_in_parent(self) -> None:
        """Go on."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Begin anew: locks may be held by threads that do not exist here."""


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()
_forking: list[Forkable] = []


def _before_fork() -> None:
    _forking[:] = list(_all)
    for each in _forking:
        each.before_fork()


def _after_fork_in_parent() -> None:
    for each in _forking:
        each.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for each in _forking:
        each.after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
