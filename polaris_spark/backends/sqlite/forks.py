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

forking: Final = threading.Lock()
"""Locked while this process forks."""


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
_forking: list[Forkable] = []


def _before_fork() -> None:
    _forking[:] = list(_all)
    for each in _forking:
        each.before_fork()


def _after_fork_in_child() -> None:
    for each in _forking:
        each.after_fork_in_child()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_forking.clear, after_in_child=_after_fork_in_child)
# Before all that (what was registered last comes first) and after it, without a moment at which Ctrl-C could come:
os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=forking.release)
