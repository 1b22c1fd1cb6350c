"""The system view `views`: one row for each Iceberg view of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.metadata.rows import EMPTY_VIEW, Schema, View, ViewVersion
from polaris_spark.catalog.rows import VIEW, Unloaded
from polaris_spark.spark.views.columns import (
    INT,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    field_names,
    micros,
    pairs,
    text_bytes,
)
from polaris_spark.spark.views.entities import (
    IDENTITY,
    EntityEntry,
    EntityView,
    by_id,
    of_loaded,
    with_loaded,
)
from polaris_spark.store.objects import ObjectStore


class _Representation(msgspec.Struct):
    type: str = ""
    sql: str = ""
    dialect: str = ""


class _Version(msgspec.Struct, rename="kebab"):
    timestamp_ms: int | None = None
    schema_id: int | None = None
    summary: dict[str, Any] = {}
    representations: list[_Representation] = []
    default_catalog: str | None = None
    default_namespace: list[str] | None = None


_version = msgspec.json.Decoder(_Version).decode


class ViewRow(NamedTuple):
    """An Iceberg view, with its current version and the schema of this version."""

    entry: EntityEntry
    view: View
    version: _Version
    schema: bytes
    unloaded: Unloaded | None = None
    """Stored data of a view that was imported lazily and is not loaded yet; None for other views. If set, the other
    fields except `entry` are meaningless."""


class SqlViews(EntityView[ViewRow]):
    """A system view with one row for each Iceberg view."""

    comment = "Iceberg views, one row each"
    shown = (Need("VIEW_READ_PROPERTIES", On.VIEW),)
    kind = VIEW
    one_each = True
    columns = (
        *IDENTITY,
        *of_loaded(
            ViewColumn("uuid", STRING, "The view's UUID", lambda row: row.view.uuid),
            ViewColumn(
                "format_version", INT, "Version of the view format", lambda row: row.view.format_version
            ),
            ViewColumn("location", STRING, "Base location of the view", lambda row: row.view.location),
            ViewColumn(
                "metadata_location",
                STRING,
                "Location of this version's metadata file; the file itself may not be exported",
                lambda row: row.view.metadata_location,
            ),
            ViewColumn(
                "current_version_id",
                INT,
                "Id of the current version",
                lambda row: row.view.current_version_id,
            ),
            ViewColumn(
                "version_count",
                INT,
                "Number of versions that the view keeps",
                lambda row: len(row.view.versions),
            ),
            ViewColumn(
                "last_updated_at",
                TIMESTAMP,
                "Time of the current version",
                lambda row: micros(row.version.timestamp_ms),
            ),
            ViewColumn(
                "sql",
                STRING_MAP,
                "Text of the current version by dialect, such as sql['spark']",
                lambda row: [(r.dialect, r.sql) for r in row.version.representations if r.type == "sql"],
            ),
            ViewColumn(
                "default_catalog",
                STRING,
                "Catalog in which names of the text are looked up; null for the view's own",
                lambda row: row.version.default_catalog,
            ),
            ViewColumn(
                "default_namespace",
                STRING,
                "Namespace in which names of the text are looked up, levels joined by dots",
                lambda row: dotted(row.version.default_namespace or ()),
            ),
            ViewColumn(
                "column_names",
                STRINGS,
                "Top-level columns, in order",
                lambda row: field_names(row.schema) if row.schema else [],
            ),
            ViewColumn("schema", STRING, "Schema as JSON", lambda row: row.schema.decode() or None),
            ViewColumn(
                "summary",
                STRING_MAP,
                "Summary of the current version, such as the engine that made it",
                lambda row: [(name, str(value)) for name, value in row.version.summary.items()],
            ),
            ViewColumn("properties", STRING_MAP, "View properties", lambda row: pairs(row.view.properties)),
        ),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[ViewRow]:
        for run, unread in with_loaded(store, entries, View):
            for entry, unloaded in unread:
                yield ViewRow(entry, EMPTY_VIEW, _Version(), b"", unloaded)
            current = [
                next((n.piece for n in view.versions if n.id == view.current_version_id), 0)
                for _, view in run
            ]
            texts = by_id(store, current, ViewVersion)
            versions = [_version(texts[piece].text) if piece else _Version() for piece in current]
            wanted = [
                next((n.piece for n in view.schemas if n.id == version.schema_id), 0)
                for (_, view), version in zip(run, versions, strict=True)
            ]
            schemas = by_id(store, wanted, Schema)
            for (entry, view), version, schema in zip(run, versions, wanted, strict=True):
                yield ViewRow(entry, view, version, schemas[schema].text if schema else b"")

    def weigh(self, row: ViewRow) -> int:
        properties = text_bytes(row.view.properties)
        return 1_024 + len(row.schema) + properties + sum(len(one.sql) for one in row.version.representations)


SYSTEM_VIEW = SqlViews()
