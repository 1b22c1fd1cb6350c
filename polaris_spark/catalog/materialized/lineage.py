"""Lineage of materialized views: the sources of a view, and the source columns on which its columns and rows depend.

The lineage is read from Spark's plan of the query when a view is created, and each time the view is refreshed. The
terms are those of OpenLineage's facet for column lineage. A document of lineage is a JSON object:

- `sources`: list of objects with `type` (`table`, `view` or `materialized view`), `namespace`, `name`, `uuid`, and the
  names of the `columns` on which the view depends. Sources outside the catalog have the field `catalog`, too: the name
  of their catalog in Spark. `catalog` is an empty string if the source is named by its location; such a source has the
  namespace `delta` or `iceberg`, and the location as its name.
- `edges`: object from each kind of dependence to a list of arrays [column of the view, source, column of the source].
  The three are indexes, counted from 0. The column of the view is null if all rows depend on the source column. A
  document without `edges` says nothing about columns.

The summary of a view version contains its document. The record of a refresh contains a document only if that differs
from the document of the view version.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.outside_sources import METASTORE
from polaris_spark.catalog.materialized.query_pinning import SESSION_CATALOG, named_sources
from polaris_spark.catalog.materialized.stored_views import last_refresh
from polaris_spark.catalog.materialized.view_sources import (
    PinnedQuery,
    TableSource,
    ViewSource,
    columns_of,
    query_of,
    version_of,
)
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.texts import Json, decode, encode
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError

LINEAGE: Final = "lineage"
"""Field of a refresh record, beyond the draft specification."""
VERSION_LINEAGE: Final = "polaris.lineage"
"""Key in the summary of a view version."""
LARGEST: Final = 32 * 1024
"""Maximum size of a document with columns, in bytes. A larger one is stored without columns, because metadata files
contain it for each view version, and for each refresh whose lineage differs."""
DIRECT: Final = frozenset({"IDENTITY", "TRANSFORMATION", "AGGREGATION"})
"""Kinds of dependence where values are computed from the values of the source column."""


class LineageSource(NamedTuple):
    """A table or view on which a materialized view depends."""

    type: str
    """`table`, `view` or `materialized view`."""
    catalog: str | None
    """Name of the catalog; None if the source is in no catalog."""
    namespace: tuple[str, ...]
    name: str
    uuid: str | None


class Dependence(NamedTuple):
    """A dependence of a column, or of all rows, on a source."""

    column: str | None
    """Column of the view that depends on the source; None if all rows depend on it."""
    source: LineageSource
    source_column: str | None
    """Column of the source; None if only the source is known."""
    kind: str | None
    """Kind of the dependence, such as `IDENTITY` or `FILTER`; None if only the source is known."""


def document_of_lineage(found: Json, query: PinnedQuery, catalog: str) -> Json:
    """Return the document of a query's lineage.

    Args:
        found: what `ColumnLineage.java` returns for the plan of the query.
        query: the pinned query.
        catalog: name of this catalog in Spark.
    """
    read = _sources_of(query.tables, query.views)
    by_name = {(one.get("catalog", catalog), *one["namespace"], one["name"]): one for one in read}
    for one in read:
        if one.get("catalog") == "":
            by_name |= {("", _path(one["name"])): one, (SESSION_CATALOG, *one["namespace"], one["name"]): one}
    by_uuid = {one["uuid"]: one for one in read if "uuid" in one}
    for view in query.views:
        if view.stored is not None and view.read:
            by_uuid[view.stored.uuid] = by_uuid[view.uuid]
    sources: list[Json] = []
    for one in found["sources"]:
        name = one["name"] if one["catalog"] else [_path(part) for part in one["name"]]
        known = by_name.get((one["catalog"], *name)) or by_uuid.get(one["uuid"])
        sources.append((known or _unknown(one)) | {"columns": one.get("columns", [])})
    shown = [{k: v for k, v in one.items() if k != "columns"} for one in sources]
    others = [one for one in read if one not in shown]
    if "edges" in found:
        document = {"sources": [*sources, *others], "edges": found["edges"]}
        if len(encode(document)) <= LARGEST:
            return document
    return {"sources": [*shown, *others]}


def _sources_of(tables: Iterable[TableSource], views: Iterable[ViewSource]) -> list[Json]:
    """Return descriptions of the tables and views that a query reads, each once."""
    every: list[tuple[str, str | None, TableName, str]] = []
    for one in tables:
        if one.read and one.view_uuid:
            above = one.name.namespace
            every.append(("materialized view", None, TableName(above[:-1], above[-1]), one.view_uuid))
        elif one.read:
            every.append(("table", "" if one.type != METASTORE else one.catalog or None, one.name, one.uuid))
    for view in views:
        if view.read:
            type = "materialized view" if view.materialized else "view"
            every.append((type, view.catalog or None, view.name, view.uuid))
    found: list[Json] = []
    for type, catalog, name, uuid in every:
        source = (
            {"type": type}
            | ({} if catalog is None else {"catalog": catalog})
            | {"namespace": list(name.namespace), "name": name.name}
            | ({"uuid": uuid} if uuid else {})
        )
        if source not in found:
            found.append(source)
    return found


def _path(location: str) -> str:
    """Return a location without the prefix `file:`, which Spark adds to the paths of local files."""
    return location.removeprefix("file:").replace("///", "/", 1) if location.startswith("file:") else location


def _unknown(found: Json) -> Json:
    """Return the description of a source that Spark's plan contains, but that the text of the query does not name."""
    *namespace, name = found["name"]
    source = {"type": "table", "catalog": found["catalog"], "namespace": namespace, "name": name}
    return source | ({"uuid": found["uuid"]} if found["uuid"] else {})


def lineage_of_version(state: State, view: View) -> Json | None:
    """Return the document of lineage in the summary of a view's current version; None if there is none."""
    text = version_of(state, view).get("summary", {}).get(VERSION_LINEAGE)
    with suppress(BadRequestError):
        return None if text is None else decode(text.encode())
    return None


def dependences(
    state: State, catalog: str, name: TableName, view: View, *, only_recorded: bool = False
) -> list[Dependence]:
    """Return the lineage of the query of a materialized view.

    This is the lineage that the last refresh recorded. If the query was changed after that refresh, it is the lineage
    that was recorded when the current query was set. If nothing was recorded, return the sources that the query names.

    Args:
        catalog: name of the catalog.
        only_recorded: whether to return nothing if nothing was recorded. Set it for a reader that may see the view, but
            not all tables: the query can name tables and views that its author may not see.
    """
    record = last_refresh(state, name)
    is_current = record is not None and record.get("version-id") == view.current_version_id
    recorded = record.get(LINEAGE) if record is not None and is_current else None
    for document in (recorded, lineage_of_version(state, view)):
        if document is not None:
            with suppress(AttributeError, LookupError, TypeError, ValueError):  # of another writer
                return _listed(document, catalog, columns_of(state, view))
    if only_recorded:
        return []
    return named_dependences(state, catalog, name, view)


def named_dependences(state: State, catalog: str, name: TableName, view: View) -> list[Dependence]:
    """Return the sources that the query of a view names, without columns. Return an empty list if the view has no query
    in Spark's SQL, or if the query cannot be parsed.

    Args:
        catalog: name of the catalog.
    """
    try:
        tables, views = named_sources(state, catalog, query_of(state, view), (name,))
    except BadRequestError:  # it is written for another engine
        return []
    return _listed({"sources": _sources_of(tables, views)}, catalog, [])


def _listed(document: Any, catalog: str, columns: list[str]) -> list[Dependence]:
    sources = [
        LineageSource(
            str(one["type"]),
            str(one.get("catalog", catalog)) or None,
            tuple(str(level) for level in one["namespace"]),
            str(one["name"]),
            str(one["uuid"]) if "uuid" in one else None,
        )
        for one in document["sources"]
    ]
    names = [one.get("columns", ()) for one in document["sources"]]
    found = [
        Dependence(
            None if column is None else columns[column],
            sources[source],
            str(names[source][position]),
            kind,
        )
        for kind, edges in document.get("edges", {}).items()
        for column, source, position in edges
    ]
    shown = {one.source for one in found}
    return [*found, *[Dependence(None, one, None, None) for one in sources if one not in shown]]
