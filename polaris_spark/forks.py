"""Objects that begin anew in a forked child, because the child must not use the locks and connections of its parent."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class BeginsAnew(Protocol):
    """An object that `begin_anew_in_children` accepts. It must be hashable and support weak references."""

    def begin_in_child(self) -> None:
        """Replace the locks and connections that come from the parent. Called in a forked child before `os.fork`
        returns there."""
        ...


_all: Final[weakref.WeakSet[BeginsAnew]] = weakref.WeakSet()


def begin_anew_in_children(each: BeginsAnew) -> None:
    """Make every forked child call the object's `begin_in_child`, for as long as the object exists."""
    _all.add(each)


def _begin_in_child() -> None:
    for each in list(_all):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
