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


def counted_on(sent: Mapping[str, str], before: Mapping[str, str], kept: int) -> dict[str, str]:
    """A summary that was sent, with totals counted on from the head's; what that lacks, or garbles, is left out.

    Args:
        before: the head's.
        kept: how many of the head's manifests the snapshot keeps.
    """
    summary = {name: value for name, value in sent.items() if name not in _TOTALS}
    for total, (added, removed) in _TOTALS.items():
        if total not in before:
            continue
        try:
            number = int(before[total]) + int(sent.get(added, "0")) - int(sent.get(removed, "0"))
        except ValueError:
            continue
        if number >= 0:
            summary[total] = str(number)
    if "manifests-kept" in summary:
        summary["manifests-kept"] = str(kept)
    return summary
