"""Raises KeyboardInterrupt at every point of an operation at which Python can raise it, one point in each run."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType


def interruptions(operation: Callable[[], object]) -> Iterator[KeyboardInterrupt]:
    """Run an operation with an interrupt where it first begins a function of Python or returns from one of C, then
    with one at the second such place, and so on until a run has none. Python looks for signals there (and where loops
    go round): a lock, say, that C has taken is then taken, but the thread that asked for it does not know it yet.

    Returns:
        Each interrupt after its run, with its traceback, which holds the frames as a notebook does.
    """
    for number in itertools.count(1):
        gc.disable()  # an interrupt in what the collector calls would be lost, and the run taken for the last one
        sys.setprofile(_interrupt_at(number))
        try:
            operation()
        except KeyboardInterrupt as interrupt:
            gc.enable()
            yield interrupt
        else:
            return
        finally:
            sys.setprofile(None)
            gc.enable()


def _interrupt_at(number: int) -> Callable[[FrameType, str, object], None]:
    places = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and next(places) == number:
            sys.setprofile(None)
            del argument  # the frame would hold what a function of C is bound to, which Ctrl-C has no part in
            raise KeyboardInterrupt

    return profile
