r"""Encoding of index keys: byte strings for the entries of a hierarchy, ordered so that subtrees are contiguous.

A key is `path 0x01 kind name`. A path is encoded as its parts, each preceded by 0x02, so the root is `b""` and the path
`("",)` is `b"\x02"`. Bytes 0x00-0x03 within parts and names are escaped as 0x00 followed by the byte plus 4. Hence
bytes 0x01-0x03 are always separators, except in the kind, which is the byte after the first 0x01. A path `p` has two
key ranges: its direct entries `[p 0x01, p 0x02)`, and its whole subtree `[p 0x01, p 0x03)`. Text is encoded as UTF-8,
whose byte order is the order of code points.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from polaris_spark.errors import CorruptionError, InputError, ObjectTooLargeError

MAX_KEY_BYTES = 4096
"""Maximum length of an encoded index key, in bytes."""

_ENTRY, _PART, _END = b"\x01", b"\x02", b"\x03"
_SPECIAL = re.compile(rb"[\x00-\x03]")
_ESCAPED = re.compile(rb"\x00(.?)", re.DOTALL)


class DecodedKey(NamedTuple):
    """The components of a key: the path as parts, the kind (one byte), and the name."""

    path: tuple[str, ...]
    kind: bytes
    name: str


class KeyRange(NamedTuple):
    """A range of keys: from `start`, inclusive, to `end`, exclusive."""

    start: bytes
    end: bytes


def encode_path(parts: Sequence[str]) -> bytes:
    """Return a path as a prefix of keys; the root, which has no parts, is `b""`.

    Raises:
        InputError: a part holds a lone surrogate, which UTF-8 cannot encode.
        ObjectTooLargeError: the result is over `MAX_KEY_BYTES`.
    """
    return _bounded(b"".join([_PART + _escape(part) for part in parts]))


def entry_key(path: Sequence[str], kind: bytes, name: str) -> bytes:
    """Return the key of the entry `name` of kind `kind` (any one byte) directly under `path`.

    Raises:
        InputError: the kind is not one byte, or a part or the name holds a lone surrogate.
        ObjectTooLargeError: the result is over `MAX_KEY_BYTES`.
    """
    _one_byte(kind)
    return _bounded(b"".join((encode_path(path), _ENTRY, kind, _escape(name))))


def children(path: Sequence[str], kind: bytes | None = None) -> KeyRange:
    """Return the key range of the direct entries of `path`: those of the kind `kind`, or of every kind if None.

    Raises:
        InputError, ObjectTooLargeError: as `entry_key`.
    """
    base = encode_path(path)
    if kind is None:
        return KeyRange(base + _ENTRY, base + _PART)
    return _of_kind(base, kind)


def children_upwards(path: Sequence[str], kind: bytes) -> list[KeyRange]:
    """Return one key range for each prefix of `path` (the first part, the first two parts, and so on up to the whole
    path): the direct entries of the prefix that are of the kind `kind`.

    Raises:
        InputError, ObjectTooLargeError: as `entry_key`.
    """
    encode_path(path)
    base, ranges = b"", []
    for part in path:
        base += _PART + _escape(part)
        ranges.append(_of_kind(base, kind))
    return ranges


def _of_kind(base: bytes, kind: bytes) -> KeyRange:
    _one_byte(kind)
    after = base + _PART if kind == b"\xff" else base + _ENTRY + bytes((kind[0] + 1,))
    return KeyRange(base + _ENTRY + kind, after)


def subtree(path: Sequence[str]) -> KeyRange:
    """Return the range of all entries at or below `path`: its direct entries, and the entries of every longer path.

    Raises:
        InputError, ObjectTooLargeError: as `encode_path`.
    """
    base = encode_path(path)
    return KeyRange(base + _ENTRY, base + _END)


def entry_keys_upwards(path: Sequence[str], kind: bytes) -> list[bytes]:
    """For each part of `path`, from the first to the last, return the key of the entry of the kind `kind` whose name is
    this part and whose path is the parts before it. For example, the path `a.b` gives the keys of `a` at the top and
    of `b` under `a`.

    Raises:
        InputError, ObjectTooLargeError: as `entry_key`.
    """
    _one_byte(kind)
    base, keys = b"", []
    for part in path:
        name = _escape(part)
        keys.append(_bounded(base + _ENTRY + kind + name))
        base += _PART + name
    return keys


@lru_cache(maxsize=1_024)  # a merge decodes each key of a changed entity several times
def decode_key(key: bytes) -> DecodedKey:
    """Split a key made by `entry_key` into its path, kind and name.

    Raises:
        CorruptionError: `entry_key` never returns these bytes.
    """
    base, entry, rest = key.partition(_ENTRY)
    if not entry or not rest or (base and not base.startswith(_PART)):
        raise CorruptionError(
            f"index key {key!r} is corrupt: it is not a path, the byte 0x01, a kind and a name"
        )
    parts = tuple([_unescape(part, key) for part in base.split(_PART)[1:]])
    return DecodedKey(parts, rest[:1], _unescape(rest[1:], key))


def key_after(key: bytes) -> bytes:
    """Return the smallest byte string greater than `key`: where a listing that ended with `key` continues."""
    return key + b"\x00"


def _escape(text: str) -> bytes:
    if text.isprintable():  # printable text contains no surrogates and no bytes to escape
        return text.encode()
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the name {text!r} contains a lone surrogate at position {error.start}, "
            "which is not a Unicode character: rename it"
        ) from error
    return _SPECIAL.sub(lambda found: bytes((0, found[0][0] + 4)), data)


def _unescape(data: bytes, key: bytes) -> str:
    def restore(found: re.Match[bytes]) -> bytes:
        if found[1] not in (b"\x04", b"\x05", b"\x06", b"\x07"):
            raise CorruptionError(
                f"index key {key!r} is corrupt: it contains the unknown escape {found[0]!r}"
            )
        return bytes((found[1][0] - 4,))

    if _END in data or _PART in data or _ENTRY in data:
        raise CorruptionError(f"index key {key!r} is corrupt: it has a separator byte within a name")
    try:
        return _ESCAPED.sub(restore, data).decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"index key {key!r} is corrupt: a name is not UTF-8: {error}") from error


def _one_byte(kind: bytes) -> None:
    if len(kind) != 1:
        raise InputError(f"the kind of an index entry is {kind!r}, but must be one byte")


def _bounded(key: bytes) -> bytes:
    if len(key) > MAX_KEY_BYTES:
        raise ObjectTooLargeError(
            f"the path and name that begin with {key[:64]!r} take {len(key)} bytes as an index key; "
            f"the maximum is {MAX_KEY_BYTES}: use shorter names"
        )
    return key
