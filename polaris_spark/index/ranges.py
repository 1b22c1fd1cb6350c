"""Division of an index into ranges of keys of about equal size, which are read in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from polaris_spark.errors import CorruptionError
from polaris_spark.index.root import IndexRoot, ShardReader, as_branch
from polaris_spark.index.shards import Shard


class CountedRange(NamedTuple):
    """Keys from `start` (included) to `end` (excluded; None: to the last key), and their approximate number."""

    start: bytes
    end: bytes | None
    entries: int


def key_ranges(
    root: IndexRoot, read: ShardReader, start: bytes, end: bytes | None, n: int
) -> list[CountedRange]:
    """Divide the keys from `start`, inclusive, to `end`, exclusive (None: to the last), into about `n` ranges of about
    equal size, by reading the upper levels of the tree.

    Leaves are not read. The ranges divide only the tree. Each reader of a range must also apply the embedded changes
    of the keys in its range, as `Index.range` does.
    """
    embedded = sum(1 for key in root.keys if key >= start and (end is None or key < end))
    if not root.shard:
        return [CountedRange(start, end, embedded)]
    level = [(b"", root.shard, root.count)]
    for _ in range(root.height):
        if len(level) >= 2 * n:
            break
        shards = read([id for _, id, _ in level])
        level = [child for lower, id, _ in level for child in _children(lower, id, shards)]
        level = _overlapping(level, start, end)
    lowers = [lower for lower, _, _ in level]
    counts = [count for _, _, count in level]
    runs = grouped(counts, n)
    starts = [start, *[max(start, lowers[run.start]) for run in runs[1:]]]
    ends = [*starts[1:], end]
    return [
        CountedRange(low, high, sum(counts[i] for i in run) + embedded // len(runs))
        for low, high, run in zip(starts, ends, runs, strict=True)
    ]


def _children(lower: bytes, id: int, shards: Mapping[int, Shard]) -> list[tuple[bytes, int, int]]:
    shard = shards.get(id)
    if shard is None:
        raise CorruptionError(f"shard {id} of an index is missing")
    branch = as_branch(shard, id)
    return list(zip([lower, *branch.separators], branch.children, branch.counts, strict=True))


def _overlapping(
    level: list[tuple[bytes, int, int]], start: bytes, end: bytes | None
) -> list[tuple[bytes, int, int]]:
    uppers: list[bytes | None] = [lower for lower, _, _ in level[1:]]
    return [
        child
        for child, upper in zip(level, [*uppers, None], strict=True)
        if (upper is None or upper > start) and (end is None or child[0] < end)
    ]


def grouped(weights: Sequence[int], n: int) -> list[range]:
    """Divide the positions of `weights` into at most `n` non-empty consecutive ranges of about equal total weight."""
    goal = max(1, -(-sum(weights) // max(1, n)))
    runs: list[range] = []
    start = weight = 0
    for position, one in enumerate(weights):
        weight += one
        if weight >= goal:
            runs.append(range(start, position + 1))
            start, weight = position + 1, 0
    if start < len(weights):
        if runs and not weight:  # so that there are not more than `n`
            start = runs.pop().start
        runs.append(range(start, len(weights)))
    return runs
