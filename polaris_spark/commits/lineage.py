"""The history of a reference some of whose commits were lost: which commits have a known id, and which commits are
complete.

A commit lists the ids of its 20 nearest ancestors, and of farther ones whose numbers are multiples of powers of two. A
reference's row lists recent heads. So the ids of most lost commits are known from other commits or from the row, and
the search continues with the ancestors of the lost commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polaris_spark.commits.completeness import BATCH, Completeness
from polaris_spark.commits.rows import FIRST_SKIP, Commit, Head


class Known(NamedTuple):
    """A commit whose id is known: its number, its id, and, unless the commit is lost, its time and log entries."""

    number: int
    id: int
    time: int = 0
    """Time of the commit, in milliseconds since 1970; 0 if the commit is lost."""
    entries: int = 0
    """Id of the commit's log entries; 0 if the commit is lost or has none."""


Lineage = dict[int, Known]
"""The commits of a reference whose ids are known, by number."""


def lineage(objects: Completeness, named: Iterable[Known], floor: int) -> Lineage:
    """Return the commits in `named` and their ancestors whose ids can be found, down to the commit number `floor`."""
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
    """Return the commits whose ids are in a reference's row: the head and the recent heads."""
    return [
        Known(head.number, head.commit, head.time),
        *(Known(recent.number, recent.commit, recent.time) for recent in head.recent),
    ]


def ancestors(commit: Commit) -> list[tuple[int, int]]:
    """Return (number, id) of each ancestor whose id is listed in a commit."""
    last = commit.number - 1
    near = [(commit.number - distance, id) for distance, id in enumerate(commit.parents, 1)]
    shifts = range(FIRST_SKIP, FIRST_SKIP + len(commit.skips))
    return near + [(last >> shift << shift, id) for shift, id in zip(shifts, commit.skips, strict=True)]


def first_complete(objects: Completeness, candidates: Sequence[Known]) -> Known | None:
    """Return the first of `candidates` that exists with all objects reachable from it, or None."""
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
    """Return the lowest number N, at least `floor`, such that all commits from N to `newest` exist with all their
    objects.

    Args:
        newest: a complete commit.
        commits: the known commits of the reference, by number.
    """
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
