"""Who else may need a table's files: tables whose locations overlap, in every head of every catalog of the store.

A branch of the same catalog may have the same table, which is found wherever it lies there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.catalogs import head_name
from polaris_spark.catalog.contents import places
from polaris_spark.catalog.locations import overlapping, owner_above, segments
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import IDS, NAMES, TABLE, id_bytes
from polaris_spark.catalog.store_heads import StoreHead, store_heads
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import decode_key


class TableVersion(NamedTuple):
    """A version of a table that some head has."""

    realm: str
    """Instance id."""
    content: int


def heads_around(catalog: Catalog) -> list[StoreHead]:
    """The newest heads of the store that a catalog lies in, of all realms and catalogs, read now: those that are live,
    and dropped ones that can be brought back.

    Those of the catalog itself have the properties that it was opened with, too.

    Raises:
        CorruptionError: one cannot be read, or was lost.
    """
    own, branches = catalog.references.store, head_name(catalog.row, "")
    heads = store_heads(own.backend, lambda record: own.of_realm(record.instance), catalog.context.clock)
    return [
        head._replace(properties={**head.properties, **catalog.context.retention})
        if head.realm == own.realm and head.reference.startswith(branches)
        else head
        for head in heads
    ]


class _Open(NamedTuple):
    """A head, opened for reading."""

    realm: str
    is_own: bool
    """Whether it is the head of the branch that asks."""
    state: State


class Neighbours:
    """Tables beside a catalog's in the heads of its store."""

    def __init__(self, catalog: Catalog, heads: Sequence[StoreHead]) -> None:
        """
        Args:
            catalog: whose tables' neighbours are asked for.
            heads: all that are live or can be recovered, of this catalog, too.
        """
        own = catalog.references.store
        self._realm = own.realm
        branches = head_name(catalog.row, "")
        self.has_branches = sum(h.realm == own.realm and h.reference.startswith(branches) for h in heads) > 1
        """Whether the catalog itself has several heads."""
        self._heads = [
            _Open(
                head.realm,
                (head.realm, head.reference) == (own.realm, catalog.reference),
                State(head.snapshot(own.of_realm(head.realm)), _no_id, rewrites=False),
            )
            for head in heads
        ]

    def of(self, entity_id: int, places: Collection[tuple[str, ...]]) -> list[TableVersion]:
        """The versions of tables that overlap with a table, other than itself as its own head has it, and those that
        other branches have of it, wherever they lie.

        Args:
            places: the locations that it owns.
        """
        found = set()
        for head in self._heads:
            head.state.begin()  # what was read for another table is of no concern
            owners = {entity_id} if head.realm == self._realm else set()
            for place in places:
                owners |= overlapping(head.state, place)
            for owner in owners - ({entity_id} if head.is_own else set()):
                content = table_content(head.state, owner)
                if content is not None:
                    found.add(TableVersion(head.realm, content))
        return sorted(found)

    def own(self, location: tuple[str, ...], *, but: int) -> bool:
        """Whether a table or view other than `but` owns a location, or one that it lies in."""
        for head in self._heads:
            head.state.begin()
            mine = but if head.realm == self._realm else 0
            if owner_above(head.state, location, but=mine) is not None:
                return True
        return False


class Deletable:
    """Which files of a table may be deleted: those in its own places, and those in the warehouse where no other table
    or view of the store lies, as is left when a table's location was changed."""

    def __init__(
        self,
        catalog: Catalog,
        table: Table,
        neighbours: Neighbours,
        kept: Collection[tuple[str, ...]] = (),
    ) -> None:
        """
        Args:
            kept: places of tables that no head has any more, and whose files stay.
        """
        self._kept = frozenset(kept)
        self.places = places(table)
        self._warehouse = segments(catalog.context.warehouse)
        self._neighbours = neighbours
        self._entity_id = table.entity_id
        self._folders: dict[str, bool] = {}

    def __call__(self, location: str) -> bool:
        folder, _, name = location.rpartition("/")
        if name in ("", ".", ".."):
            return False
        if folder not in self._folders:
            self._folders[folder] = self._allowed(location)
        return self._folders[folder]

    def _allowed(self, location: str) -> bool:
        try:
            parts = segments(location)[:-1]
        except BadRequestError:
            return False
        if any(parts[: len(place)] == place for place in self.places):
            return True
        inside = parts[: len(self._warehouse)] == self._warehouse
        if any(parts[:n] in self._kept for n in range(1, len(parts) + 1)):
            return False
        return inside and not self._neighbours.own(parts, but=self._entity_id)


def table_content(state: State, entity_id: int) -> int | None:
    """The content of the table with that stable id; None if there is none."""
    entry = state.lookup(IDS, id_bytes(entity_id))
    if entry is None or decode_key(entry.value).kind != TABLE:
        return None
    found = state.lookup(NAMES, entry.value)
    return None if found is None else found.pointer


def _no_id() -> int:
    raise AssertionError("reading needs no ids")
