"""Row keys: `realm 0x00 hash id part` in `objects`, `realm 0x00 name` in `references`.

- A realm's rows are one contiguous range, so that they can be dropped and scanned as a range. In a realm's name, 0x00
  is escaped as 0x01 0x01, and 0x01 as 0x01 0x02, so no realm's prefix is a prefix of another realm's prefix.
- Ids are snowflakes: rows that are written at the same time would be neighbors, all on the last tablet of the realm.
  One byte of the id's CRC-32, placed before the id, spreads a realm's newest rows evenly over up to 256 tablets.
- Row keys of realms begin with a byte above 0x00. Keys that begin with 0x00 are reserved for rows that describe the
  store itself.
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
"""Lower bound of the row keys of all realms. Smaller keys belong to rows that describe the store itself."""
HASHES: Final = 256
"""Number of possible values of the hash byte in the row keys of `objects`."""

_END: Final = b"\x00"
_OBJECT: Final = Struct(">BQI")


@lru_cache(4_096)
def realm_prefix(realm: str) -> bytes:
    """Return the prefix of the row keys of a realm. No other row keys begin with this prefix.

    Raises:
        InputError, ObjectTooLargeError: the realm name is not valid.
    """
    check_name(realm, "realm")
    return realm.encode().replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + _END


def after(prefix: bytes) -> bytes:
    """Return the first possible key after all keys that begin with a realm's prefix."""
    return prefix[:-1] + b"\x01"


def object_key(prefix: bytes, key: ObjectKey) -> bytes:
    """Return the row key of a row of `objects`. `prefix` is the realm's prefix."""
    return prefix + _OBJECT.pack(crc32(key[0].to_bytes(8, "big")) & 0xFF, *key)


def reference_key(realm: str, name: str) -> bytes:
    """Return the row key of a row of `references`.

    Raises:
        InputError, ObjectTooLargeError: a name is not valid.
    """
    check_name(name)
    return realm_prefix(realm) + name.encode()


def object_of(key: bytes) -> tuple[str, int, int]:
    """Return realm, id and part from the row key of a row of `objects`.

    Raises:
        CorruptionError: the key does not have the form of a store's keys.
    """
    realm, rest = _split(key)
    if len(rest) != _OBJECT.size:
        raise _foreign(key)
    _, id, part = _OBJECT.unpack(rest)
    return realm, id, part


def reference_of(key: bytes) -> tuple[str, str]:
    """Return realm and name from the row key of a row of `references`.

    Raises:
        CorruptionError: the key does not have the form of a store's keys.
    """
    realm, rest = _split(key)
    try:
        return realm, rest.decode()
    except UnicodeDecodeError:
        raise _foreign(key) from None


def prefix_of(key: bytes) -> bytes:
    """Return the realm's prefix, with which a row key begins."""
    return key[: key.find(_END) + 1]


def _split(key: bytes) -> tuple[str, bytes]:
    prefix, end, rest = key.partition(_END)
    try:
        if not end:
            raise ValueError("the key has no realm prefix")
        return prefix.replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01").decode(), rest
    except ValueError:
        raise _foreign(key) from None


def _foreign(key: bytes) -> CorruptionError:
    return CorruptionError(
        f"the row with the key {key!r} is not part of a catalog's store; another program may have written it"
    )
