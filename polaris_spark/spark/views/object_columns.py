"""Vectorized reads of the columns of objects. Only the keys, lengths and first bytes of the objects' rows are read.

Only requested columns are decoded. If neither pointers nor `error` are requested, damage in a header after the type and
revision is not detected. Objects that have several rows, or whose header cannot be decoded in a vectorized way, are
returned individually.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark import objects
from polaris_spark.backends.arrow import object_columns, sizes
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.backends.chunks import sized
from polaris_spark.clock import EPOCH_MS
from polaris_spark.ids import NODE_BITS, NODES, SEQUENCE_BITS
from polaris_spark.spark.pruning import ANYTHING, Conditions, allowed
from polaris_spark.spark.views import header_columns
from polaris_spark.spark.views.columns import BATCH_BYTES, ViewColumn, struct
from polaris_spark.spark.views.stored import StoredObject, stored_object

if TYPE_CHECKING:
    import pyarrow as pa

_Columns = dict[str, "pa.Array"]
"""Arrow arrays by name, one value per object: `id`, `bytes` and, if requested, `type`, `revision`, `strong` and `weak`.
"""

_START_BYTES = 80
"""Number of bytes that are read from the beginning of a row. They contain the whole header of an object with at most
five pointers, if its type belongs to this package."""


class _Asked(NamedTuple):
    """A request for columns of those objects of a realm that satisfy the conditions."""

    realm: str
    columns: Sequence[ViewColumn[Any]]
    conditions: Conditions

    def needs(self, columns: frozenset[str]) -> bool:
        """Return whether the request asks for any of these columns, or has a condition on one."""
        return not columns.isdisjoint([*self.conditions, *(column.name for column in self.columns)])

    @property
    def start(self) -> int:
        """Number of bytes that must be read from the beginning of each row."""
        if self.needs(_OF_POINTERS):
            return _START_BYTES
        return objects.TYPE_BYTES if self.needs(_OF_TYPES) else len(objects.ONE_PART)


def read_columns(
    backend: Backend,
    split: Split,
    realm: str,
    columns: Sequence[ViewColumn[Any]],
    conditions: Conditions,
) -> Iterator[pa.RecordBatch | list[StoredObject]]:
    """Yield the objects whose first row is in a split: most as Arrow batches, the others as lists of `StoredObject`.

    Args:
        realm: name of the realm.
        columns: requested columns; their names must be keys of `COLUMNS`.
        conditions: conditions on columns in `COLUMNS`. The batches contain only objects that satisfy them. The lists
            are not filtered, so the caller must check the objects in them.
    """
    narrowing = {name: condition for name, condition in conditions.items() if condition != ANYTHING}
    asked = _Asked(realm, columns, narrowing)
    for batch in backend.scan_sizes(split, asked.start):
        told, others = _told(asked, batch)
        yield told
        if len(others):
            yield from _whole(backend, asked, others)


def _told(asked: _Asked, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Decode rows. Return the requested columns of the objects that could be decoded and satisfy the conditions, and
    the first rows of the objects that could not be decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql.pandas.types import to_arrow_schema

    first, starts = pc.equal(rows.column("part"), 0), rows.column("start")
    known = pc.equal(pc.binary_slice(starts, 0, len(objects.ONE_PART)), objects.ONE_PART)
    found: _Columns = {"id": rows.column("id"), "bytes": rows.column("size")}
    if asked.needs(_OF_TYPES | _OF_POINTERS):
        found["type"], found["revision"] = header_columns.types(starts)
        known = pc.and_(known, found["type"].is_valid())
    if asked.needs(_OF_POINTERS):
        decoded, found["strong"], found["weak"] = header_columns.pointers(starts)
        known = pc.and_(known, decoded)
    schema = to_arrow_schema(struct(asked.columns))
    arrays = [COLUMNS[column.name](asked.realm, found) for column in asked.columns]
    told = pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )
    chosen = pc.and_(first, known)
    for name, condition in asked.conditions.items():
        chosen = pc.and_(chosen, allowed(condition, COLUMNS[name](asked.realm, found)))
    return _filtered(told, chosen), _filtered(rows, pc.and_not(first, known))


def _filtered(batch: pa.RecordBatch, chosen: pa.BooleanArray) -> pa.RecordBatch:
    """Return the selected rows, as `RecordBatch.filter` does, but copy nothing if all rows or no rows are selected."""
    count = chosen.true_count
    return batch.slice(0, count) if count in (0, len(batch)) else batch.filter(chosen)


def _whole(
    backend: Backend, asked: _Asked, rows: pa.RecordBatch
) -> Iterator[pa.RecordBatch | list[StoredObject]]:
    """Read the first row (part 0) of some objects in full, and yield these objects as `read_columns` does: those that
    can now be decoded as Arrow batches, the others as lists. Objects that were deleted meanwhile are left out.

    Args:
        rows: the first rows of the objects. Only the beginning of these rows was read before.
    """
    instance = rows.column("realm")[0].as_py()
    wanted = zip(rows.column("id").to_pylist(), rows.column("size").to_pylist(), strict=True)
    for chunk in sized(wanted, itemgetter(1), most_bytes=BATCH_BYTES):
        found = backend.read_objects(instance, [ObjectKey(id) for id, _ in chunk])
        ids, parts = ([key[i] for key in found] for i in (0, 1))
        rows_found = object_columns(instance, ids, parts, list(found.values()))
        told, others = _told(asked, sizes(rows_found, objects.MAX_ROW_BYTES))
        yield told
        stored = (
            stored_object(backend, instance, ObjectKey(id), found[ObjectKey(id)], whole=False)
            for id in others.column("id").to_pylist()
        )
        yield [one for one in stored if one is not None]


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


def _nothing(_realm: str, found: _Columns) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(len(found["id"]))


COLUMNS: dict[str, Callable[[str, _Columns], Any]] = {
    "realm": _realm,
    "id": lambda _realm, found: found["id"],
    "type": lambda _realm, found: found["type"],
    "revision": lambda _realm, found: found["revision"],
    "parts": _one,
    "bytes": lambda _realm, found: found["bytes"],
    "created_at": _created_at,
    "node": _node,
    "strong_ids": lambda _realm, found: found["strong"],
    "weak_ids": lambda _realm, found: found["weak"],
    "content": _nothing,
    "error": _nothing,
}
"""Functions that compute the columns of the system view `objects`, by column name.

The arguments are the realm's name and the decoded columns. The caller casts the result to the type of the column.
`content` and `error` are always null here.
"""

_OF_TYPES = frozenset({"type", "revision"})
_OF_POINTERS = frozenset({"strong_ids", "weak_ids", "error"})
