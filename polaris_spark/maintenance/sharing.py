"""Who else may need a table's files: tables whose locations overlap, in every head of every catalog of the store.

A branch of the same catalog has the same table in the same place, and so is found as any other is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.locations import overlapping
from polaris_spark.catalog.rows import IDS, NAMES, TABLE, id_bytes
from polaris_spark.commits.state import State
from polaris_spark.index.keys import decode_key
from polaris_spark.maintenance.store_heads import store_heads
from polaris_spark.system.connections import Connection


class TableVersion(NamedTuple):
    """A version of a table that some head has."""

    realm: str
    """Instance id."""
    content: int


class Neighbours:
    """The live and recoverable heads of a store, as they were when this was made."""

    def __init__(self, connection: Connection, catalog: Catalog, *, grace_ms: int) -> None:
        """
        Args:
            catalog: whose tables' neighbours are asked for; it is read, too.
            grace_ms: how long a dropped head may come back, milliseconds.
        """
        heads = store_heads(connection.backend, connection.store, connection.clock, grace_ms=grace_ms)
        stores = {record.instance: connection.store(record) for record in connection.realms.all()}
        own = (catalog.references.store.realm, catalog.reference)
        self._heads = [
            (
                (head.realm, head.reference) == own,
                head.realm,
                State(head.snapshot(stores[head.realm]), _no_id, rewrites=False),
            )
            for head in heads
        ]

    def of(self, entity_id: int, places: Collection[tuple[str, ...]]) -> list[TableVersion]:
        """The versions of tables that overlap with a table, other than itself as its own head has it.

        Args:
            places: the locations that it owns.
        """
        found = set()
        for own, realm, state in self._heads:
            state.begin()  # what was read for another table is of no concern
            for place in places:
                for owner in overlapping(state, place, but=entity_id if own else 0):
                    content = table_content(state, owner)
                    if content is not None:
                        found.add(TableVersion(realm, content))
        return sorted(found)


def table_content(state: State, entity_id: int) -> int | None:
    """The content of the table with that stable id; None if there is none."""
    entry = state.lookup(IDS, id_bytes(entity_id))
    if entry is None or decode_key(entry.value).kind != TABLE:
        return None
    found = state.lookup(NAMES, entry.value)
    return None if found is None else found.pointer


def _no_id() -> int:
    raise AssertionError("reading needs no ids")
