"""Row keys: `realm 0x00 hash id part` in `objects`, `realm 0x00 name` in `references`.

- A realm's rows are one contiguous range, so that they can be dropped and scanned by it. In a realm's name 0x00 is
  written 0x01 0x01, and 0x01 as 0x01 0x02: no realm's part of a key begins with another's.
- Ids are snowflakes: rows that are written at the same time would be neighbours, all on the tablet at the end of the
  realm. One byte of their CRC-32 before them spreads a realm's newest rows over up to 256 tablets, evenly.
- Keys of a store begin with a byte over 0x00: those with 0x00 are ours, for what describes the store itself.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final
from zlib import crc32

from polaris_spark.backends.base import ObjectKey
from polaris_spark.backends.limits import check_name
from polaris_spark.errors import CorruptionError

FIRST: Final = b"\x01"
"""All rows have this key, or a later one."""
HASHES: Final = 256
"""How many values the hash has."""

_END: Final = b"\x00"
_OBJECT: Final = Struct(">BQI")


@lru_cache(4_096)
def realm_prefix(realm: str) -> bytes:
    """What the keys of a realm's rows begin with, and no others.

    Raises:
        InputError, ObjectTooLargeError: it is no name of a realm.
    """
    check_name(realm, "realm")
    return realm.encode().replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + _END


def after(prefix: bytes) -> bytes:
    """The first key after all of those with a realm's prefix."""
    return prefix[:-1] + b"\x01"


def object_key(prefix: bytes, key: ObjectKey) -> bytes:
    """Key of a row of `objects`."""
    return prefix + _OBJECT.pack(crc32(key[0].to_bytes(8, "big")) & 0xFF, *key)


def reference_key(realm: str, name: str) -> bytes:
    """Key of a row of `references`.

    Raises:
        InputError, ObjectTooLargeError: one of them is no name.
    """
    check_name(name)
    return realm_prefix(realm) + name.encode()


def object_of(key: bytes) -> tuple[str, int, int]:
    """Realm, id and part of a row of `objects`.

    Raises:
        CorruptionError: it is no key of ours.
    """
    realm, rest = _split(key)
    if len(rest) != _OBJECT.size:
        raise CorruptionError(f"the row {key!r} is not part of a catalog's store")
    _, id, part = _OBJECT.unpack(rest)
    return realm, id, part


def reference_of(key: bytes) -> tuple[str, str]:
    """Realm and name of a row of `references`.

    Raises:
        CorruptionError: it is no key of ours.
    """
    realm, rest = _split(key)
    try:
        return realm, rest.decode()
    except UnicodeDecodeError:
        raise CorruptionError(f"the row {key!r} is not part of a catalog's store") from None


def prefix_of(key: bytes) -> bytes:
    """The prefix of the realm that a row belongs to."""
    return key[: key.find(_END) + 1]


def _split(key: bytes) -> tuple[str, bytes]:
    prefix, end, rest = key.partition(_END)
    try:
        if not end:
            raise ValueError("no realm")
        return prefix.replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01").decode(), rest
    except ValueError:
        raise CorruptionError(f"the row {key!r} is not part of a catalog's store") from None
