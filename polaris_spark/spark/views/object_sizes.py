"""Objects as far as keys, lengths and the first bytes of their rows tell, whole columns at a time.

What is asked of many objects is mostly how many there are, how old and how large. No header is decoded for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.clock import EPOCH_MS
from polaris_spark.ids import NODE_BITS, NODES, SEQUENCE_BITS
from polaris_spark.objects import ONE_PART
from polaris_spark.spark.views.columns import Column, struct
from polaris_spark.spark.views.stored import StoredObject, stored_object

if TYPE_CHECKING:
    import pyarrow as pa


def sizes(
    backend: Backend, split: Split, realm: str, columns: Sequence[Column[Any]]
) -> Iterator[pa.RecordBatch | list[StoredObject]]:
    """The objects whose first row lies in a split: those of one row as Arrow batches, any others by themselves.

    Args:
        realm: name of the realm.
        columns: some of those named in `COLUMNS`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(struct(columns))
    for batch in backend.scan_sizes(split, len(ONE_PART)):
        ids, lengths = batch.column("id"), batch.column("size")
        first = pc.equal(batch.column("part"), 0)
        has_start = pc.greater_equal(lengths, len(ONE_PART))
        whole = pc.and_(has_start, pc.equal(batch.column("start"), ONE_PART))
        chosen = pc.and_(first, whole)
        if not pc.all(chosen, min_count=0).as_py():
            others = pc.indices_nonzero(pc.and_not(first, whole))
            if len(others):
                yield _with_headers(backend, batch.column("realm")[0].as_py(), ids.take(others).to_pylist())
            ids, lengths = ids.filter(chosen), lengths.filter(chosen)
        arrays = [COLUMNS[column.name](realm, ids, lengths) for column in columns]
        yield pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
        )


def _with_headers(backend: Backend, instance: str, ids: list[int]) -> list[StoredObject]:
    """Objects by their ids; those that were deleted meanwhile are left out."""
    found = backend.read_objects(instance, [ObjectKey(id) for id in ids])
    return [stored_object(backend, instance, key, value, whole=False) for key, value in found.items()]


def _realm(realm: str, ids: pa.Array, _lengths: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(realm), len(ids))


def _one(_realm: str, ids: pa.Array, _lengths: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(1, pa.int32()), len(ids))


def _created_at(_realm: str, ids: pa.Array, _lengths: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.multiply(pc.add(pc.shift_right(ids, NODE_BITS + SEQUENCE_BITS), EPOCH_MS), 1_000)


def _node(_realm: str, ids: pa.Array, _lengths: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.bit_wise_and(pc.shift_right(ids, SEQUENCE_BITS), NODES - 1)


COLUMNS: dict[str, Callable[[str, Any, Any], Any]] = {
    "realm": _realm,
    "id": lambda _realm, ids, _lengths: ids,
    "parts": _one,
    "bytes": lambda _realm, _ids, lengths: lengths,
    "created_at": _created_at,
    "node": _node,
}
"""From a realm's name, ids and lengths of objects of one row to columns of the view `objects`, before casts."""
