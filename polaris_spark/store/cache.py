"""The cache of immutable objects: one per process, bounded by bytes of memory, least recently used leaves first.

Objects never change, so nothing is ever invalidated. (cachetools' LRU is not thread-safe and, being written
in Python, takes longer under a lock than the whole read through this one may take.)
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import OrderedDict
from itertools import count

from polaris_spark.objects import Decoded
from polaris_spark.store.memory import Footprints

DEFAULT_BYTES = 128 * 2**20
"""Capacity unless told otherwise."""

ENTRY_BYTES = 320
"""Added to an object's own bytes for what its entry takes: key, size, and places in a dictionary and a linked list."""

Key = tuple[int, int]
"""A space (one realm of one store) and an object's id."""


class ObjectCache:
    """Decoded objects by space and id. Thread-safe; a forked child starts with an empty one."""

    def __init__(self, capacity: int = DEFAULT_BYTES) -> None:
        self.capacity = capacity
        self.footprints = Footprints()
        """How much memory objects take: what `put` is to be told."""
        self._asked = 0
        self._entries: OrderedDict[Key, tuple[Decoded, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._spaces: dict[tuple[str, str], int] = {}
        self._numbers = count()
        _caches.add(self)

    def space(self, store_key: str, realm: str) -> int:
        """A small number for a realm of a store, the first part of its keys."""
        with self._lock:
            number = self._spaces.get((store_key, realm))
            if number is None:
                number = self._spaces[store_key, realm] = next(self._numbers)
            return number

    def get(self, key: Key) -> Decoded | None:
        """The object, now the most recently used, or None. Takes no lock: each step is atomic by itself."""
        try:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        except KeyError:
            return None

    def put(self, key: Key, value: Decoded, size: int) -> None:
        """Keep an object that takes `size` bytes of memory; one of more than an eighth of the capacity is not kept."""
        size += ENTRY_BYTES
        if size * 8 > self.capacity:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = (value, size)
            self._bytes += size
            while self._bytes > self.capacity:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def resize(self, capacity: int) -> None:
        """Change the capacity, in bytes, making room at once."""
        with self._lock:
            self._resize(capacity)

    def provide(self, capacity: int) -> None:
        """Change the capacity to the largest that was asked for in this way, in bytes."""
        with self._lock:
            self._asked = max(self._asked, capacity)
            self._resize(self._asked)

    def _resize(self, capacity: int) -> None:
        self.capacity = capacity
        while self._bytes > self.capacity:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """What the entries count for, in bytes."""
        return self._bytes

    def __contains__(self, key: Key) -> bool:
        """Whether an object is here; it is not used by that."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _start_in_child(self) -> None:
        self._lock = threading.Lock()
        self._entries = OrderedDict()
        self._bytes = 0


_caches: weakref.WeakSet[ObjectCache] = weakref.WeakSet()
_of_process = ObjectCache()


def process_cache() -> ObjectCache:
    """The cache that all stores of this process share."""
    return _of_process


def _after_fork_in_child() -> None:
    for cache in _caches:
        cache._start_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def collect_seldom() -> None:
    """Have Python look for cycles less often, in a process that does nothing but serve catalogs.

    Modules, shards and whatever else lives long have no cycles to be found; looking through them again and again takes
    time from requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
