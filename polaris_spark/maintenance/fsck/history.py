"""Check of a reference's history: its commits, and whether their numbers, times and pointers agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from polaris_spark.commits.lineage import ancestors
from polaris_spark.commits.rows import FIRST_SKIP, INLINE_PARENTS, Commit, Head
from polaris_spark.maintenance.fsck.rows import REPAIR, Problem, RowReader

WRONG_TYPE = "wrong-type"
WRONG_ANCESTOR = "wrong-ancestor"
WRONG_NUMBER = "wrong-number"
WRONG_TIME = "wrong-time"
WRONG_HEAD = "wrong-head"
NO_LOG = "no-log"

_ROW = 0
"""Value that stands for the reference's row in a list of holders. A holder is the row or a commit. It states that the
commit with a certain number has a certain id. Commits are listed by their own ids."""


class Root(NamedTuple):
    """A reference whose history is checked from the floor (the oldest commit that is kept) to the head."""

    reference: str
    row_name: str
    head: Head


class CommitHistory(NamedTuple):
    """The commits of a reference from its floor (the oldest commit that is kept) to its head (the newest commit)."""

    commits: dict[int, int]
    """Commit ids by commit number, newest first. A number is left out if no commit or row states the id for it."""
    problems: list[Problem]


class _Claims:
    """Statements, in commits and in the reference's row, that the commit with a certain number has a certain id.

    For each number and id, it stores the holders: the ids of the commits that state this, or `_ROW` for the row.
    """

    def __init__(self, floor: int) -> None:
        self._floor = floor
        self._found: dict[int, dict[int, list[int]]] = {}

    def add(self, number: int, id: int, holder: int) -> None:
        if number >= self._floor:
            self._found.setdefault(number, {}).setdefault(id, []).append(holder)

    def take(self, number: int) -> Mapping[int, list[int]]:
        return self._found.pop(number, {})

    def next_ids(self, number: int, count: int) -> list[int]:
        """Return every commit id that is claimed for `number` or one of the `count - 1` commit numbers below it."""
        found = (self._found.get(number - i, {}) for i in range(count))
        return [id for claims in found for id in claims]

    @property
    def highest(self) -> int | None:
        return max(self._found, default=None)


def history(rows: RowReader, root: Root) -> CommitHistory:
    """Return the commits of a reference, and the problems of its history.

    For each commit, the next 20 commits and some later ones state the commit's number and id. If they disagree, the id
    that most of them state counts as right, and the other statements are problems. A commit that cannot be read is
    still part of the history; the module `lost` reports it.
    """
    walk = _Walk(rows, root)
    walk.run()
    walk.check_times()
    walk.check_recent()
    return CommitHistory(walk.commits, walk.problems)


class _Walk:
    def __init__(self, rows: RowReader, root: Root) -> None:
        self._rows = rows
        self._root = root
        self._claims = _Claims(root.head.floor_number)
        self.commits: dict[int, int] = {}
        self.problems: list[Problem] = []
        self._times: dict[int, int] = {}
        self._found: dict[int, Commit] = {}
        self._unread: set[int] = set()

    def run(self) -> None:
        head, claims = self._root.head, self._claims
        claims.add(head.number, head.commit, _ROW)
        while (number := claims.highest) is not None:
            self._prefetch(number)
            named = claims.take(number)
            id = max(named, key=lambda one: (len(named[one]), self._says(one) == number, one))
            self.commits[number] = id
            self._blame_others(number, id, named)
            commit = self._found.pop(id, None)
            if commit is None:
                self._no_commit(number, id)
                continue
            if commit.number != number and self._is_misnamed(commit, named[id]):
                del self.commits[number]
                for holder in named[id]:
                    self._blame_holder(
                        holder, f"it names {id} as commit {number}, but {id} is commit {commit.number}"
                    )
                if _ROW in named[id]:
                    claims.add(commit.number, id, id)
                continue
            self._check(number, id, commit)
            for ancestor, pointer in ancestors(msgspec.structs.replace(commit, number=number)):
                claims.add(ancestor, pointer, id)

    def _is_misnamed(self, commit: Commit, holders: list[int]) -> bool:
        """Whether the number in a commit itself is right, if it differs from the number that later commits state.

        Args:
            holders: the commits (or `_ROW`) that state the other number.
        """
        if not commit.parents:
            return not commit.number
        parent = self._rows.values(commit.parents[:1], Commit).get(commit.parents[0])
        return len(holders) < 2 if parent is None else parent.number == commit.number - 1

    def _prefetch(self, number: int) -> None:
        wanted = [id for id in self._claims.next_ids(number, 1) if id not in self._found]
        if any(id not in self._unread for id in wanted):
            ids = [id for id in self._claims.next_ids(number, INLINE_PARENTS) if id not in self._found]
            found = self._rows.values(ids, Commit)
            self._found.update(found)
            self._unread.update(id for id in ids if id not in found)

    def _says(self, id: int) -> int | None:
        commit = self._found.get(id)
        return None if commit is None else commit.number

    def _blame_others(self, number: int, id: int, named: Mapping[int, list[int]]) -> None:
        for other, holders in named.items():
            if other != id:
                self._found.pop(other, None)
                for holder in holders:
                    self._blame_holder(
                        holder, f"it names {other} as commit {number}, but commit {number} is {id}"
                    )

    def _blame_holder(self, holder: int, message: str) -> None:
        if holder == _ROW:
            self._blame_row(message)
        else:
            self._blame(WRONG_ANCESTOR, holder, message)

    def _blame(self, kind: str, id: int, message: str) -> None:
        path = f"history of {self._root.reference}"
        self.problems.append(self._rows.problem(kind, id, message, reference=self._root.reference, path=path))

    def _blame_row(self, message: str) -> None:
        root = self._root
        place = self._rows.place
        self.problems.append(
            Problem("error", WRONG_HEAD, place.realm, root.reference, root.row_name, "", message)
        )

    def _no_commit(self, number: int, id: int) -> None:
        found = self._rows.read([id]).get(id)
        if found is not None:
            what = f"it has the type {found.header.type!r}, but commit {number} is expected here"
            self._blame(WRONG_TYPE, id, what)

    def _check(self, number: int, id: int, commit: Commit) -> None:
        self._times[number] = commit.time
        if commit.number != number:
            self._blame(
                WRONG_NUMBER,
                id,
                f"its row contains the commit number {commit.number}, but in this history, it is commit {number}",
            )
        parents = min(INLINE_PARENTS, number)
        skips = max(0, (number - 1).bit_length() - FIRST_SKIP) if number else 0
        if (len(commit.parents), len(commit.skips)) != (parents, skips):
            told = f"it has {len(commit.parents)} parents and {len(commit.skips)} skip pointers"
            self._blame(WRONG_ANCESTOR, id, f"{told}; commit {number} must have {parents} and {skips}")
        if number and not commit.entries:
            self._blame(NO_LOG, id, "it has no log entries")

    def check_times(self) -> None:
        """Check that the time of every commit is later than the time of the commit before it.

        The commits in `Head.time_resets` are exempt: their parents were made by a process whose clock was far ahead.
        """
        times, head = self._times, self._root.head
        if times.get(head.number, head.time) != head.time:
            self._blame_row(
                f"it states that the time of its head commit is {head.time}, but the commit has {times[head.number]}"
            )
        for number in sorted(times):
            newer, older = times[number], times.get(number - 1)
            if older is None or newer > older or number in head.time_resets:
                continue
            above, below = times.get(number + 1), times.get(number - 2)
            older_is_wrong = above is not None and above <= older and (below is None or below < newer)
            culprit = number - 1 if older_is_wrong else number
            message = (
                f"the time of commit {number} is {newer}, but the time of the commit before it is {older}"
            )
            self._blame(WRONG_TIME, self.commits[culprit], message)

    def check_recent(self) -> None:
        """Check that the earlier heads listed in the reference's row have the ids and times found in the history."""
        head = self._root.head
        for recent in head.recent:
            if recent.number < head.floor_number or recent.number not in self.commits:
                continue
            if self.commits[recent.number] != recent.commit:
                right = self.commits[recent.number]
                self._blame_row(
                    f"its recent heads have {recent.commit} as commit {recent.number}, but commit {recent.number} is "
                    f"{right}"
                )
            elif self._times.get(recent.number, recent.time) != recent.time:
                self._blame_row(
                    f"its recent heads have the time {recent.time} for commit {recent.number}, but the commit has "
                    f"{self._times[recent.number]}"
                )


def head_faults(head: Head, latest_ms: int, id_time_ms: int) -> Iterator[str]:
    """Yield the faults of a reference's row that can be found without reading other rows.

    Args:
        head: the value of the row.
        latest_ms: the latest time at which an id can have been made, in milliseconds since 1970.
        id_time_ms: time at which the id `head.fence` was made, in milliseconds since 1970.
    """
    if head.given_up:
        return
    if head.commit <= 0:
        yield f"its commit id is {head.commit}, which no commit can have"
    if not 0 <= head.floor_number <= head.number:
        yield f"its history floor, commit {head.floor_number}, is not between 0 and its head, commit {head.number}"
    if head.floor_time > head.time and not any(number > head.floor_number for number in head.time_resets):
        yield f"the time of its history floor, {head.floor_time}, is later than the time of its head, {head.time}"
    if head.fence < 0 or (head.fence and id_time_ms > latest_ms):
        yield f"its fence {head.fence} is later than any possible id: {REPAIR}"
    numbers = [recent.number for recent in head.recent]
    if numbers != sorted(set(numbers), reverse=True) or any(n > head.number for n in numbers):
        yield (
            f"its recent heads are commits {list(islice(numbers, 20))}; they must be in descending order, and not "
            f"above its head, commit {head.number}"
        )
