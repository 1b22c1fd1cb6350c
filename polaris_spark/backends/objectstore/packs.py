"""Packs: objects of the bucket that hold many rows, and where the pack of a row is.

Ids grow with time, and each process makes its own (node, millisecond, sequence): rows that are written together have
near ids. A pack holds rows of a range of ids of one node. The ranges are fixed, in levels: at level 0 a range is 64
milliseconds, at the last one 8 ids. A row's place follows from its id alone:

- Its pack at level 0 holds it, if that pack is *open* (or absent: then there is no such row in packs).
- A pack that has grown large enough is *closed*, for good, and names the level below it that holds what it does not.
- What no level took, and every row of more than `LARGEST` bytes, is an object of its own.

A closed pack stays closed whatever is deleted from it, so that a row is in one place at most at any time.
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
"""The largest value that a pack takes, in bytes."""

OPEN: Final = 0
"""What a pack says of the next level until it is closed."""

_WIDTHS: Final = (18, 15, 12, 9, 6, 3)
"""Bits of the range of a level: 64 ms, 8 ms, 1 ms, 512 ids, 64 ids, 8 ids."""

SINGLE: Final = len(_WIDTHS)
"""The level of rows that are objects of their own."""

_FULL: Final = 32_000
_MOST: Final = 128_000
_ROW: Final = 24

R = TypeVar("R", ObjectKey, ObjectRow)


class Place(NamedTuple):
    """A level, and which range of it."""

    level: int
    range: int


class Pack(msgspec.Struct, frozen=True, array_like=True):
    """Body of a pack. The nonce differs from one state of a pack to the next, hence the ETags do: a delayed PUT that
    expects an older state fails for good."""

    realm: str
    next: int
    rows: tuple[tuple[int, int, bytes], ...]
    nonce: bytes


class Content(NamedTuple):
    """What is in a pack."""

    rows: Mapping[ObjectKey, bytes] = {}
    next: int = OPEN


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pack).decode


def place(id: int, level: int) -> Place:
    """Where a row with that id is at a level."""
    return Place(level, _ordinal(id) >> _WIDTHS[level])


def by_place(rows: Iterable[R], level: int) -> dict[Place, list[R]]:
    """Rows, or keys, by their places at a level."""
    found: dict[Place, list[R]] = {}
    for row in rows:
        found.setdefault(place(row.id, level), []).append(row)
    return found


def encode(realm: str, content: Content) -> bytes:
    """The body of a pack."""
    rows = tuple((*key, value) for key, value in content.rows.items())
    return _encode(Pack(realm, content.next, rows, os.urandom(8)))


def decode(body: bytes, key: str) -> Pack:
    """The pack that a body holds.

    Raises:
        CorruptionError: it holds none; the message names the key.
    """
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the object {key!r} holds no rows: {error}") from error


def content(body: bytes, key: str) -> Content:
    """What the pack under a key holds.

    Raises:
        CorruptionError: as `decode`.
    """
    pack = decode(body, key)
    return Content({ObjectKey(id, part): value for id, part, value in pack.rows}, pack.next)


def filled(place: Place, old: Content, rows: Collection[ObjectRow]) -> tuple[Content, list[ObjectRow]]:
    """An open pack with more rows, closed if that is enough for it, and those that it cannot take.

    Args:
        rows: none of which it holds.
    """
    taken, size, left = dict(old.rows), _size(old.rows), list[ObjectRow]()
    for row in sorted(rows):
        size += len(row.value) + _ROW
        if size > _MOST and taken:
            left.append(row)
        else:
            taken[ObjectKey(row.id, row.part)] = row.value
    return Content(taken, _below(place, [*taken, *left], size) if size >= _FULL else OPEN), left


def _below(place: Place, keys: Collection[ObjectKey | ObjectRow], size: int) -> int:
    """The first level below a place where rows that come as densely as these fit into a pack."""
    ordinals = [_ordinal(key.id) for key in keys]
    span = max(ordinals) - min(ordinals) + 1
    for level in range(place.level + 1, SINGLE):
        if (size << _WIDTHS[level]) <= span * _MOST // 2:
            return level
    return max(place.level + 1, SINGLE - 1)


def _size(rows: Mapping[ObjectKey, bytes]) -> int:
    return sum(map(len, rows.values())) + _ROW * len(rows)


def _ordinal(id: int) -> int:
    """The id with its node in front: what one node makes is together, and apart from what others make."""
    node = id >> SEQUENCE_BITS & NODES - 1
    ms, sequence = id // (NODES * SEQUENCE), id & SEQUENCE - 1
    return node << 53 | ms << SEQUENCE_BITS | sequence
