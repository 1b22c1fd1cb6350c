"""The cache of objects: it is bounded in bytes, shared, and empty in a forked child."""

from __future__ import annotations

import os
import threading

from polaris_spark.objects import Decoded, Header
from polaris_spark.store.cache import ENTRY_BYTES, ObjectCache
from polaris_spark.testing.processes import exit_status

VALUE = Decoded(Header("x", 1), None)


def test_what_was_put_is_found_and_nothing_else() -> None:
    cache = ObjectCache()
    space = cache.space("store", "realm")
    cache.put((space, 1), VALUE, 100)
    assert cache.get((space, 1)) is VALUE
    assert cache.get((space, 2)) is None
    assert cache.get((cache.space("store", "other"), 1)) is None
    assert cache.space("store", "realm") == space


def test_the_bytes_of_all_entries_stay_below_the_capacity() -> None:
    cache = ObjectCache(100_000)
    for id in range(1_000):
        cache.put((0, id), VALUE, id * 7 % 5_000)
        assert cache.bytes <= 100_000
    assert cache.bytes == sum(id * 7 % 5_000 + ENTRY_BYTES for id in range(1_000) if cache.get((0, id)))


def test_the_least_recently_used_leaves_first() -> None:
    cache = ObjectCache(10 * (100 + ENTRY_BYTES))
    for id in range(10):
        cache.put((0, id), VALUE, 100)
    cache.get((0, 0))
    cache.put((0, 10), VALUE, 100)
    assert cache.get((0, 0)) is VALUE
    assert cache.get((0, 1)) is None


def test_an_object_of_more_than_an_eighth_of_the_cache_is_not_kept() -> None:
    cache = ObjectCache(80_000)
    cache.put((0, 1), VALUE, 10_000)
    assert len(cache) == 0
    cache.put((0, 1), VALUE, 10_000 - ENTRY_BYTES)
    assert len(cache) == 1


def test_putting_an_object_again_counts_it_once() -> None:
    cache = ObjectCache()
    for _ in range(3):
        cache.put((0, 1), VALUE, 100)
    assert cache.bytes == 100 + ENTRY_BYTES
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_all_callers_share_one_capacity() -> None:
    cache = ObjectCache()
    capacities = []
    for asked in (1_000, 3_000, 2_000):
        cache.provide(asked)
        capacities.append(cache.capacity)
    assert capacities == [1_000, 3_000, 3_000]


def test_a_smaller_capacity_makes_room_at_once() -> None:
    cache = ObjectCache()
    for id in range(100):
        cache.put((0, id), VALUE, 1_000)
    cache.resize(10 * (1_000 + ENTRY_BYTES))
    assert len(cache) == 10
    assert cache.get((0, 99)) is VALUE


def test_threads_may_read_and_put_at_once() -> None:
    cache = ObjectCache(50_000)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in range(5_000):
            id = (n * seed) % 97
            found = cache.get((0, id))
            if found is not None and found.header.revision != id:
                wrong.append(id)
            cache.put((0, id), Decoded(Header("x", id), None), 1_000)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 5, 11, 29)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.bytes == len(cache) * (1_000 + ENTRY_BYTES) <= 50_000


def test_a_forked_child_starts_empty_and_needs_no_lock_of_its_parent() -> None:
    cache = ObjectCache()
    cache.put((0, 1), VALUE, 100)
    with cache._lock:  # as another thread of the parent would hold it
        child = os.fork()
        if child == 0:
            empty = len(cache) == 0 and cache.bytes == 0
            cache.put((0, 2), VALUE, 100)
            os._exit(0 if empty and cache.get((0, 2)) else 1)
    assert exit_status(child) == 0
    assert cache.get((0, 1)) is VALUE
