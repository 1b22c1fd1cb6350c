"""Packs: objects of the bucket that hold many rows, and how the pack of a row is found.

Ids grow with time, and each process makes its own ids (node, millisecond, sequence), so rows that are written together
have similar ids. A pack holds rows of a range of ids of one node. The ranges are fixed and have levels: at level 0 a
range is 64 milliseconds, at the last level 8 ids. The id of a row tells where the row is. The search begins with the
pack at level 0 whose range contains the id:

- If this pack is *open* or absent, no other pack holds the row.
- A pack that has grown large enough is *closed*, permanently, and names a level. If the closed pack does not hold the
  row, the search continues with the pack at that level whose range contains the id.
- A row that did not fit into a pack of any level, and every row of more than `LARGEST` bytes, is a separate object.

A closed pack stays closed even if rows are deleted from it, so at any time a row is in at most one pack or object.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import NODES, SEQUENCE, SEQUENCE_BITS

LARGEST: Final = 32_000
"""Maximum size of a value in a pack, in bytes."""

OPEN: Final = 0
"""Value of a pack's field `next` while the pack is open, so that rows can be added to it."""

_WIDTHS: Final = (18, 15, 12, 9, 6, 3)
"""Width of the ranges of each level, in bits: 64 ms, 8 ms, 1 ms, 512 ids, 64 ids, 8 ids."""

SINGLE: Final = len(_WIDTHS)
"""Number that stands for the level of rows that are separate objects."""

_FULL: Final = 32_000
_MOST: Final = 128_000
_ROW: Final = 24

R = TypeVar("R", ObjectKey, ObjectRow)


class PackRange(NamedTuple):
    """Range of ids whose rows belong in one pack: the level, which determines the width of the range, and the number of
    the range at this level."""

    level: int
    range: int


class Pack(msgspec.Struct, frozen=True, array_like=True):
    """Body of a pack, an object that holds many rows. The random nonce differs in every state of a pack, so the ETags
    differ, too. So a delayed PUT that expects an older state always fails."""

    realm: str
    next: int
    rows: tuple[tuple[int, int, bytes], ...]
    nonce: bytes


class Content(NamedTuple):
    """The content of a pack: its rows, and where further rows of its range are written.

    `next` is `OPEN` while rows can be added to this pack, and otherwise the level of the packs that take further rows.
    """

    rows: Mapping[ObjectKey, bytes] = {}
    next: int = OPEN


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pack).decode


def place(id: int, level: int) -> PackRange:
    """Return the range at `level` that contains an id."""
    return PackRange(level, _ordinal(id) >> _WIDTHS[level])


def by_place(rows: Iterable[R], level: int) -> dict[PackRange, list[R]]:
    """Return rows or keys, grouped by the ranges at `level` that contain their ids."""
    found: dict[PackRange, list[R]] = {}
    for row in rows:
        found.setdefault(place(row.id, level), []).append(row)
    return found


def encode(realm: str, content: Content) -> bytes:
    """Return the body of a pack with this content."""
    rows = tuple((*key, value) for key, value in content.rows.items())
    return _encode(Pack(realm, content.next, rows, os.urandom(8)))


def decode(body: bytes, key: str) -> Pack:
    """Decode the body of a pack. `key` is the key of the object.

    Raises:
        CorruptionError: the body is not a pack; the message names the key.
    """
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the object {key!r} does not contain rows: {error}") from error


def content(body: bytes, key: str) -> Content:
    """Return the content of a pack from its body. `key` is the key of the object.

    Raises:
        CorruptionError: the body is not a pack; the message names the key.
    """
    pack = decode(body, key)
    return Content({ObjectKey(id, part): value for id, part, value in pack.rows}, pack.next)


def filled(place: PackRange, old: Content, rows: Collection[ObjectRow]) -> tuple[Content, list[ObjectRow]]:
    """Add rows to the content of an open pack, and close the pack if it is then large enough. Return the new content,
    and the rows that do not fit.

    Args:
        rows: rows that the pack does not hold yet.
    """
    taken, size, left = dict(old.rows), _size(old.rows), list[ObjectRow]()
    for row in sorted(rows):
        size += len(row.value) + _ROW
        if size > _MOST and taken:
            left.append(row)
        else:
            taken[ObjectKey(row.id, row.part)] = row.value
    return Content(taken, _below(place, [*taken, *left], size) if size >= _FULL else OPEN), left


def _below(place: PackRange, keys: Collection[ObjectKey | ObjectRow], size: int) -> int:
    """Return the level of the packs that take further rows after the pack for `place` is closed: the first level after
    `place.level` at which the rows of one range fill at most half a pack, if further ids are as dense as those of
    `keys`. If there is no such level, return the last level, or `SINGLE` if `place` has the last level.

    Args:
        keys: the keys of the rows in the pack, and the rows that did not fit into it.
        size: total size of all these rows, in bytes.
    """
    ordinals = [_ordinal(key.id) for key in keys]
    span = max(ordinals) - min(ordinals) + 1
    for level in range(place.level + 1, SINGLE):
        if (size << _WIDTHS[level]) <= span * _MOST // 2:
            return level
    return max(place.level + 1, SINGLE - 1)


def _size(rows: Mapping[ObjectKey, bytes]) -> int:
    return sum(map(len, rows.values())) + _ROW * len(rows)


def _ordinal(id: int) -> int:
    """Return an id with its node number moved to the highest bits, so that the ids of one node are contiguous."""
    node = id >> SEQUENCE_BITS & NODES - 1
    ms, sequence = id // (NODES * SEQUENCE), id & SEQUENCE - 1
    return node << 53 | ms << SEQUENCE_BITS | sequence
