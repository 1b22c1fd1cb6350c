"""Entries of an index, and their size as embedded changes, which are stored in the index root instead of in a shard."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from polaris_spark.objects import ObjectId


class Entry(NamedTuple):
    """The entry of a key in an index: an object id (0 for none) and a small value."""

    pointer: ObjectId = 0
    value: bytes = b""


PendingEntry: TypeAlias = tuple[int, int, bytes | None]
"""An embedded change, which is not yet in the tree: its position in the order of changes, its pointer, and its value
(None: the key is removed)."""


_HEADER_BYTES = 2
_POINTER_BYTES = 12


def embedded_size(key: bytes, pointer: int, value: bytes | None) -> int:
    """Return the approximate size of one embedded change in the row of the index root, in bytes. The result is off by a
    few percent and usually too large."""
    return (
        len(key)
        + _HEADER_BYTES
        + (_POINTER_BYTES if pointer else 1)
        + (1 if value is None else len(value) + _HEADER_BYTES)
    )


def embedded_total(
    keys: tuple[bytes, ...], pointers: tuple[int, ...], values: tuple[bytes | None, ...]
) -> int:
    """Return the sum of `embedded_size` over all given changes, in bytes. This is faster than one call for each
    change."""
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
