"""Measures how the work of a request grows with its size, in instructions, which other processes cannot affect."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import polaris_spark
from polaris_spark.commits import applier
from polaris_spark.store import memory
from tests.rest.client import Client

_stores = count()

Action = Callable[[], object]
Prepare = Callable[[Client, int], Action]
"""Prepares a catalog for a request of a size, and returns the request."""


def counted(action: Action) -> int:
    """The number of Python instructions that an action executes in this thread.

    Instructions of `polaris_spark.store.memory` are not counted, because it measures a sample of the decoded objects,
    and the sample depends on earlier requests. Finalizers are not counted either, because they run whenever Python
    collects garbage. No change is applied a second time for having taken long, as could happen on a busy machine.
    """
    instructions = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:  # as Python calls it
        nonlocal instructions
        if event == "opcode":
            instructions += 1
        elif frame.f_code.co_filename == memory.__file__:
            return None
        else:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace

    before = sys.gettrace()
    with patch.object(applier, "TURN_MS", math.inf), patch.object(applier, "SLOW_MS", math.inf):
        gc.disable()
        sys.settrace(trace)
        try:
            action()
        finally:
            sys.settrace(before)
            gc.enable()
    return instructions


def timed(action: Action) -> int:
    """The processor time that an action takes in this thread, in nanoseconds."""
    gc.collect()
    gc.disable()  # it would scan objects that other tests left behind
    try:
        begun = time.thread_time_ns()
        action()
        return time.thread_time_ns() - begun
    finally:
        gc.enable()


class Growth(NamedTuple):
    """The work of a request of some size, of twice the size, and of four times the size."""

    single: int
    double: int
    fourfold: int

    @property
    def ratio(self) -> float:
        """The work of the request of four times the size, relative to the smallest: 4 if work grows with size."""
        return self.fourfold / self.single

    @property
    def steepening(self) -> float:
        """The cost of a further part in a large request, relative to a small one: 1 if the cost is the same, and almost
        2 if work grows with the square of the size."""
        return (self.fourfold - self.double) / 2 / max(1, self.double - self.single)


def growth(prepare: Prepare, size: int, measure: Callable[[Action], int] = counted) -> Growth:
    """The growth of one kind of request, each measured on a catalog of its own, after a first one fills caches."""
    work(prepare, size, measure)
    return Growth(*(work(prepare, times * size, measure) for times in (1, 2, 4)))


def work(prepare: Prepare, size: int, measure: Callable[[Action], int] = counted) -> int:
    """The work of a request of a size, on a catalog of its own."""
    store = f"memory:growth-{next(_stores)}"
    with polaris_spark.connect(store=store, warehouse="/tmp/growth", metadata_files="never") as session:
        client = Client(session)
        client.namespace("db")
        return measure(prepare(client, size))
