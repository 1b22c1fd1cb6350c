"""Sources of materialized views: the tables and views that a query reads, and their states in one commit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.outside_sources import METASTORE, OutsideSources, TableState
from polaris_spark.catalog.materialized.sql_tokens import Tokens
from polaris_spark.catalog.materialized.view_time_travel import columns_of_version
from polaris_spark.catalog.metadata.rows import View, ViewVersion
from polaris_spark.catalog.metadata.texts import Json, decode, get_objects
from polaris_spark.catalog.tables.schema_merge import NAME_MAPPING
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError

SOURCE_STATES = "source-states"
"""Field of a refresh record beyond the draft specification: the states of the sources, in the form of the newer draft
of the specification."""
MAIN = "main"


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
    """Id of the snapshot of that branch or tag; `NO_SNAPSHOT` if there is none."""
    schema_id: int
    """Id of the schema with which the table is read: for a tag, the schema of its snapshot; otherwise, the table's
    current schema."""
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
    catalog: str = ""
    """Name, in Spark, of the other catalog that the table is in; empty for this catalog and for a location."""
    type: str = METASTORE
    """Type of the base table in the draft specification. A table that is named by its location has a `name` as in SQL,
    such as `` delta.`/path` ``."""
    view_uuid: str = ""
    """UUID of the materialized view whose rows of an earlier refresh are read; the table is its storage table."""
    is_tag: bool = False
    """Whether it is read as a tag, so that later changes of the table's columns do not change the result."""
    name_mapping: str = ""
    """See `name_mapping_of`."""

    @property
    def full_name(self) -> str:
        """The name of the table. If the table is in another catalog, the name begins with the name of that catalog."""
        return f"{self.catalog}.{self.name}" if self.catalog else str(self.name)


class QueryEngine(NamedTuple):
    """Functions with which a Spark session answers questions about names and queries."""

    is_catalog: Callable[[str], bool]
    """Returns whether Spark has a catalog of this name."""
    types: Callable[[str], list[str]]
    """Returns the types of the columns of a query, as in Spark's SQL."""
    outside: OutsideSources
    """Finds sources outside this catalog: tables and views of other catalogs, and tables that the query names by their
    path (such as `` delta.`/path` ``)."""
    reads_delta: bool
    """Whether the Spark session can read Delta tables."""
    case_sensitive: bool = False
    """Whether the Spark session compares names with regard to case."""


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
    catalog: str = ""
    """Name, in Spark, of the other catalog that the view is in; empty for this catalog."""
    materialized: bool = False
    read: bool = True
    """False if stored rows of a materialized view above it are read instead of the view."""


class PinnedQuery(NamedTuple):
    """A query that is pinned to one state of the catalog, and the sources that the query reads."""

    sql: str
    tables: tuple[TableSource, ...]
    views: tuple[ViewSource, ...]

    def base_tables(self) -> list[Json]:
        """Return the `base-tables` of a refresh record. In each, `properties` contains the UUID of the table; its
        branch or tag, if this is not the branch `main`; and the name, in Spark, of the table's catalog, if this is
        another catalog."""
        return [
            {"type": one.type, "identifier": one.identifier, "snapshot-reference": one.snapshot_id}
            | ({} if one.type == METASTORE else {"location": one.name.name})
            | {
                "properties": {"uuid": one.uuid}
                | ({"ref": one.ref} if one.ref != MAIN else {})
                | ({"catalog": one.catalog} if one.catalog else {})
            }
            for one in self.tables
        ]

    def source_states(self) -> list[Json]:
        """Return the `source-states` of the newer draft of the specification. A source has no `ref` if the query names
        its snapshot. The fields `schema-id`, `name-mapping`, `catalog`, `base-type` and `storage-snapshot-id` (of a
        materialized view whose stored rows are read) are not in that draft."""
        tables = [
            {
                "type": "table",
                "namespace": list(one.name.namespace),
                "name": one.name.name,
                "uuid": one.uuid,
                "snapshot-id": one.snapshot_id,
            }
            | _place(one)
            | ({} if one.type == METASTORE else {"base-type": one.type})
            | ({} if one.fixed else {"ref": one.ref})
            | ({} if one.fixed or one.is_tag else {"schema-id": one.schema_id})
            | ({"name-mapping": one.name_mapping} if one.name_mapping else {})
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
            | _place(one)
            | ({} if one.stored is None else {"storage-snapshot-id": one.stored.snapshot_id})
            for one in self.views
        ]
        return [*tables, *views]


def _place(source: TableSource | ViewSource) -> Json:
    return {"catalog": source.catalog} if source.catalog else {}


def version_of(state: State, view: View) -> Json:
    """Return the current version of a view."""
    pointer = next(one.piece for one in view.versions if one.id == view.current_version_id)
    return decode(state.get(pointer, ViewVersion).text)


def query_of(state: State, view: View) -> ViewQuery:
    """Return the query of a view's current version in Spark's SQL.

    Raises:
        BadRequestError: the view has no query in the dialect `spark`.
    """
    version = version_of(state, view)
    for one in get_objects(version, "representations"):
        if str(one.get("type")).lower() == "sql" and str(one.get("dialect")).lower() == "spark":
            return ViewQuery(
                _statement(str(one["sql"])),
                version.get("default-catalog") or "",
                tuple(version["default-namespace"]),
            )
    raise BadRequestError(f"the view at {view.location} has no query in the dialect spark")


def _statement(sql: str) -> str:
    """Return the text of a query without the semicolon at its end. It is returned as it is if it is not Spark's SQL."""
    try:
        return Tokens(sql).statement() if ";" in sql else sql
    except BadRequestError:
        return sql


def columns_of(state: State, view: View) -> list[str]:
    """Return the names of the columns of a view."""
    return columns_of_version(state, view, view.current_version_id) or []


def snapshot_of(table: TableState, ref: str) -> int | None:
    """Return the snapshot id of a branch or tag; None if there is no such branch or tag."""
    if ref == MAIN:
        return table.current_snapshot_id
    found = table.refs.get(ref)
    return None if found is None else found.snapshot_id


def name_mapping_of(table: TableState) -> str:
    """Return a digest of a table's name mapping; an empty string if it has none. A name mapping is a table property
    with the names of columns in data files without field ids, such as imported files. A change of the mapping can
    change the rows that a query reads, although the table gets no new snapshot."""
    text = table.properties.get(NAME_MAPPING)
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()[:16]


def count_in(summary: Mapping[str, str], name: str) -> int:
    """Return a number in the summary of a snapshot; 0 if it is not there or is malformed."""
    return number_in(summary, name) or 0
