"""Summaries of snapshots, with totals recomputed for another parent snapshot."""

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
"""Maps the name of each total in a summary to two other fields: the one that increases the total, and the one that
decreases it (Iceberg's `SnapshotSummary`)."""

NOTHING: Final[Mapping[str, str]] = dict.fromkeys(_TOTALS, "0")
"""The totals of a table without snapshots."""


_MOST_DIGITS: Final = 18
"""Maximum number of decimal digits of a number in a summary; every number of this length fits in 64 bits."""


def number_in(summary: Mapping[str, object], name: str) -> int | None:
    """Return the value of a field of a summary as a number. Clients can send any text, so return None if the field is
    absent, is not a number, or has too many digits."""
    text = str(summary.get(name, ""))
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def counted_on(sent: Mapping[str, str], before: Mapping[str, str], kept: int) -> dict[str, str]:
    """Return the summary of a snapshot, with totals recomputed for its new parent snapshot. A total is left out if the
    parent's total is missing or malformed, if the count that was added or removed is malformed, or if the new total
    would be negative.

    Args:
        sent: summary of the snapshot that the client sent.
        before: summary of the new parent; `NOTHING` if there is no parent.
        kept: number of the parent's manifests that the snapshot keeps.
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
