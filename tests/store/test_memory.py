"""The memory of decoded objects: the cache's estimate compared with Python's allocations."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from polaris_spark import objects
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.index import Branch, Entry, Index, IndexRoot, IndexSettings, Leaf, Shard
from polaris_spark.objects import Decoded, Header, object_type
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.memory import Footprints, deep_bytes
from polaris_spark.store.objects import ObjectStore

FIRST_ID = 1 << 57


@object_type("test-memory", revision=1)
class Note(msgspec.Struct, frozen=True, array_like=True):
    labels: dict[str, str]
    numbers: tuple[int, ...] = ()


def shards(key: Callable[[int], bytes], entry: Callable[[int], Entry], n: int = 3_000) -> dict[int, Shard]:
    """The shards of an index of `n` entries."""
    settings = IndexSettings(max_shard_bytes=3_000, min_shard_bytes=1_000)
    index = Index(IndexRoot(), lambda _: {}, settings)
    for number in range(n):
        index.put(key(number), entry(number))
    ids = iter(range(FIRST_ID, FIRST_ID + n))
    return dict(index.freeze(0, ids.__next__)[1])


NAMES = shards(
    lambda n: b"\x02namespace_%05d\x01ttable_%06d" % (n // 100, n),
    lambda n: Entry(FIRST_ID + n, (FIRST_ID - n).to_bytes(8, "big")),
)
IDS = shards(
    lambda n: (FIRST_ID + 5 * n).to_bytes(8, "big"),
    lambda n: Entry(value=b"\x02namespace_%05d\x01ttable_%06d" % (n // 100, n)),
)
LOCATIONS = shards(
    lambda n: b"\x02file://\x02warehouse\x02ns_%05d\x02t-%s\x01l%x" % (n, random.Random(n).randbytes(18), n),
    lambda n: Entry(value=n.to_bytes(8, "big")),
)


def read_back(shard: Shard) -> Decoded:
    """Return a shard as decoded from its row."""
    return objects.decode(objects.encode(shard), "test")


def look_into(shard: Shard) -> None:
    """Make a shard decode everything that look-ups need."""
    _ = (shard.keys, shard.pointers, shard.values) if isinstance(shard, Leaf) else shard.separators


@pytest.mark.parametrize("content", [NAMES, IDS, LOCATIONS], ids=["names", "ids", "locations"])
def test_the_estimate_for_a_shard_includes_the_parts_that_look_ups_decode(content: dict[int, Shard]) -> None:
    footprints, said, taken = Footprints(), 0, 0
    for shard in content.values():
        decoded = read_back(shard)
        said += footprints.memory_bytes(decoded, len(objects.encode(shard)))
        assert isinstance(decoded.value, (Leaf, Branch))
        look_into(decoded.value)
        taken += deep_bytes(decoded)
    assert 0.95 * taken <= said <= 1.15 * taken


def test_a_shard_takes_several_times_its_row() -> None:
    rows = sum(len(objects.encode(shard)) for shard in NAMES.values())
    footprints = Footprints()
    memory = sum(footprints.memory_bytes(read_back(shard), 0) for shard in NAMES.values())
    assert memory > 4 * rows


def test_of_other_types_some_are_measured_and_all_together_are_right() -> None:
    chance, footprints, said, taken = random.Random(1), Footprints(), 0, 0
    for number in range(2_000):
        note = Note(
            {f"key {n} of {number}": "x" * n for n in range(chance.randrange(1, 60))}, (number + 300,)
        )
        data = objects.encode(note)
        decoded = objects.decode(data, "test")
        said += footprints.memory_bytes(decoded, len(data))
        taken += deep_bytes(decoded)
    assert 0.9 * taken <= said <= 1.1 * taken


def test_objects_referenced_twice_count_once_and_shared_constants_do_not_count() -> None:
    text = "x" * 1_000
    once, twice = deep_bytes([text]), deep_bytes([text, text])
    assert twice - once <= 16
    assert deep_bytes((None, True, 7, "", b"", ())) == deep_bytes((None,) * 6)


def test_an_object_whose_type_is_not_installed_counts_its_header() -> None:
    decoded = Decoded(Header("unknown", 1, tuple(range(FIRST_ID, FIRST_ID + 100))), None)
    assert Footprints().memory_bytes(decoded, 1_000) == deep_bytes(decoded) > 100 * 32


def test_a_full_cache_takes_about_as_much_memory_as_it_may() -> None:
    backend, capacity = MemoryBackend(), 4 * 2**20
    backend.setup()
    ObjectStore(backend, "realm", ObjectCache(), store_key="writer").write(
        [
            *NAMES.items(),
            *((id + 10**6, shard) for id, shard in IDS.items()),
            *((id + 2 * 10**6, Note({f"key {id}": "v" * 40}, (id,))) for id in NAMES),
        ]
    )
    everything = [*NAMES, *(id + 10**6 for id in IDS), *(id + 2 * 10**6 for id in NAMES)]
    tracemalloc.start()
    try:
        cache = ObjectCache(capacity)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20):
            # Each store has a space of its own, so the same rows are other objects of the cache.
            store = ObjectStore(backend, "realm", cache, store_key=str(number))
            for id in everything:
                value = store.read([id])[id].value
                if isinstance(value, (Leaf, Branch)):
                    look_into(value)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.bytes > 0.98 * capacity
    assert 0.8 * capacity < after - before < 1.1 * capacity
