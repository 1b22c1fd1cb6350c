"""Packs: objects of the bucket that hold many rows, and how the pack of a row is found.

Ids grow with time, and each process makes its own ids (node, millisecond, sequence), so rows that are written together
have similar ids. A pack holds rows of a range of ids of one node. The ranges are fixed and have levels: at level 0 a
range is 64 milliseconds, at the last level 8 ids. A row's place depends only on its id:

- If the row's pack at level 0 is *open*, the pack holds the row. If the pack is absent, no pack holds the row.
- A pack that has grown large enough is *closed*, permanently, and names the next level, which holds the rows that the
  pack does not hold.
- A row that no level accepted, and every row of more than `LARGEST` bytes, is a single object.

A closed pack stays closed even if rows are deleted from it, so a row is in at most one place at any time.
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
"""Value of `next` in a pack that is not closed."""

_WIDTHS: Final = (18, 15, 12, 9, 6, 3)
"""Width of the ranges of each level, in bits: 64 ms, 8 ms, 1 ms, 512 ids, 64 ids, 8 ids."""

SINGLE: Final = len(_WIDTHS)
"""The level of rows that are single objects."""

_FULL: Final = 32_000
_MOST: Final = 128_000
_ROW: Final = 24

R = TypeVar("R", ObjectKey, ObjectRow)


class PackRange(NamedTuple):
    """A level, and the number of a range at that level."""

    level: int
    range: int


class Pack(msgspec.Struct, frozen=True, array_like=True):
    """Body of a pack. The nonce differs between states of a pack, and so do the ETags: a delayed PUT that expects an
    older state always fails."""

    realm: str
    next: int
    rows: tuple[tuple[int, int, bytes], ...]
    nonce: bytes


class Content(NamedTuple):
    """The content of a pack: its rows, and the next level if it is closed."""

    rows: Mapping[ObjectKey, bytes] = {}
    next: int = OPEN


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pack).decode


def place(id: int, level: int) -> PackRange:
    """Return the range that contains an id at a level."""
    return PackRange(level, _ordinal(id) >> _WIDTHS[level])


def by_place(rows: Iterable[R], level: int) -> dict[PackRange, list[R]]:
    """Return rows (or keys), grouped by their ranges at a level."""
    found: dict[PackRange, list[R]] = {}
    for row in rows:
        found.setdefault(place(row.id, level), []).append(row)
    return found


def encode(realm: str, content: Content) -> bytes:
    """Return the body of a pack."""
    rows = tuple((*key, value) for key, value in content.rows.items())
    return _encode(Pack(realm, content.next, rows, os.urandom(8)))


def decode(body: bytes, key: str) -> Pack:
    """Decode the body of a pack.

    Raises:
        CorruptionError: the body is not a pack; the message names the key.
    """
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"the object {key!r} does not contain rows: {error}") from error


def content(body: bytes, key: str) -> Content:
    """Return the content of a pack from its body.

    Raises:
        CorruptionError: as `decode`.
    """
    pack = decode(body, key)
    return Content({ObjectKey(id, part): value for id, part, value in pack.rows}, pack.next)


def filled(place: PackRange, old: Content, rows: Collection[ObjectRow]) -> tuple[Content, list[ObjectRow]]:
    """Add rows to an open pack, and close it if it is then large enough. Return its new content, and the rows that do
    not fit.

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
    """Return the first level after that of `place` at which the rows of a range, if they are as dense as these keys,
    fit into a pack."""
    ordinals = [_ordinal(key.id) for key in keys]
    span = max(ordinals) - min(ordinals) + 1
    for level in range(place.level + 1, SINGLE):
        if (size << _WIDTHS[level]) <= span * _MOST // 2:
            return level
    return max(place.level + 1, SINGLE - 1)


def _size(rows: Mapping[ObjectKey, bytes]) -> int:
    return sum(map(len, rows.values())) + _ROW * len(rows)


def _ordinal(id: int) -> int:
    """Return the id with its node in the highest bits, so that the ids of one node are contiguous."""
    node = id >> SEQUENCE_BITS & NODES - 1
    ms, sequence = id // (NODES * SEQUENCE), id & SEQUENCE - 1
    return node << 53 | ms << SEQUENCE_BITS | sequence
