"""How many bytes of memory a decoded object takes, so that the cache's bound is one of memory, not of row lengths.

A decoded object takes three to eight times the bytes of its row, depending on its type. Types whose instances grow
after they were decoded (shards of an index decode their keys at the first look-up) say themselves what they will take:
they have a property `memory_bytes`. Of any other type the first objects and then one in `_EVERY` are measured, and the
others are taken to have the same ratio of memory to row length.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from polaris_spark.objects import Decoded

_FIRST = 8
"""Objects of a type that are all measured."""

_EVERY = 256
"""After them, one in so many is."""

_ALIGNMENT = 16
"""CPython's allocator gives memory in multiples of this."""


def deep_bytes(value: Any) -> int:
    """Bytes of memory of a decoded object with all that it alone holds: structs, containers, texts, numbers.

    What Python shares (small integers, empty tuples and strings, classes) counts as nothing; what is held twice within
    `value` counts once.
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
    """What decoded objects take in memory, by type; learns from those it sees.

    Threads that meet here may lose a measurement, no more."""

    def __init__(self) -> None:
        self._types: dict[str, _Seen] = {}

    def memory_bytes(self, decoded: Decoded, row_bytes: int) -> int:
        """About how many bytes of memory an object will take.

        Args:
            decoded: with its header.
            row_bytes: of all its rows.
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
    """Objects of one type so far, and the sizes of those that were measured."""

    __slots__ = ("memory_bytes", "number", "row_bytes", "says")

    def __init__(self, *, says: bool) -> None:
        self.says = says
        """Whether they say themselves what they take."""
        self.number = self.row_bytes = self.memory_bytes = 0


_HEADER_BYTES = 320
"""A header with its texts and empty tuples, and the pair that keeps it with the object."""
