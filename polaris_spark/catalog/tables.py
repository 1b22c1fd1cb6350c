"""Tables: every change is an entry in the indexes and a new table object that shares what has not changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from polaris_spark.catalog.contents import ContentChange, Prepared, Stored
from polaris_spark.catalog.entities import (
    CatalogChange,
    Context,
    TableName,
    default_location,
    find,
    table_key,
)
from polaris_spark.catalog.metadata import (
    TableDraft,
    apply_all,
    check_all,
    create_table,
    is_create,
)
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, NoSuchTableError


class TableChange(ContentChange[Table]):
    """A change that leaves a table behind."""

    kind = TABLE
    cls = Table


class CreateTable(TableChange):
    """Create a table from a CreateTableRequest."""

    action = "create-table"

    def __init__(
        self, context: Context, operation: Operation, name: TableName, request: dict[str, Any]
    ) -> None:
        super().__init__(context, operation, name)
        self.request = request

    def apply(self, state: State, prepared: object) -> Stored[Table]:
        assert isinstance(prepared, Prepared)
        return self.store(state, None, self.draft(state, prepared), prepared)

    def draft(self, state: State, prepared: Prepared) -> TableDraft:
        """The new table, not yet stored: all that a staged creation does.

        Raises:
            NoSuchNamespaceError: its namespace does not exist.
            AlreadyExistsError: the name is taken.
        """
        self.require_place(state)
        location = self.request.get("location")
        if not location:
            location = default_location(state, self.context, self.name, prepared.uuid)
        return create_table(self.request, uuid=prepared.uuid, location=location, now_ms=prepared.now)


class TableCommit(NamedTuple):
    """Requirements and updates for one table, as the REST protocol writes them."""

    name: TableName
    requirements: Sequence[dict[str, Any]]
    updates: Sequence[dict[str, Any]]


class CommitTable(TableChange):
    """Apply updates to one table if its requirements hold; `assert-create` makes it a creation."""

    def __init__(self, context: Context, operation: Operation, commit: TableCommit) -> None:
        super().__init__(context, operation, commit.name)
        self.creates = is_create(commit.requirements)
        self.action = "create-table" if self.creates else "update-table"
        self.requirements = commit.requirements
        self.updates = commit.updates

    def apply(self, state: State, prepared: object) -> Stored[Table]:
        assert isinstance(prepared, Prepared)
        found = find(state, table_key(self.name))
        if found is None:
            if not self.creates:
                raise NoSuchTableError(f"Table does not exist: {self.name}")
            self.require_place(state)
        elif self.creates:
            raise AlreadyExistsError(f"Requirement failed: table already exists: {self.name}")
        before = state.get_for_rewrite(found.content, Table) if found else None
        draft = TableDraft.of(before, state, now_ms=prepared.now)
        check_all(draft, self.requirements)
        apply_all(draft, self.updates)
        if before is not None and found is not None and not draft.changed:
            return Stored(found.content, before)
        return self.store(state, found, draft, prepared)


class CommitTables(CatalogChange[list[Stored[Table]]]):
    """Apply updates to several tables in one commit: all or none."""

    action = "update-table"

    def __init__(self, context: Context, operation: Operation, commits: Sequence[TableCommit]) -> None:
        super().__init__(context, operation)
        names = [commit.name for commit in commits]
        if len(set(names)) < len(names):
            raise BadRequestError("a transaction names the same table twice")
        self.parts = [CommitTable(context, operation, commit) for commit in commits]

    def prepare(self, view: State) -> object:
        return [part.prepare(view) for part in self.parts]

    def apply(self, state: State, prepared: object) -> list[Stored[Table]]:
        assert isinstance(prepared, list)
        return [part.apply(state, one) for part, one in zip(self.parts, prepared, strict=True)]

    def repeat(self, state: State, entries: list[LogEntry]) -> list[Stored[Table]]:
        return [Stored(entry.after, state.get(entry.after, Table)) for entry in entries]
