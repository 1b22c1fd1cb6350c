"""Bytes that an index writes per commit, by quota of the embedded part and size of shards. Prints a table.

    python benchmarks/index_sizes.py [--tables 100000] [--commits 2000] [--access uniform|hot|append]

Every commit changes one key and freezes. `embedded` is what the root takes in the commit's row, `shards` the
rows of new shards, both as averages over commits; `spill` is how many shards a spill writes. `uniform` picks
any table, `hot` one of a hundredth of the tables nine times in ten, `append` adds keys in the order of time
and cuts off all but the last thousand (the index of operations).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count, islice

import msgspec

from polaris_spark import objects
from polaris_spark.index import Entry, Index, IndexRoot, IndexSettings, Shard
from polaris_spark.index.entries import embedded_size

SEED = 20250301
LIVE_OPERATIONS = 1000
SHARD_BYTES = ((2048, 680), (4096, 1360), (6144, 2048), (8192, 2720))
QUOTAS = (2048, 3072, 4096, 6144, 8192)
KEEPS = (0.0, 0.125, 0.25)


class Store:
    """Shards in memory, and ids as large as real ones."""

    def __init__(self) -> None:
        self._shards: dict[int, Shard] = {}
        self._ids = count(1 << 60)

    def read(self, ids: Collection[int]) -> Mapping[int, Shard]:
        return {id: self._shards[id] for id in ids}

    def write(self, shards: list[tuple[int, Shard]]) -> int:
        """Store the shards; return the total size of their rows, in bytes."""
        self._shards.update(shards)
        return sum(len(objects.encode(shard)) for _, shard in shards)

    def new_id(self) -> int:
        return next(self._ids)


def table_key(number: int) -> bytes:
    return b"\x02ns\x01ttable_%06d" % number


def keys_of(access: str, tables: int, choice: random.Random) -> Iterator[bytes]:
    for step in count():
        if access == "append":
            yield (step + tables).to_bytes(6, "big") + choice.randbytes(10) + b"/principal"
        elif access == "hot" and choice.random() < 0.9:
            yield table_key(choice.randrange(0, tables, 100))
        else:
            yield table_key(choice.randrange(tables))


def measure(
    options: argparse.Namespace, root: IndexRoot, store: Store, quota: int, settings: IndexSettings
) -> tuple[float, ...]:
    """Return averages: embedded bytes, shard bytes and their sum per commit, shards per spill, commits per spill."""
    access, tables, commits = options.access, options.tables, options.commits
    choice = random.Random(SEED)
    value = choice.randbytes(32) if access == "append" else b""
    keys = keys_of(access, tables, choice)
    embedded = written = shards = spills = 0
    for step, key in enumerate(islice(keys, 2 * commits)):
        index = Index(root, store.read, settings)
        index.put(key, Entry(0 if value else store.new_id(), value))
        floor = (step + tables - LIVE_OPERATIONS).to_bytes(6, "big") if access == "append" else None
        root, new = index.freeze(quota, store.new_id, floor=floor)
        size = store.write(new)
        if step >= commits:
            embedded += root_bytes(root)
            written += size
            shards += len(new)
            spills += bool(new)
    total = embedded + written
    return (
        embedded / commits,
        written / commits,
        total / commits,
        shards / max(spills, 1),
        commits / max(spills, 1),
    )


def built(tables: int, store: Store, settings: IndexSettings) -> IndexRoot:
    """Return the index of a catalog whose tables were created in random order, a thousand at a time."""
    order = list(range(tables))
    random.Random(SEED).shuffle(order)
    root = IndexRoot()
    for low in range(0, tables, 1000):
        index = Index(root, store.read, settings)
        for number in order[low : low + 1000]:
            index.put(table_key(number), Entry(store.new_id()))
        root, new = index.freeze(0, store.new_id)
        store.write(new)
    return root


def root_bytes(root: IndexRoot) -> int:
    """Return the size of a root in the row of its commit, in bytes: its fields, and its pointers in the header."""
    pointers = [pointer for pointer in root.pointers if pointer]
    fields = (1, root.height, root.count, root.keys, [0] * len(root.pointers), root.values)
    return len(msgspec.msgpack.encode(fields)) + 10 * len(pointers)


def main(show: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--access", choices=("uniform", "hot", "append"), default="uniform")
    options = parser.parse_args()
    show(f"{options.access} access, {options.tables} tables, {options.commits} commits, seed {SEED}")
    show(f"an embedded change takes {embedded_size(table_key(0), 1, b'')} bytes")
    titles = ("max", "keep", "quota", "embedded", "shards", "total", "spill", "every")
    show("{:>6} {:>6} {:>6} {:>9} {:>7} {:>7} {:>6} {:>6}".format(*titles))
    for largest, smallest in SHARD_BYTES:
        store, root = Store(), IndexRoot()
        if options.access != "append":
            sizes = IndexSettings(max_shard_bytes=largest, min_shard_bytes=smallest)
            root = built(options.tables, store, sizes)
        for keep in KEEPS:
            settings = IndexSettings(max_shard_bytes=largest, min_shard_bytes=smallest, keep=keep)
            for quota in QUOTAS:
                row = measure(options, root, store, quota, settings)
                show(
                    f"{largest:6} {keep:6} {quota:6} "
                    "{:9.0f} {:7.0f} {:7.0f} {:6.1f} {:6.1f}".format(*row)
                )


if __name__ == "__main__":
    main()
