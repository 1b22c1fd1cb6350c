"""Conversion between rows and items. Attribute names count toward the size of an item, so they are single letters.

| table | partition key `p` | sort key `s` | `n` | `v` |
| --- | --- | --- | --- | --- |
| `objects` | bucket (1 byte), realm | id (8 bytes), part (4), big-endian | | value |
| `references` | length of the realm (2 bytes), realm, name | | version | value |

All attributes are binary. Ids grow with time, and one partition accepts 1,000 write units per second. So the rows of a
realm are spread over `BUCKETS` partition keys by a hash of id and part: 32 partitions accept 32 MB/s, and a realm can
still be read with 32 queries instead of a scan of all realms. Each reference has its own partition key, so that two
busy references never share the throughput of one partition.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow

BUCKETS: Final = 32
"""Number of partition keys over which a realm's objects are spread. This number is part of the storage format and must
not change."""

Item = dict[str, dict[str, bytes]]
"""The attributes of an item by name, in the driver's format."""

_SORT: Final = struct.Struct(">QI")
_LENGTH: Final = struct.Struct(">H")
_FIBONACCI: Final = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio spreads neighbors (Knuth, TAOCP 6.4)
_MASK: Final = 2**64 - 1


def partition(realm: bytes, bucket: int) -> bytes:
    """Return the partition key of one bucket (0 to `BUCKETS` - 1) of a realm's objects."""
    return bytes((bucket,)) + realm


def object_key(realm: bytes, key: ObjectKey) -> Item:
    """Return the key of an item of `objects`."""
    bucket = ((key.id + key.part * 0x1F1F1F1F) * _FIBONACCI & _MASK) >> 59
    return {"p": {"B": partition(realm, bucket)}, "s": {"B": _SORT.pack(key.id, key.part)}}


def object_item(realm: bytes, row: ObjectRow) -> Item:
    """Return a row of `objects` as an item."""
    return {**object_key(realm, ObjectKey(row.id, row.part)), "v": {"B": row.value}}


def key_of(item: Item) -> ObjectKey:
    """Return id and part from an item of `objects`."""
    return ObjectKey(*_SORT.unpack(item["s"]["B"]))


def object_row(item: Item) -> tuple[str, int, int, bytes]:
    """Return realm, id, part and value from an item of `objects`."""
    return (item["p"]["B"][1:].decode(), *_SORT.unpack(item["s"]["B"]), item["v"]["B"])


def reference_key(realm: str, name: str) -> Item:
    """Return the key of an item of `references`."""
    encoded = realm.encode()
    return {"p": {"B": _LENGTH.pack(len(encoded)) + encoded + name.encode()}}


def reference_item(realm: str, name: str, row: ReferenceRow) -> Item:
    """Return a row of `references` as an item."""
    return {**reference_key(realm, name), "n": {"B": row.version}, "v": {"B": row.value}}


def reference_place(item: Item) -> tuple[str, str]:
    """Return realm and name from an item of `references`."""
    key = item["p"]["B"]
    end = _LENGTH.size + _LENGTH.unpack_from(key)[0]
    return key[_LENGTH.size : end].decode(), key[end:].decode()


def reference_of(item: Mapping[str, Any]) -> ReferenceRow:
    """Return version and value from an item of `references`."""
    return ReferenceRow(item["n"]["B"], item["v"]["B"])
