"""Keys of objects in a bucket, and the format of their bodies.

    objects/<realm>/<h>/<h>/p<level>-<range>  a pack (see `packs`)
    objects/<realm>/<h>/<h>/<id>-<part>       the value of a single row
    references/<realm>/<h>/<h>/<name>         MessagePack: realm, name, version, value
    tested/<digest>                           mark: conditional writes were tested on this endpoint and bucket

`<h>/<h>` are two hexadecimal digits of a hash. Ids grow with time. Without the hash, a store that partitions its keys
by range would receive all writes in one partition. Scans are split by these digits, too. In names, every byte that is
not a letter, digit, `_` or `-` is percent-encoded, with `=` instead of `%`. Some file systems and stores limit the
length of a segment. A longer name is replaced by a digest; the body then begins with the name: its length in two bytes,
then the name in UTF-8.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from polaris_spark.backends.base import ObjectKey, ReferenceRow, Table
from polaris_spark.backends.limits import check_name
from polaris_spark.backends.objectstore.packs import PackRange
from polaris_spark.errors import CorruptionError

DIGITS: Final = "0123456789abcdef"

_LONGEST: Final = 120
_DIGEST: Final = "=sha256-"
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPE: Final = re.compile(rb"=([0-9A-F]{2})")


class StoredReference(msgspec.Struct, frozen=True, array_like=True):
    """Body of the object for a reference. A body without a version is a tombstone: it stands for a deleted reference.
    The value of a tombstone is random, so all bodies of a key differ, and so do their ETags."""

    realm: str
    name: str
    version: bytes | None
    value: bytes

    @classmethod
    def of(cls, realm: str, name: str, row: ReferenceRow) -> StoredReference:
        """Return the body for a row of `references`."""
        return cls(realm, name, row.version, row.value)

    @classmethod
    def tombstone(cls, realm: str, name: str) -> StoredReference:
        """Return a new tombstone, which stands for a deleted row of `references`."""
        return cls(realm, name, None, os.urandom(16))

    @property
    def row(self) -> ReferenceRow | None:
        """The row of `references`; None for a tombstone, which stands for a deleted row."""
        return None if self.version is None else ReferenceRow(self.version, self.value)


class ObjectKeyParts(NamedTuple):
    """Realm, id and part from the key of an object that holds one row. `realm` is None if only the body contains the
    realm's name."""

    realm: str | None
    id: int
    part: int


encode_reference = msgspec.msgpack.Encoder().encode
_decode_reference = msgspec.msgpack.Decoder(StoredReference).decode


def decode_reference(body: bytes, key: str) -> StoredReference:
    """Decode the body of the object for a reference. `key` is the object's key.

    Raises:
        CorruptionError: the body is not a reference; the message names the key.
    """
    try:
        return _decode_reference(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the object {key!r} does not contain a reference: {error}") from error


def segment(name: str) -> str:
    """Encode a realm or reference name as one segment of a key, and return the segment. It has at most 120 characters.

    Raises:
        InputError: the name is empty or not Unicode text. (An empty segment would make a key prefix match all names.)
        ObjectTooLargeError: the name is longer than `MAX_NAME_BYTES`.
    """
    check_name(name, "realm or reference")
    raw = name.encode()
    text = _UNSAFE.sub(lambda found: b"=%02X" % found[0][0], raw).decode()
    return text if len(text) <= _LONGEST else _DIGEST + hashlib.sha256(raw).hexdigest()


def is_digest(segment: str) -> bool:
    """Whether a segment of a key is a digest of a name. The name itself is then only in the bodies of the objects."""
    return segment.startswith(_DIGEST)


def realm_prefix(table: Table, segment: str) -> str:
    """Return the prefix, without a final slash, of the keys that hold a realm's rows. `segment` is the realm's encoded
    name."""
    return f"{table}/{segment}"


def object_key(realm: str, key: ObjectKey) -> str:
    """Return the key of the object that holds only the row `key`. `realm` is the realm's name, encoded by `segment`."""
    hashed = crc32(key.id.to_bytes(8, "big")) & 0xFF
    return f"objects/{realm}/{hashed >> 4:x}/{hashed & 15:x}/{key.id:016x}-{key.part}"


def pack_key(realm: str, place: PackRange) -> str:
    """Return the key of a pack. `realm` is the realm's name, encoded by `segment`; `place` is the range of ids of the
    pack."""
    hashed = crc32(b"%d-%d" % place) & 0xFF
    return f"objects/{realm}/{hashed >> 4:x}/{hashed & 15:x}/p{place.level}-{place.range:x}"


def is_pack(key: str) -> bool:
    """Whether a key below `objects/` is the key of a pack."""
    return key.rpartition("/")[2].startswith("p")


def reference_key(realm: str, name: str) -> str:
    """Return the key of the object for a reference."""
    hashed = crc32(name.encode()) & 0xFF
    return f"references/{segment(realm)}/{hashed >> 4:x}/{hashed & 15:x}/{segment(name)}"


def body_prefix(realm: str) -> bytes:
    """Return the bytes that precede the value in the body of an object that holds one row of `objects`. These are the
    length and the bytes of the realm's name if the key contains only a digest of the name, else no bytes."""
    if not is_digest(segment(realm)):
        return b""
    raw = realm.encode()
    return len(raw).to_bytes(2, "big") + raw


def listed(key: str) -> ObjectKeyParts:
    """Return realm, id and part from the key of an object that holds one row.

    Raises:
        CorruptionError: the key does not have the form of a store's keys.
    """
    try:
        _, realm, _, _, last = key.split("/")
        id, part = last.split("-")
        name = None if is_digest(realm) else _ESCAPE.sub(_unescaped, realm.encode()).decode()
        return ObjectKeyParts(name, int(id, 16), int(part))
    except ValueError:
        raise CorruptionError(
            f"the object {key!r} is not part of a catalog's store; another program may have written it"
        ) from None


def split_body(body: bytes) -> tuple[str, bytes]:
    """Return realm and value from the body of an object that holds one row and has a digest of the realm's name in its
    key."""
    end = 2 + int.from_bytes(body[:2], "big")
    return body[2:end].decode(), body[end:]


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 16)])
