"""Reads what the store contains about the table or view of a change, for `polaris-spark watch --openlineage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from polaris_spark.catalog.entities.entities import TableName, find, table_key
from polaris_spark.catalog.entities.identifiers import levels_of
from polaris_spark.catalog.entities.listing import at_commit
from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name, view_of
from polaris_spark.catalog.entities.refresh_records import NO_SNAPSHOT, REFRESH, shown_columns
from polaris_spark.catalog.materialized.lineage import (
    Dependence,
    LineageSource,
    dependences,
    named_dependences,
)
from polaris_spark.catalog.materialized.stored_views import last_refresh
from polaris_spark.catalog.materialized.view_sources import SOURCE_STATES, version_of
from polaris_spark.catalog.materialized.view_time_travel import fields_of_version
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.texts import get_objects
from polaris_spark.catalog.rows import TABLE, VIEW, Unloaded
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.cli.change_sources import until_readable
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.errors import BadRequestError, MissingObjectError, NotFoundError
from polaris_spark.names import sql_name

Json = dict[str, Any]


class ReadSource(NamedTuple):
    """A table or view that a refresh, or the query of a view, reads."""

    source: LineageSource
    location: str | None
    """Location of a table or view of the catalog; None if it is not known."""
    version: str | None
    """Id of the snapshot, or of the view's version, that a refresh read; None if it is not known."""


class ChangedDataset(NamedTuple):
    """A table or view as it was after a change; if the change dropped it, as it was before. A change of the storage
    table of a materialized view is shown as a change of the view. If a sweep has already deleted the row of the table
    or view, only its name and type are known."""

    name: str
    """Name as in the log."""
    type: str
    """`table`, `view` or `materialized view`."""
    location: str | None = None
    """Location of the data; of a view without stored rows, of the view."""
    fields: list[Json] | None = None
    """Fields of the schema, in the form of the specification of Iceberg."""
    version: str | None = None
    """Id of the snapshot, or of the version of a view without stored rows."""
    totals: Mapping[str, str] = {}
    """Summary of the snapshot."""
    query: tuple[str, str] | None = None
    """The query of a view, and its dialect."""
    sources: tuple[ReadSource, ...] = ()
    """What a refresh, or the query of a new version of a view, reads."""
    dependences: tuple[Dependence, ...] = ()
    """Lineage of the columns of these sources."""
    is_refresh: bool = False
    """Whether the change is a refresh of a materialized view."""


class DatasetReader:
    """Reads the tables and views of a branch's changes, each as of the commit of the change."""

    def __init__(self, catalog: str, newest: Callable[[], CommitReader]) -> None:
        """
        Args:
            catalog: name of the catalog.
            newest: returns the newest commit of the branch.
        """
        self.catalog = catalog
        self._newest = newest

    def read(self, change: Json) -> ChangedDataset:
        """Return the table or view of a change. If the store cannot be read for a temporary reason, print a message on
        standard error, and try again.

        Args:
            change: a change as `catalog.branches.change_log.changes_after` returns it, of a table or view.
        """
        levels = levels_of(change["name"]) or (change["name"],)
        name = TableName(tuple(levels[:-1]), levels[-1])
        try:
            return until_readable(lambda: self._read(change, name))
        except (MissingObjectError, NotFoundError):  # a sweep has deleted the rows of a trimmed commit
            return ChangedDataset(change["name"], change["kind"])

    def _read(self, change: Json, name: TableName) -> ChangedDataset:
        after, before = change["after"], change["before"]
        state = self._state(int(change["commit"]["id"], 16), before=after is None)
        id = int(after or before or "0", 16)
        if not id:
            return ChangedDataset(change["name"], change["kind"])
        if change["kind"] == "view":
            view = content_of(state, id, View)
            if isinstance(view, Unloaded):
                return ChangedDataset(change["name"], "view", view.location)
            return self._view(state, change, name, view)
        table = content_of(state, id, Table)
        if isinstance(table, Unloaded):
            return ChangedDataset(change["name"], "table", table.location)
        return self._table(state, change, name, table)

    def _state(self, commit: int, *, before: bool) -> State:
        newest = self._newest()
        if before:
            parents = newest.store.get(commit, Commit).parents
            commit = parents[0] if parents else commit
        return reading_state(at_commit(newest, commit))

    def _table(self, state: State, change: Json, name: TableName, table: Table) -> ChangedDataset:
        draft = TableDraft(table, state, now_ms=0)
        summary = change["summary"]
        id = _id_of(summary.get("snapshot-id")) or table.current_snapshot_id
        snapshot = None if id is None else draft.snapshots.get(id)
        schema = draft.schemas.get(table.current_schema_id) or {"fields": []}
        found = ChangedDataset(
            change["name"],
            "table",
            table.location or None,
            schema["fields"],
            None if id is None else str(id),
            {} if snapshot is None else snapshot.get("summary") or {},
        )
        owner = view_of(state, name)
        if owner is None:
            return found
        view_name, _, view = owner
        if id is not None and found.fields is not None:
            shown = shown_columns(draft, id)
            found = found._replace(fields=[one for one in found.fields if one["name"] in shown])
        found = found._replace(
            name=sql_name((*view_name.namespace, view_name.name)), type="materialized view"
        )
        if REFRESH not in found.totals or summary.get("operation") == "replace":
            return found
        return self._with_sources(state, found._replace(is_refresh=True), view_name, view)

    def _view(self, state: State, change: Json, name: TableName, view: View) -> ChangedDataset:
        found = ChangedDataset(
            change["name"],
            "view",
            view.location,
            fields_of_version(state, view, view.current_version_id),
            str(view.current_version_id),
            query=_query(version_of(state, view)),
        )
        if is_materialized(view):
            storage = find(state, table_key(storage_name(name), TABLE))
            table = None if storage is None else content_of(state, storage.content, Table)
            location = None if table is None else table.location
            current = table.current_snapshot_id if isinstance(table, Table) else None
            found = found._replace(
                type="materialized view", location=location, version=None if current is None else str(current)
            )
        if "set-current-view-version" not in change["summary"].get("updates", "").split(","):
            return found
        return self._with_sources(state, found, name, view)

    def _with_sources(
        self, state: State, found: ChangedDataset, name: TableName, view: View
    ) -> ChangedDataset:
        """Add what a view or a refresh reads, and the view's query."""
        if found.type == "materialized view":
            listed = dependences(state, self.catalog, name, view)
            record = last_refresh(state, name) if found.is_refresh else None
        else:
            listed, record = named_dependences(state, self.catalog, name, view), None
        versions = _versions(record or {})
        sources = dict.fromkeys(one.source for one in listed)
        read = [
            ReadSource(one, self._location(state, one), versions.get((*one.namespace, one.name)))
            for one in sources
        ]
        query = _query(version_of(state, view))
        return found._replace(sources=tuple(read), dependences=tuple(listed), query=query)

    def _location(self, state: State, source: LineageSource) -> str | None:
        if source.catalog is None:
            return source.name
        if source.catalog != self.catalog:
            return None
        name = TableName(source.namespace, source.name)
        if source.type == "materialized view":
            name = storage_name(name)
        is_view = source.type == "view"
        entry = find(state, table_key(name, VIEW if is_view else TABLE))
        if entry is None:
            return None
        content = (
            content_of(state, entry.content, View) if is_view else content_of(state, entry.content, Table)
        )
        return content.location or None


def _id_of(text: str | None) -> int | None:
    with suppress(TypeError, ValueError):
        return int(text or "")
    return None


def _query(version: Json) -> tuple[str, str] | None:
    """Return the first query of a view's version in SQL, and its dialect."""
    with suppress(BadRequestError, KeyError):
        for one in get_objects(version, "representations"):
            if str(one.get("type")).lower() == "sql":
                return str(one["sql"]), str(one["dialect"])
    return None


def _versions(record: Json) -> dict[tuple[str, ...], str]:
    """Return the id of the snapshot or version that a refresh read, by the names of its sources in the catalog."""
    found: dict[tuple[str, ...], str] = {}
    with suppress(AttributeError, LookupError, TypeError):  # of another writer
        for one in record.get(SOURCE_STATES, ()):
            ids = (one.get(field) for field in ("storage-snapshot-id", "snapshot-id", "version-id"))
            id = next((id for id in ids if id is not None), NO_SNAPSHOT)
            if id != NO_SNAPSHOT and "catalog" not in one:
                source = (*one["namespace"], one["name"])
                found[source] = str(id)
    return found
