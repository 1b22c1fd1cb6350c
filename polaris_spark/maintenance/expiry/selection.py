"""Selection of the files that a run of expiry deletes, among the files that no table needs.

Files that the run must not delete, files that do not exist, and files beyond the limit of the run are left out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from polaris_spark.catalog.engine import Engine
from polaris_spark.maintenance.expiry.leftovers import Leftover
from polaris_spark.maintenance.file_deletion import absent_files


def take(leftovers: Sequence[Leftover], engine: Engine, *, most: int | None) -> None:
    """Remove from each table's `files` the files that must not be deleted, that an earlier run has already deleted, or
    that are left to the next run.

    Also sets `grants` of each table to the permissions to delete the other files.

    Args:
        leftovers: tables with expired snapshots.
        most: number of files after which no further table is included; all files of the table that reaches this number
            are still included. None for no limit.
    """
    for leftover in leftovers:
        _leave_outside(leftover)
    # Every run finds shared files again, for as long as another table needs them. So tables with shared files come
    # last. Every run also finds those files again that can never be deleted. The order of tables is random, so that
    # these files do not use up the limit of every run before other files are deleted.
    mixed = random.sample(leftovers, len(leftovers))
    waiting = deque(sorted(mixed, key=lambda one: one.shared))
    taken = 0
    while waiting and (most is None or taken < most):
        some = _first(waiting, None if most is None else most - taken)
        _leave_absent([leftover for leftover in some if leftover.begun], engine)
        taken += sum(len(leftover.files) for leftover in some)
    for leftover in waiting:
        if leftover.files:
            leftover.outcome.notes.append("files are left to the next run: max_files is reached")
            leftover.files, leftover.complete = {}, False


def _first(waiting: deque[Leftover], files: int | None) -> list[Leftover]:
    """Take leftovers from the front of `waiting` until they have `files` files or more. Take all if `files` is None."""
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
        leftover.outcome.notes.append(f"{outside} files are left: they are outside the table's locations")


def _leave_absent(leftovers: Sequence[Leftover], engine: Engine) -> None:
    """Remove from each leftover the files that no longer exist, because earlier runs deleted them."""
    locations = list({location: 0 for leftover in leftovers for location in leftover.files})
    absent: set[str] = set()
    for found in absent_files(engine, locations, "looking for files that are left"):
        absent.update(found)
    for leftover in leftovers:
        for location in absent.intersection(leftover.files):
            del leftover.files[location]
