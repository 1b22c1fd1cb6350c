"""Observes every commit of the simulated catalog, and checks the rules of materialized views."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalogs import heads_prefix
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized import view_freshness
from polaris_spark.catalog.metadata.rows import Table as StoredTable
from polaris_spark.catalog.metadata.rows import View as StoredView
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, CatalogRow
from polaris_spark.catalog.tables.contents import document
from polaris_spark.commits.rows import Commit, LogEntry
from polaris_spark.commits.state import CommitReader, StoredObjects, reading_state
from polaris_spark.index.keys import decode_key
from polaris_spark.property_values import duration_ms
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from tests.simulation.observer import REALM, Content, Observer, RowHistory, Watched
from tests.simulation.refreshes.lake import (
    NOTHING,
    Json,
    Lake,
    Query,
    Rows,
    Sources,
    Table,
    TableFacts,
    ViewFacts,
    recorded_rows,
)

_MARGIN_MS = 1_000
"""Difference of clocks that the check of expired snapshots allows."""


@dataclass
class Attempt:
    """An attempt of a refresh to write rows."""

    id: int
    """The `refresh-id`."""
    outcome: str = ""
    """`done`, `refused` or `unknown`; empty if the process died, or did not send the commit."""


@dataclass
class Refresh:
    """A call of the procedure `refresh`, and what it returned."""

    view: str
    process: str
    invoked: int
    attempts: list[Attempt] = field(default_factory=list)
    responded: int = 0
    """Tick of the response; 0 if the process died."""
    outcome: str = ""
    """The strategy, or the class of the error."""


class Moment(NamedTuple):
    """What was true from a commit until the next one."""

    tick: int
    tables: dict[Table, tuple[str, int, int]]
    """UUID, current snapshot (-1 for none) and current schema of each table."""
    views: dict[Table, tuple[str, int]]
    """UUID and version of each materialized view."""
    fresh: frozenset[Table]
    """The materialized views whose rows are fresh."""


class TimedFiles(dict[str, bytes]):
    """Files by location, with the time at which each was written."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self.times: dict[str, float] = {}

    def __setitem__(self, location: str, content: bytes) -> None:
        super().__setitem__(location, content)
        self.times[location] = self._now_ms()


class CatalogObserver(Observer):
    """Checks each commit of a catalog against a model that is made from the log and the metadata documents."""

    def __init__(self, tick: Callable[[], int]) -> None:
        super().__init__(tick)
        self.files: TimedFiles = TimedFiles(lambda: self.now_ms())
        self.deleted_files = 0
        self.branch = ""
        """Beginning of the row names of the catalog's branches."""
        self.rows_of: dict[int, Rows] = {}
        """Rows of each snapshot that any client has written, by snapshot id."""
        self.queries: dict[tuple[str, int], Query] = {}
        """The query of each view version, by UUID and version id."""
        self.refreshed: dict[int, list[int]] = {}
        """Ticks at which each refresh took effect, by refresh id."""
        self.invoked: dict[int, int] = {}
        """Tick at which the call began that made a refresh, by refresh id."""
        self.moments: list[Moment] = []
        self.retentions = True
        """Whether clocks are good enough to check what expiry keeps."""
        self.writes_files = True
        """Whether every commit writes the metadata files of views."""
        self.newest = Lake({}, {})
        """The newest commit of the branch."""
        self._lakes: dict[int, Lake] = {}
        self._tables: dict[int, TableFacts] = {}
        self._views: dict[int, ViewFacts] = {}
        self._locations: dict[str, int] = {}

    def watch(self, backend: Watched) -> None:
        super().watch(backend)
        self.store = ObjectStore(backend, REALM, ObjectCache(2**26), store_key="model")
        self.reader = StoredObjects(self.store)

    def opened(self, row: CatalogRow) -> None:
        """Set the catalog to observe."""
        self.branch = heads_prefix(row)

    def _replayed(
        self, row: RowHistory, content: Content, entries: Sequence[LogEntry], commit: int, name: str
    ) -> Content:
        done = self.done_once(content, entries, commit, name)
        if self.branch and row.name.startswith(self.branch):
            self._catalog_committed(row, entries, commit, name)
        return content._replace(done=done)

    def _catalog_committed(
        self, row: RowHistory, entries: Sequence[LogEntry], commit: int, name: str
    ) -> None:
        stored = self.object(commit, Commit)
        before = self._lakes.get(stored.parents[0], Lake({}, {}))
        state = reading_state(CommitReader(self.store, b"", row.head, stored))
        lake = Lake(dict(before.tables), dict(before.views))
        for entry in entries:
            for problem in self._step(lake, entry):
                self.blame(f"{name}: {entry.action} of {decode_key(entry.key)}: {problem}")
        self._lakes[commit] = self.newest = lake
        listed = {key: entry.pointer for key, entry in state.base.index(NAMES).range()}
        kinds = {key: decode_key(key) for key in listed}
        contents = {
            (*kinds[key][0], kinds[key][2]): listed[key] for key in listed if kinds[key].kind in (TABLE, VIEW)
        }
        replayed = {key: facts.content for one in (lake.tables, lake.views) for key, facts in one.items()}
        if contents != replayed:
            self.blame(f"{name}: the log gives {replayed}, the index has {contents}")
            return
        for problem in (
            *self._pairs(lake),
            *self._changes(before, lake),
            *self._stored(lake),
            *self._absent(lake),
        ):
            self.blame(f"{name}: {problem}")
        fresh = frozenset(view for view in lake.views if self._is_fresh(lake, view))
        for view in lake.views:
            found = view_freshness.freshness(state, TableName(view[:-1], view[-1]))
            if found.fresh and view not in fresh:
                self.blame(f"{name}: {view} is said to be fresh, and is not")
        self.moments.append(
            Moment(
                self.tick(),
                {
                    key: (one.uuid, -1 if one.current is None else one.current, one.schema_id)
                    for key, one in lake.tables.items()
                },
                {key: (one.uuid, one.version_id) for key, one in lake.views.items()},
                fresh,
            )
        )

    # The log

    def _step(self, lake: Lake, entry: LogEntry) -> Iterator[str]:
        """Apply a log entry to the model, and check the change of the table or view."""
        path, kind, last = decode_key(entry.key)
        key = (*path, last)
        if kind == TABLE:
            old = lake.tables.pop(self._old(entry, key), None)
            if entry.after:
                new = lake.tables[key] = self._table(entry.after)
                if last == "storage":
                    yield from self._storage_step(lake, key, old, new, entry)
                if entry.action == "expire-snapshots" and old is not None and self.retentions:
                    gone = old.snapshots.keys() - new.snapshots.keys()
                    needed = self._needed(lake, entry.time).get(old.uuid, set())
                    if gone & needed:
                        yield f"snapshots {gone & needed} were removed, which the next refresh needs"
        elif kind == VIEW:
            lake.views.pop(self._old(entry, key), None)
            if entry.after:
                lake.views[key] = self._view(entry.after)

    @staticmethod
    def _old(entry: LogEntry, key: Table) -> Table:
        if not entry.old_key:
            return key
        path, _, last = decode_key(entry.old_key)
        return (*path, last)

    def _table(self, content: int) -> TableFacts:
        found = self._tables.get(content)
        if found is None:
            value = self.store.get(content, StoredTable)
            found = TableFacts(content, document(value, self.reader), value.metadata_location)
            self._tables[content] = found
        return found

    def _view(self, content: int) -> ViewFacts:
        found = self._views.get(content)
        if found is None:
            value = self.store.get(content, StoredView)
            found = ViewFacts(content, document(value, self.reader), value.metadata_location)
            self._views[content] = found
            for id, query in found.queries.items():
                if self.queries.setdefault((found.uuid, id), query) != query:
                    self.blame(f"version {id} of view {found.uuid} has changed")
        return found

    def _storage_step(
        self, lake: Lake, key: Table, old: TableFacts | None, new: TableFacts, entry: LogEntry
    ) -> Iterator[str]:
        """Check a change of a storage table: only a refresh changes its rows."""
        if old is None:
            if new.current is not None:
                yield "a new storage table has rows"
            return
        refreshes = 0
        added = sorted(new.snapshots.keys() - old.snapshots.keys())
        for id in added:
            refresh = new.refresh_in(id)
            if refresh is None:
                snapshot = new.snapshots[id]
                parent = snapshot.get("parent-snapshot-id")
                if (
                    self.rows_of.get(id) != self.rows_of.get(parent)
                    or snapshot["summary"]["operation"] != "replace"
                ):
                    yield f"snapshot {id} was written, and is neither a refresh nor a compaction"
                continue
            refreshes += 1
            yield from self._refresh_step(lake, key, old, new, id, refresh)
        if refreshes > 1:
            yield "two refreshes in one change"
        if new.current == old.current or new.current in added:
            return
        if new.current is None and entry.action != "update-table":
            return  # the query was replaced
        if new.current not in old.snapshots:
            yield f"the current snapshot {old.current} became {new.current}"

    def _refresh_step(
        self, lake: Lake, key: Table, old: TableFacts, new: TableFacts, id: int, refresh: Json
    ) -> Iterator[str]:
        number = refresh["refresh-id"]
        self.refreshed.setdefault(number, []).append(self.tick())
        if new.current != id:
            yield f"the refresh {number} did not become current"
        record = old.record
        last = None if record is None else record["refresh-id"]
        if refresh["replaces"] != last:
            yield f"the refresh {number} replaces {refresh['replaces']}, but {last} was current"
        view = lake.views.get(key[:-1])
        if view is None or (view.uuid, view.version_id) != (refresh["view-uuid"], refresh["version-id"]):
            yield f"the refresh {number} is not of the current version of the view"
        if not self._read_one_commit(refresh, self.invoked[number]):
            yield f"the sources of the refresh {number} were never in the recorded states since it began"

    def _read_one_commit(self, refresh: Json, invoked: int) -> bool:
        """Whether all sources were in the recorded states in one commit, since the refresh began."""
        sources = refresh["source-states"]
        for moment in reversed(self.moments):
            if all(_was(moment, source) for source in sources):
                return True
            if moment.tick < invoked:
                return False
        return False

    def _needed(self, lake: Lake, now: int) -> dict[str, set[int]]:
        """Return the snapshots that the next incremental refreshes need, by the UUID of the table."""
        needed: dict[str, set[int]] = {}
        for name, view in lake.views.items():
            storage = lake.storage(name)
            record = None if storage is None else storage.record
            if record is None or view.document.get("refresh-strategy") != "incremental":
                continue
            retention = duration_ms("retention", view.properties.get("refresh-retention", "7 d"))
            if now - record["refresh-start-timestamp-ms"] > retention - _MARGIN_MS:
                continue
            for source in record["source-states"]:
                if source["type"] == "table":
                    needed.setdefault(source["uuid"], set()).add(source["snapshot-id"])
                elif "storage-snapshot-id" in source:
                    below = lake.storage((*source["namespace"], source["name"]))
                    if below is not None:
                        needed.setdefault(below.uuid, set()).add(source["storage-snapshot-id"])
        return needed

    # Each commit

    def _pairs(self, lake: Lake) -> Iterator[str]:
        """A view and its storage table exist together and refer to each other."""
        for name, view in lake.views.items():
            storage = lake.storage(name)
            if storage is None:
                yield f"view {name} has no storage table"
                continue
            if view.document["storage-table-location"] != storage.location:
                yield f"view {name} refers to another metadata file than that of its storage table"
            where = {"namespace": list(name), "name": "storage"}
            if any(one != where for one in view.storage):
                yield f"view {name} names another storage table: {view.storage}"
            if self.files.get(storage.location) != storage.text:
                yield f"the metadata file of the storage table of {name} is not there"
            if self.writes_files and self.files.get(view.location) != view.text:
                yield f"the metadata file of the view {name} is not there"
        for name in lake.tables:
            if name[-1] == "storage" and name[:-1] not in lake.views:
                yield f"storage table {name} has no view"

    def _changes(self, before: Lake, lake: Lake) -> Iterator[str]:
        """Every change of a storage table gives the view a new metadata file."""
        views = {one.uuid: one for one in before.views.values()}
        storages = {one.uuid: one for name, one in before.tables.items() if name[-1] == "storage"}
        for name, view in lake.views.items():
            storage = lake.storage(name)
            old = None if storage is None else storages.get(storage.uuid)
            earlier = views.get(view.uuid)
            if storage is None or old is None or earlier is None:
                continue
            if storage.content != old.content and view.location == earlier.location:
                yield f"the storage table of {name} has changed, and the view has the same metadata file"
        for one in (*lake.tables.values(), *lake.views.values()):
            if self._locations.setdefault(one.location, one.content) != one.content:
                yield f"two versions have the metadata file {one.location}"

    def _stored(self, lake: Lake) -> Iterator[str]:
        """The stored rows are those that the refresh record describes."""
        for name, view in lake.views.items():
            storage = lake.storage(name)
            if storage is None:
                continue
            record = storage.record
            if storage.current is None:
                if record is not None:
                    yield f"{name} has no rows, but a refresh record"
                continue
            if record is None:
                if _has_refresh(storage):
                    yield f"{name} has rows, but no refresh record"
                continue
            try:
                rows = recorded_rows(record, (view.uuid, record["version-id"]), self.queries, self.rows_of)
            except LookupError as error:
                yield f"the refresh record of {name} lacks the source {error}"
                continue
            if rows != self.rows_of.get(storage.current, NOTHING):
                yield f"{name} stores other rows than those of its refresh record"

    def _absent(self, lake: Lake) -> Iterator[str]:
        """No file of a snapshot is deleted."""
        for name, table in lake.tables.items():
            for id, snapshot in table.snapshots.items():
                if snapshot["manifest-list"] not in self.files:
                    yield f"the manifest list of snapshot {id} of {name} is deleted"

    def needed_files(self) -> frozenset[str]:
        """Return the files of the newest commit: manifest lists of all snapshots, and metadata files."""
        lake = self.newest
        lists = [
            snapshot["manifest-list"] for one in lake.tables.values() for snapshot in one.snapshots.values()
        ]
        return frozenset((*lists, *(one.location for one in (*lake.tables.values(), *lake.views.values()))))

    def delete_files(self, older_than_ms: float, among: Container[str] | None = None) -> None:
        """Delete files that the newest commit does not need.

        Args:
            older_than_ms: the least age of the files.
            among: the files that may be deleted; None for all.
        """
        needed, last = self.needed_files(), self.now_ms() - older_than_ms
        for location in sorted(self.files):
            is_asked = among is None or location in among
            if is_asked and location not in needed and self.files.times[location] <= last:
                del self.files[location]
                self.deleted_files += 1

    def _is_fresh(self, lake: Lake, name: Table) -> bool:
        """Whether the recorded states of all sources are the present states."""
        view, storage = lake.views[name], lake.storage(name)
        record = None if storage is None else storage.record
        if record is None or record["version-id"] != view.version_id:
            return False
        try:
            now = Sources(lake, self.rows_of, name)
        except LookupError:
            return False
        tables: dict[Table, tuple[str, Rows, int]] = {}
        views: dict[Table, tuple[str, int]] = {}
        for source in record["source-states"]:
            key = (*source["namespace"], source["name"])
            if source["type"] == "table":
                rows = self.rows_of.get(source["snapshot-id"], NOTHING)
                tables[key] = (source["uuid"], rows, source["schema-id"])
            else:
                views[key] = (source["uuid"], source["version-id"])
        return (
            tables
            == {
                key: (one.uuid, self.rows_of.get(one.current or 0, NOTHING), one.schema_id)
                for key, one in now.tables.items()
            }
            and views == {key: (one.uuid, one.version_id) for key, one in now.views.items()}
            and storage is not None
            and self.rows_of.get(storage.current or 0) == now.rows
        )


def _has_refresh(table: TableFacts) -> bool:
    """Whether the summary of the current snapshot or of an ancestor describes a refresh."""
    id = table.current
    while id in table.snapshots:
        if table.refresh_in(id) is not None:
            return True
        id = table.snapshots[id].get("parent-snapshot-id")
    return False


def _was(moment: Moment, source: Json) -> bool:
    key = (*source["namespace"], source["name"])
    if source["type"] == "view":
        return moment.views.get(key) == (source["uuid"], source["version-id"])
    state = (source["uuid"], source["snapshot-id"], source.get("schema-id"))
    return moment.tables.get(key) == state


def judge_refreshes(observer: CatalogObserver, refreshes: Sequence[Refresh]) -> None:
    """Compare what callers of refreshes were told with what took effect."""
    for one in refreshes:
        who = f"the refresh of {one.view} by {one.process} ({one.outcome or 'died'})"
        for attempt in one.attempts:
            ticks = observer.refreshed.get(attempt.id, [])
            if len(ticks) > 1:
                observer.blame(f"{who}: {attempt.id} took effect {len(ticks)} times")
            if attempt.outcome == "done" and len(ticks) != 1:
                observer.blame(f"{who}: {attempt.id} was acknowledged, and took effect {len(ticks)} times")
            if attempt.outcome in ("refused", "unsent") and ticks:
                observer.blame(f"{who}: {attempt.id} was refused, and took effect")
        if one.outcome in ("full", "incremental"):
            ticks = observer.refreshed.get(one.attempts[-1].id, []) if one.attempts else []
            if not any(tick <= one.responded for tick in ticks):
                observer.blame(f"{who}: it was acknowledged, and never took effect")
        if one.outcome == "none" and not _was_fresh(observer, one):
            observer.blame(f"{who}: its rows were not fresh at any time")


def _was_fresh(observer: CatalogObserver, one: Refresh) -> bool:
    moments = observer.moments
    for place, moment in enumerate(moments):
        until = moments[place + 1].tick if place + 1 < len(moments) else one.responded
        if moment.tick <= one.responded and until >= one.invoked and ("db", one.view) in moment.fresh:
            return True
    return False
