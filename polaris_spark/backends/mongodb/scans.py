"""Splits of a store, which are ranges of `_id`s, and scans of these splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import PyMongoError

from polaris_spark.backends.arrow import BATCH_ROWS, record_batches
from polaris_spark.backends.base import Split, Table
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.limits import distinct
from polaris_spark.backends.mongodb import keys
from polaris_spark.backends.mongodb.connections import Connections, Documents, Opened

if TYPE_CHECKING:
    import pyarrow as pa

_ALL_SAMPLED: Final = 5_000
_MOST_SAMPLED: Final = 20_000
_SAMPLED_FOR_EACH: Final = 50
# For less than a twentieth of the collection, $sample jumps to random documents; for more, it would read all of them.
_LEAST_SHARE: Final = 25
_DROPPED_AT_ONCE: Final = 5_000


def splits(opened: Opened, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
    """Return about `n` splits with about equally many rows. A split's detail is a tuple of ranges `(low, high)`."""
    names = None if realms is None else distinct(realms)
    if table == "references":
        few = [keys.ALL_REFERENCES] if names is None else [keys.references_of(name) for name in names]
        return [Split(table, tuple(group)) for group in runs(few, n)]
    ranges: list[tuple[bytes, bytes | None]] = (
        [keys.ALL_OBJECTS] if names is None else [keys.objects_of(name) for name in names]
    )
    if n > 1 and ranges:
        ranges = keys.cut(ranges, _sample(opened.objects, n), n)
    return [Split(table, tuple(group)) for group in runs(ranges, n)]


def scan(connections: Connections, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in record batches."""
    ranges: tuple[tuple[Any, Any], ...] = split.detail  # type: ignore[assignment]  # as made by splits()
    read = _object_rows if split.table == "objects" else _reference_rows
    return record_batches(split.table, (row for low, high in ranges for row in read(connections, low, high)))


def bound(opened: Opened, low: bytes, high: bytes) -> bytes | None:
    """Return the end (exclusive) of the first chunk of objects with `_id`s from `low` to `high`, for deletion in
    chunks. Return None if the whole range is at most one chunk."""
    asked = opened.objects.find(
        keys.between(low, high), {"_id": 1}, sort=[("_id", 1)], skip=_DROPPED_AT_ONCE, limit=1
    )
    found: bytes | None = next((each["_id"] for each in asked), None)
    return found


def _sample(objects: Documents, n: int) -> list[bytes]:
    """Return a sample of the `_id`s of `objects`. For a small collection, these are all `_id`s, read from the index.
    For a large collection, they are chosen at random."""
    count = objects.estimated_document_count()
    if count <= _ALL_SAMPLED:
        asked = objects.find({}, {"_id": 1}, batch_size=_ALL_SAMPLED, limit=2 * _ALL_SAMPLED)
        return [each["_id"] for each in asked]
    size = min(_SAMPLED_FOR_EACH * n, _MOST_SAMPLED, count // _LEAST_SHARE)
    return [
        each["_id"] for each in objects.aggregate([{"$sample": {"size": size}}, {"$project": {"_id": 1}}])
    ]


def _object_rows(connections: Connections, low: Any, high: Any) -> Iterator[tuple[Any, ...]]:
    for each in _documents(connections, lambda opened: opened.committed_objects, low, high):
        yield (keys.realm_of(each["_id"]), *keys.object_key(each["_id"]), each["value"])


def _reference_rows(connections: Connections, low: Any, high: Any) -> Iterator[tuple[Any, ...]]:
    for each in _documents(connections, lambda opened: opened.committed_references, low, high):
        yield (*each["_id"].values(), each["version"], each["value"])


def _documents(
    connections: Connections, collection: Callable[[Opened], Documents], low: Any, high: Any
) -> Iterator[dict[str, Any]]:
    """Yield the documents from `low`, inclusive, to `high`, exclusive, in order. A lost cursor is replaced by a cursor
    that continues after the last document."""
    wanted, progress = keys.between(low, high), True
    while True:
        objects_or_references = connections.read(collection)
        cursor = objects_or_references.find(wanted, sort=[("_id", 1)], batch_size=BATCH_ROWS)
        try:
            with cursor:
                for document in cursor:
                    yield document
                    wanted, progress = keys.after(document["_id"], high), True
            return
        except PyMongoError as error:
            if not progress:
                raise connections.unread(error) from error
            progress = False
