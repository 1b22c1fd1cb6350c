"""Scans of ranges of keys of a RocksDB store. A range is read in pages, each with a new iterator, because a long-lived
iterator would keep RocksDB from deleting old files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from rocksdict import Rdict, ReadOptions

from polaris_spark.backends.arrow import BATCH_BYTES, BATCH_ROWS, object_batch, reference_batch
from polaris_spark.backends.base import Split, Table
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.limits import distinct
from polaris_spark.backends.rocksdb.handles import Handle
from polaris_spark.backends.rocksdb.keys import (
    LAST_ID,
    TABLES,
    after,
    place,
    place_of,
    realm_of,
    row_prefix,
    unpacked,
)

if TYPE_CHECKING:
    import pyarrow as pa

_Page = list[tuple[bytes, bytes]]
_ATTEMPTS: Final = 3
"""Maximum number of attempts to read a page. An attempt is repeated if it returned no rows although the range has a
row. This happens if the driver's iterator hides a temporary error, or if the row was written after the attempt."""


def splits(handle: Handle, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
    """Return about `n` splits, which are ranges of keys. To find the bounds, the function seeks to evenly spaced ids
    and takes the key of the next row. So the ranges hold equally many rows only if the ids are spread evenly. Better
    bounds would require reading all rows."""
    names = handle.read(partial(_realms, table)) if realms is None else distinct(realms)
    per_realm = -(-max(1, n) // max(1, len(names)))
    ranges: list[tuple[bytes, bytes]] = []
    for name in names:
        prefix = row_prefix(table, name)
        starts = handle.read(partial(_starts, prefix, per_realm)) if table == "objects" else [prefix]
        ranges += zip(starts, [*starts[1:], after(prefix)], strict=True)
    return [Split(table, tuple(group)) for group in runs(ranges, n)]


def scan(handle: Callable[[], Handle], split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in record batches. `handle` returns the open database, or raises an error if the store
    was closed."""
    batch = _objects if split.table == "objects" else _references
    for start, end in cast("tuple[tuple[bytes, bytes], ...]", split.detail):
        low = start
        while page := handle().read(partial(_page, low, end)):
            yield batch(page)
            low = page[-1][0] + b"\x00"


def _page(low: bytes, end: bytes, database: Rdict) -> _Page:
    for _ in range(_ATTEMPTS):
        rows = _rows(low, end, database)
        if rows or _first(low, end, database) is None:
            return rows
    raise RuntimeError(f"{_ATTEMPTS} reads of a range of keys returned no rows, although the range has rows")


def _rows(low: bytes, end: bytes, database: Rdict) -> _Page:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    rows: _Page = []
    size = 0
    for row in database.items(from_key=low, read_opt=options):
        rows.append(cast("tuple[bytes, bytes]", row))
        size += len(rows[-1][1])
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            return rows
    if rows:
        _first(rows[-1][0] + b"\x00", end, database)  # raises if damage ended the page
    return rows


def _objects(page: _Page) -> pa.RecordBatch:
    realm = realm_of(page[0][0])[0]
    return object_batch([(realm, *place_of(key), value) for key, value in page])


def _references(page: _Page) -> pa.RecordBatch:
    realm, prefix = realm_of(page[0][0])
    return reference_batch([(realm, key[len(prefix) :].decode(), *unpacked(value)) for key, value in page])


def _realms(table: Table, database: Rdict) -> list[str]:
    """Return the names of all realms that have rows in a table. This takes one seek for each realm."""
    names: list[str] = []
    low, end = TABLES[table], after(TABLES[table])
    while (key := _first(low, end, database)) is not None:
        name, prefix = realm_of(key)
        names.append(name)
        low = after(prefix)
    return names


def _starts(prefix: bytes, n: int, database: Rdict) -> list[bytes]:
    """Return the first keys of about `n` ranges that together cover all objects of a realm. Each range held a row when
    its first key was chosen, unless the realm is empty."""
    first = _first(prefix, after(prefix), database)
    if first is None:
        return [prefix]
    low, high = place_of(first)[0], _last_id(prefix, database)
    found = [low]
    step = max(1, (high - low) // (4 * n))
    for guess in range(low + step, high + 1, step):
        if guess > found[-1]:
            key = _first(prefix + place(guess, 0), after(prefix), database)
            if key is None:
                break
            found.append(place_of(key)[0])
    return [prefix, *(prefix + place(group[0], 0) for group in runs(found, n)[1:])]


def _first(low: bytes, end: bytes, database: Rdict) -> bytes | None:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    found = database.iter(options)
    found.seek(low)
    if not found.valid():
        found.status()  # raises the error, unless the iterator is invalid because it reached the end
        return None
    return cast("bytes", found.key())


def _last_id(prefix: bytes, database: Rdict) -> int:
    found = database.iter()
    found.seek_for_prev(prefix + place(LAST_ID, 2**31 - 1))
    if not found.valid():
        found.status()
        return 0
    key = cast("bytes", found.key())
    return place_of(key)[0] if key.startswith(prefix) else 0
