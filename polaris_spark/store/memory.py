"""Estimates of the memory that decoded objects take. With them, the cache is bounded by memory and not by row lengths.

A decoded object takes three to eight times the bytes of its row, depending on its type. Some types, such as index
shards, decode parts of an object at the first look-up. These types have a property `memory_bytes`, which includes these
parts. For all other types, the first `_FIRST` objects and then one in `_EVERY` are measured, and the rest are assumed
to have the same ratio of memory to row length.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from polaris_spark.objects import Decoded

_FIRST = 8
"""Number of objects of a type that are all measured, before sampling begins."""

_EVERY = 256
"""Sampling interval after the first `_FIRST` objects: one in this many objects is measured."""

_ALIGNMENT = 16
"""Alignment of CPython's allocator, in bytes: sizes are rounded up to a multiple of it."""


def deep_bytes(value: Any) -> int:
    """Return the memory, in bytes, of a decoded object and everything that only this object holds: structs, containers,
    texts, numbers.

    Objects that Python shares (small integers, empty tuples and strings, classes) count as 0 bytes. An object that
    occurs twice within `value` counts once.
    """
    total = 0
    seen = set[int]()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if _is_shared(one) or id(one) in seen:
            continue
        seen.add(id(one))
        total += -(-sys.getsizeof(one) // _ALIGNMENT) * _ALIGNMENT
        if isinstance(one, msgspec.Struct):
            waiting += [getattr(one, field) for field in one.__struct_fields__]
            waiting.append(getattr(one, "__dict__", None))
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, (tuple, list)):
            waiting += one
    return total


def _is_shared(one: Any) -> bool:
    if isinstance(one, int):
        return -5 <= one <= 256
    return one is None or isinstance(one, type) or (isinstance(one, (tuple, str, bytes)) and not one)


class Footprints:
    """Memory estimates of decoded objects by type, based on the objects measured so far.

    Needs no lock: a race between threads can at most lose a measurement."""

    def __init__(self) -> None:
        self._types: dict[str, _Seen] = {}

    def memory_bytes(self, decoded: Decoded, row_bytes: int) -> int:
        """Return the approximate memory that a decoded object will take, in bytes.

        Args:
            decoded: the object with its header.
            row_bytes: total size of the object's rows, in bytes.
        """
        seen = self._types.get(decoded.header.type)
        if seen is None:
            seen = self._types[decoded.header.type] = _Seen(says=hasattr(decoded.value, "memory_bytes"))
        if seen.says:
            known: Any = decoded.value
            return int(known.memory_bytes) + _HEADER_BYTES + 8 * len(decoded.header.strong)
        seen.number += 1
        if seen.number <= _FIRST or seen.number % _EVERY == 0:
            memory = deep_bytes(decoded)
            seen.row_bytes += row_bytes
            seen.memory_bytes += memory
            return memory
        return row_bytes * seen.memory_bytes // max(1, seen.row_bytes)


class _Seen:
    """Statistics of one object type: the number of objects seen, and the total row bytes and total memory of the
    objects that were measured."""

    __slots__ = ("memory_bytes", "number", "row_bytes", "says")

    def __init__(self, *, says: bool) -> None:
        self.says = says
        """Whether objects of the type have a property `memory_bytes`."""
        self.number = self.row_bytes = self.memory_bytes = 0


_HEADER_BYTES = 320
"""Memory of a header, in bytes: its texts and empty tuples, and the tuple that holds it together with the object."""
