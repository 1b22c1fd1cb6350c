"""Catalogs for tests of system views, and functions that read views as Spark does, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, Filter
from pyspark.sql.types import StructType

import polaris_spark
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.spark.datasource import PolarisObjects
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.history import HistoryView
from polaris_spark.store.cache import process_cache
from tests.stores import configured

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "n", "required": False, "type": "long"},
        {"id": 2, "name": "day", "required": False, "type": "date"},
    ],
}
SPEC = {"fields": [{"name": "by_day", "transform": "identity", "source-id": 2, "field-id": 1000}]}
Row = dict[str, Any]


def having(*columns: str) -> list[str]:
    """Return the views that have all these columns."""
    return [name for name, view in VIEWS.items() if {*columns} <= {column.name for column in view.columns}]


OF_ENTITIES = [
    view
    for view in having("entity_id", "content_id")
    if view not in ("files", "materialized_views", "refreshes", "lineage")
]
"""Views of the entities of a commit, except `files` (the manifests of these catalogs were never written) and
those of materialized views, of which these catalogs have none."""

OF_HISTORY = [name for name, view in VIEWS.items() if isinstance(view, HistoryView)]
"""Views of commits."""

EMPTY_IN_SHOP = ("materialized_views", "refreshes", "lineage", "metrics", "deletions", "runs", "tasks")
"""Views without rows in the fixture `shop`."""


class Catalog:
    """A catalog of a temporary store. Tests send it requests of the protocol."""

    def __init__(
        self, path: Path, *, store: str | None = None, clock: Clock | None = None, **properties: Any
    ) -> None:
        """
        Args:
            path: where files go.
            store: the store's URI; an SQLite file at `path` unless given.
        """
        name = properties.get("catalog", "polaris")
        self.store = store or f"sqlite://{path}?synchronous=off"
        self.session = polaris_spark.connect(
            store=self.store,
            warehouse=str(path.with_suffix(".files") / name),
            metadata_files="never",
            clock=clock,
            **properties,
        )

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request that must succeed, and return the body of the answer."""
        text = None if body is None else json.dumps(body)
        status, _, answer = self.session.request(method, path, body=text)
        assert status < 300, (status, answer)
        return json.loads(answer) if answer else None

    def namespace(self, *levels: str, **properties: str) -> None:
        """Create a namespace."""
        self.request("POST", "v1/namespaces", {"namespace": levels, "properties": properties})

    def table(self, namespace: str, name: str, **more: Any) -> Any:
        """Create a table, and return its metadata."""
        body = {"name": name, "schema": SCHEMA, **more}
        return self.request("POST", f"v1/namespaces/{namespace}/tables", body)["metadata"]

    def view(self, namespace: str, name: str, sql: str, timestamp_ms: int = 1_790_000_000_000) -> Any:
        """Create a view, and return its metadata."""
        version = {
            "version-id": 1,
            "timestamp-ms": timestamp_ms,
            "schema-id": 0,
            "summary": {"engine-name": "spark"},
            "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
            "default-namespace": [namespace],
        }
        body = {"name": name, "schema": SCHEMA, "view-version": version, "properties": {"k": "v"}}
        return self.request("POST", f"v1/namespaces/{namespace}/views", body)["metadata"]

    def update(self, namespace: str, name: str, *updates: Row) -> Any:
        """Change a table, and return its metadata."""
        body = {"requirements": [], "updates": list(updates)}
        return self.request("POST", f"v1/namespaces/{namespace}/tables/{name}", body)["metadata"]

    def set_property(self, namespace: str, name: str, key: str, value: str) -> Any:
        """Set one property of a table."""
        return self.update(namespace, name, {"action": "set-properties", "updates": {key: value}})

    def snapshot(self, namespace: str, name: str, id: int, **more: Any) -> Any:
        """Add a snapshot to branch main of a table."""
        metadata = self.load(namespace, name)
        snapshot = {
            "snapshot-id": id,
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": metadata["last-updated-ms"],
            "summary": {"operation": "append", "added-records": "3", "total-records": "3"},
            "manifest-list": f"/manifests/{id}",
            "schema-id": 0,
            **more,
        }
        to_main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
        return self.update(namespace, name, {"action": "add-snapshot", "snapshot": snapshot}, to_main)

    def load(self, namespace: str, name: str) -> Any:
        """A table's metadata."""
        return self.request("GET", f"v1/namespaces/{namespace}/tables/{name}")["metadata"]

    def read(self, view: str, *filters: Filter, **options: str) -> list[Row]:
        """The rows of a view of this catalog."""
        named = {"catalog": self.session.catalog.name, **options}
        return rows(view, *filters, **configured(self.store), **named)

    def head(self) -> int:
        """The id of the newest commit."""
        return self.session.catalog.head().head.commit


def archive(catalog: Catalog, number: int) -> None:
    """Trim the history of a catalog to begin at a commit, with its log archived, and sweep what was trimmed."""
    references, clock = catalog.session.catalog.references, catalog.session.connection.clock
    [time] = [row["committed_at"] for row in catalog.read("commits") if row["number"] == number]
    age = clock.now_ms() - round(time.timestamp() * 1_000)
    sweep(references, Policy(age, 0, 365 * 86_400_000), operation=Operation(b"", "ann"))
    process_cache().clear()
    assert catalog.session.catalog.head().head.floor_number == number


def reader(view: str, *filters: Filter, columns: Sequence[str] = (), **options: str) -> DataSourceReader:
    """Return the reader of a view, pickled and unpickled as for a worker, with pushed filters.

    Args:
        columns: names of the columns to read; empty for all columns.
    """
    named = {name.replace("_", "-"): value for name, value in options.items()}
    source = pickle.loads(cloudpickle.dumps(PolarisObjects({"view": view, **named})))
    schema = source.schema()
    found = source.reader(StructType([schema[name] for name in columns]) if columns else schema)
    if filters:
        assert list(found.pushFilters(list(filters))) == list(filters)
    return found


def batches(found: DataSourceReader) -> Iterator[Any]:
    """Yield the batches of a reader's partitions. Each partition is read by copies of partition and reader."""
    for partition in found.partitions() or [None]:
        there, copy = pickle.loads(cloudpickle.dumps((found, partition)))
        yield from there.read(copy)


def rows(view: str, *filters: Filter, columns: Sequence[str] = (), **options: str) -> list[Row]:
    """Return the rows of a view as dictionaries; maps are dictionaries, too."""
    return [
        row for batch in batches(reader(view, *filters, columns=columns, **options)) for row in _rows(batch)
    ]


def _rows(batch: Any) -> list[Row]:
    maps = [field.name for field in batch.schema if str(field.type).startswith("map<")]
    found: list[Row] = batch.to_pylist()
    for row in found:
        row.update({name: dict(row[name]) for name in maps if row[name] is not None})
    return found
