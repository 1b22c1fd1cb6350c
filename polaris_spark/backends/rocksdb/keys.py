"""Keys and values of a RocksDB store. Both tables share one ordered key space; the first byte of a key is the table.

An object's key is `o`, realm, id, part; a reference's key is `r`, realm, name. The name of a realm ends with the bytes
0 and 1, and a zero byte within the name is followed by 0xff, so the keys of a realm are contiguous. Numbers are
big-endian, so keys sort like (realm, id, part). A reference's value is the length of its version, the version, and the
value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from polaris_spark.backends.base import ObjectKey, ReferenceRow, Table
from polaris_spark.errors import CorruptionError

TABLES: Final[dict[Table, bytes]] = {"objects": b"o", "references": b"r"}
"""First byte of the keys of each table."""
LAST_ID: Final = 2**63 - 1

_PLACE: Final = struct.Struct(">qi")
_LENGTH: Final = struct.Struct(">I")
_END: Final = b"\x00\x01"

place = _PLACE.pack
"""Function that returns id and part as bytes. They are the end of an object's key."""


@lru_cache(256)
def row_prefix(table: Table, realm: str) -> bytes:
    """Return the key prefix of a realm's rows."""
    return TABLES[table] + realm.encode().replace(b"\x00", b"\x00\xff") + _END


@lru_cache(256)
def _whole(prefix_bytes: int) -> Callable[[bytes, int, int], bytes]:
    """Return a function that makes an object's key from a prefix of `prefix_bytes` bytes, an id and a part. One call of
    this function is faster than appending the result of `place` to the prefix."""
    return struct.Struct(f">{prefix_bytes}sqi").pack


def object_keys(realm: str, keys: Iterable[ObjectKey]) -> list[bytes]:
    """Return the keys of objects of a realm."""
    prefix = row_prefix("objects", realm)
    key = _whole(len(prefix))
    return [key(prefix, id, part) for id, part in keys]


def after(prefix: bytes) -> bytes:
    """Return the smallest key greater than all keys with a prefix. The prefix must not end with 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def realm_of(key: bytes) -> tuple[str, bytes]:
    """Return the realm from the key of a row, and the key prefix of the realm's rows."""
    end = key.index(_END, 1)
    return key[1:end].replace(b"\x00\xff", b"\x00").decode(), key[: end + len(_END)]


def place_of(key: bytes) -> tuple[int, int]:
    """Return the id and the part that are encoded in an object's key."""
    id, part = _PLACE.unpack(key[-_PLACE.size :])
    return id, part


def packed(row: ReferenceRow) -> bytes:
    """Return the stored value for a row of `references`."""
    return _LENGTH.pack(len(row.version)) + row.version + row.value


def version_of(value: bytes) -> bytes:
    """Return the version from the stored value of a reference."""
    return value[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(value)[0]]


def unpacked(value: bytes) -> ReferenceRow:
    """Return the row of `references` from its stored value.

    Raises:
        CorruptionError: the value is not a reference.
    """
    end = _LENGTH.size + (_LENGTH.unpack_from(value)[0] if len(value) >= _LENGTH.size else len(value))
    if end > len(value):
        raise CorruptionError(f"a row of the table references is truncated: it has only {len(value)} bytes")
    return ReferenceRow(value[_LENGTH.size : end], value[end:])
