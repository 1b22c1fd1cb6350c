"""Conversion to and from PostgreSQL's binary format, for parameters and results of `psycopg.pq`.

Arrays have the format of `array_recv` (`src/backend/utils/adt/arrayfuncs.c`): number of dimensions, a flag for nulls,
the element type, length and lower bound of each dimension, and each element, preceded by its length in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_BYTEA: Final = 17
_INT8: Final = 20
_INT4: Final = 23
_ARRAY: Final = struct.Struct(">iiiii")
_LENGTH: Final = struct.Struct(">i")


def int8(number: int) -> bytes:
    """Encode a `bigint`."""
    return number.to_bytes(8, "big", signed=True)


def int4(number: int) -> bytes:
    """Encode an `integer`."""
    return number.to_bytes(4, "big", signed=True)


def integer(value: bytes) -> int:
    """Decode a `bigint` or `integer`."""
    return int.from_bytes(value, "big", signed=True)


def int8_array(numbers: Sequence[int]) -> bytes:
    """Encode a `bigint[]`."""
    elements = [part for number in numbers for part in (8, number)]
    return _head(_INT8, len(numbers)) + struct.pack(">" + "iq" * len(numbers), *elements)


def int4_array(numbers: Sequence[int]) -> bytes:
    """Encode an `integer[]`."""
    elements = [part for number in numbers for part in (4, number)]
    return _head(_INT4, len(numbers)) + struct.pack(">" + "ii" * len(numbers), *elements)


def bytea_array(values: Sequence[bytes]) -> bytes:
    """Encode a `bytea[]`."""
    pieces = [_head(_BYTEA, len(values))]
    for value in values:
        pieces.append(_LENGTH.pack(len(value)))
        pieces.append(value)
    return b"".join(pieces)


def integers(array: bytes) -> list[int]:
    """Decode a `bigint[]` without nulls."""
    dimensions, _, _, count, _ = _ARRAY.unpack_from(array.ljust(_ARRAY.size, b"\x00"))
    if not dimensions:
        return []
    return list(struct.unpack_from(">" + "iq" * count, array, _ARRAY.size))[1::2]


def _head(type: int, count: int) -> bytes:
    """Return the header of an array with one dimension and `count` elements, which may be 0. `type` is the OID of the
    element type."""
    return _ARRAY.pack(1, 0, type, count, 1)
