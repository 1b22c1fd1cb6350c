"""The `_id`s of documents, and ranges of them.

In `objects`, an `_id` is binary: the realm, then id (8 bytes) and part (4 bytes), big-endian. BSON orders binary values
by *length* first, and then by their bytes
(https://www.mongodb.com/docs/manual/reference/bson-type-comparison-order/). All `_id`s of one realm have the same
length, so they are contiguous and in the order of the ids. The `_id`s of two realms differ in their length or in the
bytes of the realm. So realm names need no escaping.

In `references`, an `_id` is a document `{realm, name}`. Names differ in length, so binary `_id`s of one realm would not
be contiguous. The fields of the documents are compared one after the other, always in this order. `{realm}` alone sorts
before all names of the realm.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from polaris_spark.backends.base import ObjectKey

_NUMBERS: Final = struct.Struct(">QI")
_LAST: Final = b"\xff" * _NUMBERS.size

Bound = TypeVar("Bound", bytes, dict[str, str])


def object_id(realm: bytes, id: int, part: int) -> bytes:
    """Return the `_id` of a row of `objects`."""
    return realm + _NUMBERS.pack(id, part)


def object_key(found: bytes) -> ObjectKey:
    """Return id and part from the `_id` of a row of `objects`."""
    return ObjectKey(*_NUMBERS.unpack_from(found, len(found) - _NUMBERS.size))


def realm_of(found: bytes) -> str:
    """Return the realm from the `_id` of a row of `objects`."""
    return found[: -_NUMBERS.size].decode()


def order(found: bytes) -> tuple[int, bytes]:
    """Return a sort key for an `_id` of `objects`. With it, Python sorts `_id`s in the same order as the server."""
    return len(found), found


def reference_id(realm: str, name: str) -> dict[str, str]:
    """Return the `_id` of a row of `references`."""
    return {"realm": realm, "name": name}


def objects_of(realm: str) -> tuple[bytes, bytes]:
    """Return bounds of the `_id`s of a realm's objects: the lower bound (inclusive) and the upper bound (exclusive)."""
    return object_id(realm.encode(), 0, 0), realm.encode() + _LAST


def references_of(realm: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return bounds of the `_id`s of a realm's references: the lower bound (inclusive) and the upper bound (exclusive),
    which has the next possible realm name."""
    return {"realm": realm}, {"realm": realm + "\x00"}


ALL_OBJECTS: Final[tuple[bytes, None]] = (b"", None)
ALL_REFERENCES: Final[tuple[dict[str, str], None]] = ({"realm": "\x00"}, None)
"""Bounds of the `_id`s of all references. The range excludes the document that marks the database as a store, because
its realm is empty."""


def between(low: Bound, high: Bound | None) -> dict[str, Any]:
    """Return a filter for `_id`s from `low`, inclusive, to `high`, exclusive (None: no upper bound)."""
    return {"_id": {"$gte": low} if high is None else {"$gte": low, "$lt": high}}


def after(last: Bound, high: Bound | None) -> dict[str, Any]:
    """Return a filter for `_id`s above `last` and below `high` (None: no upper bound)."""
    return {"_id": {"$gt": last} if high is None else {"$gt": last, "$lt": high}}


def cut(
    ranges: Sequence[tuple[bytes, bytes | None]], sample: Sequence[bytes], n: int
) -> list[tuple[bytes, bytes | None]]:
    """Divide ranges of `_id`s of objects at sampled `_id`s. Return about `n` ranges with about equally many samples
    each.

    The result covers the same `_id`s as `ranges`, whatever the samples are.
    """
    ordered = sorted(sample, key=order)

    def inside_of(low: bytes, high: bytes | None) -> Sequence[bytes]:
        first = bisect_right(ordered, order(low), key=order)
        return ordered[first : None if high is None else bisect_left(ordered, order(high), key=order)]

    inside = [inside_of(low, high) for low, high in ranges]
    share = max(1, -(-sum(len(each) for each in inside) // max(1, n)))
    found: list[tuple[bytes, bytes | None]] = []
    for (low, high), each in zip(ranges, inside, strict=True):
        starts = [low, *each[share::share]]
        found += zip(starts, [*starts[1:], high], strict=True)
    return found
