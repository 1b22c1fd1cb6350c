"""Changes of tables. Each change writes index entries and a new table row. Parts that have not changed are not written
again; the new row points to their rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from polaris_spark.catalog.entities.entities import (
    CatalogChange,
    Context,
    TableName,
    default_location,
    find,
)
from polaris_spark.catalog.entities.materialized_views import STORAGE
from polaris_spark.catalog.entities.properties import EffectiveProperties, naming_properties
from polaris_spark.catalog.files import locations
from polaris_spark.catalog.manifests.manifest_files import ManifestFiles
from polaris_spark.catalog.manifests.manifest_lists import ManifestList
from polaris_spark.catalog.metadata.bounds import require_commits_within, require_creation_within
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.requirements import check, check_all, is_create
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.table_creation import create_table
from polaris_spark.catalog.metadata.table_updates import FORMAT_VERSION, apply_all
from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.catalog.tables.append_rebase import (
    APPEND_REBASE,
    Append,
    NotRebasedError,
    find_append,
    is_behind,
    needed_lists,
    rebase,
)
from polaris_spark.catalog.tables.contents import ContentChange, Prepared, StoredContent
from polaris_spark.catalog.tables.schema_merge import SCHEMA_MERGE, is_on, with_merged_columns
from polaris_spark.catalog.tables.snapshot_expiry import expire_on_commit, record_expired
from polaris_spark.commit_notes import Notes
from polaris_spark.commits.change import Operation, PrepareAgain
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    NoSuchTableError,
)
from polaris_spark.index.keys import decode_key


class TableChange(ContentChange[Prepared, Table]):
    """A change that stores new content of a table."""

    kind = TABLE
    cls = Table

    def prepare(self, view: State) -> Prepared:
        return self.new_values()


class CreateTable(TableChange):
    """Create a table from a CreateTableRequest."""

    action = "create-table"

    def __init__(
        self, context: Context, operation: Operation, name: TableName, request: dict[str, Any]
    ) -> None:
        self.size = require_creation_within(request)
        super().__init__(context, operation, name)
        self.request = request

    def apply(self, state: State, prepared: Prepared) -> StoredContent[Table]:
        effective = self.context.binding.at(state)
        draft = self.draft(state, prepared, effective)
        with naming_properties(effective, self._asked()):
            return self.store(state, None, draft, prepared, effective)

    def draft(self, state: State, prepared: Prepared, effective: EffectiveProperties) -> TableDraft:
        """Return the draft of the new table. Nothing is stored; a staged creation returns this draft to the client.

        Args:
            effective: the effective properties of the catalog.
        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            AlreadyExistsError: a table or view has the name.
        """
        self.require_place(state)
        given = self.request.get("location")
        location = given or default_location(state, self.context, self.name, prepared.uuid)
        with naming_properties(effective, self._asked()):
            return create_table(
                self.with_defaults(effective),
                uuid=prepared.uuid,
                location=location,
                now_ms=prepared.now,
                check_time=state.check_time,
            )

    def _asked(self) -> Collection[str]:
        """Return the names of the properties that the request sets."""
        return self.request.get("properties") or ()

    def with_defaults(self, effective: EffectiveProperties) -> dict[str, Any]:
        """Return the request with the properties that the catalog gives to new tables added."""
        asked = self.request.get("properties")
        if not effective.table_defaults and not effective.table_overrides:
            return self.request
        if asked is not None and not isinstance(asked, dict):  # refused later
            return self.request
        properties = {**effective.table_defaults, **(asked or {}), **effective.table_overrides}
        return {**self.request, "properties": properties}


_ENOUGH_PREPARATIONS = 2
"""Number of preparations after which a change is not prepared again because a manifest list is missing. Instead,
`apply` reads the list. Without this limit, a change could be prepared forever while other commits come first. Reading
the list in `apply` gives the same result, because manifest lists never change."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    tuple[tuple[str, ...], str, list[dict[str, Any]], list[dict[str, Any]], Notes]
).decode


class TableCommit(NamedTuple):
    """Requirements and updates for one table, as in the REST protocol."""

    name: TableName
    requirements: Sequence[dict[str, Any]]
    updates: Sequence[dict[str, Any]]


class CommitTable(TableChange):
    """Apply updates to one table if its requirements are met. With the requirement `assert-create`, create the table.

    If other commits came first, a requirement may not be met, or a new snapshot may be older than the table
    (`table_snapshots`). The request is then merged (`schema_merge`) or rebased (`append_rebase`) if possible.
    Otherwise it fails with `CommitFailedError`.
    """

    def __init__(
        self, context: Context, operation: Operation, commit: TableCommit, *, size: int | None = None
    ) -> None:
        """
        Args:
            size: size of the whole request, if it has several commits and its size was already checked. If None, the
                size of this commit is checked.
        Raises:
            BadRequestError: the request is too large.
        """
        self.size = size or require_commits_within([(commit.requirements, commit.updates)])
        super().__init__(context, operation, commit.name)
        self.creates = is_create(commit.requirements)
        self.action = "create-table" if self.creates else "update-table"
        self.requirements = commit.requirements
        self.updates = commit.updates
        self.append = find_append(commit.requirements, commit.updates)
        self.reads_to_prepare = self.append is not None
        self.preparations = 0

    def as_request(self) -> bytes:
        settings = self.context.settings
        if not settings or self.creates or self.append is not None or _changes_places(self.updates):
            return b""
        if self.name.name == STORAGE:  # of a materialized view; its metadata file is always written
            return b""
        if self.context.binding.latest.metadata_files:  # another process must not write files for this one
            return b""
        try:
            return settings + _encode((*self.name, self.requirements, self.updates, self.operation.notes))
        except (OverflowError, RecursionError, TypeError, ValueError):  # such as deep JSON
            return b""

    def from_request(self, request: bytes, operation: Operation) -> CommitTable | None:
        settings = self.context.settings
        if not settings or not request.startswith(settings):
            return None
        try:
            namespace, name, requirements, updates, notes = _decode(request[len(settings) :])
        except (RecursionError, ValueError):
            return None
        if _changes_places(updates):
            return None
        commit = TableCommit(TableName(namespace, name), requirements, updates)
        made = CommitTable(self.context, operation._replace(notes=notes), commit)
        return None if made.append is not None else made  # preparing an append reads files

    def prepare(self, view: State) -> Prepared:
        prepared = self.new_values()
        if self.append is None:
            return prepared
        self.preparations += 1
        return prepared._replace(lists=self._read_lists(view, self.append))

    def apply(self, state: State, prepared: Prepared) -> StoredContent[Table]:
        found = find(state, self.key)
        if found is None:
            if not self.creates:
                raise NoSuchTableError(f"Table does not exist: {self.name}")
            self.require_place(state)
        elif self.creates:
            raise AlreadyExistsError(f"Requirement failed: table already exists: {self.name}")
        before = state.get_for_rewrite(found.content, Table) if found else None
        draft = TableDraft(before, state, now_ms=prepared.now, check_time=state.check_time)
        if before is None:
            draft.uuid = prepared.uuid  # unless the updates assign one
        try:
            check_all(draft, self.requirements)
            apply_all(draft, self.updates)
        except CommitFailedError as conflict:
            if before is None:
                raise
            draft = self._resolved(state, before, prepared, conflict)
        if before is not None and found is not None and not draft.changed:
            return StoredContent(found.content, before)
        effective = self.context.binding.at(state)
        if before is None:
            asked = set(draft.properties)
            _add_defaults(effective, draft)
            with naming_properties(effective, asked):
                return self.store(state, found, draft, prepared, effective)
        expired: list[int] = []
        if self.context.trusts(prepared.now):
            expired = expire_on_commit(draft, state, self.name.namespace, effective.retention)
        stored = self.store(state, found, draft, prepared, effective)
        if expired:
            record_expired(state, before, expired, stored.content, prepared.now)
        return stored

    def _resolved(
        self, state: State, before: Table, prepared: Prepared, conflict: CommitFailedError
    ) -> TableDraft:
        """Merge or rebase a request that was made on an older state of the table, and return the resulting draft.

        Each kind of merge gets a fresh draft of the table, without the request's updates. The merge returns the updates
        that replace those of the request, or None if it cannot merge the request. It checks all requirements of the
        request except those whose failure it resolves, such as `assert-current-schema-id` for merged columns. This
        method is a part of `apply`, so it does no I/O except reading rows. The exception is a manifest list that is
        still missing after `_ENOUGH_PREPARATIONS` preparations.

        Args:
            before: the table as it is now.
            conflict: the error of the request as the client sent it; raised if no kind of merge applies.
        Raises:
            CommitFailedError: the request can be neither merged nor rebased.
            PrepareAgain: rebasing needs manifest lists that were not read when the change was prepared.
        """
        draft = TableDraft(before, state, now_ms=prepared.now, check_time=state.check_time)
        updates = None
        if is_on(draft.properties, SCHEMA_MERGE, default=self.context.binding.at(state).schema_merge):
            updates = with_merged_columns(draft, self.requirements, self.updates)
        if updates is None and self.append is not None:
            updates = self._rebased(state, draft, self.append, prepared, conflict)
        if updates is None:
            raise conflict
        apply_all(draft, updates)
        if self.append is not None:
            draft.summary_of_snapshot["rebased-from"] = str(self.append.parent or "")
        return draft

    def _rebased(
        self, state: State, draft: TableDraft, append: Append, prepared: Prepared, conflict: CommitFailedError
    ) -> list[dict[str, Any]] | None:
        files = self.context.manifest_files
        default = self.context.binding.at(state).append_rebase
        if files is None or not is_on(draft.properties, APPEND_REBASE, default=default):
            return None
        for requirement in self.requirements:
            if requirement is not append.requirement:
                check(draft, requirement)

        def read(location: str) -> ManifestList:
            found = prepared.lists.get(location) or files.known(location)
            if isinstance(found, BadRequestError):
                raise found
            if found is None and self.preparations < _ENOUGH_PREPARATIONS:
                raise PrepareAgain
            return found or self._read_list(draft, files, location)

        try:
            rebased = rebase(draft, append, self.updates, read, prepared.uuid)
        except NotRebasedError as reason:
            raise CommitFailedError(f"{conflict}; the append is not rebased: {reason}") from conflict
        files.keep(rebased.location, rebased.manifests)
        state.write_file(rebased.location, rebased.content)
        return rebased.updates

    def _read_lists(self, view: State, append: Append) -> dict[str, ManifestList | BadRequestError]:
        """Read the manifest lists that rebasing needs. Return a dict from the location of each list to the list, or to
        the error. Return an empty dict if rebasing is off or probably not necessary."""
        files = self.context.manifest_files
        # This lookup is not recorded as read, because `apply` reads the table again.
        entry = view.base.index(NAMES).get(self.key)
        if entry is None or files is None:
            return {}
        table = view.get(entry.pointer, Table)
        draft = TableDraft(table, view, now_ms=0)
        default = self.context.binding.at(view).append_rebase
        if not is_on(table.properties, APPEND_REBASE, default=default) or (
            self.preparations == 1 and not is_behind(draft, append)
        ):
            return {}
        lists: dict[str, ManifestList | BadRequestError] = {}
        for location in needed_lists(draft, append):
            try:
                lists[location] = self._read_list(draft, files, location)
            except BadRequestError as error:
                lists[location] = error
        return lists

    def _read_list(self, draft: TableDraft, files: ManifestFiles, location: str) -> ManifestList:
        """Return the manifest list at a location.

        Raises:
            BadRequestError: the list cannot be read, or clients may not use its location. This is checked because
                clients choose the location of the list.
        """
        if self.context.allowed is not None:
            places = (*self.context.allowed, *locations.used(draft.location, draft.properties))
            if not locations.is_allowed(places, locations.segments(location)):
                raise BadRequestError(
                    f"manifest list {location!r} is outside the locations that this server may read"
                )
        return files.read(location, self.context.confinement)


def _changes_places(updates: Sequence[dict[str, Any]]) -> bool:
    """Whether updates may change the locations that a table uses. Only the process that received the request can decide
    whether these locations are allowed, because this depends on its file system and on the stores that it has open."""
    names = {name for update in updates for name in (*_names(update, "updates"), *_names(update, "removals"))}
    return any(update.get("action") == "set-location" for update in updates) or not names.isdisjoint(
        locations.PATHS
    )


def _names(update: dict[str, Any], field: str) -> Collection[str]:
    found = update.get(field)
    return [name for name in found if isinstance(name, str)] if isinstance(found, (dict, list)) else ()


def _add_defaults(effective: EffectiveProperties, draft: TableDraft) -> None:
    """Add the catalog's properties for new tables to the draft of a new table, except the format version, which the
    request sets."""
    missing = {name: text for name, text in effective.table_defaults.items() if name not in draft.properties}
    added = {**missing, **effective.table_overrides}
    added.pop(FORMAT_VERSION, None)
    if added:
        apply_all(draft, [{"action": "set-properties", "updates": added}])


TRANSACTION = "transaction"
"""Value of the field `from` in the log entries of a transaction."""


class CommitTables(CatalogChange[list[Prepared], list[StoredContent[Table]]]):
    """Apply updates to several tables in one commit: all or none."""

    action = "update-table"

    def __init__(self, context: Context, operation: Operation, commits: Sequence[TableCommit]) -> None:
        self.size = require_commits_within([(commit.requirements, commit.updates) for commit in commits])
        super().__init__(context, operation)
        names = [commit.name for commit in commits]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadRequestError(
                f"the transaction changes table {twice} twice; send all changes of a table together"
            )
        self.parts = [CommitTable(context, operation, commit, size=self.size) for commit in commits]
        self.reads_to_prepare = any(part.reads_to_prepare for part in self.parts)
        for part in self.parts:
            part.said = {"from": TRANSACTION}

    def prepare(self, view: State) -> list[Prepared]:
        return [part.prepare(view) for part in self.parts]

    def apply(self, state: State, prepared: list[Prepared]) -> list[StoredContent[Table]]:
        stored = []
        for part, one in zip(self.parts, prepared, strict=True):
            state.check_time()
            try:
                stored.append(part.apply(state, one))
            except CommitFailedError as error:
                if len(self.parts) > 1:
                    error.args = (f"{error} (table {part.name})",)
                raise
        return stored

    def repeat(self, state: State, entries: list[LogEntry]) -> list[StoredContent[Table]]:
        tables = [entry for entry in entries if decode_key(entry.key).kind == TABLE]  # not materialized views
        return [StoredContent(entry.after, state.get(entry.after, Table)) for entry in tables]
