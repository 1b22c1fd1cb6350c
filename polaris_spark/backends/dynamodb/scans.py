"""Scans of a store. Queries read the objects of given realms, one query for each bucket of a realm. Parallel scans, in
segments, read all other rows.

A split's detail is a tuple of parts: `(realm, bucket)` for a query, or `(segment, segments, realms or None)` for a
scan. The references of particular realms are filtered from a scan of all references, because there are few references.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.backends.arrow import record_batches
from polaris_spark.backends.base import Split, Table
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.dynamodb import items, schema
from polaris_spark.backends.dynamodb.items import Item
from polaris_spark.backends.dynamodb.requests import Requests
from polaris_spark.backends.limits import distinct

if TYPE_CHECKING:
    import pyarrow as pa

_SIDE_BY_SIDE: Final = 8
_SEGMENTS: Final = 1_024


def splits(table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
    """Return about `n` splits that together contain the rows of `realms` (None: of all realms). The references of given
    realms are always one split."""
    n = max(1, min(n, _SEGMENTS))
    parts: list[tuple[object, ...]]
    if realms is not None and not realms:
        return []
    if realms is None:
        parts = [(segment, n, None) for segment in range(n)]
    elif table == "references":
        parts = [(0, 1, tuple(distinct(realms)))]
    else:
        parts = [(realm, bucket) for realm in distinct(realms) for bucket in range(items.BUCKETS)]
    return [Split(table, tuple(group)) for group in runs(parts, n)]


def scan(requests: Requests, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in record batches."""
    rows = (_row(split.table, part, item) for part, page in pages(requests, split) for item in page)
    return record_batches(split.table, (row for row in rows if row is not None))


def pages(requests: Requests, split: Split, *, keys_only: bool = False) -> Iterator[tuple[Any, list[Item]]]:
    """Yield pages of items of a split, of up to 1 MB each. With each page, yield the part of the split's detail to
    which the page belongs. Several parts are read in parallel. With `keys_only`, the items contain only their keys."""
    waiting: list[tuple[Any, Item | None]] = [(part, None) for part in reversed(split.detail)]
    while waiting:
        asked = [waiting.pop() for _ in range(min(_SIDE_BY_SIDE, len(waiting)))]
        answers = requests.workers.each(
            lambda each: _page(requests, split.table, *each, keys_only=keys_only), asked
        )
        for (part, _), answer in zip(asked, answers, strict=True):
            yield part, answer["Items"]
            if last := answer.get("LastEvaluatedKey"):
                waiting.append((part, last))


def _page(
    requests: Requests, table: Table, part: Any, after: Item | None, *, keys_only: bool
) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "TableName": schema.name(requests.settings.prefix, table),
        "ConsistentRead": True,
    }
    if after is not None:
        parameters["ExclusiveStartKey"] = after
    if keys_only:
        parameters["ProjectionExpression"] = ", ".join(schema.KEYS[table])
    if len(part) == 2:
        realm, bucket = part
        wanted = {":p": {"B": items.partition(realm.encode(), bucket)}}
        return requests.read(
            "query", KeyConditionExpression="p = :p", ExpressionAttributeValues=wanted, **parameters
        )
    segment, segments, _ = part
    return requests.read("scan", Segment=segment, TotalSegments=segments, **parameters)


def _row(table: Table, part: Any, item: Item) -> Any:
    """Return an item as a row of a record batch; None if its realm was not requested."""
    if table == "objects":
        return items.object_row(item)
    place, realms = items.reference_place(item), part[2]
    return (*place, *items.reference_of(item)) if realms is None or place[0] in realms else None
