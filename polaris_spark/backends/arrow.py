"""Rows of a scan as Arrow record batches: the one shape that all backends yield."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1_024
"""Most rows of one record batch."""

BATCH_BYTES = 4 * 2**20
"""A record batch ends with the row that reaches this many bytes of values."""


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
