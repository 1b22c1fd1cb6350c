"""Selection of the files that a run of expiry deletes: files that it may delete, that exist, and within its limit."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from polaris_spark.catalog.engine import Engine
from polaris_spark.maintenance.expiry.leftovers import Leftover
from polaris_spark.maintenance.file_deletion import absent_files


def take(leftovers: Sequence[Leftover], engine: Engine, *, most: int | None) -> None:
    """Remove from the leftovers the files that must not be deleted, do not exist, or are left to the next run.

    Args:
        most: number of files after which a run ends; the leftover that reaches this number is still included. None
            for no limit.
    """
    for leftover in leftovers:
        _leave_outside(leftover)
    # Every run finds shared files again, for as long as another table needs them. So leftovers with shared files come
    # last, whatever remains of their files. Every run also finds files again that can never be deleted. The order is
    # random, so that such files do not use up the limit of every run before other files are deleted.
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
    """Take the first leftovers from `waiting` that together have at least `files` files; all if `files` is None."""
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
    """Remove the files that earlier runs deleted. Runs find them again while a file that names them exists."""
    locations = list({location: 0 for leftover in leftovers for location in leftover.files})
    absent: set[str] = set()
    for found in absent_files(engine, locations, "looking for files that are left"):
        absent.update(found)
    for leftover in leftovers:
        for location in absent.intersection(leftover.files):
            del leftover.files[location]
