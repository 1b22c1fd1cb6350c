"""What a part of the benchmark finds, and all that a run found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from benchmarks.measuring import Figure, Sample


class Grid(NamedTuple):
    """Several catalogs beside each other in several workloads."""

    title: str
    columns: tuple[str, ...]
    """The workloads."""
    rows: Mapping[str, Mapping[str, Sample]]
    """By catalog, then by workload; a workload that a catalog does not have is missing."""


class Durability(NamedTuple):
    """When a side's writes are on disk."""

    side: str
    settings: str


class LeftOut(NamedTuple):
    """A peer that was not measured."""

    peer: str
    reason: str


Finding: TypeAlias = "Figure | Grid | Durability | LeftOut"


class Run(NamedTuple):
    """All that was found, by part, and how."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    """Date, rounds and sizes."""
    findings: Mapping[str, Sequence[Finding]]
    failed: Mapping[str, str]
    """Parts that could not be measured: the error."""

    def figures(self, part: str) -> list[Figure]:
        """The lines of a part."""
        return [found for found in self.findings[part] if isinstance(found, Figure)]

    def grids(self) -> list[Grid]:
        """The grids of all parts."""
        return [found for part in self.findings.values() for found in part if isinstance(found, Grid)]

    def durability(self) -> dict[str, str]:
        """Settings of every side that took part."""
        found = [one for part in self.findings.values() for one in part if isinstance(one, Durability)]
        return {one.side: one.settings for one in found}

    def left_out(self) -> dict[str, str]:
        """Why a peer was not measured."""
        found = [one for part in self.findings.values() for one in part if isinstance(one, LeftOut)]
        return {one.peer: one.reason for one in found}

    @property
    def met(self) -> bool:
        """Whether every part was measured and every bar was met."""
        return not self.failed and all(figure.met for part in self.findings for figure in self.figures(part))
