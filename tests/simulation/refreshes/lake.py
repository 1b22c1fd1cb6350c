"""The model of a catalog: its tables and materialized views, as their metadata documents describe them, and the rows of
each snapshot.

Rows are numbers. A query returns the rows of all its sources, and one row of its own: minus its mark. So the rows show
which version of a view was computed, and from which snapshots.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
Rows = Mapping[int, int]
"""A multiset of rows: the number of times that each row occurs."""

DOCUMENT = "materialized_view_metadata"
REFRESH = "polaris.refresh"
NOTHING: Rows = {}

_SOURCE = re.compile(r"FROM (\w+)")
_MARK = re.compile(r"a <> -(\d+)")


class Query(NamedTuple):
    """The query of a view."""

    sources: tuple[str, ...]
    mark: int

    @property
    def sql(self) -> str:
        """The query in SQL."""
        first, *others = self.sources
        text = f"SELECT a FROM {first} WHERE a <> -{self.mark}"
        return " UNION ALL ".join((text, *(f"SELECT a FROM {one}" for one in others)))

    @classmethod
    def parsed(cls, sql: str) -> Query:
        """Return the query with this text."""
        return cls(tuple(_SOURCE.findall(sql)), marks(sql)[0])


def marks(sql: str) -> list[int]:
    """Return the marks of all queries in a text."""
    return [int(mark) for mark in _MARK.findall(sql)]


def total(parts: Iterator[Rows]) -> Rows:
    """Return the union of multisets."""
    found: Counter[int] = Counter()
    for part in parts:
        found.update(part)
    return dict(found)


class TableFacts:
    """A version of a table."""

    def __init__(self, content: int, text: bytes, location: str) -> None:
        """
        Args:
            content: object id of the version.
            text: the metadata document.
            location: location of the metadata file.
        """
        self.content = content
        self.text = text
        self.location = location
        metadata = json.loads(text)
        self.uuid: str = metadata["table-uuid"]
        self.schema_id: int = metadata["current-schema-id"]
        current = metadata.get("current-snapshot-id")
        self.current: int | None = None if current in (None, -1) else current
        self.snapshots: dict[int, Json] = {
            snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()
        }
        self.properties: dict[str, str] = metadata.get("properties") or {}

    @property
    def record(self) -> Json | None:
        """The refresh record of the current rows."""
        document = json.loads(self.properties.get(DOCUMENT, "{}"))
        id = document.get("current-refresh-id")
        return next((one for one in document.get("refreshes", ()) if one["refresh-id"] == id), None)

    def refresh_in(self, snapshot: int) -> Json | None:
        """Return the description of the refresh that made a snapshot."""
        text = self.snapshots[snapshot]["summary"].get(REFRESH)
        return None if text is None else json.loads(text)


class ViewFacts:
    """A version of a materialized view."""

    def __init__(self, content: int, text: bytes, location: str) -> None:
        self.content = content
        self.text = text
        self.location = location
        metadata = json.loads(text)
        self.uuid: str = metadata["view-uuid"]
        self.version_id: int = metadata["current-version-id"]
        self.queries = {
            one["version-id"]: Query.parsed(one["representations"][0]["sql"]) for one in metadata["versions"]
        }
        self.storage = [one["storage-table"] for one in metadata["versions"]]
        self.document: Json = json.loads(metadata["properties"][DOCUMENT])
        self.properties: dict[str, str] = metadata["properties"]

    @property
    def query(self) -> Query:
        """The query of the current version."""
        return self.queries[self.version_id]


Table = tuple[str, ...]
"""Name of a table or view: the levels of its namespace, then its own name."""


class Lake(NamedTuple):
    """The tables and materialized views of one commit."""

    tables: dict[Table, TableFacts]
    views: dict[Table, ViewFacts]

    def storage(self, view: Table) -> TableFacts | None:
        """Return the storage table of a view."""
        return self.tables.get((*view, "storage"))


class Sources:
    """The tables and views that a query reads in one commit, and the result of the query."""

    def __init__(self, lake: Lake, rows_of: Mapping[int, Rows], view: Table) -> None:
        """
        Args:
            rows_of: rows of each snapshot.
            view: name of the view; its namespace has one level.
        Raises:
            LookupError: a source does not exist, or the query reads itself.
        """
        self.tables: dict[Table, TableFacts] = {}
        self.views: dict[Table, ViewFacts] = {}
        self._lake = lake
        self._rows_of = rows_of
        self.rows = self._result(view, ())

    def _result(self, view: Table, above: tuple[Table, ...]) -> Rows:
        if view in above:
            raise LookupError(f"{view} reads itself")
        facts = self._lake.views[view]
        if above:
            self.views[view] = facts
        query = facts.query
        own: Rows = {-query.mark: 1}
        return total(iter([own, *(self._read((view[0], one), (*above, view)) for one in query.sources)]))

    def _read(self, name: Table, above: tuple[Table, ...]) -> Rows:
        table = self._lake.tables.get(name)
        if table is None:
            return self._result(name, above)
        self.tables[name] = table
        return NOTHING if table.current is None else self._rows_of[table.current]


def recorded_rows(
    record: Json,
    version: tuple[str, int],
    queries: Mapping[tuple[str, int], Query],
    rows_of: Mapping[int, Rows],
) -> Rows:
    """Return the rows that a refresh computed, as its record says.

    Args:
        record: the refresh record.
        version: UUID and version id of the view.
        queries: the query of each view version, by UUID and version id.
        rows_of: rows of each snapshot.
    Raises:
        LookupError: the record lacks a source.
    """
    tables = {source["name"]: source for source in record["source-states"] if source["type"] == "table"}
    views = {source["name"]: source for source in record["source-states"] if source["type"] == "view"}

    def result(uuid: str, version_id: int) -> Rows:
        query = queries[uuid, version_id]
        own: Rows = {-query.mark: 1}
        return total(iter([own, *map(read, query.sources)]))

    def read(name: str) -> Rows:
        if name in tables:
            id = tables[name]["snapshot-id"]
            return NOTHING if id == -1 else rows_of[id]
        return result(views[name]["uuid"], views[name]["version-id"])

    return result(*version)
