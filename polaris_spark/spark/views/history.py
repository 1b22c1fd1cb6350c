"""Parallel reads of the commit histories of references.

Each task reads a range of commit numbers in the history of one head (newest commit), or archived commits."""

from __future__ import annotations

import contextlib
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Generic, NamedTuple, TypeVar

from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.branches.archived_log import (
    NO_ARCHIVE,
    ArchivedLog,
    Part,
    commits_of_part,
    first_after,
    line_of,
    number_in_log,
)
from polaris_spark.catalog.catalogs.references import CATALOGS, catalog_in, head_name
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.as_of import AsOf, find_commit, moment, pinned, pinned_in_realm
from polaris_spark.commits.log import ancestor, commit_at
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError, InputError
from polaris_spark.spark.pruning import Condition
from polaris_spark.spark.realm_reader import ReadStore, RealmReader
from polaris_spark.spark.views.entities import LOOKED_UP
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted, partition_count
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registrations import ROOT, Registered, group_of, name_parts

R = TypeVar("R")


class HistoryTask(NamedTuple):
    """A range of commits in the history of `head`, from number `low` to number `high` (both included)."""

    realm: str
    """Instance id of the realm that contains the reference."""
    catalog: str | None
    reference: str
    head: Head
    low: int
    high: int
    parts: tuple[int, ...] = ()
    """Ids of the parts of the archived log that have the commits, the oldest first; empty if the commits are stored."""
    newest: Head | None = None
    """The newest commit of the reference, if `head` is an older one."""


class Logged(NamedTuple):
    """A commit, and the task that reads it."""

    task: HistoryTask
    id: int
    commit: Commit
    archived: tuple[LogEntry, ...] = ()
    """The log entries of an archived commit."""

    @property
    def is_stored(self) -> bool:
        """Whether the commit itself is stored; False if only its archived log entries are."""
        return not self.task.parts


class HistoryRange(NamedTuple):
    """The part of a reference's history from commit number `first` to commit number `last`.

    `catalog` is None if the reference does not belong to a catalog.
    """

    catalog: str | None
    reference: str
    head: Head
    first: int = 0
    last: int = sys.maxsize
    archived: ArchivedLog = NO_ARCHIVE
    """The log of the commits that were trimmed."""

    @property
    def newest(self) -> int:
        """Number of the newest commit of the range."""
        return min(self.last, self.head.number)


def sees_log(scope: Scope, reference: str) -> bool:
    """Return whether the reading principal may see the whole log of a reference."""
    catalog = catalog_in(reference)
    return scope.sees_realm if catalog is None else scope.sees_all_of(catalog)


def _may_show(scope: Scope, reference: str) -> bool:
    """Return whether the reading principal may see any part of the log of a reference."""
    catalog = catalog_in(reference)
    if catalog is None:
        return scope.sees_realm or reference == CATALOGS
    return scope.knows(catalog)


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
        head, name = realm.branch(catalog, options.branch), head_name(catalog, options.branch)
        only = HistoryRange(catalog.name, name, head, archived=realm.archive().of(head, name, name))
        if options.since is not None:
            only = only._replace(first=first_after(store, head, only.archived, options.since))
        if options.as_of is not None:
            only = only._replace(last=number_in_log(store, head, only.archived, options.as_of))
        return forward([only], options.since, options.as_of)
    found = _of_realm(realm, request.condition("reference"), request.condition("catalog"))
    found = after_point(realm, up_to_point(realm, found, options.as_of), options.since)
    return forward(found, options.since, options.as_of)


def _of_realm(realm: RealmReader, reference: Condition, catalog: Condition) -> list[HistoryRange]:
    """Return the histories of all references of a realm that satisfy the conditions, with their archived logs. The
    archived logs of references that no longer exist come last.

    A dropped branch is included, without the commits from before it began.
    """
    names = {f"cat/{row.entity_id:x}/": row.name for row in realm.catalogs()}

    def catalog_of(name: str) -> str | None:
        return next((n for prefix, n in names.items() if name.startswith(prefix)), None)

    def wanted(name: str) -> bool:
        if realm.scope is not None and not _may_show(realm.scope, name):
            return False
        return reference.allows(name) and catalog.allows(catalog_of(name))

    listed = realm.listed()
    heads = [(one.name, one.row_name, realm.head_of(one)) for one in listed if wanted(one.name)]
    if wanted(ROOT):
        heads.insert(0, (ROOT, ROOT, realm.root()))
    # The archive is read after the heads: a trim archives before it raises a floor.
    lines = realm.archive().lines()
    has_archive = bool(lines)
    if has_archive:  # read all commits of the heads in one batch
        realm.store.get_many([head.commit for _, _, head in heads if head.commit], Commit)
    found = []
    for name, row_name, head in heads:
        if not head.commit or (head.sealed and not _is_branch(name)):
            continue
        archived, first = ArchivedLog((), head.floor_number), 0
        if has_archive or head.sealed:
            line = line_of(realm.open(head), name, row_name)
            if line is None:  # no log that could be archived: what is stored is all
                archived = archived._replace(began=head.floor_number)
            else:
                archived = ArchivedLog.below(head.floor_number, lines.pop(line.key, ()), line.began)
                first = line.began if head.sealed else 0
        found.append(HistoryRange(catalog_of(name), name, head, first, archived=archived))
    gone = {key: parts for key, parts in lines.items() if wanted(parts[-1].range.reference)}
    for key in _other_lines(realm, [one for one in listed if not wanted(one.name)], gone):
        gone.pop(key, None)
    by_name = {history.reference: history for history in found}
    for parts in gone.values():
        name = parts[-1].range.reference
        found += _of_gone(realm.store, catalog_of(name), parts, by_name.get(name))
    return found


def _is_branch(reference: str) -> bool:
    parts = name_parts(reference)
    return parts is not None and not parts.is_tag


def _other_lines(
    realm: RealmReader, unwanted: list[Registered], gone: Mapping[bytes, tuple[Part, ...]]
) -> Iterator[bytes]:
    """Yield the keys of the archived logs that belong to the branches `unwanted`. Such a branch may have had a
    requested name when its log was archived.

    Only the branches of catalogs that occur in `gone` are read.
    """
    catalogs = {group_of(parts[-1].range.reference) for parts in gone.values()}
    for registered in unwanted:
        if _is_branch(registered.name) and group_of(registered.name) in catalogs:
            head = realm.head_of(registered)
            line = line_of(realm.open(head), registered.name, registered.row_name) if head.commit else None
            if line is not None:
                yield line.key


def _of_gone(
    store: ObjectStore, catalog: str | None, parts: tuple[Part, ...], other: HistoryRange | None
) -> Iterator[HistoryRange]:
    """Yield the archived log of a reference that no longer exists.

    Args:
        other: the history of the present reference of the same name, if there is one. Commits that are still stored in
            this history are left out.
    """
    name, last, time = parts[-1].range.reference, parts[-1].range.last, parts[-1].range.latest
    head = Head(0, last, time, last + 1, time, sealed=True)

    def history(archived: ArchivedLog, first: int = 0) -> HistoryRange:
        return HistoryRange(catalog, name, head, first, archived=archived._replace(began=archived.oldest))

    archived = ArchivedLog(parts, last + 1)
    common = -1 if other is None else _last_common(store, archived, other)
    if other is None or common < 0:
        yield history(archived)
    else:
        below = ArchivedLog.below(other.head.floor_number, parts)
        if below.parts:
            yield history(below)
        if common < last:
            yield history(archived, common + 1)


def _last_common(store: ObjectStore, archived: ArchivedLog, other: HistoryRange) -> int:
    """Return the number of the newest commit that is both in an archived log and stored in the history `other`; -1 if
    there is none. The commit is found by bisection."""

    def is_common(number: int) -> bool:
        found = archived.commit(store, number)
        return found is not None and found.id == ancestor(store, other.head, number)

    low = max(archived.parts[0].first, other.head.floor_number)
    high = min(archived.floor - 1, other.archived.began - 1)
    if low > high or not is_common(low):
        return -1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_common(middle) else (low, middle - 1)
    return low


def after_point(realm: RealmReader, found: list[HistoryRange], since: AsOf | None) -> list[HistoryRange]:
    """Return the histories without the commits up to the point `since`, which is excluded too.

    The point can be a commit of any reference of the realm. In the histories of other references, the time of this
    commit is the point.
    """
    if since is None:
        return found
    store, time = realm.store, cache(lambda: _time_of(realm, since))
    result = []
    for history in found:
        first = _at_point(partial(first_after, store, history.head, history.archived), history, since, time)
        result.append(history._replace(first=max(history.first, first or 0)))
    return result


def _at_point(
    find: Callable[[AsOf], int], history: HistoryRange, point: AsOf, time: Callable[[], int]
) -> int | None:
    """Return the result of `find` for a point of the realm's history; None if the history began later.

    Args:
        find: finds the number of a commit at or after a point.
        time: returns the time of the point, in milliseconds since 1970. It is used if the point is a commit of another
            reference.
    """
    try:
        try:
            return find(point)
        except (HistoryTrimmedError, InputError) as error:
            if not point.commits:
                raise
            try:
                at = time()
            except InputError:
                raise error from None
            return find(point._replace(commits=(), time=at))
    except BeforeHistoryError:
        return None
    except HistoryTrimmedError:
        if history.archived.is_complete:  # the log of earlier commits is that of another branch
            return None
        raise


def forward(found: list[HistoryRange], since: AsOf | None, until: AsOf | None) -> list[HistoryRange]:
    """Return the histories unchanged, after checking that no range ends before it begins.

    Raises:
        InputError: `since` is after `until`.
    """
    if since is not None and until is not None:
        times_are_backward = since.time is not None and until.time is not None and since.time > until.time
        if times_are_backward or any(one.first > one.newest + 1 for one in found):
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
    """Return the histories of references, each with the head that its reference had at a point of the realm's history.
    Leave out references that did not exist yet. If the point is None, return the histories unchanged."""
    if as_of is None:
        return found
    moment(store, as_of)  # also without histories, refuse a commit that the realm does not have
    result = []
    for history in found:
        with contextlib.suppress(BeforeHistoryError):  # it did not exist yet
            result.append(history._replace(head=pinned_in_realm(store, history.head, as_of)))
    return result


def up_to_point(realm: RealmReader, found: list[HistoryRange], until: AsOf | None) -> list[HistoryRange]:
    """Return the histories up to a point of the realm's history, archived commits included. Leave out those that did
    not exist yet."""
    if until is None:
        return found
    store, time = realm.store, _time_of(realm, until)
    result = []
    for history in found:
        find = partial(number_in_log, store, history.head, history.archived)
        last = _at_point(find, history, until, lambda: time)
        if last is not None and last >= history.first:
            result.append(history._replace(last=last))
    return result


def _time_of(realm: RealmReader, point: AsOf) -> int:
    """Return the time of a point in history, in milliseconds since 1970. The point can also be the id of an archived
    commit.

    Raises:
        InputError: the point is neither a time nor the id of a commit of this realm.
    """
    try:
        return moment(realm.store, point)
    except InputError:
        time = realm.archive().time_of(point.commits) if point.commits else None
        if time is None:
            raise
        return time


def plan_history(request: ScanRequest, rows_per_partition: int) -> list[Weighted[HistoryTask]]:
    """Return tasks that read the requested commits, each with its number of commits. Planning reads heads and a
    few commits."""
    realm = request.store.realm(request.options.realm)
    planned = []
    for history in histories(realm, request):
        planned += _archived_tasks(realm.store.realm, history, request, rows_per_partition)
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


def _archived_tasks(
    realm: str, history: HistoryRange, request: ScanRequest, rows_per_partition: int
) -> list[Weighted[HistoryTask]]:
    """Return tasks that read the archived commits that may satisfy the conditions, each with its number of commits."""
    time, ids = request.condition("committed_at"), request.condition("commit_id").values
    highest = min(history.last, history.archived.floor - 1)
    low, high = _numbers(request.condition("number"), history.first, highest)
    parts = [
        part
        for part in history.archived.between(low, high)
        if time.overlaps(part.range.earliest * 1_000, part.range.latest * 1_000 + 999)
        and (ids is None or any(part.range.lowest <= id <= part.range.highest for id in ids))
    ]
    planned: list[Weighted[HistoryTask]] = []
    some: list[Part] = []
    for part in parts:
        some.append(part)
        commits = sum(one.range.last - one.first + 1 for one in some)
        if commits >= rows_per_partition or part is parts[-1]:
            read = tuple(one.id for one in some)
            task = HistoryTask(realm, history.catalog, history.reference, history.head, low, high, parts=read)
            planned.append(Weighted(task, commits))
            some = []
    return planned


def _bounds(store: ObjectStore, history: HistoryRange, request: ScanRequest) -> tuple[int, int]:
    """Return the first and last number of the commits that may satisfy the conditions. The first is greater than the
    last if no commit can."""
    head = history.head
    low, high = _numbers(request.condition("number"), max(head.floor_number, history.first), history.newest)
    time = request.condition("committed_at")
    earliest = [t for t in (time.low, min(time.values) if time.values else None) if t is not None]
    latest = [t for t in (time.high, max(time.values) if time.values else None) if t is not None]
    if head.time_resets:
        earliest, latest = [], []  # commit times are not in the order of commit numbers
    if low > high:
        return low, high
    if earliest:
        # Start after the newest commit that is at or before the preceding millisecond.
        low = max(low, _number_at(store, head, max(earliest) // 1_000 - 1) + 1)
    if latest:
        high = min(high, _number_at(store, head, min(latest) // 1_000))
    ids = request.condition("commit_id").values
    if ids is not None and len(ids) <= LOOKED_UP:
        found = [commit.number for id in ids if (commit := find_commit(store, id)) is not None]
        low, high = max(low, min(found, default=high + 1)), min(high, max(found, default=high))
    return low, high


def _numbers(condition: Condition, low: int, high: int) -> tuple[int, int]:
    """Narrow the range of commit numbers from `low` to `high` (both included) by a condition. Return the first and the
    last number that may satisfy the condition. The first is greater than the last if none can."""
    values = condition.values
    at_least = [n for n in (low, condition.low, min(values) if values else None) if n is not None]
    at_most = [n for n in (high, condition.high, max(values) if values else None) if n is not None]
    return max(at_least), min(at_most)


def _number_at(store: ObjectStore, head: Head, time: int) -> int:
    """Return the number of the newest commit at or before a time (milliseconds since 1970). If all stored commits are
    later, return the number before the oldest stored commit."""
    try:
        return store.get(commit_at(store, head, time), Commit).number
    except (HistoryTrimmedError, BeforeHistoryError):
        return head.floor_number - 1


def commits_of(store: ObjectStore, task: HistoryTask) -> Iterator[list[Logged]]:
    """Yield the commits of a task, newest first, in lists. Each list was read in one batch."""
    for part in reversed(task.parts):
        archived = commits_of_part(store, part, task.low, task.high)
        yield [Logged(task, one.id, one.commit, one.entries) for one in archived]
    if task.parts:
        return
    pending = [ancestor(store, task.head, task.high)]
    while pending:
        found = store.get_many(pending, Commit)
        yield [Logged(task, id, found[id]) for id in pending]
        last = found[pending[-1]]
        wanted = min(len(last.parents), last.number - task.low)
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
