"""Pins the query of a materialized view to one commit.

Each table in its text is replaced with the table at its snapshot in the commit, and each view with the view's pinned
query. So the query reads one state of the catalog, however long it runs. Sources outside of the catalog are pinned to
the states that they have when the query is pinned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from polaris_spark.catalog.entities.entities import TableName, find, require, table_key
from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name, view_of
from polaris_spark.catalog.entities.refresh_records import NO_SNAPSHOT
from polaris_spark.catalog.materialized.outside_sources import (
    DELTA_LOCATION,
    ICEBERG_LOCATION,
    LOCATIONS,
    OutsideTable,
    TableState,
)
from polaris_spark.catalog.materialized.snapshot_sql import (
    at_snapshot,
    named_snapshot,
    quoted,
    schema_at,
    with_type,
)
from polaris_spark.catalog.materialized.view_queries import SourceReference, references_of, replaced
from polaris_spark.catalog.materialized.view_sources import (
    MAIN,
    PinnedQuery,
    QueryEngine,
    StoredSource,
    TableSource,
    ViewQuery,
    ViewSource,
    count_in,
    name_mapping_of,
    query_of,
    snapshot_of,
)
from polaris_spark.catalog.materialized.view_time_travel import fields_of_version, rows_of_version
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError

_TAG = "tag_"
_REFS = ("branch_", _TAG)
"""Prefixes of the last part of a name such as `db.table.branch_dev` or `db.table.tag_v1`, which means a branch or tag
of `db.table`."""
SESSION_CATALOG = "spark_catalog"
"""Name of the catalog by which Spark reads Delta tables at a location."""
_OPTIONS = frozenset(
    {"batch-size", "file-open-cost", "locality", "lookback", "split-size", "vectorization-enabled"}
)
"""Options of Iceberg with which a table can be read. Other options can change which rows are read."""
_DEEPEST = 32
"""Maximum depth of views that read other views."""


def pin(
    state: State,
    catalog: str,
    query: ViewQuery,
    name: TableName,
    engine: QueryEngine | None = None,
    stored: Callable[[TableName, View], str | None] | None = None,
) -> PinnedQuery:
    """Pin the query of a view to a commit.

    Args:
        state: the commit.
        catalog: name of this catalog in Spark.
        query: the query.
        name: name of the view. The query must not read this view.
        engine: answers questions about names and queries from a Spark session. Without an engine, all names are looked
            up in this catalog, and a view is expected to have as many columns as its query.
        stored: returns a query that reads the stored rows of a materialized view; None if these must not be read in
            place of the view's own query.
    Raises:
        BadRequestError: the query cannot be parsed, reads itself, or reads something that has no state to pin.
    """
    return _Pinning(state, catalog, engine, stored).pinned(query, ((catalog, *name.namespace, name.name),))


def named_sources(
    state: State, catalog: str, query: ViewQuery, above: tuple[TableName, ...]
) -> tuple[list[TableSource], list[ViewSource]]:
    """Return the tables and views that a query names, directly and through views, without their states. Sources that do
    not exist, and those of other catalogs, are left out.

    Args:
        above: names of the views through which the query was reached, the outermost first.
    Raises:
        BadRequestError: the query cannot be parsed.
    """
    tables: list[TableSource] = []
    views: list[ViewSource] = []
    pinning = _Pinning(state, catalog, None, None)
    for reference in references_of(query.sql):
        state.check_time()
        location = pinning.location(reference.parts)
        if location:
            format, path = location
            at_location = _unpinned(reference, TableName((format,), path), "")
            tables.append(at_location._replace(type=LOCATIONS[format]))
        for name in pinning.names(reference.parts, query):
            found = find(state, table_key(name))
            if found is not None:
                tables.append(_unpinned(reference, name, state.get(found.content, Table).uuid))
                break
            found = find(state, table_key(name, VIEW))
            if found is not None and name not in above and len(above) <= _DEEPEST:
                view = state.get(found.content, View)
                source = ViewSource(name, view.uuid, view.current_version_id)
                views.append(source._replace(materialized=is_materialized(view)))
                with suppress(BadRequestError):
                    inner = named_sources(state, catalog, query_of(state, view), (*above, name))
                    tables += inner[0]
                    views += inner[1]
                break
    return tables, views


def names_in(state: State, catalog: str, query: ViewQuery) -> Iterator[TableName]:
    """Yield the names of tables and views of this catalog that a query names directly, whether or not they exist. If
    the first part of a name could be another catalog of the engine or a namespace of this catalog, it is taken as the
    namespace.

    Args:
        catalog: name of this catalog.
    Raises:
        BadRequestError: the query cannot be parsed.
    """
    pinning = _Pinning(state, catalog, None, None)
    for reference in references_of(query.sql):
        state.check_time()
        yield from pinning.names(reference.parts, query)


def recursion(state: State, catalog: str, view: TableName) -> str:
    """If a view reads itself through other views, return a text that names these views, such as `view db.a reads
    itself: db.a reads db.b reads db.a`; otherwise, return an empty string. This can happen after a view that it reads
    is replaced.

    Args:
        catalog: name of this catalog in Spark.
        view: name of the view.
    """
    pinning = _Pinning(state, catalog, None, None)
    visited: set[TableName] = set()

    def below(query: ViewQuery) -> Iterator[TableName]:
        with suppress(BadRequestError):  # the query of another program may not be understood
            for reference in references_of(query.sql):
                state.check_time()
                for name in pinning.names(reference.parts, query):
                    if find(state, table_key(name)) is not None:
                        break
                    if find(state, table_key(name, VIEW)) is not None:
                        if not reference.version:
                            yield name
                        break

    def chain(above: tuple[TableName, ...]) -> tuple[TableName, ...]:
        if above[-1] in above[:-1]:
            return above
        found = find(state, table_key(above[-1], VIEW))
        if found is None or above[-1] in visited or len(above) > _DEEPEST:
            return ()
        visited.add(above[-1])
        query = query_of(state, state.get(found.content, View))
        return next(filter(None, (chain((*above, name)) for name in below(query))), ())

    names = chain((view,))
    return f"view {names[-1]} reads itself: {' reads '.join(map(str, names))}" if names else ""


def _unpinned(reference: SourceReference, name: TableName, uuid: str) -> TableSource:
    return TableSource(
        reference.identifier, name, uuid, MAIN, NO_SNAPSHOT, 0, fixed=False, rows=0, files=0, size=0
    )


class _Pinned(NamedTuple):
    """A source that is pinned: the text that replaces it, and the tables and views that it reads."""

    text: str
    tables: list[TableSource]
    views: list[ViewSource]


class _Pinning:
    def __init__(
        self,
        state: State,
        catalog: str,
        engine: QueryEngine | None,
        stored: Callable[[TableName, View], str | None] | None,
    ) -> None:
        self.state = state
        self.catalog = catalog
        self.engine = engine
        self.stored = stored

    def pinned(self, query: ViewQuery, above: tuple[tuple[str, ...], ...]) -> PinnedQuery:
        """Pin a query.

        Args:
            above: full names of the views that read the query, the outermost first.
        """
        tables: list[TableSource] = []
        views: list[ViewSource] = []
        texts: dict[int, str] = {}
        full_names: dict[int, tuple[str, ...]] = {}
        sensitive = self.engine is not None and self.engine.case_sensitive
        for reference in references_of(query.sql, case_sensitive=sensitive):
            self.state.check_time()
            found = self._source(reference, query, above)
            texts[reference.start] = found.text
            full_names[reference.start] = self._full_name(reference.parts, query)
            tables += found.tables
            views += found.views
        sql = replaced(query.sql, texts, full_names, case_sensitive=sensitive)
        return PinnedQuery(sql, tuple(dict.fromkeys(tables)), tuple(dict.fromkeys(views)))

    def _source(
        self, reference: SourceReference, query: ViewQuery, above: tuple[tuple[str, ...], ...]
    ) -> _Pinned:
        """Pin the table or view that a reference names."""
        _require_options(reference)
        for name in self.names(reference.parts, query):
            found = find(self.state, table_key(name))
            if found is not None:
                self._check_storage(name, reference, above)
                return self._table(reference, name, self.state.get(found.content, Table))
            view = find(self.state, table_key(name, VIEW))
            if view is not None:
                return self._view(name, self.state.get(view.content, View), reference, above)
            if len(name.namespace) > 1 and name.name.lower().startswith(_REFS):
                table = TableName(name.namespace[:-1], name.namespace[-1])
                found = find(self.state, table_key(table))
                if found is not None:
                    self._check_storage(table, reference, above)
                    ref = name.name.partition("_")[2]
                    return self._table(reference, table, self.state.get(found.content, Table), ref)
        location = self.location(reference.parts)
        if location:
            return self._at_location(reference, *location)
        other = self._other_catalog(reference.parts, query)
        pinned = self._outside(reference, other, above) if other else None
        if pinned is not None:
            return pinned
        if self.engine is None:
            raise BadRequestError(
                f"there is no table or view {reference.identifier} in catalog {self.catalog}; if it is in another "
                "catalog, it can be looked up only in a Spark session"
            )
        raise BadRequestError(
            f"{reference.identifier} is neither a table nor a view of catalog {self.catalog}, and no Iceberg table or "
            "view of another catalog; a materialized view can read only these, and tables at a location as "
            "iceberg.`/path` or delta.`/path`"
        )

    def names(self, parts: tuple[str, ...], query: ViewQuery) -> Iterator[TableName]:
        """Yield the name in this catalog to which Spark resolves a reference. Yield nothing if Spark resolves it to
        another catalog."""
        default = query.catalog or self.catalog
        if len(parts) == 1:
            if default == self.catalog and query.namespace:
                yield TableName(query.namespace, parts[0])
            return
        if parts[0] == self.catalog:
            if len(parts) > 2:
                yield TableName(parts[1:-1], parts[-1])
        elif default == self.catalog and not self._is_catalog(parts[0]):
            yield TableName(parts[:-1], parts[-1])

    def _full_name(self, parts: tuple[str, ...], query: ViewQuery) -> tuple[str, ...]:
        """Return the name to which Spark resolves a reference, with the name of the catalog. A location stays as it
        is."""
        for name in self.names(parts, query):
            return self.catalog, *name.namespace, name.name
        return self._other_catalog(parts, query) or parts

    def _is_catalog(self, name: str) -> bool:
        return self.engine is not None and self.engine.is_catalog(name)

    def location(self, parts: tuple[str, ...]) -> tuple[str, str] | None:
        """Return the format and the location in a reference such as `` delta.`/path` ``; None if the reference does not
        have this form."""
        if len(parts) == 3 and parts[0] in (self.catalog, SESSION_CATALOG):
            parts = parts[1:]
        if len(parts) != 2 or parts[0].lower() not in LOCATIONS or "/" not in parts[1]:
            return None
        return None if self._is_catalog(parts[0]) else (parts[0].lower(), parts[1])

    def _other_catalog(self, parts: tuple[str, ...], query: ViewQuery) -> tuple[str, ...] | None:
        """If a reference belongs to another catalog, return its full name, with the name of that catalog; otherwise
        None."""
        default = query.catalog or self.catalog
        if len(parts) > 1 and self._is_catalog(parts[0]):
            return None if parts[0] == self.catalog else parts
        if default == self.catalog:
            return None
        return (default, *query.namespace, *parts) if len(parts) == 1 else (default, *parts)

    def _outside(
        self, reference: SourceReference, parts: tuple[str, ...], above: tuple[tuple[str, ...], ...]
    ) -> _Pinned | None:
        """Pin a table or view of another catalog. Return None if it does not exist."""
        if self.engine is None:
            raise BadRequestError(
                f"{reference.identifier} is in the catalog {parts[0]}; tables and views of other catalogs can be "
                "looked up only in a Spark session"
            )
        found, ref = None, MAIN
        if len(parts) > 3 and parts[-1].lower().startswith(_REFS):
            found = self.engine.outside.find(parts[:-1])
        if isinstance(found, OutsideTable):
            ref, parts = parts[-1].partition("_")[2], parts[:-1]
        else:
            found = self.engine.outside.find(parts)
        if isinstance(found, OutsideTable):
            name = TableName(parts[1:-1], parts[-1])
            read = self._iceberg(reference, quoted(parts), name, found, ref)
            return read._replace(tables=[one._replace(catalog=parts[0]) for one in read.tables])
        if found is None:
            return None
        self._check_view(parts, reference, above)
        inner = self.pinned(ViewQuery(found.sql, found.catalog, found.namespace), (*above, parts))
        source = ViewSource(TableName(parts[1:-1], parts[-1]), found.uuid, found.version_id, catalog=parts[0])
        return self._of_query(inner, found.columns, source)

    def _at_location(self, reference: SourceReference, format: str, location: str) -> _Pinned:
        name = TableName((format,), location)
        if not location.startswith("/") and "://" not in location and not location.startswith("file:/"):
            raise BadRequestError(
                f"the location {location!r} in {reference.identifier} is relative; give an absolute path or a URI"
            )
        if "#" in location:
            raise BadRequestError(
                f"the location {location!r} in {reference.identifier} contains '#'; metadata tables and branches of a "
                "table at a location cannot be read"
            )
        if _has_password(location):
            raise BadRequestError(
                f"the location of the {format} table contains a password, which would be stored with the view; give "
                "credentials in the session's configuration"
            )
        if self.engine is None:
            raise BadRequestError(
                f"{reference.identifier} names a location; such tables can be looked up only in a Spark session"
            )
        if LOCATIONS[format] == DELTA_LOCATION:
            return self._delta(reference, name, self.engine)
        table = self.engine.outside.find(("", *name.namespace, location))
        if not isinstance(table, OutsideTable):
            raise BadRequestError(f"there is no Iceberg table at {location}")
        full = quoted((self.catalog, format, location))
        read = self._iceberg(reference, full, name, table, MAIN)
        return read._replace(tables=[one._replace(type=ICEBERG_LOCATION) for one in read.tables])

    def _delta(self, reference: SourceReference, name: TableName, engine: QueryEngine) -> _Pinned:
        if not engine.reads_delta:
            raise BadRequestError(
                f"this Spark session cannot read {reference.identifier}: add Delta Lake's package for this Spark, "
                "and set spark.sql.catalog.spark_catalog to org.apache.spark.sql.delta.catalog.DeltaCatalog and "
                "spark.sql.extensions to io.delta.sql.DeltaSparkSessionExtension"
            )
        table = engine.outside.delta(name.name)
        full = quoted((SESSION_CATALOG, *name.namespace, name.name))
        fixed = named_snapshot(reference) if reference.version else None
        source = TableSource(
            reference.identifier,
            name,
            table.id,
            MAIN,
            table.version if fixed is None else fixed,
            0,
            fixed=fixed is not None,
            rows=table.rows if fixed is None else 0,
            files=table.files if fixed is None else 0,
            size=table.size if fixed is None else 0,
            type=DELTA_LOCATION,
        )
        return _Pinned(full if reference.version else f"{full} VERSION AS OF {table.version}", [source], [])

    def _table(self, reference: SourceReference, name: TableName, table: Table, ref: str = MAIN) -> _Pinned:
        full = quoted((self.catalog, *name.namespace, name.name))
        return self._iceberg(reference, full, name, TableDraft(table, self.state, now_ms=0), ref)

    def _iceberg(
        self, reference: SourceReference, full: str, name: TableName, table: TableState, ref: str
    ) -> _Pinned:
        """Pin an Iceberg table.

        Args:
            full: the table's full name, in SQL.
        """
        if reference.version:
            fixed = named_snapshot(reference)
            if fixed not in table.snapshots:
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
                name_mapping=name_mapping_of(table),
            )
            return _Pinned(full, [source], [])
        id = snapshot_of(table, ref)
        if id is None and ref != MAIN:
            raise BadRequestError(f"table {name} has no branch or tag {ref!r}")
        summary = (table.snapshots.get(id) or {}).get("summary") or {} if id is not None else {}
        is_tag = ref != MAIN and reference.parts[-1].lower().startswith(_TAG)
        source = TableSource(
            reference.identifier,
            name,
            table.uuid,
            ref,
            NO_SNAPSHOT if id is None else id,
            schema_at(table, id) if is_tag and id is not None else table.current_schema_id,
            fixed=False,
            rows=count_in(summary, "total-records"),
            files=count_in(summary, "total-data-files"),
            size=count_in(summary, "total-files-size"),
            is_tag=is_tag,
            name_mapping=name_mapping_of(table),
        )
        if id is None:
            text = f"(SELECT * FROM {full} WHERE false)"
        else:
            text = f"{full} VERSION AS OF {id}" if is_tag else at_snapshot(table, full, id)
        return _Pinned(text, [source], [])

    def _view(
        self, name: TableName, view: View, reference: SourceReference, above: tuple[tuple[str, ...], ...]
    ) -> _Pinned:
        parts = (self.catalog, *name.namespace, name.name)
        if reference.version and is_materialized(view):
            self._check_view(parts, reference._replace(version=""), above)
            return self._past(name, view, reference)
        self._check_view(parts, reference, above)
        inner = self.pinned(query_of(self.state, view), (*above, parts))
        stored = self.stored(name, view) if self.stored and is_materialized(view) else None
        if stored is not None:
            table = self.state.get(require(self.state, storage_name(name), TABLE).content, Table)
            read = StoredSource(table.uuid, table.current_snapshot_id or 0)
            source = ViewSource(name, view.uuid, view.current_version_id, read, materialized=True)
            unread = [one._replace(rows=0, files=0, size=0, read=False) for one in inner.tables]
            below = [one._replace(read=False) for one in inner.views]
            return _Pinned(f"({stored})", unread, [source, *below])
        source = ViewSource(name, view.uuid, view.current_version_id, materialized=is_materialized(view))
        fields = fields_of_version(self.state, view, view.current_version_id) or []
        return self._of_query(inner, {one["name"]: one["type"] for one in fields}, source)

    def _past(self, name: TableName, view: View, reference: SourceReference) -> _Pinned:
        """Pin a materialized view that the query reads as of one of its refreshes. The source is the storage table of
        the view."""
        past = rows_of_version(self.state, name, str(named_snapshot(reference)))
        source = TableSource(
            reference.identifier,
            storage_name(name),
            past.table.uuid,
            MAIN,
            past.snapshot_id,
            past.table.current_schema_id,
            fixed=True,
            rows=0,
            files=0,
            size=0,
            view_uuid=view.uuid,
        )
        return _Pinned(quoted((self.catalog, *name.namespace, name.name)), [source], [])

    def _check_storage(
        self, table: TableName, reference: SourceReference, above: tuple[tuple[str, ...], ...]
    ) -> None:
        """Refuse a materialized view whose query reads its own storage table."""
        owner = view_of(self.state, table)
        if owner is not None:
            name = owner[0]
            parts = (self.catalog, *name.namespace, name.name)
            self._check_view(parts, reference._replace(version=""), above)

    def _check_view(
        self, parts: tuple[str, ...], reference: SourceReference, above: tuple[tuple[str, ...], ...]
    ) -> None:
        """Raise an error if a view reads itself, or if a reference to a view has a time travel clause."""

        def shown(name: tuple[str, ...]) -> str:
            return ".".join(name[1:] if name[0] == self.catalog else name)

        if parts in above or len(above) > _DEEPEST:
            chain = " reads ".join(shown(one) for one in (*above, parts))
            why = "reads itself" if parts in above else "reads too many views on top of each other"
            raise BadRequestError(f"view {shown(above[0])} {why}: {chain}")
        if reference.version:
            raise BadRequestError(
                f"view {shown(parts)} cannot be read with {reference.version}; only tables, and materialized views of "
                "this catalog, have versions"
            )

    def _of_query(self, inner: PinnedQuery, columns: Mapping[str, Any], source: ViewSource) -> _Pinned:
        """Return the pinned query of a view, with the names and types of the view's columns. Columns are matched by
        position, as Iceberg resolves views. A query can have more columns than its view.

        Args:
            columns: the types of the view's columns in its Iceberg schema, by name.
        """
        found = self.engine.types(inner.sql) if self.engine else []
        if self.engine and len(found) < len(columns):
            raise BadRequestError(
                f"the query of view {source.name} now returns {len(found)} columns instead of {len(columns)} "
                f"({', '.join(columns)}); replace the view"
            )
        more = [f"{max(columns, key=len)}_{position}" for position in range(len(columns), len(found))]
        every = ", ".join(quoted((one,)) for one in (*columns, *more))
        kept = [
            quoted((name,)) if given is None else with_type(name, type, given)
            for (name, type), given in itertools.zip_longest(columns.items(), found[: len(columns)])
        ]
        text = f"(SELECT {', '.join(kept)} FROM ({inner.sql}\n) AS q({every}))"
        return _Pinned(text, list(inner.tables), [source, *inner.views])


def _require_options(reference: SourceReference) -> None:
    """Refuse a reference with an option that can change which rows are read, such as `branch`."""
    for name in reference.options:
        if name.lower() not in _OPTIONS:
            raise BadRequestError(
                f"{reference.identifier} is read with the option {name!r}; a materialized view can use only "
                f"{', '.join(sorted(_OPTIONS))}, and names a branch or tag as in db.t.branch_name"
            )


def _has_password(location: str) -> bool:
    try:
        return urlsplit(location).password is not None
    except ValueError:  # not a URI
        return False
