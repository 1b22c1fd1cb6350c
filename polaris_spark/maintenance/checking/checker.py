"""`fsck`: every row of a store decodes, everything that is needed is there, and what says the same thing twice agrees.

| what is checked | by |
| --- | --- |
| the store's own records: realms, node leases, tasks | `system` |
| every row by itself, needed or not | `rows` |
| registry and rows of references | `references` |
| the history of every reference: numbers, times, parents, skip pointers | `history` |
| every strong pointer below every commit from floor to head, of types that are not installed, too | here |
| every index of every commit; the log against what changed; every content that a log entry names | `log` |
| names, ids, locations and contents of every catalog's head | `entities`, `tables` |

A store may be in use meanwhile. The heads are read once; what they need stays for the grace period at least. What was
found wrong is looked at a second time with heads read anew, and only what is wrong both times is told: what was being
written has been written by then, and what was swept is needed no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.references import CATALOGS
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, UNCONFIRMED
from polaris_spark.clock import Clock
from polaris_spark.commits.completeness import Completeness, Lost
from polaris_spark.errors import NotFoundError
from polaris_spark.maintenance.checking.entities import EntitiesUnit, entity_problems, key_bounds
from polaris_spark.maintenance.checking.history import Root, history
from polaris_spark.maintenance.checking.log import CommitsUnit, commit_problems
from polaris_spark.maintenance.checking.references import Times, references
from polaris_spark.maintenance.checking.rows import (
    ERROR,
    LEFTOVER,
    MISSING,
    UNREADABLE,
    WARNING,
    Place,
    Problem,
    Rows,
    ScanUnit,
    row_key,
    scan_problems,
)
from polaris_spark.maintenance.checking.system import System, system
from polaris_spark.system.realms import RealmRecord, RealmState
from polaris_spark.system.registry import ROOT
from polaris_spark.system.stores import SYSTEM_REALM

YOUNG_MS = 10 * 60_000
"""What was made so lately may still be being written."""

GRACE_MS = 3 * 60 * 60_000
"""The grace period unless told otherwise."""

_CHECKED = frozenset({RealmState.ACTIVE, RealmState.INACTIVE})
_ENDED = frozenset({RealmState.PURGING, RealmState.PURGED, RealmState.GONE})


class Unit(NamedTuple):
    """A part of a check that can be carried out by itself, anywhere."""

    place: Place | None
    """The realm; None for a scan of several."""
    what: ScanUnit | CommitsUnit | EntitiesUnit


class Needed(NamedTuple):
    """A commit that must be there with all that it points to."""

    reference: str
    number: int
    id: int


Carry = Callable[[Sequence[Unit]], Iterable[Problem]]
"""Carries units out, in any order."""

Follow = Callable[[Place, Sequence[Needed]], Iterable[Problem]]
"""Follows all strong pointers of a realm down from commits, and tells what is not there."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much (0: that is not known)."""


def carry_unit(backend: Backend, unit: Unit) -> Iterator[Problem]:
    """Carry out one unit."""
    if isinstance(unit.what, ScanUnit):
        yield from scan_problems(backend, unit.what)
        return
    assert unit.place is not None
    rows = Rows(backend, unit.place)
    if isinstance(unit.what, CommitsUnit):
        yield from commit_problems(rows, unit.what)
    else:
        yield from entity_problems(rows, unit.what)


class Check:
    """One check of a store."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        realm: str | None = None,
        grace_ms: int = GRACE_MS,
        parts: int = 1,
        carry: Carry | None = None,
        follow: Follow | None = None,
        progress: Progress = lambda _what, _done, _total: None,
    ) -> None:
        """
        Args:
            realm: name of the only realm to be checked; without it, all are, and rows that belong to none are found.
            grace_ms: how long everything that a dropped reference needs is kept, at least, milliseconds.
            parts: into about how many units each large thing is cut.
            carry: carries units out; one after the other here unless given.
            follow: follows pointers; here, by headers, unless given.
        """
        self._backend = backend
        self._clock = clock
        self._realm = realm
        self._grace_ms = grace_ms
        self._parts = parts
        self._carry = carry or self._carry_here
        self._follow = follow or self._follow_here
        self._progress = progress

    def run(self) -> list[Problem]:
        """Every problem, errors first; none if the store is sound.

        Raises:
            NotFoundError: there is no such realm.
        """
        first = self._once()
        if not first:
            return []
        again = {_identity(problem) for problem in self._once()}
        found = [problem for problem in first if _identity(problem) in again]
        return sorted(found, key=lambda one: (one.severity != ERROR, one.realm, one.key, one.kind))

    def _once(self) -> list[Problem]:
        now = self._clock.now_ms()
        told = system(self._backend, now)
        times = Times(now - self._grace_ms, now - YOUNG_MS, told.latest_ms)
        problems = list(told.problems) if self._realm is None else []
        realms = self._chosen(told)
        units = self._scans(told, realms, times)
        for record in realms:
            if record.state in _CHECKED:
                place = Place(record.name, record.instance)
                problems += self._realm_problems(place, times, units)
        self._progress("checking rows and contents", 0, len(units))
        problems += self._carry(units)
        if self._realm is None:
            problems += self._leftovers(told)
        return _once_each(problems)

    def _chosen(self, told: System) -> list[RealmRecord]:
        if self._realm is None:
            return told.realms
        chosen = [record for record in told.realms if record.name == self._realm]
        if not chosen or chosen[0].state is RealmState.GONE:
            raise NotFoundError(f"there is no realm {self._realm!r} to be checked")
        return chosen

    def _scans(self, told: System, realms: Sequence[RealmRecord], times: Times) -> list[Unit]:
        names = {r.instance: r.name for r in told.realms if r.state not in _ENDED}
        names[SYSTEM_REALM] = SYSTEM_REALM
        purging = {r.instance: r.name for r in told.realms if r.state is RealmState.PURGING}
        chosen = None if self._realm is None else [record.instance for record in realms]
        splits = self._backend.splits("objects", chosen, self._parts)
        return [Unit(None, ScanUnit(split, names | purging, times.young_ms)) for split in splits]

    def _realm_problems(self, place: Place, times: Times, units: list[Unit]) -> Iterator[Problem]:
        self._progress(f"checking references of {place.realm}", 0, 0)
        rows = Rows(self._backend, place)
        found = references(rows, times)
        yield from found.problems
        needed: list[Needed] = []
        seen: set[int] = set()
        for position, root in enumerate(found.roots):
            self._progress(f"walking the history of {root.reference}", position, len(found.roots))
            walked = history(rows, root)
            yield from walked.problems
            needed += [Needed(root.reference, number, id) for number, id in walked.commits.items()]
            commits = sorted(walked.commits.items())
            shared = _shares(root, {id: row.properties for id, row in found.catalogs.items()})
            if root.head.commit not in seen:
                units += [Unit(place, what) for what in self._entity_units(rows, root, shared=shared)]
            units += [Unit(place, what) for what in self._commit_units(root, commits, seen)]
        yield from self._follow(place, needed)

    def _commit_units(
        self, root: Root, commits: Sequence[tuple[int, int]], seen: set[int]
    ) -> Iterator[CommitsUnit]:
        """The commits that no other reference has, too, each run of them with the one before."""
        size = max(256, -(-len(commits) // self._parts))
        start = 0
        for is_seen, run in groupby(commits, lambda commit: commit[1] in seen):
            end = start + len(list(run))
            for first in range(start, end, size) if not is_seen else ():
                some = commits[max(0, first - 1) : min(end, first + size)]
                yield CommitsUnit(root.reference, some, from_floor=first == 0)
            start = end
        seen.update(id for _, id in commits)

    def _entity_units(self, rows: Rows, root: Root, *, shared: bool) -> Iterator[EntitiesUnit]:
        indexes: tuple[str, ...] = ()
        if root.reference.startswith("cat/") and "/heads/" in root.reference:
            indexes = (NAMES, IDS, LOCATIONS, UNCONFIRMED)
        elif root.reference == CATALOGS:
            indexes = (NAMES,)
        for name in indexes:
            bounds = key_bounds(rows, root.head.commit, name, self._parts)
            for start, end in zip([b"", *bounds], [*bounds, None], strict=True):
                yield EntitiesUnit(root.reference, root.head.commit, name, start, end, shared)

    def _carry_here(self, units: Sequence[Unit]) -> Iterator[Problem]:
        for done, unit in enumerate(units):
            self._progress("checking rows and contents", done, len(units))
            yield from carry_unit(self._backend, unit)

    def _follow_here(self, place: Place, needed: Sequence[Needed]) -> Iterator[Problem]:
        read = 0

        def on_read(count: int) -> None:
            nonlocal read
            read += count
            self._progress(f"following pointers of {place.realm}", read, 0)

        objects = Completeness(self._backend, place.instance, on_read, newer_is_lost=True)
        objects.check([one.id for one in needed])
        told: set[int] = set()
        for one in sorted(needed, key=lambda one: one.reference == ROOT):  # it points to where others began
            if objects.complete(one.id):
                continue
            for lost in objects.lost_below(one.id):
                if lost.id not in told:
                    told.add(lost.id)
                    yield lost_problem(place, one, lost, objects.path_to(lost.id, one.id))

    def _leftovers(self, told: System) -> Iterator[Problem]:
        """References of instances that no realm has."""
        known = {
            record.instance for record in told.realms if record.state not in _ENDED - {RealmState.PURGING}
        }
        for split in self._backend.splits("references", None, self._parts):
            for batch in self._backend.scan(split):
                for realm in set(batch.column("realm").to_pylist()) - known - {SYSTEM_REALM}:
                    message = "references of an instance that no realm has: purge_realm deletes them"
                    yield Problem(WARNING, LEFTOVER, realm, None, realm, "", message)


def lost_problem(place: Place, needed: Needed, lost: Lost, path: Sequence[int]) -> Problem:
    """What is to be told of an object that is needed and cannot be read."""
    steps = [f"{needed.reference}: commit {needed.number}", *map(str, path)]
    by = f", which {lost.holder_type} {lost.holder} points to" if lost.holder else ""
    kind = MISSING if "missing" in lost.reason else UNREADABLE
    key = row_key(lost.id, lost.part)
    message = f"object {lost.id}{by}: {lost.reason}"
    return Problem(ERROR, kind, place.realm, needed.reference, key, " > ".join(steps), message)


def _shares(root: Root, properties: dict[str, dict[str, str]]) -> bool:
    """Whether entities of a catalog's head may own overlapping locations, or it is not known."""
    id = root.reference.split("/")[1] if root.reference.startswith("cat/") else ""
    return id not in properties or properties[id].get("shared-locations") == "allow"


def _identity(problem: Problem) -> tuple[str, str, str]:
    return problem.realm, problem.key, problem.kind


_FIRST_KINDS = (MISSING, UNREADABLE)


def _once_each(problems: Iterable[Problem]) -> list[Problem]:
    """One problem of a kind for a row, the one that says how it was reached; of a row that cannot be read, no other."""
    found: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        known = found.get(_identity(problem))
        if known is None or (not known.path and problem.path):
            found[_identity(problem)] = problem
    unreadable = {(one.realm, _object(one)) for one in found.values() if one.kind in _FIRST_KINDS}
    return [
        one
        for one in found.values()
        if one.kind in _FIRST_KINDS or (one.realm, _object(one)) not in unreadable
    ]


def _object(problem: Problem) -> str:
    """The id of the object that a problem is about; of a reference, its name."""
    id, _, part = problem.key.partition("/")
    return id if id.isdecimal() and part.isdecimal() else problem.key
