"""`fsck`: checks that rows can be decoded, that needed objects exist, and that redundant data agrees.

| what is checked | module |
| --- | --- |
| the store's own records: store, realm, node lease, clock and task records | `system` |
| every row by itself, whether or not another row needs it | `rows` |
| the registry (the list of a realm's references) and the rows of references | `references` |
| the history of every reference: numbers, times, parents, skip pointers | `history` |
| whether all objects exist that commits reach by strong pointers, also objects whose type is not installed | `lost` |
| every index of every commit; whether each commit's log matches its changes; tables and views in log entries | `log` |
| names, ids, locations, tables and views in the newest commit of every catalog's branch | `entities`, `contents` |

A history is checked from its floor (the oldest commit that is kept) to its head (the newest commit). The store may be
in use during the check. Heads are read once; the objects that these heads need are kept at least for the grace period.
If problems are found, the whole check runs a second time and reads the heads again. Only problems that are found both
times are reported. This leaves out rows that were just being written, and rows that were deleted because nothing needed
them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.catalog.engine import Engine, LocalEngine, MapFunction, Progress, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, UNCONFIRMED
from polaris_spark.clock import Clock
from polaris_spark.errors import NotFoundError
from polaris_spark.maintenance.fsck.entities import EntitiesUnit, entity_problems, key_bounds
from polaris_spark.maintenance.fsck.history import Root, history
from polaris_spark.maintenance.fsck.log import CommitsUnit, commit_problems
from polaris_spark.maintenance.fsck.lost import NeededCommit, find_lost
from polaris_spark.maintenance.fsck.references import Times, references
from polaris_spark.maintenance.fsck.rows import (
    ERROR,
    LEFTOVER,
    MISSING,
    UNREADABLE,
    WARNING,
    CheckedRealm,
    Problem,
    RowReader,
    ScanUnit,
    scan_problems,
)
from polaris_spark.maintenance.fsck.system import System, system
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.realms import RealmRecord, RealmState
from polaris_spark.system.registrations import name_parts
from polaris_spark.system.stores import SYSTEM_REALM

YOUNG_MS = 10 * 60_000
"""Age in milliseconds. Missing parts of a younger object are not reported, because its writer may not be finished."""

GRACE_MS = 3 * 60 * 60_000
"""Default grace period: minimum time for which the objects of a dropped reference are kept, in milliseconds."""

_CHECKED = frozenset({RealmState.ACTIVE, RealmState.INACTIVE})
_ENDED = frozenset({RealmState.PURGING, RealmState.PURGED, RealmState.GONE})


class Unit(NamedTuple):
    """A part of a check that can run independently of the other parts, in any process."""

    place: CheckedRealm | None
    """The realm that this part checks; None for a scan, which reads the rows of several realms."""
    what: ScanUnit | CommitsUnit | EntitiesUnit


class CheckUnit(MapFunction[Unit, list[Problem]]):
    """Function that runs one part of a check and returns the problems found.

    Parts differ much in size, and spend most of their time computing.
    """

    result = list[Problem]
    few = 0
    threads = 1
    tasks_per_core = 4

    def __call__(self, reach: Reach, item: Unit) -> list[Problem]:
        return list(_unit_problems(reach.backend, item))


def _unit_problems(backend: Backend, unit: Unit) -> Iterator[Problem]:
    if isinstance(unit.what, ScanUnit):
        yield from scan_problems(backend, unit.what)
        return
    assert unit.place is not None
    rows = RowReader(backend, unit.place)
    if isinstance(unit.what, CommitsUnit):
        yield from commit_problems(rows, unit.what)
    else:
        yield from entity_problems(rows, unit.what)


class RealmCheck:
    """One run of `fsck` on a store, or on one realm of the store."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        realm: str | None = None,
        grace_ms: int = GRACE_MS,
        engine: Engine | None = None,
        progress: Progress = lambda _what, _done, _total: None,
    ) -> None:
        """
        Args:
            realm: name of the only realm to check; None checks all realms, and finds rows that belong to no realm.
            grace_ms: minimum time for which the objects of a dropped reference are kept, in milliseconds.
            engine: runs the parts of the check; None to run them in this process. The scan, each index and each
                history are split into about `engine.parts` parts.
            progress: called with the progress if `engine` is None.
        """
        self._backend = backend
        self._clock = clock
        self._realm = realm
        self._grace_ms = grace_ms
        rows = ObjectStore(backend, SYSTEM_REALM, process_cache(), store_key="check")
        self._engine = engine or LocalEngine(Reach(rows, Files({})), progress)
        self._parts = self._engine.parts
        self._progress = self._engine.progress

    def run(self) -> list[Problem]:
        """Run the check. Return all problems, errors first; an empty list if no problem was found.

        Raises:
            NotFoundError: no realm has the given name.
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
                place = CheckedRealm(record.name, record.instance)
                problems += self._realm_problems(place, times, units)
        for found in self._engine.map(CheckUnit(), units, "checking rows and contents"):
            problems += found
        if self._realm is None:
            problems += self._leftovers(told)
        return _once_each(problems)

    def _chosen(self, told: System) -> list[RealmRecord]:
        if self._realm is None:
            return told.realms
        chosen = [record for record in told.realms if record.name == self._realm]
        if not chosen or chosen[0].state is RealmState.GONE:
            raise NotFoundError(f"there is no realm {self._realm!r} to check")
        return chosen

    def _scans(self, told: System, realms: Sequence[RealmRecord], times: Times) -> list[Unit]:
        names = {r.instance: r.name for r in told.realms if r.state not in _ENDED}
        names[SYSTEM_REALM] = SYSTEM_REALM
        purging = {r.instance: r.name for r in told.realms if r.state is RealmState.PURGING}
        chosen = None if self._realm is None else [record.instance for record in realms]
        splits = self._backend.splits("objects", chosen, self._parts)
        return [Unit(None, ScanUnit(split, names | purging, times.young_ms)) for split in splits]

    def _realm_problems(self, place: CheckedRealm, times: Times, units: list[Unit]) -> Iterator[Problem]:
        self._progress(f"checking references of {place.realm}", 0, 0)
        rows = RowReader(self._backend, place)
        found = references(rows, times)
        yield from found.problems
        needed: list[NeededCommit] = []
        seen: set[int] = set()
        for position, root in enumerate(found.roots):
            self._progress(f"walking the history of {root.reference}", position, len(found.roots))
            walked = history(rows, root)
            yield from walked.problems
            needed += [NeededCommit(root.reference, number, id) for number, id in walked.commits.items()]
            commits = sorted(walked.commits.items())
            shared = _shares(root, {id: row.properties for id, row in found.catalogs.items()})
            if root.head.commit not in seen:
                units += [Unit(place, what) for what in self._entity_units(rows, root, shared=shared)]
            units += [Unit(place, what) for what in self._commit_units(root, commits, seen)]
        yield from find_lost(self._engine, place, needed)

    def _commit_units(
        self, root: Root, commits: Sequence[tuple[int, int]], seen: set[int]
    ) -> Iterator[CommitsUnit]:
        """Yield units that check the commits of a reference, without the commits in `seen`.

        All commits are then added to `seen`. Each unit also contains the commit before its first commit, for
        comparison.
        """
        size = max(256, -(-len(commits) // self._parts))
        start = 0
        for is_seen, run in groupby(commits, lambda commit: commit[1] in seen):
            end = start + len(list(run))
            for first in range(start, end, size) if not is_seen else ():
                some = commits[max(0, first - 1) : min(end, first + size)]
                yield CommitsUnit(root.reference, some, from_floor=first == 0)
            start = end
        seen.update(id for _, id in commits)

    def _entity_units(self, rows: RowReader, root: Root, *, shared: bool) -> Iterator[EntitiesUnit]:
        indexes: tuple[str, ...] = ()
        if name_parts(root.reference) is not None:
            indexes = (NAMES, IDS, LOCATIONS, UNCONFIRMED)
        elif root.reference == CATALOGS:
            indexes = (NAMES,)
        for name in indexes:
            bounds = key_bounds(rows, root.head.commit, name, self._parts)
            for start, end in zip([b"", *bounds], [*bounds, None], strict=True):
                yield EntitiesUnit(root.reference, root.head.commit, name, start, end, shared)

    def _leftovers(self, told: System) -> Iterator[Problem]:
        """Yield a problem for each instance id that occurs in rows of references but belongs to no realm."""
        known = {
            record.instance for record in told.realms if record.state not in _ENDED - {RealmState.PURGING}
        }
        for split in self._backend.splits("references", None, self._parts):
            for batch in self._backend.scan(split):
                for realm in set(batch.column("realm").to_pylist()) - known - {SYSTEM_REALM}:
                    message = (
                        "there are reference rows with this instance id, which belongs to no realm: purge_realm "
                        "deletes them"
                    )
                    yield Problem(WARNING, LEFTOVER, realm, None, realm, "", message)


def _shares(root: Root, properties: dict[str, dict[str, str]]) -> bool:
    """Whether the catalog of a reference allows its tables and views to have overlapping locations.

    Also True if the reference belongs to no catalog in `properties`.
    """
    id = root.reference.split("/")[1] if root.reference.startswith("cat/") else ""
    return id not in properties or properties[id].get("shared-locations") == "allow"


def _identity(problem: Problem) -> tuple[str, str, str]:
    return problem.realm, problem.key, problem.kind


_FIRST_KINDS = (MISSING, UNREADABLE)


def _once_each(problems: Iterable[Problem]) -> list[Problem]:
    """Return at most one problem of each kind for each row, preferably a problem that has a path.

    If an object is missing or cannot be read, its problems of other kinds are left out.
    """
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
    """Return the id of the object that a problem is about. If it is about another row, return the row's name."""
    id, _, part = problem.key.partition("/")
    return id if id.isdecimal() and part.isdecimal() else problem.key
