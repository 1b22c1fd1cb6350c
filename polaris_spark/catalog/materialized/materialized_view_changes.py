"""Creation and replacement of materialized views. The view and its storage table are stored in one commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from itertools import count
from typing import Any

from polaris_spark.catalog.entities.entities import (
    Context,
    NameEntry,
    TableName,
    default_location,
    find,
    require,
)
from polaris_spark.catalog.entities.materialized_views import (
    STORAGE_LOCATION,
    document_of,
    is_materialized,
    require_no_namespace,
    set_document,
    storage_name,
    storage_updates,
    with_storage_table,
)
from polaris_spark.catalog.entities.properties import EffectiveProperties
from polaris_spark.catalog.entities.refresh_records import set_refreshes
from polaris_spark.catalog.metadata.bounds import require_creation_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.schemas import SchemaIndex, fresh_ids, normal_schema
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_pieces import LAST_ADDED
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, create_view
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.tables.contents import Prepared, StoredContent
from polaris_spark.catalog.tables.table_changes import CreateTable
from polaris_spark.catalog.tables.view_changes import ViewChange
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError

MAIN_REF = "main"


class StorageTable(CreateTable):
    """The part of the creation of a materialized view that stores its storage table."""

    with_view = True


class CreateMaterializedView(ViewChange):
    """Create a materialized view with an empty storage table, or replace the query of an existing materialized view.

    A replaced materialized view keeps its UUID, history and properties. Its storage table gets the new columns and no
    current snapshot.
    """

    action = "create-view"

    def __init__(
        self,
        context: Context,
        operation: Operation,
        name: TableName,
        request: dict[str, Any],
        storage: dict[str, Any],
        *,
        replace: bool = False,
    ) -> None:
        """
        Args:
            request: `schema`, `view-version` and `properties`, as in the REST protocol's request for a new view.
            storage: `schema`, `partition-spec` and `properties`, as in the request for a new table.
            replace: whether to replace a materialized view of this name.
        """
        self.size = require_creation_within(request) + require_creation_within(storage)
        super().__init__(context, operation, name)
        self.request = request
        self.storage = StorageTable(context, operation, storage_name(name), storage)
        self.replace = replace

    def apply(self, state: State, prepared: Prepared) -> StoredContent[View]:
        found = find(state, self.key)
        effective = self.context.binding.at(state)
        if found is not None and self.replace:
            return self._replaced(state, found, prepared, effective)
        self.require_place(state)
        require_no_namespace(state, self.name)
        location = default_location(state, self.context, self.name, prepared.uuid)
        version = with_storage_table(self.request["view-version"], self.name)
        draft = create_view(
            {**self.request, "view-version": version},
            uuid=prepared.uuid,
            location=location,
            now_ms=prepared.now,
            check_time=state.check_time,
        )
        table = create_table(
            self.storage.with_defaults(effective),
            uuid=str(uuid.uuid5(uuid.UUID(prepared.uuid), "storage")),
            location=f"{location}/storage",
            now_ms=prepared.now,
            check_time=state.check_time,
        )
        stored = self.storage.store(state, None, table, prepared, effective)
        set_document(draft.own_properties(), stored.value.metadata_location)
        return self.store(state, None, draft, prepared, effective)

    def _replaced(
        self, state: State, found: NameEntry, prepared: Prepared, effective: EffectiveProperties
    ) -> StoredContent[View]:
        before = state.get_for_rewrite(found.content, View)
        if not is_materialized(before):
            raise AlreadyExistsError(
                f"View already exists: {self.name}; it is not a materialized view, so it cannot be replaced by one: "
                "drop it first, or choose another name"
            )
        draft = ViewDraft(before, state, now_ms=prepared.now, check_time=state.check_time)
        version = with_storage_table(self.request["view-version"], self.name)
        apply_view_updates(draft, [{"action": "add-schema", "schema": self.request["schema"]}])
        schema_id = draft.last_added_schema_id
        if schema_id is None:  # the view already has the schema
            schema_id = draft.schemas.like(draft.schemas.digest(normal_schema(self.request["schema"])))
        version |= {"version-id": 1, "schema-id": schema_id}
        updates: list[dict[str, Any]] = [
            {"action": "add-view-version", "view-version": version},
            {"action": "set-properties", "updates": self.request.get("properties") or {}},
        ]
        apply_view_updates(draft, updates)
        current = draft.last_added_version_id or draft.versions.like(draft.versions.digest(version))
        apply_view_updates(draft, [{"action": "set-current-view-version", "view-version-id": current}])
        key = require(state, self.storage.name, TABLE)
        table = TableDraft(
            state.get_for_rewrite(key.content, Table), state, now_ms=prepared.now, check_time=state.check_time
        )
        apply_all(table, _emptied(table, self.storage.request))
        set_refreshes(table, before)
        where = document_of(before.properties)[STORAGE_LOCATION]
        if table.changed:  # not so if it has the new columns already, and no snapshot
            where = self.storage.store(state, key, table, prepared, effective).value.metadata_location
        set_document(draft.own_properties(), where, before.properties)
        draft.record("set-properties")
        return self.store(state, found, draft, prepared, effective)


def _same(table: TableDraft, schema: Mapping[str, Any]) -> SchemaIndex:
    """Return the columns of a storage table for which `schema` has a column of the same name and type."""
    wanted = {field["name"]: field["type"] for field in schema["fields"]}
    old = table.schemas.get(table.current_schema_id) or {"fields": []}
    kept = [
        field
        for field in old["fields"]
        if isinstance(field["type"], str) and wanted.get(field["name"]) == field["type"]
    ]
    return SchemaIndex({"type": "struct", "fields": kept})


def _emptied(table: TableDraft, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return updates that give a storage table new columns and partitions, and no current snapshot.

    A column keeps its id if the table has a column of the same name and type, so that an equal partition spec stays the
    same. Other columns get new ids, because no rows of the old columns remain in the branch `main`.
    """
    schema, _ = fresh_ids(
        request["schema"], 0, count(table.last_column_id + 1).__next__, _same(table, request["schema"])
    )
    new_ids = {
        old["id"]: new["id"] for old, new in zip(request["schema"]["fields"], schema["fields"], strict=True)
    }
    fields = [
        {"name": field["name"], "transform": field["transform"], "source-id": new_ids[field["source-id"]]}
        for field in (request.get("partition-spec") or {}).get("fields", ())
    ]
    updates: list[dict[str, Any]] = []
    if MAIN_REF in table.refs:
        updates.append({"action": "remove-snapshot-ref", "ref-name": MAIN_REF})
    known = table.schemas.like(table.schemas.digest(normal_schema(schema)))
    if known is None:
        updates.append({"action": "add-schema", "schema": schema})
    updates += [
        {"action": "set-current-schema", "schema-id": LAST_ADDED if known is None else known},
        *storage_updates(request.get("properties") or {}),
    ]
    equal = [
        id
        for id, spec in table.specs.all()
        if [{name: one[name] for name in ("name", "transform", "source-id")} for one in spec["fields"]]
        == fields
    ]
    if equal:
        return [*updates, {"action": "set-default-spec", "spec-id": equal[0]}]
    return [
        *updates,
        {"action": "add-spec", "spec": {"spec-id": LAST_ADDED, "fields": fields}},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
    ]
