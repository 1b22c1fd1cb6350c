"""Rows of a scan as Arrow record batches: the one shape that all backends yield."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1_024
"""Most rows of one record batch."""

BATCH_BYTES = 4 * 2**20
"""A record batch ends with the row that reaches this many bytes of values."""

SIZES = ["realm", "id", "part", "size", "start"]
"""Columns of `Backend.scan_sizes`."""


def object_batch(rows: Sequence[tuple[str, int, int, bytes]]) -> pa.RecordBatch:
    """Rows `(realm, id, part, value)` of `objects`."""
    return _batch(rows, _object_schema())


def object_columns(
    realm: str, ids: Sequence[int], parts: Sequence[int], values: Sequence[bytes]
) -> pa.RecordBatch:
    """Rows of `objects` of one realm, given by columns."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(realm), len(ids)),
        pa.array(ids, pa.int64()),
        pa.array(parts, pa.int32()),
        pa.array(values, pa.binary()),
    ]
    return pa.record_batch(columns, schema=_object_schema())


def sizes(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """Rows of `objects` as `Backend.scan_sizes` gives them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column("value")
    size, first = pc.binary_length(values).cast(pa.int64()), pc.binary_slice(values, 0, start)
    return pa.record_batch([*batch.columns[:3], size, first], names=SIZES)


def packed_sizes(realm: str, ids: bytes, parts: bytes, sizes: bytes, starts: bytes) -> pa.RecordBatch:
    """Rows of `objects` of one realm as `Backend.scan_sizes` gives them.

    Args:
        ids, parts, sizes: numbers of 8, 4 and 4 bytes, one after the other, their high byte first.
        starts: of the values, as many bytes of each, one after the other.
    """
    import pyarrow as pa

    n = len(ids) // 8
    start = pa.Array.from_buffers(pa.binary(len(starts) // n), n, [None, pa.py_buffer(starts)])
    columns = [
        pa.repeat(pa.scalar(realm), n),
        _numbers(pa.int64(), "q", ids),
        _numbers(pa.int32(), "i", parts),
        _numbers(pa.int32(), "i", sizes).cast(pa.int64()),
        start.cast(pa.binary()),
    ]
    return pa.record_batch(columns, names=SIZES)


def _numbers(type: pa.DataType, code: str, packed: bytes) -> pa.Array:
    import pyarrow as pa

    numbers = array(code, packed)
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.Array.from_buffers(type, len(numbers), [None, pa.py_buffer(numbers)])


def _object_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [("realm", pa.string()), ("id", pa.int64()), ("part", pa.int32()), ("value", pa.binary())]
    )


def reference_batch(rows: Sequence[tuple[str, str, bytes, bytes]]) -> pa.RecordBatch:
    """Rows `(realm, name, version, value)` of `references`."""
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
