"""Summaries of snapshots: totals counted on from those of another parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TOTALS: Final = {
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}
"""Totals of a summary, and what is added to and taken from each (Iceberg's `SnapshotSummary`)."""

NOTHING: Final[Mapping[str, str]] = dict.fromkeys(_TOTALS, "0")
"""The totals of a table without snapshots."""


_MOST_DIGITS: Final = 18
"""Of a number that fits 64 bits whatever its digits."""


def number_in(summary: Mapping[str, object], name: str) -> int | None:
    """A number in a summary, whose values are any text that a client sent; None where it is absent or none."""
    text = str(summary.get(name, ""))
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def counted_on(sent: Mapping[str, str], before: Mapping[str, str], kept: int) -> dict[str, str]:
    """A summary that was sent, with totals counted on from the head's; what that lacks, or garbles, is left out.

    Args:
        before: the head's.
        kept: how many of the head's manifests the snapshot keeps.
    """
    summary = {name: value for name, value in sent.items() if name not in _TOTALS}
    for total, (added, removed) in _TOTALS.items():
        start = number_in(before, total)
        more, less = (number_in({name: "0", **sent}, name) for name in (added, removed))
        if start is not None and more is not None and less is not None and start + more >= less:
            summary[total] = str(start + more - less)
    if "manifests-kept" in summary:
        summary["manifests-kept"] = str(kept)
    return summary
