"""Deterministic simulation of many processes on one catalog. A seed determines a run, and replays it exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.run import Verdict, simulate


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command can report in one line that greenlet is not installed."""
    if name in __all__:
        from tests.simulation import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Verdict", "simulate"]
