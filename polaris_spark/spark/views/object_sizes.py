"""Objects as far as keys, lengths and the first bytes of their rows tell, whole columns at a time.

What is asked of many objects is mostly how many there are, of which type, how old and how large. No header is decoded
for that; one that is damaged behind its type and revision is found by whoever asks for what it points to, or for
`error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.clock import EPOCH_MS
from polaris_spark.ids import NODE_BITS, NODES, SEQUENCE_BITS
from polaris_spark.spark.pruning import ANYTHING, Conditions, allowed
from polaris_spark.spark.views.columns import Column, struct
from polaris_spark.spark.views.stored import StoredObject, stored_object

if TYPE_CHECKING:
    import pyarrow as pa

_Columns = dict[str, "pa.Array"]
"""What rows say of objects of one row each: `id`, `bytes` and, where they are asked for, `type` and `revision`."""


def sizes(
    backend: Backend,
    split: Split,
    realm: str,
    columns: Sequence[Column[Any]],
    conditions: Conditions,
) -> Iterator[pa.RecordBatch | list[StoredObject]]:
    """The objects whose first row lies in a split: those of one row as Arrow batches, any others by themselves.

    Args:
        realm: name of the realm.
        columns: some of those named in `COLUMNS`.
        conditions: of `COLUMNS`; objects that are given by themselves may not fulfil them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(struct(columns))
    narrowing = {name: condition for name, condition in conditions.items() if condition != ANYTHING}
    typed = not _OF_TYPES.isdisjoint([*narrowing, *(column.name for column in columns)])
    for batch in backend.scan_sizes(split, objects.TYPE_BYTES if typed else len(objects.ONE_PART)):
        starts, lengths = batch.column("start"), batch.column("size")
        first = pc.equal(batch.column("part"), 0)
        known = pc.and_(
            pc.greater_equal(lengths, len(objects.ONE_PART)),
            pc.equal(pc.binary_slice(starts, 0, len(objects.ONE_PART)), objects.ONE_PART),
        )
        found: _Columns = {"id": batch.column("id"), "bytes": lengths}
        if typed:
            found["type"], found["revision"] = _types(starts)
            known = pc.and_(known, found["type"].is_valid())
        others = pc.indices_nonzero(pc.and_not(first, known))
        chosen = pc.and_(first, known)
        for name, condition in narrowing.items():
            chosen = pc.and_(chosen, allowed(condition, COLUMNS[name](realm, found)))
        if not pc.all(chosen, min_count=0).as_py():
            if len(others):
                yield _with_headers(
                    backend, batch.column("realm")[0].as_py(), found["id"].take(others).to_pylist()
                )
            found = {name: array.filter(chosen) for name, array in found.items()}
        arrays = [COLUMNS[column.name](realm, found) for column in columns]
        yield pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
        )


def _types(starts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Types and revisions by the first bytes of rows, each distinct pair decoded once; null where those do not tell."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tags = pc.binary_slice(starts, objects.TAG.start, objects.TAG.stop)
    described = tags
    for tag in pc.unique(tags).to_pylist():
        end = objects.end_of_type(tag)
        if end is not None:
            described = pc.if_else(
                pc.equal(tags, tag), pc.binary_slice(starts, objects.TAG.start, end), described
            )
    distinct = described.dictionary_encode()
    decoded = [objects.decode_type(one) or (None, None) for one in distinct.dictionary.to_pylist()]
    types, revisions = ([pair[i] for pair in decoded] for i in (0, 1))
    return (
        pa.array(types, pa.string()).take(distinct.indices),
        pa.array(revisions, pa.int32()).take(distinct.indices),
    )


def _with_headers(backend: Backend, instance: str, ids: list[int]) -> list[StoredObject]:
    """Objects by their ids; those that were deleted meanwhile are left out."""
    found = backend.read_objects(instance, [ObjectKey(id) for id in ids])
    stored = (stored_object(backend, instance, key, value, whole=False) for key, value in found.items())
    return [one for one in stored if one is not None]


def _realm(realm: str, found: _Columns) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(realm), len(found["id"]))


def _one(_realm: str, found: _Columns) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(1, pa.int32()), len(found["id"]))


def _created_at(_realm: str, found: _Columns) -> pa.Array:
    import pyarrow.compute as pc

    return pc.multiply(pc.add(pc.shift_right(found["id"], NODE_BITS + SEQUENCE_BITS), EPOCH_MS), 1_000)


def _node(_realm: str, found: _Columns) -> pa.Array:
    import pyarrow.compute as pc

    return pc.bit_wise_and(pc.shift_right(found["id"], SEQUENCE_BITS), NODES - 1)


COLUMNS: dict[str, Callable[[str, _Columns], Any]] = {
    "realm": _realm,
    "id": lambda _realm, found: found["id"],
    "type": lambda _realm, found: found["type"],
    "revision": lambda _realm, found: found["revision"],
    "parts": _one,
    "bytes": lambda _realm, found: found["bytes"],
    "created_at": _created_at,
    "node": _node,
}
"""From a realm's name and what objects of one row say of themselves to columns of the view, before casts."""

_OF_TYPES = frozenset({"type", "revision"})
