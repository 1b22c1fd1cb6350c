"""Locations of the other catalogs of a realm. A table must not own a location that overlaps the warehouse or a table of
another catalog.

Every catalog has its own reference, so no single commit covers two catalogs. Two rules keep their tables apart:

1. A new catalog's warehouse must not overlap another catalog's. All catalogs are entries of one reference. The commit
   that creates a catalog checks all of them, so two concurrent creations cannot miss each other. A catalog never
   changes its warehouse. So tables inside the warehouses of two catalogs never overlap, and creating a table inside its
   own catalog's warehouse needs no check of other catalogs.
2. A table outside its own catalog's warehouse must not overlap another catalog's warehouse, or a table of another
   catalog. This is checked before the commit, against heads that are up to a second old.

These rules leave gaps. Rule 2 can miss a table or catalog that another process creates at the same time, and it cannot
see the tables of a branch whose head is damaged. Catalogs that older releases created may have overlapping warehouses.
Other realms and stores are not checked, and neither are catalogs with `shared-locations=allow`. These gaps cost no
files: jobs that delete files first check which files the catalogs of all realms of the store need
(`overlapping_tables`).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalogs import heads_of, is_shared, list_catalogs, owner_in, warehouse_of
from polaris_spark.catalog.files.locations import is_below_any, overlap
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import Clock
from polaris_spark.commits.state import CommitReader
from polaris_spark.system.registry import References

LATEST_MS = 1_000
"""Maximum age of cached heads of other catalogs, in milliseconds. The cache helps imports, which check many tables."""


class _Other(NamedTuple):
    row: CatalogRow
    heads: list[CommitReader]


class OtherCatalogs:
    """The other catalogs in the realm of a catalog. Thread-safe."""

    def __init__(self, references: References, row: CatalogRow, clock: Clock) -> None:
        self._references = references
        self._row = row
        self._clock = clock
        self._own = warehouse_of(row)
        self._guard = threading.Lock()
        self._read_at: float | None = None
        self._others: list[_Other] = []

    def refusal(self, place: tuple[str, ...]) -> str:
        """Return why a table of this catalog must not own a location: it overlaps the warehouse or a table of another
        catalog. Return an empty string if it does not."""
        if self._own is not None and is_below_any(place, [self._own]):
            return ""
        for other in self._latest():
            warehouse = warehouse_of(other.row)
            if warehouse is not None and overlap(warehouse, place):
                return f"it overlaps with {'/'.join(warehouse)}, the warehouse of catalog {other.row.name!r}"
            owner = owner_in(other.heads, place)
            if owner is not None:
                return f"it overlaps with {'/'.join(owner)}, which belongs to catalog {other.row.name!r}"
        return ""

    def _latest(self) -> list[_Other]:
        with self._guard:
            now = self._clock.elapsed_ms()
            if self._read_at is None or now - self._read_at >= LATEST_MS:
                rows = list_catalogs(self._references)
                others = [row for row in rows if row.entity_id != self._row.entity_id and not is_shared(row)]
                self._others = [_Other(row, heads_of(self._references, row)) for row in others]
                self._read_at = now
            return self._others
