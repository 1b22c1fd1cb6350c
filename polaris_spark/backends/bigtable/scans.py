"""Scans of ranges of row keys, split at Bigtable's sampled keys, or evenly by the hash in the keys of a realm.

`SampleRowKeys` returns keys that are about a tablet apart, with the number of bytes before each. For a store of a few
gigabytes, which is one tablet, it returns no keys. The realms of a store with too few sampled keys are split by the
hash, whose values are equally frequent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.backends.arrow import record_batches
from polaris_spark.backends.base import Split
from polaris_spark.backends.base import Table as TableKind
from polaris_spark.backends.bigtable import keys
from polaris_spark.backends.bigtable.calls import Calls
from polaris_spark.backends.bigtable.messages import VALUE, VERSION, BigtableTable, Cells

if TYPE_CHECKING:
    import pyarrow as pa

_Range = tuple[bytes, bytes]
_END: Final = b"\xff"
"""Upper bound of all row keys: realms are UTF-8, in which this byte never occurs."""


def splits(
    calls: Calls, table: BigtableTable, kind: TableKind, realms: Sequence[str] | None, n: int
) -> list[Split]:
    """Return about `n` splits of the table of kind `kind` that together contain the rows of `realms` (None: of all
    realms)."""
    n = max(1, n)
    samples = _samples(calls, table)
    if realms is not None:
        prefixes = sorted({keys.realm_prefix(realm) for realm in realms})
    elif len(samples) >= n or kind == "references":
        return _splits(kind, list(pairwise([keys.FIRST, *samples, _END])), n)
    else:
        prefixes = list(_realms(calls, table))
    per_realm = -(-n // max(1, len(prefixes)))
    ranges = [part for prefix in prefixes for part in _cut(prefix, samples, kind, per_realm)]
    return _splits(kind, ranges, n)


def scan(calls: Calls, table: BigtableTable, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in record batches."""
    read: Callable[[bytes, Cells], Any] = _object_row if split.table == "objects" else _reference_row
    ranges: Sequence[Any] = split.detail
    rows = (read(key, cells) for start, end in ranges for key, cells in _rows(calls, table, start, end))
    return record_batches(split.table, (row for row in rows if row is not None))


def _rows(
    calls: Calls, table: BigtableTable, start: bytes, end: bytes, most: int = 0
) -> Iterator[tuple[bytes, Cells]]:
    def after(key: bytes) -> Any:
        return table.read_range(key + b"\x00", end, most=most)

    return calls.rows(table.read_range(start, end, most=most), after, "scanning rows")


def _samples(calls: Calls, table: BigtableTable) -> list[bytes]:
    found: list[bytes] = []

    def settle(_: Any, answers: Sequence[Any]) -> None:
        found[:] = [answer.row_key for answer in answers]

    calls.each("SampleRowKeys", [table.sample()], settle, "reading splits")
    return sorted({key for key in found if keys.FIRST < key < _END})


def _realms(calls: Calls, table: BigtableTable) -> Iterator[bytes]:
    """Yield the key prefixes of all realms that have rows in a table. One request for each realm
    reads the first row after the previous realm."""
    start = keys.FIRST
    while True:
        found = list(_rows(calls, table, start, _END, 1))
        if not found:
            return
        prefix = keys.prefix_of(found[0][0])
        yield prefix
        start = keys.after(prefix)


def _cut(prefix: bytes, samples: Sequence[bytes], kind: TableKind, n: int) -> list[_Range]:
    """Divide the key range of a realm at the sampled keys, and return the parts. If there would be fewer than `n` parts
    of `objects`, divide the range by the hash instead, into `n` parts, but at most `HASHES`."""
    start, end = prefix, keys.after(prefix)
    inside = samples[bisect_left(samples, start + b"\x00") : bisect_left(samples, end)]
    if len(inside) + 1 < n and kind == "objects":
        parts = min(n, keys.HASHES)
        inside = [start + bytes([keys.HASHES * part // parts]) for part in range(1, parts)]
    return list(pairwise([start, *inside, end]))


def _splits(kind: TableKind, ranges: Sequence[_Range], n: int) -> list[Split]:
    """Distribute ranges, in order, to at most `n` splits, and return the splits. Adjacent ranges of a split are
    merged."""
    found: list[Split] = []
    n = max(1, min(n, len(ranges)))
    bounds = [len(ranges) * number // n for number in range(n + 1)]
    for first, last in pairwise(bounds):
        joined: list[_Range] = []
        for start, end in ranges[first:last]:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        if joined:
            found.append(Split(kind, tuple(joined)))
    return found


def _object_row(key: bytes, cells: Cells) -> tuple[str, int, int, bytes] | None:
    return (*keys.object_of(key), cells[VALUE]) if VALUE in cells else None


def _reference_row(key: bytes, cells: Cells) -> tuple[str, str, bytes, bytes] | None:
    return (*keys.reference_of(key), cells[VERSION], cells.get(VALUE, b"")) if VERSION in cells else None
