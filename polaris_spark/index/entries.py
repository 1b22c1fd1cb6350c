"""Entries, and their size where they are embedded."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Entry(NamedTuple):
    """What an index says of a key: an object id (0 for none) and a small value of its own."""

    pointer: int = 0
    value: bytes = b""


Pending: TypeAlias = tuple[int, int, bytes | None]
"""An embedded change: its place in the order of changes, pointer, value (None: the key is removed)."""


_HEADER_BYTES = 2
_POINTER_BYTES = 12


def embedded_size(key: bytes, pointer: int, value: bytes | None) -> int:
    """Bytes that one embedded change takes in the row that holds it, within some percent (rather more than less)."""
    return (
        len(key)
        + _HEADER_BYTES
        + (_POINTER_BYTES if pointer else 1)
        + (1 if value is None else len(value) + _HEADER_BYTES)
    )


def embedded_total(
    keys: tuple[bytes, ...], pointers: tuple[int, ...], values: tuple[bytes | None, ...]
) -> int:
    """The sum of `embedded_size` over an embedded part, at the speed of C."""
    no_pointer, removed = pointers.count(0), values.count(None)
    return (
        sum(map(len, keys))
        + _HEADER_BYTES * len(keys)
        + _POINTER_BYTES * (len(pointers) - no_pointer)
        + no_pointer
        + sum(map(len, filter(None, values)))
        + _HEADER_BYTES * (len(values) - removed)
        + removed
    )
