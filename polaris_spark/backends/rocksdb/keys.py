"""Keys and values of a RocksDB store: both tables in one ordered key space, told apart by their first byte.

`o`, realm, id, part of an object; `r`, realm, name of a reference. A realm ends with the bytes 0 and 1, and a zero byte
within it is followed by 0xff, so no realm's keys lie among those of another. Numbers are big-endian, so keys sort as
(realm, id, part) do. A reference's value is the length of its version, the version, and the value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from polaris_spark.backends.base import ObjectKey, ReferenceRow, Table
from polaris_spark.errors import CorruptionError

TABLES: Final[dict[Table, bytes]] = {"objects": b"o", "references": b"r"}
"""The first byte of the keys of each."""
LAST_ID: Final = 2**63 - 1

_PLACE: Final = struct.Struct(">qi")
_LENGTH: Final = struct.Struct(">I")
_END: Final = b"\x00\x01"

place = _PLACE.pack
"""The end of an object's key, from its id and part."""


@lru_cache(256)
def row_prefix(table: Table, realm: str) -> bytes:
    """What all keys of a realm's rows begin with."""
    return TABLES[table] + realm.encode().replace(b"\x00", b"\x00\xff") + _END


@lru_cache(256)
def _whole(prefix_bytes: int) -> Callable[[bytes, int, int], bytes]:
    """Packs prefix, id and part, which takes less time than to append a packed `place` to the prefix."""
    return struct.Struct(f">{prefix_bytes}sqi").pack


def object_keys(realm: str, keys: Iterable[ObjectKey]) -> list[bytes]:
    """Keys of objects of a realm."""
    prefix = row_prefix("objects", realm)
    key = _whole(len(prefix))
    return [key(prefix, id, part) for id, part in keys]


def after(prefix: bytes) -> bytes:
    """The least key that is greater than all that begin with a prefix, whose last byte is not 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def realm_of(key: bytes) -> tuple[str, bytes]:
    """The realm of a row's key, and the prefix of that realm's rows."""
    end = key.index(_END, 1)
    return key[1:end].replace(b"\x00\xff", b"\x00").decode(), key[: end + len(_END)]


def place_of(key: bytes) -> tuple[int, int]:
    """Id and part of an object's key."""
    id, part = _PLACE.unpack(key[-_PLACE.size :])
    return id, part


def packed(row: ReferenceRow) -> bytes:
    """A reference as it is stored."""
    return _LENGTH.pack(len(row.version)) + row.version + row.value


def version_of(value: bytes) -> bytes:
    """The version of a stored reference."""
    return value[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(value)[0]]


def unpacked(value: bytes) -> ReferenceRow:
    """A reference from what was stored.

    Raises:
        CorruptionError: it is no reference.
    """
    end = _LENGTH.size + (_LENGTH.unpack_from(value)[0] if len(value) >= _LENGTH.size else len(value))
    if end > len(value):
        raise CorruptionError(f"its row of {len(value)} bytes is cut short")
    return ReferenceRow(value[_LENGTH.size : end], value[end:])
