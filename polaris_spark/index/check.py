"""Consistency check of an index tree: finds missing shards and violated invariants, as a file-system check does for
files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import MAX_KEY_BYTES
from polaris_spark.index.root import IndexRoot, ShardReader
from polaris_spark.index.shards import Branch, Leaf, Shard

_BATCH = 64


class Fault(NamedTuple):
    """A violation of an invariant of the index."""

    shard: int
    """Id of the shard with the fault; 0 for the index root, which is not a shard of its own."""
    message: str
    """Description of the fault, in one sentence."""


class ExpectedShard(NamedTuple):
    """The values that a parent stores about one of its shards. All keys in and below the shard are at least `lower` and
    less than `upper` (None: no bound); `entries` is the number of these keys."""

    id: int
    lower: bytes
    upper: bytes | None
    entries: int
    height: int
    """Number of levels of the tree below the shard; 0 for a leaf."""


def check(root: IndexRoot, read: ShardReader, sound: set[ExpectedShard] | None = None) -> Iterator[Fault]:
    """Yield the faults of an index; nothing if it is sound.

    Finds missing and unreadable shards, keys that are unsorted or outside the bounds of their shard, wrong
    counts, invalid tree shapes, and faults of the embedded part. The shards of a level are read in batches.

    Args:
        sound: shards that earlier calls have checked; they are not checked again. This call adds the shards that it
            checks. Versions of one index share most of their shards.
    """
    for message in _embedded_problems(root):
        yield Fault(0, message)
    if not root.shard:
        if root.height or root.count:
            yield Fault(0, f"an empty tree has height {root.height} and {root.count} entries")
        return
    seen = set() if sound is None else sound
    place = ExpectedShard(root.shard, b"", None, root.count, root.height)
    if place not in seen:
        seen.add(place)
        yield from _level_problems([place], read, seen)


def _embedded_problems(root: IndexRoot) -> Iterator[str]:
    if not len(root.keys) == len(root.pointers) == len(root.values):
        yield (
            f"the embedded part has {len(root.keys)} keys, {len(root.pointers)} pointers "
            f"and {len(root.values)} values"
        )
    if len(set(root.keys)) < len(root.keys):
        yield "the embedded part contains a key twice"
    for key, pointer, value in zip(root.keys, root.pointers, root.values, strict=False):
        if len(key) > MAX_KEY_BYTES:
            yield f"an embedded key has {len(key)} bytes, over the limit of {MAX_KEY_BYTES}"
        if value is None and pointer:
            yield f"the embedded key {key!r} is marked as removed, but points to {pointer}"


def _level_problems(
    places: Sequence[ExpectedShard], read: ShardReader, seen: set[ExpectedShard]
) -> Iterator[Fault]:
    for start in range(0, len(places), _BATCH):
        some = places[start : start + _BATCH]
        shards = _found([place.id for place in some], read)
        below: list[ExpectedShard] = []
        for place in some:
            shard = shards[place.id]
            try:
                if isinstance(shard, str):
                    yield Fault(place.id, shard)
                    continue
                yield from [Fault(place.id, message) for message in _shard_problems(shard, place)]
                if place.height and isinstance(shard, Branch):
                    below += [child for child in _children(shard, place) if child not in seen]
            except CorruptionError as error:
                yield Fault(place.id, f"shard {place.id}: {error}")
        if below:
            seen.update(below)
            yield from _level_problems(below, read, seen)


def _shard_problems(shard: Shard, place: ExpectedShard) -> Iterator[str]:
    if place.height and isinstance(shard, Branch):
        yield from _branch_problems(shard, place)
    elif not place.height and isinstance(shard, Leaf):
        yield from _leaf_problems(shard, place)
    else:
        kind, expected = type(shard).__name__.lower(), "branch" if place.height else "leaf"
        yield f"shard {place.id} is a {kind} instead of a {expected}"


def _found(ids: Sequence[int], read: ShardReader) -> Mapping[int, Shard | str]:
    """Return shards by id. For an unreadable or missing shard, the value is a message that says what is wrong."""
    try:
        found = read(ids)
    except CorruptionError as error:
        if len(ids) == 1:
            return {ids[0]: str(error)}
        return {id: problem for one in ids for id, problem in _found([one], read).items()}
    return {id: found.get(id, f"shard {id} is missing") for id in ids}


def _children(branch: Branch, place: ExpectedShard) -> list[ExpectedShard]:
    bounds = [place.lower, *branch.separators, place.upper]
    pairs = zip(branch.children, branch.counts, strict=True)
    return [
        ExpectedShard(id, bounds[i] or b"", bounds[i + 1], count, place.height - 1)
        for i, (id, count) in enumerate(pairs)
    ]


def _branch_problems(branch: Branch, place: ExpectedShard) -> Iterator[str]:
    yield from _order_problems(branch.separators, place, "separators")
    if len(branch.children) < 2:
        yield f"shard {place.id} is a branch with only one child"
    if not all(branch.children):
        yield f"shard {place.id} is a branch with a child whose id is 0, which is not the id of a shard"
    if sum(branch.counts) != place.entries:
        yield f"shard {place.id} counts {sum(branch.counts)} entries below it, but its parent counts {place.entries}"


def _leaf_problems(leaf: Leaf, place: ExpectedShard) -> Iterator[str]:
    keys = leaf.keys
    yield from _order_problems(keys, place, "keys")
    if not keys:
        yield f"shard {place.id} is a leaf without entries"
    if len(keys) != place.entries:
        yield f"shard {place.id} has {len(keys)} entries, but its parent counts {place.entries}"
    _ = leaf.pointers, leaf.values
    longest = max(map(len, keys), default=0)
    if longest > MAX_KEY_BYTES:
        yield f"shard {place.id} has a key of {longest} bytes, over the limit of {MAX_KEY_BYTES}"


def _order_problems(keys: Sequence[bytes], place: ExpectedShard, what: str) -> Iterator[str]:
    if any(a >= b for a, b in pairwise(keys)):
        yield f"shard {place.id} has {what} that are not in ascending order"
    if keys and (min(keys) < place.lower or (place.upper is not None and max(keys) >= place.upper)):
        yield f"shard {place.id} has {what} outside its bounds, {place.lower!r} to {place.upper!r}"
