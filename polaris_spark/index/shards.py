"""Shards: the immutable nodes of an index tree, as object types.

Leaves hold entries; branches hold children and the separator keys between them. Keys are front-coded: each
key is stored as the number of bytes that it shares with the previous key, and the remaining bytes. Separators are
cut to the shortest byte string that separates two children (Bayer and Unterauer, "Prefix B-trees", ACM TODS 2(1),
1977). Lists of lengths are MessagePack arrays, so msgspec decodes a row in C. The list of keys is built at the first
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
"""Bytes of a row besides the type name, the pointers and the fields: preamble, arrays of the header, revision."""

_ID_BYTES = 9

_BYTES_BYTES = 41
"""Memory of a `bytes` object besides its content, in bytes: Python's header, and the average loss from rounding up to
multiples of 16."""

_INT_BYTES = 32
"""Memory of an id, in bytes. Ids from 2**60 on, which are assigned from the year 2033 on, take 48 bytes."""


class FrontCoded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sorted byte strings, front-coded. For each string, `shared` holds the number of bytes that it shares with the
    previous string, and `lengths` the number of its remaining bytes. `rests` contains the remaining bytes of all
    strings, concatenated."""

    shared: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    rests: bytes = b""

    @classmethod
    def of(cls, keys: Sequence[bytes]) -> FrontCoded:
        """Return keys in front-coded form. They should be strictly ascending, but any sequence can be encoded and
        decoded again."""
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
        """Approximate memory, in bytes, including the result of `keys()`."""
        whole = sum(self.shared) + len(self.rests)
        return 2 * _BYTES_BYTES + len(self.rests) + whole + (25 + _BYTES_BYTES) * len(self.lengths)

    def keys(self) -> list[bytes]:
        """Decode and return the byte strings.

        Raises:
            CorruptionError: the lengths do not agree with each other.
        """
        rests = self.rests
        if len(self.shared) != len(self.lengths) or sum(self.lengths) != len(rests):
            raise CorruptionError(
                f"the front-coded keys of a shard are corrupt: they have lengths that do not agree "
                f"({len(self.shared)} shared lengths; {len(self.lengths)} other lengths, together "
                f"{sum(self.lengths)}; {len(rests)} bytes)"
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
"""Memory of a leaf without entries, in bytes: the structs, the dictionary of decoded attributes, lists and tuples."""

_BRANCH_BYTES = 700
"""Memory of a branch without children, in bytes."""


@object_type("leaf", revision=1)
class Leaf(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Entries in the order of their keys. If `some_pointers` is empty, all pointers are 0. If `value_lengths` is empty,
    all values are empty."""

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
        """Return a leaf with these entries. `front_coded` holds the same keys in front-coded form, if the caller
        already has this form; None computes it."""
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
        """The keys, ascending. Do not change the list. Raises CorruptionError if the keys cannot be decoded."""
        return self.front_coded.keys()

    @cached_property
    def pointers(self) -> tuple[int, ...]:
        """The pointer of every entry."""
        pointers = self.some_pointers or (0,) * len(self.front_coded.lengths)
        if len(pointers) != len(self.front_coded.lengths):
            raise CorruptionError(
                f"a leaf of an index is corrupt: it has {len(self.front_coded.lengths)} keys and "
                f"{len(pointers)} pointers"
            )
        return pointers

    @cached_property
    def values(self) -> list[bytes]:
        """The value of every entry. Do not change the list."""
        count = len(self.front_coded.lengths)
        if not self.value_lengths:
            return [b""] * count
        if len(self.value_lengths) != count or sum(self.value_lengths) != len(self.joined_values):
            raise CorruptionError(
                f"a leaf of an index is corrupt: it has {count} keys and {len(self.value_lengths)} values with a "
                f"total length of {sum(self.value_lengths)}, but {len(self.joined_values)} bytes of values"
            )
        values = []
        position = 0
        for length in self.value_lengths:
            values.append(self.joined_values[position : position + length])
            position += length
        return values

    def entry(self, position: int) -> Entry:
        """Return the entry of the key at a position in `keys`."""
        return Entry(self.pointers[position], self.values[position])

    @property
    def memory_bytes(self) -> int:
        """Approximate memory, in bytes, after the keys, pointers and values are decoded."""
        count = len(self.front_coded.lengths)
        values = 8 * count
        if self.value_lengths:
            some = count - self.value_lengths.count(0)
            values += 8 * count + 2 * len(self.joined_values) + _BYTES_BYTES * (some + 1)
        pointers = (8 + _INT_BYTES) * len(self.some_pointers) or 8 * count
        return _LEAF_BYTES + self.front_coded.memory_bytes + values + pointers

    @property
    def encoded_bytes(self) -> int:
        """The size of the row, in bytes."""
        fields = _encode((self.front_coded, self.value_lengths, self.joined_values))
        return _ROW_OVERHEAD + len("leaf") + len(fields) + _pointer_bytes(self.some_pointers)


@object_type("branch", revision=1)
class Branch(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Children in the order of their keys, with the number of entries below each child. There is one separator fewer
    than children: child `i` holds the keys from separator `i - 1`, inclusive, to separator `i`, exclusive."""

    front_coded: FrontCoded
    children: tuple[Strong, ...]
    counts: tuple[int, ...]

    @property
    def memory_bytes(self) -> int:
        """Approximate memory, in bytes, after the separators are decoded."""
        counts = sum([8 if count <= 256 else 40 for count in self.counts])
        pointers = (8 + _INT_BYTES) * len(self.children)
        return _BRANCH_BYTES + self.front_coded.memory_bytes + pointers + counts

    @cached_property
    def separators(self) -> list[bytes]:
        """The separators, ascending. Do not change the list.

        Raises:
            CorruptionError: the separators cannot be decoded, or their number does not match the number of children.
        """
        separators = self.front_coded.keys()
        if not len(separators) + 1 == len(self.children) == len(self.counts):
            raise CorruptionError(
                f"a branch of an index is corrupt: it has {len(self.children)} children, {len(separators)} "
                f"separators between them and {len(self.counts)} counts"
            )
        return separators


Shard: TypeAlias = Leaf | Branch


def branch_bytes(front_coded: FrontCoded, counts: Sequence[int]) -> int:
    """Return the size that the row of a branch will have, in bytes, before its children have ids."""
    fields = _encode((front_coded, counts))
    return _ROW_OVERHEAD + len("branch") + len(fields) + _pointer_bytes((1,) * len(counts))


def shared_length(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix of `a` and `b`, in bytes."""
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    if a == b:
        return length
    difference = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return length - (difference.bit_length() + 7) // 8


def separator(before: bytes, after: bytes) -> bytes:
    """Return the shortest byte string `s` with `before` < `s` <= `after`. `before` must be less than `after`."""
    return after[: shared_length(before, after) + 1]


def _pointer_bytes(pointers: Sequence[int]) -> int:
    """Return the number of bytes that pointers take in a row: the ids in the header, and their positions in the payload
    (an array of small integers)."""
    present = sum(map(bool, pointers))
    positions = [*range(1, present + 1), *([0] * (len(pointers) - present))]
    head = 1 if present < 16 else 3 if present < 65536 else 5
    return head + present * _ID_BYTES + len(_encode(positions))
