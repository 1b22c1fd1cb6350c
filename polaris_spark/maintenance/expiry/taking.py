"""Which files of leftovers a run takes on: those that may be deleted, are still there, and keep within its limit."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from polaris_spark.maintenance.deleting import FILES_OF_AN_ITEM, absent_files
from polaris_spark.maintenance.expiry.leftovers import Leftover
from polaris_spark.maintenance.spreading import Spread


def take(
    leftovers: Sequence[Leftover],
    spread: Spread,
    progress: Callable[[str, int, int], None],
    *,
    most: int | None,
) -> None:
    """Leave out of leftovers' files what may not be deleted, is gone, or is left to the next run.

    Args:
        most: so many files end a run, with the leftover that reaches it.
    """
    for leftover in leftovers:
        _leave_outside(leftover)
    # What others share is found again by every run until they do not; so it comes last, whatever stays of it. What can
    # never be deleted is, too: the order is random, so that it does not use up every run before the others.
    mixed = random.sample(leftovers, len(leftovers))
    waiting = deque(sorted(mixed, key=lambda one: one.shared))
    taken = 0
    while waiting and (most is None or taken < most):
        some = _first(waiting, None if most is None else most - taken)
        _leave_absent([leftover for leftover in some if leftover.begun], spread, progress)
        taken += sum(len(leftover.files) for leftover in some)
    for leftover in waiting:
        if leftover.files:
            leftover.outcome.notes.append("files are left to the next run: max_files is reached")
            leftover.files, leftover.complete = {}, False


def _first(waiting: deque[Leftover], files: int | None) -> list[Leftover]:
    """The first leftovers that together have so many files; all of them, if that is None."""
    found: list[Leftover] = []
    known = 0
    while waiting and (files is None or known < files):
        found.append(waiting.popleft())
        known += len(found[-1].files)
    return found


def _leave_outside(leftover: Leftover) -> None:
    files = list(leftover.going())
    granted = {file.location: leftover.deletable.grant(file.location) for file in files}
    leftover.grants = {location: grant for location, grant in granted.items() if grant is not None}
    leftover.files = {file.location: file for file in files if file.location in leftover.grants}
    if len(leftover.files) < len(files):
        outside = len(files) - len(leftover.files)
        leftover.outcome.notes.append(f"{outside} files are left: they lie in no place of the table")


def _leave_absent(
    leftovers: Sequence[Leftover], spread: Spread, progress: Callable[[str, int, int], None]
) -> None:
    """Leave out what earlier runs deleted: it is found again as long as what names it stays."""
    locations = list({location: 0 for leftover in leftovers for location in leftover.files})
    absent: set[str] = set()
    for position, found in enumerate(absent_files(spread, locations)):
        progress("looking for files that are left", position * FILES_OF_AN_ITEM, len(locations))
        absent.update(found.locations)
    for leftover in leftovers:
        for location in absent.intersection(leftover.files):
            del leftover.files[location]
