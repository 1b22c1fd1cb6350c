"""The `_id`s of documents, and ranges of them.

`objects`: binary, realm, then id (8 bytes) and part (4 bytes), big-endian. BSON orders binary values by their *length*
first, and then by their bytes
(https://www.mongodb.com/docs/manual/reference/bson-type-comparison-order/). So the keys of one realm, which are all of
one length, lie together and in the order of their ids; realms of other lengths lie elsewhere, and two realms of one
length differ within it. Nothing need be escaped, whatever a realm is called.

`references`: a document `{realm, name}`, whose fields compare one after the other (always in this order), because names
have many lengths. `{realm}` alone comes before all of its names.
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
    """`_id` of a row of `objects`."""
    return realm + _NUMBERS.pack(id, part)


def object_key(found: bytes) -> ObjectKey:
    """The key within its realm that an `_id` stands for."""
    return ObjectKey(*_NUMBERS.unpack_from(found, len(found) - _NUMBERS.size))


def realm_of(found: bytes) -> str:
    """The realm of a row of `objects`, by its `_id`."""
    return found[: -_NUMBERS.size].decode()


def order(found: bytes) -> tuple[int, bytes]:
    """What sorts `_id`s of `objects` as the server does."""
    return len(found), found


def reference_id(realm: str, name: str) -> dict[str, str]:
    """`_id` of a row of `references`."""
    return {"realm": realm, "name": name}


def objects_of(realm: str) -> tuple[bytes, bytes]:
    """The first `_id` that a realm's objects may have, and one above all of them (ids have 63 bits)."""
    return object_id(realm.encode(), 0, 0), realm.encode() + _LAST


def references_of(realm: str) -> tuple[dict[str, str], dict[str, str]]:
    """An `_id` below all of a realm's references, and one above: that of the next realm that there could be."""
    return {"realm": realm}, {"realm": realm + "\x00"}


ALL_OBJECTS: Final[tuple[bytes, None]] = (b"", None)
ALL_REFERENCES: Final[tuple[dict[str, str], None]] = ({"realm": "\x00"}, None)
"""Without the mark of the store, whose realm is empty."""


def between(low: Bound, high: Bound | None) -> dict[str, Any]:
    """A filter of `_id`s from `low` on and below `high`."""
    return {"_id": {"$gte": low} if high is None else {"$gte": low, "$lt": high}}


def after(last: Bound, high: Bound | None) -> dict[str, Any]:
    """A filter of `_id`s above `last` and below `high`."""
    return {"_id": {"$gt": last} if high is None else {"$gt": last, "$lt": high}}


def cut(
    ranges: Sequence[tuple[bytes, bytes | None]], sample: Sequence[bytes], n: int
) -> list[tuple[bytes, bytes | None]]:
    """Ranges of `_id`s of objects, cut at sampled ones into about `n` that hold as many of them.

    Bounds only cut: whatever they are, the ranges cover what `ranges` did.
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
