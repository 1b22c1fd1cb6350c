"""Parallel reads of the commit histories of references.

Each task reads a range of commit numbers in the history of one head (newest commit)."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from polaris_spark.catalog.references import head_name
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.as_of import AsOf, find_commit, moment, pinned, pinned_in_realm
from polaris_spark.commits.log import ancestor, commit_at
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError, InputError
from polaris_spark.spark.realm_reader import ReadStore, RealmReader
from polaris_spark.spark.views.entities import LOOKED_UP
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted, partition_count
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registry import ROOT

R = TypeVar("R")

READ_TOGETHER = 20
"""Number of commits that are read in one batch. It equals the number of ancestors that a commit lists in `parents`."""


class HistoryTask(NamedTuple):
    """A range of commits in the history of `head`, from number `low` to number `high` (both included)."""

    realm: str
    """Instance id of the realm that contains the reference."""
    catalog: str | None
    reference: str
    head: Head
    low: int
    high: int


class Logged(NamedTuple):
    """A commit, and the task that reads it."""

    task: HistoryTask
    id: int
    commit: Commit


class HistoryRange(NamedTuple):
    """The part of a reference's history from commit number `first` to `head`. `catalog` is None if the reference does
    not belong to a catalog."""

    catalog: str | None
    reference: str
    head: Head
    first: int = 0


def histories(realm: RealmReader, request: ScanRequest) -> list[HistoryRange]:
    """Return the requested histories, limited to the range between the options `from` and `to` (or `as-of`).

    If the option `catalog` is set, this is the history of the catalog's branch. Otherwise, these are the histories of
    all references of the realm that satisfy the conditions on `reference` and `catalog`.

    Raises:
        NotFoundError: the requested catalog or its branch does not exist.
        HistoryTrimmedError: a requested point is older than the oldest commit that is still stored.
        BeforeHistoryError: a requested time is before the first commit.
        InputError: a requested commit does not exist in the history, or the range ends before it begins.
    """
    options, store = request.options, realm.store
    if options.catalog is not None:
        catalog = realm.catalog(options.catalog)
        head = realm.branch(catalog, options.branch)
        first = 0 if options.since is None else _first_after(store, head, options.since)
        until = pinned(store, head, options.as_of)
        only = HistoryRange(catalog.name, head_name(catalog, options.branch), until, first)
        return forward([only], options.since, options.as_of)
    names = {f"cat/{catalog.entity_id:x}/": catalog.name for catalog in realm.catalogs()}
    found = [HistoryRange(None, ROOT, realm.root())]
    for registered in realm.registered():
        head = realm.head_of(registered)
        if head.sealed:  # dropped after the registry was read
            continue
        name = next((n for prefix, n in names.items() if registered.name.startswith(prefix)), None)
        found.append(HistoryRange(name, registered.name, head))
    wanted, catalog_wanted = request.condition("reference"), request.condition("catalog")
    found = [h for h in found if wanted.allows(h.reference) and catalog_wanted.allows(h.catalog)]
    found = at_point(store, after_point(store, found, options.since), options.as_of)
    return forward(found, options.since, options.as_of)


def after_point(store: ObjectStore, found: list[HistoryRange], since: AsOf | None) -> list[HistoryRange]:
    """Return the histories without the commits up to the point `since`, which is excluded too.

    The point can be a commit of any reference of the realm. In the histories of other references, the time of this
    commit is the point.
    """
    if since is None:
        return found
    result = []
    for history in found:
        try:
            first = _first_after(store, history.head, since)
        except InputError:  # a commit of another reference
            first = _first_after(store, history.head, since._replace(time=moment(store, since)))
        result.append(history._replace(first=first))
    return result


def _first_after(store: ObjectStore, head: Head, since: AsOf) -> int:
    """Return the number of the first commit after the point `since`; the head's number plus one if none is later.

    Raises:
        HistoryTrimmedError: commits after the point may have been trimmed.
        InputError: the point is not a commit of this history.
    """
    if since.number is not None and since.number + 1 == head.floor_number:
        return head.floor_number  # the point itself was trimmed, but no commit after it
    if since.commits and head.floor_number:
        oldest = store.get(ancestor(store, head, head.floor_number), Commit)
        if oldest.parents[0] in since.commits:  # the point itself may be deleted, but no commit after it
            return head.floor_number
    try:
        return pinned(store, head, since).number + 1
    except BeforeHistoryError:
        return 0


def forward(found: list[HistoryRange], since: AsOf | None, until: AsOf | None) -> list[HistoryRange]:
    """Return the histories unchanged, after checking that no range ends before it begins.

    Raises:
        InputError: `since` is after `until`.
    """
    if since is not None and until is not None:
        times_are_backward = since.time is not None and until.time is not None and since.time > until.time
        if times_are_backward or any(one.first > one.head.number + 1 for one in found):
            raise InputError(
                f"the option 'from' ({since.text!r}) comes after the option {until.option!r} ({until.text!r}): there "
                "are no commits between them"
            )
    return found


def catalog_histories(
    realm: RealmReader, request: ScanRequest, name_of: Callable[[CatalogRow], str]
) -> list[HistoryRange]:
    """Return the history of one reference of each requested catalog. The reference is not a branch; it contains, for
    example, metrics reports. A catalog without this reference is skipped.

    Args:
        name_of: function that returns the name of the reference of a catalog.
    """
    options = request.options
    as_of = options.as_of
    if options.catalog is None:
        catalogs = realm.catalogs()
    else:
        catalogs = [realm.catalog(options.catalog)]
        if as_of is not None and as_of.number is not None:  # a number in the branch, not in these references
            branch = realm.branch(catalogs[0], options.branch)
            as_of = as_of._replace(number=None, commits=(pinned(realm.store, branch, as_of).commit,))
    live = {registered.name: registered for registered in realm.registered()}
    wanted = request.condition("catalog")
    found = [
        HistoryRange(catalog.name, name, realm.head_of(live[name]))
        for catalog in catalogs
        if wanted.allows(catalog.name) and (name := name_of(catalog)) in live
    ]
    return at_point(realm.store, found, as_of)


def at_point(store: ObjectStore, found: list[HistoryRange], as_of: AsOf | None) -> list[HistoryRange]:
    """Return the histories as they were at a point of the realm's history. Leave out those that did not exist yet."""
    if as_of is None:
        return found
    moment(store, as_of)  # also without histories, refuse a commit that the realm does not have
    result = []
    for history in found:
        with contextlib.suppress(BeforeHistoryError):  # it did not exist yet
            result.append(history._replace(head=pinned_in_realm(store, history.head, as_of)))
    return result


def plan_history(request: ScanRequest, rows_per_partition: int) -> list[Weighted[HistoryTask]]:
    """Return tasks that read the requested commits, each with its number of commits. Planning reads heads and a
    few commits."""
    realm = request.store.realm(request.options.realm)
    planned = []
    for history in histories(realm, request):
        low, high = _bounds(realm.store, history, request)
        commits = high - low + 1
        if commits <= 0:
            continue
        n = partition_count(request.options.splits, commits, rows_per_partition)
        step = -(-commits // n)
        for first in range(low, high + 1, step):
            last = min(high, first + step - 1)
            task = HistoryTask(
                realm.store.realm, history.catalog, history.reference, history.head, first, last
            )
            planned.append(Weighted(task, last - first + 1))
    return planned


def _bounds(store: ObjectStore, history: HistoryRange, request: ScanRequest) -> tuple[int, int]:
    """Return the first and last number of the commits that may satisfy the conditions. The first is greater than the
    last if no commit can."""
    head = history.head
    low, high = max(head.floor_number, history.first), head.number
    number, time = request.condition("number"), request.condition("committed_at")
    numbers = number.values
    at_least = [n for n in (number.low, min(numbers) if numbers else None) if n is not None]
    at_most = [n for n in (number.high, max(numbers) if numbers else None) if n is not None]
    earliest = [t for t in (time.low, min(time.values) if time.values else None) if t is not None]
    latest = [t for t in (time.high, max(time.values) if time.values else None) if t is not None]
    if head.time_resets:
        earliest, latest = [], []  # commit times are not in the order of commit numbers
    if earliest:
        # Start after the newest commit that is at or before the preceding millisecond.
        low = max(low, _number_at(store, head, max(earliest) // 1_000 - 1) + 1)
    if latest:
        high = min(high, _number_at(store, head, min(latest) // 1_000))
    ids = request.condition("commit_id").values
    if ids is not None and len(ids) <= LOOKED_UP:
        found = [commit.number for id in ids if (commit := find_commit(store, id)) is not None]
        at_least.append(min(found, default=high + 1))
        at_most.append(max(found, default=high))
    return max([low, *at_least]), min([high, *at_most])


def _number_at(store: ObjectStore, head: Head, time: int) -> int:
    """Return the number of the newest commit at or before a time (milliseconds since 1970). If all stored commits are
    later, return the number before the oldest stored commit."""
    try:
        return store.get(commit_at(store, head, time), Commit).number
    except (HistoryTrimmedError, BeforeHistoryError):
        return head.floor_number - 1


def commits_of(store: ObjectStore, task: HistoryTask) -> Iterator[list[Logged]]:
    """Yield the commits of a task, newest first, in lists. Each list was read in one batch."""
    pending = [ancestor(store, task.head, task.high)]
    while pending:
        found = store.get_many(pending, Commit)
        yield [Logged(task, id, found[id]) for id in pending]
        last = found[pending[-1]]
        wanted = min(len(last.parents), last.number - task.low, READ_TOGETHER)
        pending = list(last.parents[: max(0, wanted)])


class HistoryView(SystemView[HistoryTask, R], Generic[R]):
    """A system view whose rows are derived from commits."""

    has_range = True
    rows_per_partition = 200

    def plan(self, request: ScanRequest) -> list[Weighted[HistoryTask]]:
        return plan_history(request, self.rows_per_partition)

    def rows(self, store: ReadStore, task: HistoryTask, needs: frozenset[str]) -> Iterator[R]:
        objects = store.objects(task.realm)
        for run in commits_of(objects, task):
            yield from self.of(objects, run, needs)

    @abstractmethod
    def of(self, store: ObjectStore, commits: list[Logged], needs: frozenset[str]) -> Iterator[R]:
        """Yield the rows of the given commits. `needs` contains `ViewColumn.needs` of the requested columns."""
