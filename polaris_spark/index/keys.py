r"""The key codec: entries of a hierarchy as byte strings whose order keeps every subtree together.

A key is `path 0x01 kind name`; a path is every part with 0x02 before it, so the root is `b""` and the path
`("",)` is `b"\x02"`. Bytes 0x00-0x03 within parts and names are written as 0x00 and the byte plus 4, hence
bytes 0x01-0x03 are always structure (the kind apart, which stands right after the first 0x01). Two ranges
follow for a path `p`: its direct entries `[p 0x01, p 0x02)` and its whole subtree `[p 0x01, p 0x03)`. Text is
UTF-8, whose byte order is the order of code points.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from polaris_spark.errors import CorruptionError, InputError, ObjectTooLargeError

MAX_KEY_BYTES = 4096
"""The longest key of an index, encoded."""

_ENTRY, _PART, _END = b"\x01", b"\x02", b"\x03"
_SPECIAL = re.compile(rb"[\x00-\x03]")
_ESCAPED = re.compile(rb"\x00(.?)", re.DOTALL)


class DecodedKey(NamedTuple):
    """What a key says: the path as parts, the kind (one byte) and the name."""

    path: tuple[str, ...]
    kind: bytes
    name: str


class KeyRange(NamedTuple):
    """Keys from `start` on and before `end`."""

    start: bytes
    end: bytes


def encode_path(parts: Sequence[str]) -> bytes:
    """A path as the beginning of keys; the root, no parts, is `b""`.

    Raises:
        InputError: a part holds a lone surrogate, which UTF-8 cannot carry.
        ObjectTooLargeError: the result is over `MAX_KEY_BYTES`.
    """
    return _bounded(b"".join([_PART + _escape(part) for part in parts]))


def entry_key(path: Sequence[str], kind: bytes, name: str) -> bytes:
    """The key of the entry `name` of kind `kind` (one byte, any) directly under `path`.

    Raises:
        InputError: the kind is not one byte, or a part or the name holds a lone surrogate.
        ObjectTooLargeError: the result is over `MAX_KEY_BYTES`.
    """
    _one_byte(kind)
    return _bounded(b"".join((encode_path(path), _ENTRY, kind, _escape(name))))


def children(path: Sequence[str], kind: bytes | None = None) -> KeyRange:
    """The range of the direct entries of `path`, of every kind or of one.

    Raises:
        InputError, ObjectTooLargeError: as `entry_key`.
    """
    base = encode_path(path)
    if kind is None:
        return KeyRange(base + _ENTRY, base + _PART)
    return _of_kind(base, kind)


def children_upwards(path: Sequence[str], kind: bytes) -> list[KeyRange]:
    """The ranges of the direct entries of one kind, for each prefix of `path`: the first part, the first two parts, and
    so on up to the whole path.

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
    """The range of all entries at or below `path`: its direct entries and those of every longer path.

    Raises:
        InputError, ObjectTooLargeError: as `encode_path`.
    """
    base = encode_path(path)
    return KeyRange(base + _ENTRY, base + _END)


def entry_keys_upwards(path: Sequence[str], kind: bytes) -> list[bytes]:
    """The keys of entries of one kind whose names are the parts of `path`, each directly under the parts before it.

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


def decode_key(key: bytes) -> DecodedKey:
    """What `entry_key` was given.

    Raises:
        CorruptionError: no call of `entry_key` gives these bytes.
    """
    base, entry, rest = key.partition(_ENTRY)
    if not entry or not rest or (base and not base.startswith(_PART)):
        raise CorruptionError(f"index key {key!r} is not a path, 0x01, a kind and a name")
    parts = tuple([_unescape(part, key) for part in base.split(_PART)[1:]])
    return DecodedKey(parts, rest[:1], _unescape(rest[1:], key))


def key_after(key: bytes) -> bytes:
    """The smallest byte string greater than `key`: where a listing that ended with `key` goes on."""
    return key + b"\x00"


def _escape(text: str) -> bytes:
    if text.isprintable():  # neither the bytes that are escaped nor surrogates are
        return text.encode()
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the name {text!r} holds a lone surrogate at position {error.start}, "
            "which is no Unicode character: rename it"
        ) from error
    return _SPECIAL.sub(lambda found: bytes((0, found[0][0] + 4)), data)


def _unescape(data: bytes, key: bytes) -> str:
    def restore(found: re.Match[bytes]) -> bytes:
        if found[1] not in (b"\x04", b"\x05", b"\x06", b"\x07"):
            raise CorruptionError(f"index key {key!r} holds an unknown escape {found[0]!r}")
        return bytes((found[1][0] - 4,))

    if _END in data or _PART in data or _ENTRY in data:
        raise CorruptionError(f"index key {key!r} has a separator where text must be")
    try:
        return _ESCAPED.sub(restore, data).decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"index key {key!r} is not UTF-8: {error}") from error


def _one_byte(kind: bytes) -> None:
    if len(kind) != 1:
        raise InputError(f"the kind of an index entry is one byte, not {kind!r}")


def _bounded(key: bytes) -> bytes:
    if len(key) > MAX_KEY_BYTES:
        raise ObjectTooLargeError(
            f"the path and name beginning {key[:64]!r} take {len(key)} bytes as an index key; "
            f"at most {MAX_KEY_BYTES} are possible: use shorter names"
        )
    return key
