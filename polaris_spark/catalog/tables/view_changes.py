"""Changes of views: creating them, and changing their versions and properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polaris_spark.catalog.entities.entities import Context, TableName, default_location, require
from polaris_spark.catalog.entities.materialized_views import (
    METADATA,
    STORAGE_LOCATION,
    document_of,
    is_materialized,
    set_document,
    split_updates,
    storage_name,
)
from polaris_spark.catalog.entities.refresh_records import require_refresh_only, set_refreshes
from polaris_spark.catalog.metadata.bounds import require_commits_within, require_creation_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.table_updates import apply_all
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, check_view, create_view
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.catalog.tables.contents import ContentChange, Prepared, StorageChange, StoredContent
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError


class ViewChange(ContentChange[Prepared, View]):
    """A change that stores new content of a view."""

    kind = VIEW
    cls = View

    def prepare(self, view: State) -> Prepared:
        return self.new_values()


class CreateView(ViewChange):
    """Create a view from a CreateViewRequest."""

    action = "create-view"

    def __init__(
        self, context: Context, operation: Operation, name: TableName, request: dict[str, Any]
    ) -> None:
        self.size = require_creation_within(request)
        super().__init__(context, operation, name)
        self.request = request

    def apply(self, state: State, prepared: Prepared) -> StoredContent[View]:
        _refuse_document(self.request.get("properties") or {})
        self.require_place(state)
        given = self.request.get("location")
        location = given or default_location(state, self.context, self.name, prepared.uuid)
        draft = create_view(
            self.request,
            uuid=prepared.uuid,
            location=location,
            now_ms=prepared.now,
            check_time=state.check_time,
        )
        return self.store(state, None, draft, prepared, self.context.binding.at(state))


class CommitView(ViewChange):
    """Apply updates to a view if the requirements of the request are met."""

    action = "update-view"

    def __init__(
        self,
        context: Context,
        operation: Operation,
        name: TableName,
        requirements: Sequence[dict[str, Any]],
        updates: Sequence[dict[str, Any]],
    ) -> None:
        self.size = require_commits_within([(requirements, updates)])
        super().__init__(context, operation, name)
        self.requirements = requirements
        self.updates = updates

    def apply(self, state: State, prepared: Prepared) -> StoredContent[View]:
        found = require(state, self.name, VIEW)
        before = state.get_for_rewrite(found.content, View)
        draft = ViewDraft(before, state, now_ms=prepared.now, check_time=state.check_time)
        for requirement in self.requirements:
            check_view(draft, requirement)
        if is_materialized(before):
            self._apply_to_materialized(state, draft, before, prepared)
        else:
            apply_view_updates(draft, self.updates)
            _refuse_document(draft.properties)
        if not draft.changed:
            return StoredContent(found.content, before)
        return self.store(state, found, draft, prepared, self.context.binding.at(state))

    def _apply_to_materialized(
        self, state: State, draft: ViewDraft, before: View, prepared: Prepared
    ) -> None:
        """Apply the updates to a materialized view and its storage table, and complete the view's document.

        Raises:
            BadRequestError: the updates change the view's query or location.
        """
        of_view, of_storage = split_updates(self.updates)
        apply_view_updates(draft, of_view)
        changed = {action for action, _ in draft.changes}
        if changed & {"add-view-version", "set-current-view-version", "add-schema", "set-location"}:
            raise BadRequestError(
                f"{self.name} is a materialized view, so this request cannot change its query or location; change "
                "the query with CREATE OR REPLACE MATERIALIZED VIEW"
            )
        location = self._changed_storage(state, of_storage, before, prepared)
        if changed or location:
            location = location or document_of(before.properties)[STORAGE_LOCATION]
            set_document(draft.own_properties(), location, before.properties)
            draft.record("set-properties")

    def _changed_storage(
        self, state: State, updates: Sequence[dict[str, Any]], view: View, prepared: Prepared
    ) -> str:
        """Apply updates to the storage table. Return the location of its new metadata file; an empty string if it has
        not changed."""
        if not updates:
            return ""
        name = storage_name(self.name)
        found = require(state, name, TABLE)
        table = state.get_for_rewrite(found.content, Table)
        draft = TableDraft(table, state, now_ms=prepared.now, check_time=state.check_time)
        apply_all(draft, updates)
        if not draft.changed:
            return ""
        require_refresh_only(draft, name, view)
        set_refreshes(draft, view)
        change = StorageChange(self.context, self.operation, name)
        stored = change.store(state, found, draft, prepared, self.context.binding.at(state))
        return stored.value.metadata_location


def _refuse_document(properties: Mapping[str, str]) -> None:
    if METADATA in properties:
        raise BadRequestError(
            f"property {METADATA} makes a view a materialized view; create it with CREATE MATERIALIZED VIEW"
        )
