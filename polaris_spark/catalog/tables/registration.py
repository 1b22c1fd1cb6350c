"""Registration: creation of tables and views from existing metadata files."""

from __future__ import annotations

from typing import Generic, NamedTuple

from polaris_spark.catalog.entities.entities import Context, TableName, find
from polaris_spark.catalog.entities.materialized_views import (
    METADATA,
    is_materialized,
    refuse_storage,
    require_no_namespace,
    set_document,
    storage_location,
    storage_name,
    with_storage_table,
)
from polaris_spark.catalog.entities.refresh_records import check_refresh_records
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.locations import segments
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.catalog.tables.contents import C, ContentChange, Prepared, StorageView, StoredContent
from polaris_spark.catalog.tables.metadata_files import read_text
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, PolarisError


class _Read(NamedTuple):
    """The text of a metadata file, or the error that occurred when it was read."""

    fixed: Prepared
    text: bytes | PolarisError
    storage: tuple[str, bytes | PolarisError] | None = None
    """Location and text of the metadata file of the storage table, if the file describes a materialized view."""


class Register(ContentChange[_Read, C], Generic[C]):
    """Create a table or view from an existing metadata file. With `overwrite`, replace an existing table or view of the
    same name."""

    def __init__(
        self,
        context: Context,
        operation: Operation,
        name: TableName,
        location: str,
        files: Files,
        *,
        overwrite: bool = False,
    ) -> None:
        super().__init__(context, operation, name)
        self.location = location
        self.files = files
        self.overwrite = overwrite

    def parse(self, text: bytes, now_ms: int) -> TableDraft | ViewDraft:
        """Parse the text of a metadata file, and return the table or view as a draft."""
        raise NotImplementedError

    def prepare(self, view: State) -> _Read:
        """Read the metadata file. If it cannot be read, the result holds the error, which `apply` raises. So the error
        is not raised for a retry of a request that already succeeded, because `apply` is not called then."""
        return _Read(self.new_values(), self.read(self.location))

    def read(self, location: str) -> bytes | PolarisError:
        """Return the text of a metadata file, or the error that occurred when it was read."""
        try:
            self.context.require_allowed([segments(location)])
            return read_text(self.files, location)
        except PolarisError as error:
            return error

    def apply(self, state: State, prepared: _Read) -> StoredContent[C]:
        fixed, text, _ = prepared
        found = find(state, self.key)
        if found is None or not self.overwrite:
            self.require_place(state)
        if self.kind == TABLE and found is not None:
            refuse_storage(state, self.name, "replaced")
        if isinstance(text, PolarisError):
            raise text
        draft = self.parse(text, fixed.now)
        effective = self.context.binding.at(state)
        return self.store(state, found, draft, fixed, effective, existing_file=self.location)


class RegisterTable(Register[Table]):
    """Create a table from an existing metadata file."""

    action = "register-table"
    kind = TABLE
    cls = Table

    def parse(self, text: bytes, now_ms: int) -> TableDraft:
        return parse_table(text, now_ms=now_ms)


class _RegisterStorage(RegisterTable):
    """The part of the registration of a materialized view that registers its storage table."""

    with_view = True


class RegisterView(Register[View]):
    """Create a view from an existing metadata file. If the file describes a materialized view, also create its storage
    table from the file that it names."""

    action = "register-view"
    kind = VIEW
    cls = View

    def parse(self, text: bytes, now_ms: int) -> ViewDraft:
        return parse_view(text, now_ms=now_ms)

    def prepare(self, view: State) -> _Read:
        found = super().prepare(view)
        if isinstance(found.text, PolarisError):
            return found
        try:
            location = storage_location(self.parse(found.text, found.fixed.now).properties)
        except (PolarisError, RecursionError):  # `apply` reports the error
            return found
        return found._replace(storage=(location, self.read(location))) if location else found

    def apply(self, state: State, prepared: _Read) -> StoredContent[View]:
        if prepared.storage is not None:
            self.require_place(state)
            require_no_namespace(state, self.name)
            location, text = prepared.storage
            name = storage_name(self.name)
            table = _RegisterStorage(self.context, self.operation, name, location, self.files)
            if isinstance(text, PolarisError):
                raise text
            draft, effective = table.parse(text, prepared.fixed.now), self.context.binding.at(state)
            check_refresh_records(draft.properties)
            table.store(state, None, draft, prepared.fixed, effective, existing_file=location)
        stored = super().apply(state, prepared)
        if not is_materialized(stored.value):
            return stored
        location = storage_location(stored.value.properties)
        set_document(dict(stored.value.properties), location)  # refuses malformed settings
        if prepared.storage is None:
            raise BadRequestError(
                f"the property {METADATA} of the view must name the metadata file of its storage table, but it does not"
            )
        return self._with_identifier(state, stored, prepared.fixed)

    def _with_identifier(
        self, state: State, stored: StoredContent[View], fixed: Prepared
    ) -> StoredContent[View]:
        """Return the view with the identifier of its storage table in all versions, as it is under the name of the
        registration.

        The file has another identifier if the view had another name, and none if an earlier writer wrote it.
        """
        draft = ViewDraft(stored.value, state, now_ms=fixed.now, check_time=state.check_time)
        if all(version == with_storage_table(version, self.name) for _, version in draft.versions.all()):
            return stored
        draft.versions.replace(lambda version: with_storage_table(version, self.name))
        draft.record("set-storage-table")
        change = StorageView(self.context, self.operation, self.name)
        return change.store(state, find(state, self.key), draft, fixed, self.context.binding.at(state))
