"""The commits of other branches that a branch contains, and the base of a merge: the newest common ancestor of two
branches.

Commits point to the commits before them only as long as those are stored, and a branch often lives longer than the
history that is kept. So each branch has an index `merges`, a version vector (Parker et al., "Detection of Mutual
Inconsistency in Distributed Systems", 1983): for each other branch, the newest of its commits that this branch
contains.

| key | pointer | value |
| --- | --- | --- |
| `own` | | id of this branch (8 bytes), number of the commit from which it began (8 bytes) |
| `of` and the id of another branch (8 bytes) | the newest contained commit of that branch | its number (8 bytes) |

The pointers keep these commits and their content when older history is trimmed, so that a merge finds its base. The
branch `main` has the id 0 and no entry `own`. The id of any other branch is the generation of its first registration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.settings import PROTECTION
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import HistoryTrimmedError
from polaris_spark.ids import id_time_ms
from polaris_spark.index import Entry
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registrations import Registration

MERGES = "merges"
"""Name of the index."""

CHECKS = b"check/"
"""Prefix of the keys of a branch's checks in the index `PROTECTION` (`catalog.branches.checks`)."""

_OWN = b"own"
_OTHERS = b"of"


class Contained(NamedTuple):
    """The newest commit of a branch that a state contains."""

    number: int
    commit: int
    """Id of the commit."""


class Ancestry(NamedTuple):
    """The newest commit of each branch that a commit contains."""

    own: int
    """Id of the commit's own branch."""
    began: int
    """Number of the commit from which the branch began; 0 for `main`."""
    newest: dict[int, Contained]
    """The newest contained commit of each branch, by the branch's id. For the commit's own branch, it is the commit
    itself."""


class Unmerged(NamedTuple):
    """Commits in the history of a branch that another branch does not contain."""

    own: int
    """Id of the branch that made them."""
    first: int
    """Number of the oldest of these commits."""


class Distance(NamedTuple):
    """Number of commits by which two branches differ."""

    ahead: int
    """Number of commits of the first branch that the second branch does not contain."""
    behind: int
    """Number of commits of the second branch that the first branch does not contain."""


class BeginBranch(Change[None, None]):
    """The first commit of a branch, or its first commit after it was moved. This commit records from which commit the
    branch began. It also removes the protection and the checks that the branch inherited from the other branch."""

    onto_protected = True

    def __init__(
        self,
        id: int,
        source: Contained,
        entry: LogEntry | None = None,
        checks: Mapping[bytes, Entry] | None = None,
    ) -> None:
        """
        Args:
            id: id of the branch.
            source: the commit from which the branch began.
            entry: the log entry of the commit.
            checks: entries of the branch's own checks, which it keeps.
        """
        self.operation = Operation(b"", "")
        self._id = id
        self._source = source
        self._entry = entry
        self._checks = checks or {}

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> None:
        before = _ancestry(state.scan(MERGES, b"", None))
        if before.own != self._id:
            state.put(MERGES, _OTHERS + _bytes(before.own), _entry(self._source))
            state.put(MERGES, _OWN, Entry(value=_bytes(self._id) + _bytes(self._source.number)))
        for key, _ in state.scan(PROTECTION, b"", None):
            if key not in self._checks:
                state.remove(PROTECTION, key)
        for key, check in self._checks.items():
            state.put(PROTECTION, key, check)
        if self._entry is not None:
            state.log(self._entry)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


def ancestry_of(at: CommitReader) -> Ancestry:
    """Return the newest commit of each branch that a commit contains."""
    found = _ancestry(tuple(at.index(MERGES).range(b"", None)))
    found.newest[found.own] = Contained(at.head.number, at.head.commit)
    return found


def own_branch(at: CommitReader) -> tuple[int, int]:
    """Return the id of the branch of a commit, and the number of the commit from which the branch began. Both are 0 for
    `main`."""
    entry = at.index(MERGES).get(_OWN)
    return (0, 0) if entry is None else _decoded_own(entry)


def created_ms(
    store: ObjectStore, head: Head, registration: Registration, catalog: int, *, is_tag: bool
) -> int:
    """Return the time at which a branch was created or last reassigned, or at which a tag was created, renamed or
    restored, in milliseconds since 1970. Renames and restorations do not change the time of a branch.

    Args:
        head: head of the branch or tag.
        catalog: id of the catalog, with which the branch `main` was created.
    """
    if is_tag:
        return id_time_ms(registration.generation)
    own, _ = own_branch(reader_of(store, head))
    return id_time_ms(own or catalog)


def record_merge(state: State, source: Ancestry) -> None:
    """Record in the working state of a branch that it now contains a commit of another branch, and all that this commit
    contains. Do nothing if it contains them already.

    Args:
        source: the result of `ancestry_of` for the other branch's commit. `source.newest` may have no entry for the
            other branch itself.
    """
    mine = _ancestry(state.scan(MERGES, b"", None))
    new = {
        branch: newest
        for branch, newest in source.newest.items()
        if branch != mine.own and (branch not in mine.newest or mine.newest[branch].number < newest.number)
    }
    for branch, newest in new.items():
        state.put(MERGES, _OTHERS + _bytes(branch), _entry(newest))
    if new and source.own in source.newest:
        state.record_merge(source.newest[source.own].commit)


def merge_base(store: ObjectStore, one: CommitReader, other: CommitReader) -> Contained:
    """Return the newest common ancestor of two commits. If there are several, none of which contains another one,
    return the one with the most commits before it.

    Raises:
        HistoryTrimmedError: the commits have no common ancestor that is still stored.
    """
    a, b = ancestry_of(one), ancestry_of(other)
    common = [
        (branch, min(a.newest[branch], b.newest[branch]))
        for branch in a.newest.keys() & b.newest.keys()
        if branch != a.own or branch != b.own
    ]
    if a.own == b.own:
        parted = _parted(store, one.head, other.head)
        if parted is None and not common:
            raise HistoryTrimmedError(
                "the two branches have no common commit that is still stored, because their history was trimmed. "
                "They cannot be merged; cherry-pick single commits instead"
            )
        common += [] if parted is None else [(a.own, parted)]
    best = _not_contained(store, common)
    if not best:
        raise HistoryTrimmedError(
            "the two states do not descend from a common commit, so they cannot be merged"
        )
    return max((contained for _, contained in best), key=lambda found: (found.number, found.commit))


def unmerged(theirs: CommitReader, mine: Ancestry) -> list[Unmerged]:
    """Return the commits in the history of a branch that another branch does not contain, newest first: the commits of
    the branch itself, then those of the branch from which it began, and so on.

    Args:
        theirs: newest commit of the branch.
        mine: the result of `ancestry_of` for the other branch.
    Raises:
        HistoryTrimmedError: the commit from which the branch began is no longer stored, and the other branch may lack
            commits before it.
    """
    found, at, floor = list[Unmerged](), theirs, theirs.head.floor_number
    while True:
        other = ancestry_of(at)
        known = mine.newest.get(other.own)
        first = other.began if known is None else min(known.number, at.head.number)
        found.append(Unmerged(other.own, first + 1))
        if known is not None or not other.own:
            return found
        if other.began < floor:
            nothing = Contained(-1, 0)
            rest = {id: min(other.began, one.number) for id, one in other.newest.items() if id != other.own}
            if all(number <= mine.newest.get(id, nothing).number for id, number in rest.items()):
                return found
            raise HistoryTrimmedError(
                "the first commits of the branch to merge were trimmed, so it is not known which earlier commits must "
                "be merged, too; cherry-pick single commits instead"
            )
        at = reader_of(at.store, Head(ancestor(at.store, theirs.head, other.began), other.began, 0))


def distance(store: ObjectStore, first: Head, second: Head) -> Distance | None:
    """Return by how many commits two branches differ; None if their newest common commit is no longer stored.

    Args:
        first: head of a branch.
        second: head of another branch of the same catalog.
    """
    a, b = ancestry_of(reader_of(store, first)), ancestry_of(reader_of(store, second))
    if a.own == b.own:
        parted = _parted(store, first, second)
        return (
            None if parted is None else Distance(first.number - parted.number, second.number - parted.number)
        )
    return Distance(_missing(a, b), _missing(b, a))


def reader_of(store: ObjectStore, head: Head) -> CommitReader:
    """Return a reader of the commit to which a head points."""
    return CommitReader(store, b"", head, store.get(head.commit, Commit))


def _missing(one: Ancestry, other: Ancestry) -> int:
    """Return the number of commits of the branch of `one` that `other` does not contain."""
    head = one.newest[one.own].number
    known = other.newest.get(one.own)
    began = one.began + 1 if one.own else 0  # without the commit that `BeginBranch` makes
    return head - (began if known is None else known.number)


def _not_contained(
    store: ObjectStore, commits: Iterable[tuple[int, Contained]]
) -> list[tuple[int, Contained]]:
    """Return the commits that no other of the given commits contains. Commits are given as (branch, commit).

    A commit that another commit contains is not read, because everything in it is also in the other commit. So the
    number of reads hardly depends on the number of branches that were merged before.
    """
    left, found = sorted(commits, key=lambda one: one[1].number), list[tuple[int, Contained]]()
    while left:
        found.append(left.pop())
        newest = found[-1][1]
        contained = ancestry_of(reader_of(store, Head(newest.commit, newest.number, 0))).newest
        within = {
            (branch, one)
            for branch, one in (*left, *found)
            if branch in contained and contained[branch].number >= one.number and one.commit != newest.commit
        }
        left, found = ([one for one in some if one not in within] for some in (left, found))
    return found


def _parted(store: ObjectStore, one: Head, other: Head) -> Contained | None:
    """Return the newest commit that two histories have in common, found by bisection; None if it is not stored."""
    low = max(one.floor_number, other.floor_number)
    high = min(one.number, other.number)

    def same(number: int) -> bool:
        return ancestor(store, one, number) == ancestor(store, other, number)

    try:
        if low > high or not same(low):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if same(middle) else (low, middle - 1)
        return Contained(low, ancestor(store, one, low))
    except HistoryTrimmedError:
        return None


def _ancestry(entries: tuple[tuple[bytes, Entry], ...]) -> Ancestry:
    own = began = 0
    newest: dict[int, Contained] = {}
    for key, entry in entries:
        if key == _OWN:
            own, began = _decoded_own(entry)
        elif key.startswith(_OTHERS):
            branch = int.from_bytes(key[len(_OTHERS) :], "big")
            newest[branch] = Contained(int.from_bytes(entry.value, "big"), entry.pointer)
    return Ancestry(own, began, newest)


def _decoded_own(entry: Entry) -> tuple[int, int]:
    return int.from_bytes(entry.value[:8], "big"), int.from_bytes(entry.value[8:16], "big")


def _entry(found: Contained) -> Entry:
    return Entry(found.commit, _bytes(found.number))


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")
