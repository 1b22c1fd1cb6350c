"""Forks of a process that uses SQLite.

SQLite records in memory which file locks the process holds. A fork copies this memory, but not the locks. So even a new
connection in the child would rely on locks that no process holds, and the child's commits would be lost once the parent
closes the file (https://sqlite.org/howtocorrupt.html, section 2.6). Therefore all connections are closed before a fork,
when no operation is in progress, and both processes open new connections.
"""

from __future__ import annotations

import _thread
import os
import weakref
from abc import ABC, abstractmethod
from typing import Final

PATIENCE_S: Final = 10.0
"""Maximum time that a fork waits for operations in progress, in seconds. If these operations have not ended by then,
the child cannot use the file."""


class _Forking(_thread.RLock):  # type: ignore[misc]  # final for type checkers only
    """A reentrant lock, which only the thread that holds it can release. `locked` returns whether another thread holds
    it."""

    def locked(self) -> bool:
        try:
            return not self.acquire(blocking=False)
        finally:
            try:  # noqa: SIM105  # entering `suppress` could be interrupted too
                self.release()
            except RuntimeError:  # another thread holds it
                pass


forking: Final = _Forking()
"""Lock that is held while this process forks. If Ctrl-C interrupts the wait for the lock, Python forks without it."""


class Forkable(ABC):
    """Base class of objects that have connections to close before a fork. Every instance is registered, with a weak
    reference, and its methods are called at each fork."""

    def __init__(self) -> None:
        _all.add(self)

    @abstractmethod
    def before_fork(self) -> None:
        """Close all connections. This is called before a fork, in the thread that forks and holds the lock
        `forking`."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Start with new locks. This is called in the forked child, where the old locks may be held by threads that
        exist only in the parent."""


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _before_fork() -> None:
    if not forking._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` does
        return  # without the lock, operations may begin at any time, so nothing is certainly closed
    for each in list(_all):
        each.before_fork()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
# `before` functions run in reverse order of registration, so the lock is acquired before and released after all of the
# above. The methods are passed directly, so that no Python code runs in which Ctrl-C could come.
os.register_at_fork(
    before=forking.acquire,
    after_in_parent=forking.release,
    after_in_child=forking._at_fork_reinit,  # type: ignore[attr-defined]  # its holder may not exist in the child
)
