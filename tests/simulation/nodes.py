"""Checks of the leases of nodes and tasks, as their rows record them, and of the ids that were generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.ids import SEQUENCE_BITS, id_time_ms, unpack
from polaris_spark.system.leases import NodeRecord
from polaris_spark.system.tasks import TaskRecord

_decode_node = msgspec.msgpack.Decoder(NodeRecord).decode
_decode_task = msgspec.msgpack.Decoder(TaskRecord).decode


class _Span(NamedTuple):
    holder: str
    start_ms: int
    end_ms: int


class NodeWatch:
    """Checks the leases of nodes and the generated ids.

    Spans of two holders of a node must not overlap. Every id must lie in a span of the process that generated it. No id
    may be generated twice.
    """

    def __init__(self, blame: Callable[[str], None]) -> None:
        self._blame = blame
        self._spans: dict[int, list[_Span]] = {}
        self._ids: set[int] = set()
        self._newest: dict[str, int] = {}
        self._made: dict[tuple[str, int], set[int]] = {}
        self.made_at: dict[int, float] = {}
        """Simulated time at which each id was generated, in milliseconds."""

    def swapped(self, name: str, before: ReferenceRow | None, after: ReferenceRow | None) -> None:
        """Check a change of a row of the system realm."""
        if not name.startswith("node/") or after is None:
            return
        node = int(name.removeprefix("node/"))
        new = _decode_node(after.value)
        old = _decode_node(before.value) if before is not None else None
        spans = self._spans.setdefault(node, [])
        goes_on = (
            old is not None and not old.released and (old.holder, old.start_ms) == (new.holder, new.start_ms)
        )
        if goes_on:
            if not new.released and new.end_ms < spans[-1].end_ms:
                self._blame(f"{name}: the lease of {new.holder} was shortened")
            spans[-1] = _Span(new.holder, new.start_ms, new.end_ms)
        elif new.released:
            self._blame(f"{name}: {new.holder} gave back what it did not hold")
        else:
            if spans and new.start_ms < spans[-1].end_ms:
                self._blame(
                    f"{name}: the span of {new.holder} begins {spans[-1].end_ms - new.start_ms} ms too early"
                )
            spans.append(_Span(new.holder, new.start_ms, new.end_ms))

    def made(self, holder: str, ids: range, now: float) -> None:
        """Check ids that a process generated at the simulated time `now`: consecutive ids of one millisecond."""
        self.made_at.update(dict.fromkeys(ids, now))
        if ids[0] in self._ids or ids[-1] in self._ids:
            self._blame(f"id {ids[0]} was made twice, the second time by {holder}")
        self._ids.update(ids)
        if ids[0] <= self._newest.get(holder, 0):
            self._blame(f"{holder} made id {ids[0]}, no higher than one that it had made or read before")
        self._newest[holder] = ids[-1]
        node = unpack(ids[0]).node
        self._made.setdefault((holder, node), set()).add(ids[0] >> SEQUENCE_BITS << SEQUENCE_BITS)

    def read(self, holder: str, id: int) -> None:
        """Record that a process has read a head or a fence. The process must not generate smaller ids afterwards."""
        self._newest[holder] = max(self._newest.get(holder, 0), id)

    def check(self) -> None:
        """Check at the end that every id lies in a final span of the process that generated it."""
        for (holder, node), ids in self._made.items():
            spans = [span for span in self._spans.get(node, ()) if span.holder == holder]
            for id in ids:
                ms = id_time_ms(id)
                if not any(span.start_ms <= ms < span.end_ms for span in spans):
                    self._blame(f"id {id} of {holder} lies outside its leases of node {node}")


class TaskWatch:
    """Checks that a run of a task does not change its row after it was released or replaced by another run."""

    def __init__(self, blame: Callable[[str], None]) -> None:
        self._blame = blame
        self._over: set[bytes] = set()

    def swapped(self, name: str, before: ReferenceRow | None, after: ReferenceRow | None) -> None:
        """Check a change of a row of the system realm."""
        if not name.startswith("task/") or after is None:
            return
        new = _decode_task(after.value)
        if new.run in self._over:
            self._blame(f"{name}: run {new.run.hex()} came back after it had ended")
        if before is not None:
            old = _decode_task(before.value)
            if old.run != new.run or old.released:
                self._over.add(old.run)
                if old.run == new.run:
                    self._blame(f"{name}: run {new.run.hex()} went on after its release")
