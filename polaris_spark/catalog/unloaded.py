"""Tables and views that were imported without reading their metadata files: loaded when their metadata is first used.

Whatever reads the content of such a table as a `Table` gets a `WrongTypeError`. `Loading.loading` answers it by loading
the table in a commit of its own, then lets the reader try again. So what works on tables need not know of them, and
whoever has none pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from polaris_spark.catalog.contents import content_of, holdings_of, occupy, unconfirmed_summary
from polaris_spark.catalog.entities import CatalogChange, Context, Found, find, put
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.reading import Rows, read_rows
from polaris_spark.catalog.rows import IDS, TABLE, Unloaded, id_bytes
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError, WrongTypeError
from polaris_spark.index.keys import decode_key
from polaris_spark.objects import type_name

R = TypeVar("R")

UNLOADED = type_name(Unloaded)


def loading(action: Callable[[], R], load: Callable[[int], None]) -> R:
    """Carry out what reads contents; those that are not loaded yet are loaded, and it is carried out again.

    Args:
        action: has no effect when it raises.
        load: loads the content of this id.
    Raises:
        PolarisError: as `action` and `load`.
    """
    last = 0
    while True:
        try:
            return action()
        except WrongTypeError as error:
            if error.found != UNLOADED or error.id == last:
                raise
            last = error.id
            load(error.id)


class _Prepared(NamedTuple):
    now: int
    """Milliseconds since 1970."""
    found: Found
    key: bytes
    rows: Rows


class LoadImported(CatalogChange[None]):
    """Read the metadata file of a table or view that was imported unread, and put its rows in place.

    If it is loaded, changed or dropped already, nothing happens.
    """

    action = "load-imported"

    def __init__(self, context: Context, operation: Operation, unloaded: Unloaded, files: Files) -> None:
        super().__init__(context, operation)
        self.unloaded = unloaded
        self.files = files

    def prepare(self, view: State) -> object:
        """Read the file, wherever the table is now."""
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
            raise BadRequestError(f"{what} {'.'.join((*path, name))} was imported unread: {error}") from error
        return _Prepared(now, found, named.value, rows)

    def apply(self, state: State, prepared: object) -> None:
        if prepared is None:
            return
        assert isinstance(prepared, _Prepared)
        now, found, key, rows = prepared
        before = holdings_of(self.unloaded)
        try:
            after = holdings_of(rows.value)
            # By now a client may have written the file that was imported.
            self.context.require_allowed(after.owned | after.unconfirmed, also=before.owned)
            occupy(self.context, state, found.entity_id, before, after)
        except (BadRequestError, ForbiddenError) as error:
            where = self.unloaded.metadata_location
            raise type(error)(f"metadata file {where!r} cannot be loaded: {error}") from error
        state.add_all(rows.pieces)
        content = state.add(rows.value)
        put(state, key, Found(content, found.entity_id))
        summary = unconfirmed_summary(rows.value)
        self.record(state, now, found.entity_id, key, before=found.content, after=content, summary=summary)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None
