"""The history of a reference some of whose commits are lost: which can still be named, and which are complete.

A commit names its 20 nearest ancestors, and farther ones at powers of two; a reference's row names recent heads. So the
ids of lost commits are mostly known, and the walk goes on below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polaris_spark.commits.completeness import BATCH, Completeness
from polaris_spark.commits.rows import FIRST_SKIP, Commit, Head


class Known(NamedTuple):
    """A commit whose id is known."""

    number: int
    id: int
    time: int = 0
    """Milliseconds since 1970; 0 where the commit itself is lost."""
    entries: int = 0
    """Its log entries."""


Lineage = dict[int, Known]
"""The commits of a reference whose ids are known, by number."""


def lineage(objects: Completeness, named: Iterable[Known], floor: int) -> Lineage:
    """Every commit from number `floor` on that can be reached by pointers to ancestors from the ones named."""
    found: Lineage = {}
    unread: dict[int, int] = {}
    for known in named:
        if known.number >= floor:
            found.setdefault(known.number, known)
            unread.setdefault(known.number, known.id)
    while unread:
        numbers = sorted(unread, reverse=True)[:BATCH]
        ids = {unread.pop(number): number for number in numbers}
        for id, commit in objects.values(list(ids), Commit).items():
            found[ids[id]] = Known(ids[id], id, commit.time, commit.entries)
            for number, ancestor in ancestors(commit):
                if number >= floor and number not in found:
                    found[number] = Known(number, ancestor)
                    unread[number] = ancestor
    return found


def named_by(head: Head) -> list[Known]:
    """The commits that a reference's row names."""
    return [
        Known(head.number, head.commit, head.time),
        *(Known(recent.number, recent.commit, recent.time) for recent in head.recent),
    ]


def ancestors(commit: Commit) -> list[tuple[int, int]]:
    """(number, id) of the ancestors that a commit names."""
    last = commit.number - 1
    near = [(commit.number - distance, id) for distance, id in enumerate(commit.parents, 1)]
    shifts = range(FIRST_SKIP, FIRST_SKIP + len(commit.skips))
    return near + [(last >> shift << shift, id) for shift, id in zip(shifts, commit.skips, strict=True)]


def first_complete(objects: Completeness, candidates: Sequence[Known]) -> Known | None:
    """The first of these commits that is there with all its content; None if there is none."""
    start, together = 0, 1
    while start < len(candidates):
        some = candidates[start : start + together]
        objects.check([known.id for known in some])
        for known in some:
            if objects.complete(known.id):
                return known
        start, together = start + together, min(BATCH, together * 4)
    return None


def complete_back_to(objects: Completeness, commits: Lineage, newest: Known, floor: int) -> int:
    """The lowest number such that every commit from it up to `newest`, which is complete, is so, too."""
    number, together = newest.number, 1
    while number > floor:
        some = [commits.get(below) for below in range(number - 1, max(floor, number - together) - 1, -1)]
        objects.check([known.id for known in some if known is not None])
        for known in some:
            if known is None or not objects.complete(known.id):
                return number
            number = known.number
        together = min(BATCH, together * 4)
    return number
