"""The results of a part of the benchmark, and of a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from benchmarks.measurement import Figure, Sample


class Grid(NamedTuple):
    """A table that compares several catalogs in several workloads."""

    title: str
    columns: tuple[str, ...]
    """Names of the workloads."""
    rows: Mapping[str, Mapping[str, Sample]]
    """Results by catalog and by workload, without workloads that a catalog does not have."""


class Durability(NamedTuple):
    """The durability settings of a side, which determine when its writes are on disk."""

    side: str
    settings: str


class LeftOut(NamedTuple):
    """A peer that was not measured."""

    peer: str
    reason: str


Finding: TypeAlias = "Figure | Grid | Durability | LeftOut"


class Run(NamedTuple):
    """The results of a run, by part, with the machine and the settings."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    """Date, rounds and sizes."""
    findings: Mapping[str, Sequence[Finding]]
    failed: Mapping[str, str]
    """Errors of the parts that could not be measured, by part."""

    def figures(self, part: str) -> list[Figure]:
        """Return the lines of a part."""
        return [found for found in self.findings[part] if isinstance(found, Figure)]

    def grids(self) -> list[Grid]:
        """Return the grids of all parts."""
        return [found for part in self.findings.values() for found in part if isinstance(found, Grid)]

    def durability(self) -> dict[str, str]:
        """Return the durability settings of every measured side, by side."""
        found = [one for part in self.findings.values() for one in part if isinstance(one, Durability)]
        return {one.side: one.settings for one in found}

    def left_out(self) -> dict[str, str]:
        """Return the reason for each peer that was not measured, by peer."""
        found = [one for part in self.findings.values() for one in part if isinstance(one, LeftOut)]
        return {one.peer: one.reason for one in found}

    @property
    def met(self) -> bool:
        """Whether every part was measured and every bar was met."""
        return not self.failed and all(figure.met for part in self.findings for figure in self.figures(part))
