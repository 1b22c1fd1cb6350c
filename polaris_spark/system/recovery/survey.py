"""Survey of the references of a realm after a loss: which of their heads are complete, and which objects are lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from polaris_spark.commits.completeness import BATCH, Completeness, Lost
from polaris_spark.commits.lineage import (
    Known,
    Lineage,
    complete_back_to,
    first_complete,
    lineage,
    named_by,
)
from polaris_spark.commits.rows import Commit, Entries, Head, LogEntry
from polaris_spark.commits.state import StoredObjects
from polaris_spark.errors import InputError, NotFoundError
from polaris_spark.index import Index
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, ROOT, Registered, group_of, is_tag, listed_in
from polaris_spark.system.stored_commits import StoredCommits

ReferenceState = Literal["live", "dropped", "unlisted"]
"""State of a reference in the registry. `unlisted` means that the reference has a row but no registration."""


class HeadState(NamedTuple):
    """A present or earlier head of a reference."""

    known: Known
    """The commit to which the head points."""
    complete: bool
    """Whether all objects that are needed to read this head exist and can be read."""
    lost: tuple[Lost, ...]
    """The lost objects that are needed to read this head."""


class Undone(NamedTuple):
    """Commits that are lost from a reference's history if the reference is set back to an older commit."""

    commits: int
    """Number of commits that are undone."""
    unreadable: int
    """Number of undone commits whose log entries cannot be read."""
    entries: tuple[tuple[Known, LogEntry], ...]
    """The readable log entries of the undone commits, newest first, each with its commit."""


NOTHING_UNDONE = Undone(0, 0, ())


class SurveyedReference(NamedTuple):
    """Result of the survey for one reference."""

    name: str
    row_name: str
    state: ReferenceState
    registered: Registered | None
    head: Head | None
    """The head in the row; None if the row is missing."""
    heads: tuple[HeadState, ...]
    """The head and the recent heads, newest first."""
    target: Known | None
    """The commit to set the reference to: the requested commit, or else the newest complete commit that is not below
    the history floor. None if no commit is complete."""
    history_from: Known | None
    """The commit from which on all commits up to the target are complete; None if there is no target."""
    lost_history: tuple[Lost, ...]
    """The lost objects that the commit right before `history_from` needs; empty if the history is complete down to the
    floor."""
    time_resets: tuple[int, ...]
    """Numbers of commits in the target's history whose time is not later than their parent's, ascending."""
    undone: Undone
    newer: tuple[Known, ...]
    """Complete commits after the head that no reference points to, newest first; empty unless the realm was searched.
    """

    @property
    def generation(self) -> int:
        """Generation of the reference, which distinguishes references of the same name; 0 for the registry."""
        if self.registered is not None:
            return self.registered.registration.generation
        return int(self.row_name.rpartition("@")[2], 16) if self.state == "unlisted" else 0

    @property
    def complete(self) -> bool:
        """Whether the row exists, its head and history are complete, and the row's state agrees with the registry."""
        if self.head is None or self.history_from is None or self.state == "unlisted":
            return False
        whole = self.heads[0].complete and self.history_from.number <= self.head.floor_number
        return whole and not (self.head.sealed and self.state == "live")

    @property
    def given_up(self) -> bool:
        """Whether a recovery has sealed this row, the registry does not list it, and it has no complete commit."""
        return self.state == "unlisted" and self.head is not None and self.head.sealed and self.target is None


class _Reference(NamedTuple):
    """A reference, with its registration and the head in its row, if these exist."""

    name: str
    row_name: str
    state: ReferenceState
    registered: Registered | None
    head: Head | None

    @property
    def floor(self) -> int:
        if self.head is not None:
            return self.head.floor_number
        return self.registered.registration.floor_number if self.registered else 0


class Survey:
    """Finds out which heads and commits of a realm's references are complete. Changes nothing."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        search: bool = False,
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        """
        Args:
            store: the realm's objects.
            search: whether to search the whole realm for commits after the heads. The realm is searched anyway if a row
                is missing or a head is not complete.
            on_read: called after each read, with the number of objects that were read.
        """
        self._objects = Completeness(store.backend, store.realm, on_read)
        self._store = store
        self._search = search
        self._on_read = on_read
        self._stored: StoredCommits | None = None
        self._lineages: dict[str, Lineage] = {}
        self.highest_id = 0
        """The highest id found so far among the fences and heads in rows and the commits of the references."""

    def run(self, name: str | None = None, to: int | None = None) -> list[SurveyedReference]:
        """Survey the references, and return the results: the registry first, then the other references, ordered by
        name.

        Args:
            name: the only reference to survey besides the registry; None surveys all.
            to: id of the commit to set the reference `name` to, instead of the newest complete commit.
        Raises:
            NotFoundError: no reference has this name.
            InputError: the commit `to` cannot be read, is not complete, or is neither before nor after the head of
                `name` in its history.
            CorruptionError: the value of a row cannot be read.
            NewerFormatError: a newer release wrote a row.
        """
        root = self._row(ROOT, ROOT, "live", None)
        found = [self._found(root, (), to if name == ROOT else None)]
        rows = self._others(found[0].target)
        if name not in (None, ROOT, *(row.name for row in rows)):
            known = ", ".join((ROOT, *(row.name for row in rows)))
            raise NotFoundError(f"there is no reference {name!r} in this realm; it has: {known}")
        for row in rows:
            if name in (None, row.name):
                found.append(self._found(row, rows, to if name == row.name else None))
        return [one for one in found if not one.given_up]

    def _others(self, root: Known | None) -> list[_Reference]:
        """Return the references that have a row or a live registration, ordered by name, without the registry.

        Of the rows that the registry does not list, return the newest of each name, and only if it is newer than the
        registered reference of that name.

        Args:
            root: the registry's newest complete commit, which contains the registrations; None if there is none.
        """
        listed = [] if root is None else self._listed(root.id)
        rows = [self._row(r.name, r.row_name, r.registration.state, r) for r in listed]
        # A dropped reference without a row was swept.
        rows = [row for row in rows if row.head is not None or row.state == "live"]
        generations = {r.name: r.registration.generation for r in listed}
        newest: dict[str, int] = {}
        for name, generation in self._generations():
            if generation > max(generations.get(name, -1), newest.get(name, -1)):
                newest[name] = generation
        rows += [self._row(name, f"{name}@{g:x}", "unlisted", None) for name, g in newest.items()]
        return sorted(rows, key=lambda row: row.name)

    def _listed(self, root: int) -> list[Registered]:
        commit = self._store.get(root, Commit)
        if REFERENCES not in commit.index_names:
            return []
        index = commit.index_roots[commit.index_names.index(REFERENCES)]
        return listed_in(Index(index, StoredObjects(self._store).read_shards))

    def _generations(self) -> Iterator[tuple[str, int]]:
        """Yield (name, generation) of every row, except the registry's. The generation tells apart references of the
        same name."""
        for row_name in ReferenceStore(self._store.backend, self._store.realm).names():
            name, at, generation = row_name.rpartition("@")
            if at:
                yield name, int(generation, 16)

    def _row(
        self, name: str, row_name: str, state: ReferenceState, registered: Registered | None
    ) -> _Reference:
        head = ReferenceReader(self._store).head(row_name)
        if head is not None:
            self._saw(head.fence, *(known.id for known in named_by(head)))
        return _Reference(name, row_name, state, registered, head)

    def _commits(self, row: _Reference) -> Lineage:
        """Return the commits that are reachable from a reference's row or registration, by commit number."""
        if row.row_name not in self._lineages:
            began = _began(row)
            named = [*([] if row.head is None else named_by(row.head)), *([] if began is None else [began])]
            self._lineages[row.row_name] = lineage(self._objects, named, row.floor)
        return self._lineages[row.row_name]

    def _saw(self, *ids: int) -> None:
        self.highest_id = max(self.highest_id, *ids)

    def _found(self, row: _Reference, others: Sequence[_Reference], to: int | None) -> SurveyedReference:
        heads = self._heads(row)
        newer = self._newer(row, others) if self._search or row.head is None else []
        target = self._newest(row, others) if to is None else self._asked(row, to)
        first: Known | None = None
        lost_history: tuple[Lost, ...] = ()
        resets: tuple[int, ...] = ()
        undone = NOTHING_UNDONE
        if target is not None:
            self._saw(target.id, *(known.id for known in newer))
            commits = self._commits(row)
            known = commits.get(target.number)
            if known is None or known.id != target.id:
                commits = lineage(self._objects, [target], row.floor)
            number = complete_back_to(self._objects, commits, target, row.floor)
            first, below = commits.get(number, target), commits.get(number - 1)
            if below is not None and number > row.floor:
                lost_history = tuple(self._objects.lost_below(below.id))
            numbers = range(number + 1, target.number + 1)
            resets = tuple([n for n in numbers if commits[n].time <= commits[n - 1].time])
            undone = self._undone(row, target)
        return SurveyedReference(
            row.name,
            row.row_name,
            row.state,
            row.registered,
            row.head,
            heads,
            target,
            first,
            lost_history,
            resets,
            undone,
            tuple(newer),
        )

    def _heads(self, row: _Reference) -> tuple[HeadState, ...]:
        named: dict[int, Known] = {}
        for known in [] if row.head is None else named_by(row.head):
            named.setdefault(known.id, known)
        self._objects.check(list(named))
        return tuple(
            HeadState(known, self._objects.complete(id), tuple(self._objects.lost_below(id)))
            for id, known in named.items()
        )

    def _newer(self, row: _Reference, others: Sequence[_Reference]) -> list[Known]:
        """Return the complete commits after the row's head, newest first.

        If the row is missing, return the commits after the commit that the reference began from. The result may contain
        commits of references that forked from this one.
        """
        return self._complete_after(row, _base(row), others, None)

    def _newest(self, row: _Reference, others: Sequence[_Reference]) -> Known | None:
        """Return the newest complete commit of a reference, or None.

        The commit is in the history of the head in the row. If the row is missing, it may also be a commit after the
        commit that the reference began from, provided that it cannot belong to another reference.
        """
        began, commits = _began(row), self._commits(row)
        newest = first_complete(self._objects, sorted(commits.values(), reverse=True))
        if row.head is not None and newest is not None and newest.id == row.head.commit:
            return newest
        # If many successive commits are lost, no remaining commit lists the ids of the commits right before them. So
        # the realm is searched. Commits below the floor do not qualify, because their files may have been deleted.
        for known in self._complete_after(row, newest or began, others, _forks((row, *others))):
            between = row.head is None or row.floor <= known.number < row.head.number
            if between and commits.get(known.number, known).id == known.id:
                return known
        return newest

    def _complete_after(
        self, row: _Reference, base: Known | None, others: Sequence[_Reference], forks: Collection[int] | None
    ) -> list[Known]:
        if self._stored is None:
            self._stored = StoredCommits(self._store.backend, self._store.realm, self._objects, self._on_read)
        related = [other for other in others if other is not row and _place(other) == _place(row)]
        if base is None:
            candidates = self._stored.of_registry() if row.name == ROOT else []
        elif is_tag(row.name):
            candidates = []
        elif forks is not None and any(other.registered is None for other in related):
            candidates = []  # an unlisted reference has no registration that records where it forked
        else:
            besides = {known.id for other in related for known in self._own(other)} - {base.id}
            candidates = self._stored.after(base, besides, forks)
        self._objects.check([known.id for known in candidates])
        return [known for known in candidates if self._objects.complete(known.id)]

    def _own(self, row: _Reference) -> list[Known]:
        """Return the commits of a reference after the commit that it forked from."""
        began = _began(row)
        shared = -1 if began is None else began.number
        return [known for known in self._commits(row).values() if known.number > shared]

    def _asked(self, row: _Reference, to: int) -> Known:
        commit = self._objects.values([to], Commit).get(to)
        if commit is None:
            raise InputError(f"there is no commit with the id {to:x} that can be read; choose another commit")
        known, base = Known(commit.number, to, commit.time, commit.entries), _base(row)
        if base is None:
            related = row.name == ROOT and REFERENCES in commit.index_names
        elif known.number <= base.number:
            related = self._commits(row).get(known.number, base).id == to
        else:
            related = lineage(self._objects, [known], base.number).get(base.number, known).id == base.id
        if not related:
            raise InputError(
                f"commit {to:x} is not in the history of {row.name!r}, neither before nor after its head; choose "
                "another commit"
            )
        if not self._objects.check([to]):
            missing = len(self._objects.lost_below(to))
            raise InputError(
                f"commit {to:x} is not complete (lost objects: {missing:,}); choose another commit"
            )
        return known

    def _undone(self, row: _Reference, target: Known) -> Undone:
        if row.head is None or row.head.number <= target.number:
            return NOTHING_UNDONE
        numbers = range(row.head.number, target.number, -1)
        readable = [known for n in numbers if (known := self._commits(row).get(n)) and known.entries]
        listed: list[tuple[Known, LogEntry]] = []
        unreadable = len(numbers)
        for start in range(0, len(readable), BATCH):
            some = readable[start : start + BATCH]
            values = self._objects.values([known.entries for known in some], Entries)
            unreadable -= len(values)
            for known in some:
                if known.entries in values:
                    listed += [(known, entry) for entry in reversed(values[known.entries].entries)]
        return Undone(len(numbers), unreadable, tuple(listed))


def _base(row: _Reference) -> Known | None:
    """Return the head commit in the reference's row; if the row is missing, return the commit that the reference began
    from."""
    if row.head is None:
        return _began(row)
    return Known(row.head.number, row.head.commit, row.head.time)


def _began(row: _Reference) -> Known | None:
    """Return the commit that a reference began from, according to the registry; None if it is not registered."""
    if row.registered is None:
        return None
    registration = row.registered.registration
    return Known(registration.number, row.registered.source, registration.commit_time)


def _forks(rows: Sequence[_Reference]) -> set[int]:
    """Return the ids of commits from which a reference forked, or from which several references began."""
    forks: set[int] = set()
    first: set[int] = set()
    for began in filter(None, map(_began, {row.row_name: row for row in rows}.values())):
        if began.number > 0 or began.id in first:
            forks.add(began.id)
        first.add(began.id)
    return forks


def _place(row: _Reference) -> str:
    """Return the group of a reference. References can fork from each other only if their groups are equal."""
    return group_of(row.name)
