"""Conversion of scanned rows to Arrow record batches. The batches of all backends have the same schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

BATCH_ROWS = 1_024
"""Maximum number of rows in a record batch."""

BATCH_BYTES = 4 * 2**20
"""Size at which a record batch is complete, in bytes. A batch ends with the row at which the total size of the values
reaches this number."""

SIZES = ["realm", "id", "part", "size", "start"]
"""Names of the columns of the record batches that `Backend.scan_sizes` yields."""


def batches(items: Iterable[T], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Divide items into consecutive lists, each for one record batch, and yield the lists. `bytes_of` returns the size
    of an item's value, in bytes."""
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += bytes_of(item)
        if size >= BATCH_BYTES or len(batch) == BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def record_batches(table: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    """Yield rows of a table, `(realm, id, part, value)` or `(realm, name, version, value)`, in record batches."""
    make = object_batch if table == "objects" else reference_batch
    return map(make, batches(rows, lambda row: len(row[3])))


def object_batch(rows: Sequence[tuple[str, int, int, bytes]]) -> pa.RecordBatch:
    """Return rows `(realm, id, part, value)` of the table `objects` as a record batch."""
    return _batch(rows, _object_schema())


def object_columns(
    realm: str, ids: Sequence[int], parts: Sequence[int], values: Sequence[bytes]
) -> pa.RecordBatch:
    """Return rows of the table `objects` as a record batch. All rows belong to one realm; the lists contain the id,
    part and value of each row."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(realm), len(ids)),
        pa.array(ids, pa.int64()),
        pa.array(parts, pa.int32()),
        pa.array(values, pa.binary()),
    ]
    return pa.record_batch(columns, schema=_object_schema())


def sizes(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """Convert a record batch of the table `objects` to the columns of `Backend.scan_sizes`, and return the result: each
    value is replaced by its size and its first `start` bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column("value")
    size, first = pc.binary_length(values).cast(pa.int64()), pc.binary_slice(values, 0, start)
    return pa.record_batch([*batch.columns[:3], size, first], names=SIZES)


def packed_sizes(
    realm: str, ids: bytes, parts: bytes, sizes: bytes, starts: bytes, start: int
) -> pa.RecordBatch:
    """Return rows of the table `objects`, all of one realm, as a record batch with the columns of `Backend.scan_sizes`.

    Args:
        ids, parts, sizes: concatenated big-endian integers, of 8 bytes for each id, 4 for each part, and 4 for the
            size of each value.
        starts: the first `start` bytes of each value, concatenated. A value shorter than `start` is included whole.
    """
    import numpy as np
    import pyarrow as pa

    lengths = np.frombuffer(sizes, ">i4")
    ends = np.cumsum(np.minimum(lengths, start), dtype=np.int32)
    bounds = np.concatenate((np.zeros(1, np.int32), ends))
    columns = [
        pa.repeat(pa.scalar(realm), len(lengths)),
        pa.array(np.frombuffer(ids, ">i8").astype(np.int64)),
        pa.array(np.frombuffer(parts, ">i4").astype(np.int32)),
        pa.array(lengths.astype(np.int64)),
        pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(bounds), pa.py_buffer(starts)]),
    ]
    return pa.record_batch(columns, names=SIZES)


def _object_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [("realm", pa.string()), ("id", pa.int64()), ("part", pa.int32()), ("value", pa.binary())]
    )


def reference_batch(rows: Sequence[tuple[str, str, bytes, bytes]]) -> pa.RecordBatch:
    """Return rows `(realm, name, version, value)` of the table `references` as a record batch."""
    import pyarrow as pa

    schema = pa.schema(
        [("realm", pa.string()), ("name", pa.string()), ("version", pa.binary()), ("value", pa.binary())]
    )
    return _batch(rows, schema)


def _batch(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.record_batch(
        [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
