"""Tables and views that were imported without reading their metadata files. They are loaded when they are first used.

Code that reads the content of an unloaded table as a `Table` gets a `WrongTypeError`. `Catalog.loading` handles this
error: it loads the table in a separate commit and then runs the code again. So code for tables need not handle unloaded
tables, and a catalog without unloaded tables has no extra cost.
"""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.catalog.entities.entities import CatalogChange, Context, NameEntry, find, put
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import IDS, TABLE, Unloaded, id_bytes
from polaris_spark.catalog.tables.contents import content_of, holdings_of, occupy, unconfirmed_summary
from polaris_spark.catalog.tables.metadata_files import MetadataRows, read_rows
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError
from polaris_spark.index.keys import decode_key
from polaris_spark.objects import type_name

UNLOADED = type_name(Unloaded)


class _Prepared(NamedTuple):
    now: int
    """Time of the loading, in milliseconds since 1970."""
    found: NameEntry
    key: bytes
    rows: MetadataRows


class LoadImported(CatalogChange["_Prepared | None", None]):
    """Load a lazily imported table or view: read its metadata file, and store the rows.

    Nothing happens if the table or view was loaded, changed or dropped in the meantime.
    """

    action = "load-imported"
    onto_protected = True

    def __init__(self, context: Context, operation: Operation, unloaded: Unloaded, files: Files) -> None:
        super().__init__(context, operation)
        self.unloaded = unloaded
        self.files = files

    def prepare(self, view: State) -> _Prepared | None:
        """Read the metadata file. Return None if the table or view was already loaded, changed or dropped. It is found
        by its entity id, because it may have been renamed."""
        entity = id_bytes(self.unloaded.entity_id)
        named = view.lookup(IDS, entity)
        found = find(view, named.value) if named is not None else None
        if named is None or found is None:
            return None
        path, kind, name = decode_key(named.value)
        present = (
            content_of(view, found.content, Table) if kind == TABLE else content_of(view, found.content, View)
        )
        if present != self.unloaded:
            return None
        try:
            now = self.context.clock.now_ms()
            location, entity_id = self.unloaded.metadata_location, self.unloaded.entity_id
            rows = read_rows(
                self.files,
                location,
                kind,
                view.new_id,
                entity_id=entity_id,
                now_ms=now,
                allows_overflow=view.allows(Table),
            )
        except BadRequestError as error:
            what = "table" if kind == TABLE else "view"
            raise BadRequestError(
                f"{what} {'.'.join((*path, name))} was imported lazily, and its metadata cannot be loaded: {error}"
            ) from error
        return _Prepared(now, found, named.value, rows)

    def apply(self, state: State, prepared: _Prepared | None) -> None:
        if prepared is None:
            return
        now, found, key, rows = prepared
        before = holdings_of(self.unloaded)
        try:
            after = holdings_of(rows.value)
            # A client may have written the file since the import.
            self.context.require_allowed(after.owned | after.unconfirmed, also=before.owned)
            occupy(self.context, state, found.entity_id, before, after)
        except (BadRequestError, ForbiddenError) as error:
            where = self.unloaded.metadata_location
            raise type(error)(f"metadata file {where!r} cannot be loaded: {error}") from error
        state.add_all(rows.pieces)
        content = state.add(rows.value)
        put(state, key, NameEntry(content, found.entity_id))
        summary = unconfirmed_summary(rows.value)
        self.record(state, now, found.entity_id, key, before=found.content, after=content, summary=summary)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None
