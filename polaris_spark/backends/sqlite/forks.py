"""Forking a process that uses SQLite.

SQLite keeps its file locks per process in memory, and a fork copies that memory but not the locks: even a connection
that the child opens for itself would believe in locks that nobody holds, and lose what it commits once the parent
closes the file (https://sqlite.org/howtocorrupt.html, section 2.6). So all connections are closed before a fork, when
no operation is in progress, and both sides open new ones.
"""

from __future__ import annotations

import _thread
import os
import weakref
from abc import ABC, abstractmethod
from typing import Final

PATIENCE_S: Final = 10.0
"""How long a fork waits for operations in progress, seconds; after that its child may not use the file."""


class _Forking(_thread.RLock):  # type: ignore[misc]  # final for type checkers only
    """A lock that only its owner can release, and of which can be asked whether another thread has it."""

    def locked(self) -> bool:
        try:
            return not self.acquire(blocking=False)
        finally:
            try:  # noqa: SIM105  # entering `suppress` could be interrupted too
                self.release()
            except RuntimeError:  # another thread has it
                pass


forking: Final = _Forking()
"""Locked while this process forks, unless Ctrl-C ended the wait for it: Python forks all the same then."""


class Forkable(ABC):
    """What has connections to close before the process forks. Registers itself; forgotten when garbage."""

    def __init__(self) -> None:
        _all.add(self)

    @abstractmethod
    def before_fork(self) -> None:
        """Close everything; called in the thread that forks, which has locked `forking`."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Begin anew: locks may be held by threads that do not exist here."""


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _before_fork() -> None:
    if not forking._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
        return  # operations may begin at any time, so nothing can be said to be closed
    for each in list(_all):
        each.before_fork()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
# Before all that (what was registered last comes first) and after it, without a moment at which Ctrl-C could come:
os.register_at_fork(
    before=forking.acquire,
    after_in_parent=forking.release,
    after_in_child=forking._at_fork_reinit,  # type: ignore[attr-defined]  # its owner may not exist there
)
