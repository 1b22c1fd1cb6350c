"""The system view `schemas`: one row for each column of each current or former schema of a table or view."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.metadata.rows import Numbered, Schema, Table, View, ViewVersion
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.spark.pruning import Condition
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.changes import KINDS
from polaris_spark.spark.views.columns import BOOLEAN, INT, STRING, ViewColumn
from polaris_spark.spark.views.entities import (
    IDENTITY,
    READ_TOGETHER,
    WITHOUT_UNLOADED,
    EntityEntry,
    NamesTask,
    by_id,
    named,
    plan_names,
    visible,
    with_loaded,
    with_pieces,
)
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted
from polaris_spark.store.objects import ObjectStore


class _Schema(msgspec.Struct, rename="kebab"):
    fields: list[dict[str, Any]] = []
    identifier_field_ids: list[int] | None = None


class _Version(msgspec.Struct, rename="kebab"):
    schema_id: int | None = None


_INNER = {"list": ("element",), "map": ("key", "value")}
_schema = msgspec.json.Decoder(_Schema).decode
_version = msgspec.json.Decoder(_Version).decode


class SchemasTask(NamedTuple):
    """A range of tables and views that one task reads, and conditions on the columns `kind` and `is_current`."""

    names: NamesTask
    kinds: Condition
    current: Condition


class SchemaVersion(NamedTuple):
    """A current or former schema of a table or view. `piece` is the id of the object that contains the schema."""

    entry: EntityEntry
    id: int
    is_current: bool
    piece: int


class Field(NamedTuple):
    """A column at any depth: a field of a struct, the element of a list, the key or value of a map."""

    path: tuple[str, ...]
    id: int
    type: str
    required: bool
    doc: str | None
    position: int
    """Position among the fields of the same parent, starting with 0."""


class SchemaRow(NamedTuple):
    """A column of a current or former schema."""

    kept: SchemaVersion
    field: Field
    is_identifier: bool

    @property
    def entry(self) -> EntityEntry:
        """The index entry of the table or view."""
        return self.kept.entry


class Schemas(SystemView[SchemasTask, SchemaRow]):
    """A system view with one row for each column, including nested columns, of each schema of a table or view."""

    shown = (Need("TABLE_READ_PROPERTIES", On.TABLE), Need("VIEW_READ_PROPERTIES", On.VIEW))
    comment = (
        "Columns of every table and view, including nested ones, one row for each schema that contains the column; "
        f"{WITHOUT_UNLOADED}"
    )
    rows_per_partition = 100
    columns = (
        *IDENTITY,
        ViewColumn("kind", STRING, "table or view", lambda row: KINDS[row.entry.kind]),
        ViewColumn("schema_id", INT, "Id of the schema", lambda row: row.kept.id),
        ViewColumn(
            "is_current",
            BOOLEAN,
            "Whether it is the current schema; files may have been written with earlier ones",
            lambda row: row.kept.is_current,
        ),
        ViewColumn(
            "column_name",
            STRING,
            "Full name, levels joined by dots as Iceberg does: element of a list, key and value of a map",
            lambda row: ".".join(row.field.path),
        ),
        ViewColumn("field_name", STRING, "Last level of the name", lambda row: row.field.path[-1]),
        ViewColumn("depth", INT, "Nesting level; 1 at the top", lambda row: len(row.field.path)),
        ViewColumn(
            "position", INT, "Position among its siblings, beginning with 0", lambda row: row.field.position
        ),
        ViewColumn(
            "field_id",
            INT,
            "Id of the column: unchanged by renames, never used for another column of the table",
            lambda row: row.field.id,
        ),
        ViewColumn(
            "type",
            STRING,
            "Iceberg type, such as decimal(9,2); struct, list or map for a column with nested columns",
            lambda row: row.field.type,
        ),
        ViewColumn(
            "required", BOOLEAN, "Whether the column is required (not null)", lambda row: row.field.required
        ),
        ViewColumn("doc", STRING, "Comment of the column", lambda row: row.field.doc),
        ViewColumn(
            "is_identifier",
            BOOLEAN,
            "Whether it is an identifier field",
            lambda row: row.is_identifier,
        ),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[SchemasTask]]:
        kinds, current = request.condition("kind"), request.condition("is_current")
        return [
            Weighted(SchemasTask(names, kinds, current), weight)
            for names, weight in plan_names(request, None, self.rows_per_partition)
        ]

    def rows(self, store: ReadStore, task: SchemasTask, needs: frozenset[str]) -> Iterator[SchemaRow]:
        objects = store.objects(task.names.pin.realm)
        entries = named(task.names.pin.reader(objects), task.names, None)
        entries = visible(store, task.names, entries, self.shown)
        wanted = (entry for entry in entries if entry.kind in (TABLE, VIEW))
        allowed = (entry for entry in wanted if task.kinds.allows(KINDS[entry.kind]))
        kept = (one for one in _kept(objects, allowed) if task.current.allows(one.is_current))
        for one, found in with_pieces(objects, kept, lambda one: one.piece, Schema):
            schema = _schema(found.text)
            identifiers = frozenset(schema.identifier_field_ids or ())
            for field in fields_of(schema.fields):
                yield SchemaRow(one, field, field.id in identifiers)

    def sees(self, store: ReadStore, scope: Scope, row: SchemaRow) -> bool:
        return True  # `rows` reads only tables and views that the principal may see

    def weigh(self, row: SchemaRow) -> int:
        return 256 + len(row.field.doc or "")


SYSTEM_VIEW = Schemas()


def fields_of(fields: list[dict[str, Any]], above: tuple[str, ...] = ()) -> Iterator[Field]:
    """Yield the fields of a struct in their order. Each field is followed by its nested fields.

    Args:
        fields: the fields in Iceberg's JSON form.
        above: path of the struct.
    """
    for position, field in enumerate(fields):
        yield from _field(
            (*above, field["name"]), field["id"], field["type"], field["required"], field.get("doc"), position
        )


def _field(
    path: tuple[str, ...], id: int, type: Any, required: Any, doc: str | None, position: int
) -> Iterator[Field]:
    nested = type if isinstance(type, dict) else {}
    kind = str(nested.get("type", type))
    yield Field(path, id, kind, bool(required), doc, position)
    if kind == "struct":
        yield from fields_of(nested["fields"], path)
    for position, name in enumerate(_INNER.get(kind, ())):
        needed = nested.get(f"{name}-required", True)  # keys of maps are always required, and JSON omits this
        yield from _field((*path, name), nested[f"{name}-id"], nested[name], needed, None, position)


def _kept(store: ObjectStore, entries: Iterator[EntityEntry]) -> Iterator[SchemaVersion]:
    """Yield the schemas of tables and views, in the order of `entries`. Skip tables and views that were imported lazily
    and are not loaded yet, because their schemas are not stored."""
    while run := list(islice(entries, READ_TOGETHER)):
        schemas: dict[int, tuple[int | None, tuple[Numbered, ...]]] = {}
        for tables, _ in with_loaded(store, (entry for entry in run if entry.kind == TABLE), Table):
            schemas.update({entry.content_id: (t.current_schema_id, t.schemas) for entry, t in tables})
        for views, _ in with_loaded(store, (entry for entry in run if entry.kind == VIEW), View):
            current = _schemas_of_views(store, [view for _, view in views])
            schemas.update({e.content_id: (id, v.schemas) for (e, v), id in zip(views, current, strict=True)})
        for entry in run:
            current_id, numbered = schemas.get(entry.content_id, (None, ()))
            for one in numbered:
                yield SchemaVersion(entry, one.id, one.id == current_id, one.piece)


def _schemas_of_views(store: ObjectStore, views: list[View]) -> list[int | None]:
    """Return the schema id of the current version of each view; None if a view has no current version."""
    pieces = [next((n.piece for n in v.versions if n.id == v.current_version_id), 0) for v in views]
    versions = by_id(store, pieces, ViewVersion)
    return [_version(versions[piece].text).schema_id if piece else None for piece in pieces]
