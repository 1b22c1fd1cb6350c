"""When which operation of a backend fails, and how: by chance from a seed, or as it was written down.

`polaris_spark.testing.faults` says what each kind of fault is.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, Protocol

Kind = Literal["", "busy", "lost", "unheard", "late", "partial", "stale", "dies before", "dies after"]


class Fault(NamedTuple):
    """What befalls one operation. Times are milliseconds."""

    kind: Kind = ""
    """Empty: nothing goes wrong."""
    before_ms: float = 0.0
    """How long the request takes to the database."""
    after_ms: float = 0.0
    """How long the answer takes back."""
    late_ms: float = 0.0
    """`late`: how much later than its request it takes effect."""
    draw: int = 0
    """`partial`, `stale`: the seed of the choice of rows."""


class Schedule(Protocol):
    """Decides what befalls the operations of one process, in their order. Thread-safe."""

    def next(self, operation: str) -> Fault:
        """The fault of the next operation, named as the method of `Backend`."""
        ...


class Rates(NamedTuple):
    """How likely each fault is in one operation (0 to 1), and how long things take (milliseconds)."""

    busy: float = 0.0
    lost: float = 0.0
    unheard: float = 0.0
    late: float = 0.0
    partial: float = 0.0
    stale: float = 0.0
    death: float = 0.0
    stall: float = 0.0
    """That the process stands still for `stall_ms`, before or after the effect."""
    delay_ms: float = 0.0
    """Each way takes from 0 to twice this."""
    late_ms: tuple[float, float] = (1.0, 2_000.0)
    stall_ms: tuple[float, float] = (10_000.0, 600_000.0)
    stall_before: float = 0.5
    """The share of stalls that come before the effect."""


_KINDS: tuple[Kind, ...] = ("busy", "lost", "unheard", "late", "partial", "stale")


class Seeded:
    """A schedule by chance that is the same for the same seed and the same operations."""

    def __init__(self, rng: Random, rates: Rates, by_operation: Mapping[str, Rates] | None = None) -> None:
        """
        Args:
            rng: seeded by whoever wants to replay.
            rates: of every operation that `by_operation` does not name.
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


class Listed:
    """A schedule that was written down: one fault for each operation in turn, then none."""

    def __init__(self, faults: Sequence[Fault | Kind], *, operations: Collection[str] = ()) -> None:
        """
        Args:
            operations: those that take a fault from the list; empty: all.
        """
        self._faults = [fault if isinstance(fault, Fault) else Fault(fault) for fault in faults]
        self._operations = frozenset(operations)
        self._guard = threading.Lock()

    def next(self, operation: str) -> Fault:
        with self._guard:
            counts = not self._operations or operation in self._operations
            return self._faults.pop(0) if counts and self._faults else Fault()
