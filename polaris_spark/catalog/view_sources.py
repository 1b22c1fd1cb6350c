"""Sources of materialized views: the tables and views that a query reads, their states in one commit, and whether a
stored result is still that of the query.

A query is pinned by replacing each table in its text with the table at its snapshot in the commit, and each view with
the view's pinned query. So the query reads one state of the catalog, however long it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.entities import NamespaceName, TableName, find, require, table_key
from polaris_spark.catalog.materialized_views import (
    NO_SNAPSHOT,
    SESSION,
    current_refresh,
    is_materialized,
    storage_name,
)
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Schema, Table, View, ViewVersion
from polaris_spark.catalog.metadata.texts import Json, decode, get_objects
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.catalog.snapshot_sql import at_snapshot, named_snapshot, quoted
from polaris_spark.catalog.view_queries import SourceReference, references_of, replaced
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import children, decode_key, subtree

SOURCE_STATES = "source-states"
"""Field of a refresh record beyond the draft specification: the states of the sources, as in the newer proposal."""
MAIN = "main"
_TOGETHER = 256
"""Number of views whose index entries are read together."""
_DEEPEST = 32
"""Maximum depth of views that read other views."""
_COMPACTIONS = 1_000
"""Maximum number of snapshots that are read to find out whether all changes of a table are compactions."""


class ViewQuery(NamedTuple):
    """The query of a view in Spark's SQL, and the catalog and namespace in which its names are resolved."""

    sql: str
    catalog: str
    """Name of the catalog in Spark; empty for the view's own catalog."""
    namespace: tuple[str, ...]


class TableSource(NamedTuple):
    """A table that a query reads, and its state."""

    identifier: str
    """Identifier as in the query."""
    name: TableName
    uuid: str
    ref: str
    """The branch or tag that is read."""
    snapshot_id: int
    """Id of its snapshot; `NO_SNAPSHOT` if there is none."""
    schema_id: int
    """Id of its current schema."""
    fixed: bool
    """Whether the query names the snapshot, so that changes of the table do not change the result."""
    rows: int
    """Number of rows that are read, as in the snapshot's summary; 0 if unknown."""
    files: int
    """Number of data files that are read, as in the snapshot's summary; 0 if unknown."""
    size: int
    """Bytes of these files, as in the snapshot's summary; 0 if unknown."""
    read: bool = True
    """False if stored rows of a materialized view are read instead of the table."""


class QueryEngine(NamedTuple):
    """What a Spark session says about names and queries."""

    is_catalog: Callable[[str], bool]
    """Returns whether Spark has a catalog of this name."""
    width: Callable[[str], int]
    """Returns the number of columns of a query."""


class StoredSource(NamedTuple):
    """The storage table of a materialized view that a query reads, and its state."""

    uuid: str
    snapshot_id: int


class ViewSource(NamedTuple):
    """A view that a query reads, and its state."""

    name: TableName
    uuid: str
    version_id: int
    stored: StoredSource | None = None
    """Set if the stored rows of the view are read instead of its query."""


class PinnedQuery(NamedTuple):
    """A query that reads one state of the catalog, and the sources that it reads."""

    sql: str
    tables: tuple[TableSource, ...]
    views: tuple[ViewSource, ...]

    def base_tables(self) -> list[Json]:
        """Return the `base-tables` of a refresh record. `properties` contains the table's UUID, and the branch or tag
        if it is not the branch `main`."""
        return [
            {
                "type": "iceberg-metastore",
                "identifier": one.identifier,
                "snapshot-reference": one.snapshot_id,
                "properties": {"uuid": one.uuid} | ({"ref": one.ref} if one.ref != MAIN else {}),
            }
            for one in self.tables
        ]

    def source_states(self) -> list[Json]:
        """Return the `source-states` of the newer proposal. A source whose snapshot the query names has no `ref`. The
        fields `schema-id` and, of a materialized view whose stored rows are read, `storage-snapshot-id` are beyond the
        proposal."""
        tables = [
            {
                "type": "table",
                "namespace": list(one.name.namespace),
                "name": one.name.name,
                "uuid": one.uuid,
                "snapshot-id": one.snapshot_id,
            }
            | ({} if one.fixed else {"ref": one.ref, "schema-id": one.schema_id})
            for one in self.tables
        ]
        views = [
            {
                "type": "view",
                "namespace": list(one.name.namespace),
                "name": one.name.name,
                "uuid": one.uuid,
                "version-id": one.version_id,
            }
            | ({} if one.stored is None else {"storage-snapshot-id": one.stored.snapshot_id})
            for one in self.views
        ]
        return [*tables, *views]


class Freshness(NamedTuple):
    """Whether the stored rows of a materialized view are the result of its query now."""

    fresh: bool
    reason: str
    """Why the rows are stale; empty if they are fresh."""
    changed: tuple[str, ...] = ()
    """Full names of the sources that have changed."""


def query_of(state: State, view: View) -> ViewQuery:
    """Return the query of a view's current version in Spark's SQL.

    Raises:
        BadRequestError: the view has no query in the dialect `spark`.
    """
    pointer = next(one.piece for one in view.versions if one.id == view.current_version_id)
    version = decode(state.get(pointer, ViewVersion).text)
    for one in get_objects(version, "representations"):
        if str(one.get("type")).lower() == "sql" and str(one.get("dialect")).lower() == "spark":
            return ViewQuery(
                str(one["sql"]).rstrip().rstrip(";"),
                version.get("default-catalog") or "",
                tuple(version["default-namespace"]),
            )
    raise BadRequestError(f"the view at {view.location} has no query in the dialect spark")


def pin(
    state: State,
    catalog: str,
    query: ViewQuery,
    name: TableName,
    engine: QueryEngine | None = None,
    session: Mapping[str, str] | None = None,
) -> PinnedQuery:
    """Pin the query of a view to a commit.

    Args:
        state: the commit.
        catalog: name of this catalog in Spark.
        query: the query.
        name: name of the view, which the query must not read.
        engine: what Spark says about names and queries. Without it, all names are looked up in this catalog, and a
            view is expected to have as many columns as its query.
        session: settings of the session (`SESSION`). If they are given, the stored rows of materialized views that the
            query reads are read instead of their queries, if they are fresh and were computed with these settings.
    Raises:
        BadRequestError: the query cannot be parsed, reads itself, or reads a table that is not in this catalog.
    """
    return _Pinning(state, catalog, engine, session).pinned(query, (name,))


class _Pinning:
    def __init__(
        self,
        state: State,
        catalog: str,
        engine: QueryEngine | None,
        session: Mapping[str, str] | None,
    ) -> None:
        self.state = state
        self.catalog = catalog
        self.engine = engine
        self.session = session

    def pinned(self, query: ViewQuery, above: tuple[TableName, ...]) -> PinnedQuery:
        """Pin a query.

        Args:
            above: names of the views that read the query, the outermost first.
        """
        tables: list[TableSource] = []
        views: list[ViewSource] = []
        texts: dict[int, str] = {}
        for reference in references_of(query.sql):
            self.state.check_time()
            text, found, through = self._source(reference, query, above)
            texts[reference.start] = text
            tables += found
            views += through
        return PinnedQuery(
            replaced(query.sql, texts), tuple(dict.fromkeys(tables)), tuple(dict.fromkeys(views))
        )

    def _source(
        self, reference: SourceReference, query: ViewQuery, above: tuple[TableName, ...]
    ) -> tuple[str, list[TableSource], list[ViewSource]]:
        """Return the text that replaces a reference, and the tables and views that it reads."""
        for name in self._names(reference.parts, query):
            found = find(self.state, table_key(name))
            if found is not None:
                source, text = self._table(reference, name, self.state.get(found.content, Table), MAIN)
                return text, [source], []
            view = find(self.state, table_key(name, VIEW))
            if view is not None:
                return self._view(name, self.state.get(view.content, View), reference, above)
            if len(name.namespace) > 1 and name.name.lower().startswith(("branch_", "tag_")):
                table = TableName(name.namespace[:-1], name.namespace[-1])
                found = find(self.state, table_key(table))
                if found is not None:
                    ref = name.name.partition("_")[2]
                    source, text = self._table(reference, table, self.state.get(found.content, Table), ref)
                    return text, [source], []
        raise BadRequestError(
            f"{reference.identifier} is neither a table nor a view of catalog {self.catalog}; a materialized view "
            "can read only these"
        )

    def _names(self, parts: tuple[str, ...], query: ViewQuery) -> Iterator[TableName]:
        """Yield the names in this catalog that a reference can mean, as Spark resolves it."""
        default = query.catalog or self.catalog
        if len(parts) == 1:
            if default == self.catalog and query.namespace:
                yield TableName(query.namespace, parts[0])
            return
        if parts[0] == self.catalog:
            if len(parts) > 2:
                yield TableName(parts[1:-1], parts[-1])
        elif default == self.catalog and not (self.engine and self.engine.is_catalog(parts[0])):
            yield TableName(parts[:-1], parts[-1])

    def _table(
        self, reference: SourceReference, name: TableName, table: Table, ref: str
    ) -> tuple[TableSource, str]:
        draft = TableDraft(table, self.state, now_ms=0)
        full = quoted((self.catalog, *name.namespace, name.name))
        if reference.version:
            fixed = named_snapshot(reference)
            if fixed not in draft.snapshots:
                raise BadRequestError(f"table {name} has no snapshot {fixed}")
            source = TableSource(
                reference.identifier,
                name,
                table.uuid,
                MAIN,
                fixed,
                table.current_schema_id,
                fixed=True,
                rows=0,
                files=0,
                size=0,
            )
            return source, full
        id = snapshot_of(draft, ref)
        if id is None and ref != MAIN:
            raise BadRequestError(f"table {name} has no branch or tag {ref!r}")
        summary = (draft.snapshots.get(id) or {}).get("summary") or {} if id is not None else {}
        source = TableSource(
            reference.identifier,
            name,
            table.uuid,
            ref,
            NO_SNAPSHOT if id is None else id,
            table.current_schema_id,
            fixed=False,
            rows=_count(summary, "total-records"),
            files=_count(summary, "total-data-files"),
            size=_count(summary, "total-files-size"),
        )
        if id is None:
            return source, f"(SELECT * FROM {full} WHERE false)"
        return source, at_snapshot(draft, full, id)

    def _view(
        self, name: TableName, view: View, reference: SourceReference, above: tuple[TableName, ...]
    ) -> tuple[str, list[TableSource], list[ViewSource]]:
        if name in above or len(above) > _DEEPEST:
            chain = " reads ".join(str(one) for one in (*above, name))
            why = "reads itself" if name in above else "reads too many views on top of each other"
            raise BadRequestError(f"view {above[0]} {why}: {chain}")
        if reference.version:
            raise BadRequestError(
                f"view {name} has no {reference.version}; only tables can be read as of a time"
            )
        inner = self.pinned(query_of(self.state, view), (*above, name))
        stored = self._stored(name, view)
        if stored is not None:
            table = self.state.get(require(self.state, storage_name(name), TABLE).content, Table)
            read = StoredSource(table.uuid, table.current_snapshot_id or 0)
            source = ViewSource(name, view.uuid, view.current_version_id, read)
            unread = [one._replace(rows=0, files=0, size=0, read=False) for one in inner.tables]
            return f"({stored})", unread, [source, *inner.views]
        # As Iceberg resolves views: by position. A query can have more columns than its view.
        columns = columns_of(self.state, view)
        width = self.engine.width(inner.sql) if self.engine else len(columns)
        more = [f"{max(columns, key=len)}_{position}" for position in range(len(columns), width)]
        names, every = (", ".join(quoted((one,)) for one in some) for some in (columns, [*columns, *more]))
        text = f"(SELECT {names} FROM ({inner.sql}\n) AS q({every}))"
        source = ViewSource(name, view.uuid, view.current_version_id)
        return text, list(inner.tables), [source, *inner.views]

    def _stored(self, name: TableName, view: View) -> str | None:
        """Return a query of the stored rows of a materialized view, if they may be read instead of its query."""
        if self.session is None or not is_materialized(view) or not freshness(self.state, name).fresh:
            return None
        record = last_refresh(self.state, name)
        if record is None or record.get(SESSION) != self.session:
            return None
        return stored_query(self.state, self.catalog, name, view)


def columns_of(state: State, view: View) -> list[str]:
    """Return the names of the columns of a view."""
    pointer = next(one.piece for one in view.versions if one.id == view.current_version_id)
    version = decode(state.get(pointer, ViewVersion).text)
    pointer = next(one.piece for one in view.schemas if one.id == version["schema-id"])
    return [field["name"] for field in decode(state.get(pointer, Schema).text)["fields"]]


def freshness(state: State, name: TableName) -> Freshness:
    """Return whether the stored rows of a materialized view are the result of its query in a commit. Nothing is read
    but rows of the commit.

    Compactions of the sources are not changes, because they keep the rows.

    Raises:
        NoSuchViewError: the view does not exist.
        BadRequestError: the view is not materialized.
    """
    view = materialized(state, name)
    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    record = current_refresh(TableDraft(table, state, now_ms=0).properties)
    if record is None:
        return Freshness(
            fresh=False,
            reason="it was never refreshed" if table.current_snapshot_id is None else "unknown rows",
        )
    if record.get("version-id") != view.current_version_id:
        return Freshness(fresh=False, reason="its query was replaced")
    sources = record.get(SOURCE_STATES)
    if sources is None:  # another writer made the refresh
        sources = _foreign(state, view, record)
        if sources is None:
            return Freshness(fresh=False, reason="the refresh does not describe all sources")
    try:
        changed = tuple(dict.fromkeys(one for source in sources if (one := _change(state, source))))
    except (AttributeError, KeyError, TypeError):  # not as `source-states` are specified
        return Freshness(fresh=False, reason="the refresh does not describe all sources")
    return Freshness(not changed, f"changed: {', '.join(changed)}" if changed else "", changed)


def materialized(state: State, name: TableName) -> View:
    """Return a materialized view.

    Raises:
        NoSuchViewError: the view does not exist.
        BadRequestError: the view is not materialized.
    """
    view = state.get(require(state, name, VIEW).content, View)
    if not is_materialized(view):
        raise BadRequestError(f"view {name} is not materialized")
    return view


def materialized_views(state: State, namespace: NamespaceName | None) -> Iterator[tuple[TableName, View]]:
    """Yield the materialized views of a commit, with their names, in the order of the index `names`.

    Args:
        namespace: the namespace that contains them; None for the whole catalog. Views whose metadata is not loaded yet
            are left out.
    """
    start, end = subtree(()) if namespace is None else children(namespace, VIEW)
    index = state.base.index(NAMES)
    keys = (key for key in index.keys(start, end, None) if decode_key(key).kind == VIEW)
    while run := list(islice(keys, _TOGETHER)):
        entries = index.get_many(run)
        for key, entry in zip(run, entries, strict=True):
            value = None if entry is None else content_of(state, entry.pointer, View)
            if isinstance(value, View) and is_materialized(value):
                path, _, name = decode_key(key)
                yield TableName(path, name), value


def _foreign(state: State, view: View, record: Json) -> list[Json] | None:
    """Return the source states of a refresh that another writer recorded; None if its base tables are not exactly the
    tables of this catalog that the query reads."""
    query = query_of(state, view)
    bases = {str(one.get("identifier")): one for one in record.get("base-tables", ())}
    if any(one.get("type") != "iceberg-metastore" for one in bases.values()):
        return None
    pinned = pin(state, query.catalog or "this catalog", query, TableName((), ""))
    if pinned.views or {one.identifier for one in pinned.tables} != set(bases):
        return None
    return [
        {
            "type": "table",
            "namespace": list(one.name.namespace),
            "name": one.name.name,
            "uuid": one.uuid,
            "snapshot-id": one.snapshot_id if one.fixed else bases[one.identifier].get("snapshot-reference"),
            "ref": one.ref,
        }
        for one in pinned.tables
    ]


def _change(state: State, source: Json) -> str:
    """Return the full name of a source if it has changed; an empty string if it has not."""
    name = TableName(tuple(source["namespace"]), source["name"])
    if source["type"] == "view":
        found = find(state, table_key(name, VIEW))
        view = state.get(found.content, View) if found else None
        same = view is not None and (view.uuid, view.current_version_id) == (
            source["uuid"],
            source["version-id"],
        )
        return "" if same else str(name)
    found = find(state, table_key(name))
    table = state.get(found.content, Table) if found else None
    if table is None or table.uuid != source["uuid"]:
        return str(name)
    if "ref" not in source:
        return ""
    if source.get("schema-id", table.current_schema_id) != table.current_schema_id:
        return str(name)
    draft = TableDraft(table, state, now_ms=0)
    id = snapshot_of(draft, source["ref"])
    same = source["snapshot-id"] == (NO_SNAPSHOT if id is None else id)
    return "" if same or only_compacted(draft, id, source["snapshot-id"]) else str(name)


def only_compacted(table: TableDraft, id: int | None, since: int) -> bool:
    """Whether all snapshots of a table after the snapshot `since`, up to the snapshot `id`, are compactions."""
    for _ in range(_COMPACTIONS):
        if id is None or id == since:
            return id == since
        snapshot = table.snapshots.get(id)
        if snapshot is None or (snapshot.get("summary") or {}).get("operation") != "replace":
            return False
        id = snapshot.get("parent-snapshot-id")
    return False


class Behind(NamedTuple):
    """What has changed in the tables of a materialized view since its last refresh."""

    since_ms: int | None
    """Time of the first change, in milliseconds since 1970; None if it is not known."""
    snapshots: int
    rows: int
    """Number of rows that were added or removed, as in the summaries of the snapshots."""


def behind(state: State, record: Json) -> Behind:
    """Return what has changed in the tables of a materialized view since a refresh, as far as their snapshots show it.

    Args:
        record: the record of the refresh.
    """
    times: list[int] = []
    snapshots = rows = 0
    tables = [one for one in record.get(SOURCE_STATES) or () if one.get("type") == "table" and "ref" in one]
    for source in tables:
        found = find(state, table_key(TableName(tuple(source["namespace"]), source["name"])))
        table = state.get(found.content, Table) if found else None
        if table is None or table.uuid != source["uuid"]:
            continue
        draft = TableDraft(table, state, now_ms=0)
        id = snapshot_of(draft, source["ref"])
        for _ in range(_COMPACTIONS):
            snapshot = None if id is None or id == source["snapshot-id"] else draft.snapshots.get(id)
            if snapshot is None:
                break
            summary = snapshot.get("summary") or {}
            if summary.get("operation") != "replace":
                snapshots += 1
                rows += _count(summary, "added-records") + _count(summary, "deleted-records")
                times.append(snapshot.get("timestamp-ms", 0))
            id = snapshot.get("parent-snapshot-id")
    return Behind(min(times) if times else None, snapshots, rows)


def has_same_columns(state: State, query: PinnedQuery) -> bool:
    """Whether the tables of a pinned query still have the columns that they had when it was pinned."""
    for table in query.tables:
        found = find(state, table_key(table.name))
        now = None if found is None else state.get(found.content, Table)
        if now is None or (now.uuid, now.current_schema_id) != (table.uuid, table.schema_id):
            return False
    return True


def snapshot_of(table: TableDraft, ref: str) -> int | None:
    """Return the snapshot id of a branch or tag; None if there is no such branch or tag."""
    if ref == MAIN:
        return table.current_snapshot_id
    found = table.refs.get(ref)
    return None if found is None else found.snapshot_id


def _count(summary: Mapping[str, str], name: str) -> int:
    text = summary.get(name, "0")
    return int(text) if text.isdigit() else 0


def stored_query(state: State, catalog: str, name: TableName, view: View) -> str | None:
    """Return a query, in Spark's SQL, that returns the stored rows of a materialized view in this commit; None if it
    was never refreshed.

    Args:
        catalog: name of this catalog in Spark.
    """
    storage = storage_name(name)
    table = state.get(require(state, storage, TABLE).content, Table)
    if table.current_snapshot_id is None:
        return None
    columns = ", ".join(quoted((one,)) for one in columns_of(state, view))
    where = quoted((catalog, *storage.namespace, storage.name))
    return f"SELECT {columns} FROM {where} VERSION AS OF {table.current_snapshot_id}"


def last_refresh(state: State, name: TableName) -> Json | None:
    """Return the record of the refresh that made the current rows of a materialized view; None if there is none."""
    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    return current_refresh(TableDraft(table, state, now_ms=0).properties)
