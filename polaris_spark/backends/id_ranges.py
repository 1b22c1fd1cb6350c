"""Splits and scans of databases that keep the rows of `objects` in the order of their ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.backends.base import Backend, Split, Table
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.limits import distinct

if TYPE_CHECKING:
    import pyarrow as pa

_LAST_ID: Final = 2**63 - 1


class IdRangesBackend(Backend):
    """Base class of backends whose scans read a range of ids of one realm, or the references of one realm, at a time.

    The detail of a split is a tuple of parts: `(realm, first id, last id)` for `objects`, `(realm,)` for
    `references`."""

    @abstractmethod
    def _realms(self, table: Table) -> list[str]:
        """Return the names of all realms that have rows in a table."""

    @abstractmethod
    def _ranges(self, realm: str, n: int) -> list[tuple[int, int]]:
        """Return about `n` ranges (both ends inclusive) that cover every id of a realm."""

    @abstractmethod
    def _scan_objects(self, realm: str, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with ids from `low` to `high` in record batches."""

    @abstractmethod
    def _scan_references(self, realm: str) -> Iterator[pa.RecordBatch]:
        """Yield the references of a realm in record batches."""

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        names = self._realms(table) if realms is None else distinct(realms)
        parts: list[tuple[object, ...]] = [(name,) for name in names]
        if table == "objects":
            per_realm = -(-max(1, n) // max(1, len(names)))
            parts = [(name, *ids) for name in names for ids in self._ranges(name, per_realm)]
        return [Split(table, tuple(group)) for group in runs(parts, n)]

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        read: Any = self._scan_objects if split.table == "objects" else self._scan_references
        parts: Sequence[Any] = split.detail
        return (batch for part in parts for batch in read(*part))


def starting_at(starts: Iterable[int]) -> list[tuple[int, int]]:
    """Return consecutive ranges (both ends inclusive) that cover every id. The first range starts at 0. Each further
    range starts at one of `starts`, which must be in ascending order."""
    firsts = [0, *starts]
    lasts = [first - 1 for first in firsts[1:]] + [_LAST_ID]
    return list(zip(firsts, lasts, strict=True))
