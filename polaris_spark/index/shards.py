"""Shards: the immutable nodes of an index tree, as object types.

Leaves hold entries, branches hold children and the separator keys between them. Keys are front-coded (each
key as the number of bytes that it shares with the one before, and the rest) and separators are cut to the
shortest that separates, as in Bayer and Unterauer, "Prefix B-trees" (ACM TODS 2(1), 1977). Lists of lengths
are MessagePack arrays, so decoding a row is msgspec's work in C; the list of keys is built at the first
look-up and kept with the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec

from polaris_spark.errors import CorruptionError
from polaris_spark.index.entries import Entry
from polaris_spark.objects import Strong, object_type

_encode = msgspec.msgpack.Encoder().encode

_ROW_OVERHEAD = 11
"""Bytes of a row besides the type name, the pointers and the fields: preamble, header's arrays, revision."""

_ID_BYTES = 9

_BYTES_BYTES = 41
"""Memory of a byte string besides its bytes: Python's header, and half of what rounding up to 16 adds, on average."""

_INT_BYTES = 32
"""Memory of an id (48 from 2**60 on, which is in the year 2033)."""


class FrontCoded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sorted byte strings: bytes shared with the one before, lengths of the rests, and the rests joined."""

    shared: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    rests: bytes = b""

    @classmethod
    def of(cls, keys: Sequence[bytes]) -> FrontCoded:
        """Front-code keys (strictly ascending, but any sequence survives the round trip)."""
        shared: list[int] = []
        rests: list[bytes] = []
        previous = b""
        for key in keys:
            common = shared_length(previous, key)
            shared.append(common)
            rests.append(key[common:])
            previous = key
        return cls(tuple(shared), tuple(map(len, rests)), b"".join(rests))

    @property
    def memory_bytes(self) -> int:
        """About the bytes of memory that it takes together with `keys()`."""
        whole = sum(self.shared) + len(self.rests)
        return 2 * _BYTES_BYTES + len(self.rests) + whole + (25 + _BYTES_BYTES) * len(self.lengths)

    def keys(self) -> list[bytes]:
        """The byte strings again.

        Raises:
            CorruptionError: the lengths do not agree with each other.
        """
        rests = self.rests
        if len(self.shared) != len(self.lengths) or sum(self.lengths) != len(rests):
            raise CorruptionError(
                f"a front-coded list of {len(self.lengths)} keys has lengths that do not agree"
            )
        keys = []
        key, position = b"", 0
        for common, length in zip(self.shared, self.lengths, strict=True):
            end = position + length
            key = key[:common] + rests[position:end]
            keys.append(key)
            position = end
        return keys


_LEAF_BYTES = 950
"""Memory of a leaf without entries: the structs, the dictionary of what was decoded, lists and tuples."""

_BRANCH_BYTES = 700
"""The same of a branch."""


@object_type("leaf", revision=1)
class Leaf(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Entries in the order of their keys. No pointers at all stands for all 0, no value lengths for all
    empty."""

    front_coded: FrontCoded
    some_pointers: tuple[Strong, ...] = ()
    value_lengths: tuple[int, ...] = ()
    joined_values: bytes = b""

    @classmethod
    def of(
        cls,
        keys: list[bytes],
        pointers: Sequence[int],
        values: list[bytes],
        front_coded: FrontCoded | None = None,
    ) -> Leaf:
        """A leaf of these entries; `front_coded` are the same keys, where they are at hand already."""
        some = any(values)
        leaf = cls(
            FrontCoded.of(keys) if front_coded is None else front_coded,
            tuple(pointers) if any(pointers) else (),
            tuple(map(len, values)) if some else (),
            b"".join(values) if some else b"",
        )
        leaf.__dict__["keys"] = keys
        return leaf

    @cached_property
    def keys(self) -> list[bytes]:
        """The keys, ascending; not to be changed. Raises CorruptionError if they cannot be decoded."""
        return self.front_coded.keys()

    @cached_property
    def pointers(self) -> tuple[int, ...]:
        """The pointer of every entry."""
        pointers = self.some_pointers or (0,) * len(self.front_coded.lengths)
        if len(pointers) != len(self.front_coded.lengths):
            raise CorruptionError(
                f"a leaf of {len(self.front_coded.lengths)} keys has {len(pointers)} pointers"
            )
        return pointers

    @cached_property
    def values(self) -> list[bytes]:
        """The value of every entry; not to be changed."""
        count = len(self.front_coded.lengths)
        if not self.value_lengths:
            return [b""] * count
        if len(self.value_lengths) != count or sum(self.value_lengths) != len(self.joined_values):
            raise CorruptionError(f"a leaf of {count} keys has values whose lengths do not agree")
        values = []
        position = 0
        for length in self.value_lengths:
            values.append(self.joined_values[position : position + length])
            position += length
        return values

    def entry(self, position: int) -> Entry:
        """The entry at a position of `keys`."""
        return Entry(self.pointers[position], self.values[position])

    @property
    def memory_bytes(self) -> int:
        """About the bytes of memory that it takes once keys, pointers and values are decoded."""
        count = len(self.front_coded.lengths)
        values = 8 * count
        if self.value_lengths:
            some = count - self.value_lengths.count(0)
            values += 8 * count + 2 * len(self.joined_values) + _BYTES_BYTES * (some + 1)
        pointers = (8 + _INT_BYTES) * len(self.some_pointers) or 8 * count
        return _LEAF_BYTES + self.front_coded.memory_bytes + values + pointers

    @property
    def encoded_bytes(self) -> int:
        """The size of the row."""
        fields = _encode((self.front_coded, self.value_lengths, self.joined_values))
        return _ROW_OVERHEAD + len("leaf") + len(fields) + _pointer_bytes(self.some_pointers)


@object_type("branch", revision=1)
class Branch(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Children in order, with the number of entries below each, and one separator fewer than children: child
    `i` holds the keys from separator `i - 1` on and before separator `i`."""

    front_coded: FrontCoded
    children: tuple[Strong, ...]
    counts: tuple[int, ...]

    @property
    def memory_bytes(self) -> int:
        """About the bytes of memory that it takes once the separators are decoded."""
        counts = sum([8 if count <= 256 else 40 for count in self.counts])
        pointers = (8 + _INT_BYTES) * len(self.children)
        return _BRANCH_BYTES + self.front_coded.memory_bytes + pointers + counts

    @cached_property
    def separators(self) -> list[bytes]:
        """The separators, ascending; not to be changed.

        Raises:
            CorruptionError: they cannot be decoded, or do not fit the number of children.
        """
        separators = self.front_coded.keys()
        if not len(separators) + 1 == len(self.children) == len(self.counts):
            raise CorruptionError(
                f"a branch has {len(self.children)} children, {len(separators)} separators between them "
                f"and {len(self.counts)} counts"
            )
        return separators


Shard: TypeAlias = Leaf | Branch


def branch_bytes(front_coded: FrontCoded, counts: Sequence[int]) -> int:
    """The size of the row that a branch will have, before its children have ids."""
    fields = _encode((front_coded, counts))
    return _ROW_OVERHEAD + len("branch") + len(fields) + _pointer_bytes((1,) * len(counts))


def shared_length(a: bytes, b: bytes) -> int:
    """How many bytes `a` and `b` have in common at the beginning."""
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    if a == b:
        return length
    difference = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return length - (difference.bit_length() + 7) // 8


def separator(before: bytes, after: bytes) -> bytes:
    """The shortest byte string over `before` and not over `after` (`before` < `after`)."""
    return after[: shared_length(before, after) + 1]


def _pointer_bytes(pointers: Sequence[int]) -> int:
    """Bytes of pointers in a row: ids in the header, positions in the payload (an array of small
    integers)."""
    present = sum(map(bool, pointers))
    positions = [*range(1, present + 1), *([0] * (len(pointers) - present))]
    head = 1 if present < 16 else 3 if present < 65536 else 5
    return head + present * _ID_BYTES + len(_encode(positions))
