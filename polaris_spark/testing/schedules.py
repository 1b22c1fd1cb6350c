"""Schedules that determine the fault of each operation of a `FaultyBackend`: random from a seed, or listed explicitly.

`polaris_spark.testing.faults` describes the kinds of faults.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, Protocol

Kind = Literal["", "busy", "lost", "unheard", "late", "partial", "stale", "dies before", "dies after"]


class Fault(NamedTuple):
    """The fault and the delays to inject into one operation. Delays are in milliseconds."""

    kind: Kind = ""
    """Kind of the fault; an empty string for no fault."""
    before_ms: float = 0.0
    """Delay of the request before it reaches the database, in milliseconds."""
    after_ms: float = 0.0
    """Delay of the answer before it reaches the caller, in milliseconds."""
    late_ms: float = 0.0
    """For the kind `late`: time after which the request takes effect, in milliseconds."""
    draw: int = 0
    """For the kinds `partial` and `stale`: seed of the random choice of rows."""


class Schedule(Protocol):
    """Determines the fault of each operation of one simulated process. Thread-safe."""

    def next(self, operation: str) -> Fault:
        """Return the fault to inject into the next operation. `operation` is the name of a method of `Backend`."""
        ...


class Rates(NamedTuple):
    """Probability (0 to 1) of each kind of fault of one operation, and ranges of delays in milliseconds."""

    busy: float = 0.0
    lost: float = 0.0
    unheard: float = 0.0
    late: float = 0.0
    partial: float = 0.0
    stale: float = 0.0
    death: float = 0.0
    stall: float = 0.0
    """Probability that the process stalls before or after the operation takes effect, for a time in the range
    `stall_ms`."""
    delay_ms: float = 0.0
    """Mean delay of the request, and mean delay of the answer, in milliseconds. Each is random from 0 to twice the
    mean."""
    late_ms: tuple[float, float] = (1.0, 2_000.0)
    """Range of the time after which a late request takes effect, in milliseconds."""
    stall_ms: tuple[float, float] = (10_000.0, 600_000.0)
    """Range of the duration of a stall, in milliseconds."""
    stall_before: float = 0.5
    """Probability that a stall occurs before the operation takes effect, not after it."""


_KINDS: tuple[Kind, ...] = ("busy", "lost", "unheard", "late", "partial", "stale")


class Seeded:
    """A random schedule. It is the same for generators with the same seed and the same sequence of operations."""

    def __init__(self, rng: Random, rates: Rates, by_operation: Mapping[str, Rates] | None = None) -> None:
        """
        Args:
            rng: random generator. Create it with a seed, so that the schedule can be replayed.
            rates: rates of the operations that are not in `by_operation`.
            by_operation: rates of single operations, by name of the operation.
        """
        self._rng = rng
        self._rates = rates
        self._by_operation = dict(by_operation or {})
        self._guard = threading.Lock()

    def next(self, operation: str) -> Fault:
        rates = self._by_operation.get(operation, self._rates)
        with self._guard:
            rng = self._rng
            random = rng.random
            before, after = 2 * rates.delay_ms * random(), 2 * rates.delay_ms * random()
            if rates.stall and random() < rates.stall:
                stalled = rng.uniform(*rates.stall_ms)
                before, after = (
                    (before + stalled, after) if random() < rates.stall_before else (before, after + stalled)
                )
            if rates.death and random() < rates.death:
                return Fault("dies before" if random() < 0.5 else "dies after", before, after)
            chance = random()
            for kind in _KINDS:
                chance -= getattr(rates, kind)
                if chance < 0:
                    return Fault(kind, before, after, rng.uniform(*rates.late_ms), rng.getrandbits(32))
            return Fault("", before, after)


class FixedSchedule:
    """An explicit schedule: each operation takes the next fault of the list. At its end, there are no more faults."""

    def __init__(self, faults: Sequence[Fault | Kind], *, operations: Collection[str] = ()) -> None:
        """
        Args:
            faults: faults or kinds of faults, in order.
            operations: names of the operations that take a fault from the list; empty: all operations.
        """
        self._faults = [fault if isinstance(fault, Fault) else Fault(fault) for fault in faults]
        self._operations = frozenset(operations)
        self._guard = threading.Lock()

    def next(self, operation: str) -> Fault:
        with self._guard:
            counts = not self._operations or operation in self._operations
            return self._faults.pop(0) if counts and self._faults else Fault()
