"""Changes of views: creating them, and changing their versions and properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polaris_spark.catalog.contents import ContentChange, Prepared, StoredContent
from polaris_spark.catalog.entities import Context, TableName, default_location, require
from polaris_spark.catalog.metadata.bounds import require_commits_within, require_creation_within
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import apply_view_updates, check_view, create_view
from polaris_spark.catalog.rows import VIEW
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State


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
        self.require_place(state)
        location = self.request.get("location")
        if not location:
            location = default_location(state, self.context, self.name, prepared.uuid)
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
        apply_view_updates(draft, self.updates)
        if not draft.changed:
            return StoredContent(found.content, before)
        return self.store(state, found, draft, prepared, self.context.binding.at(state))
