"""Least-recently-used (LRU) cache of immutable objects: one per process, bounded in bytes of memory.

Objects never change, so entries are never invalidated. The LRU cache of cachetools is not used: it is not thread-safe,
so each access would need a lock, and it is written in Python, which makes it slower than this cache.
"""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from itertools import count

from polaris_spark.forks import begin_anew_in_children
from polaris_spark.objects import Decoded
from polaris_spark.store.memory import Footprints

DEFAULT_BYTES = 128 * 2**20
"""Default capacity, in bytes."""

ENTRY_BYTES = 320
"""Overhead of an entry, in bytes, added to the object's own size: key, size, and slots in a dictionary and a linked
list."""

Key = tuple[int, int]
"""Key of an entry: the number of a space (one realm of one store), and an object id."""


class ObjectCache:
    """Decoded objects, by realm and object id. Thread-safe; a forked child starts with an empty cache."""

    def __init__(self, capacity: int = DEFAULT_BYTES) -> None:
        self.capacity = capacity
        self.footprints = Footprints()
        """Estimates of the memory that objects take, from which callers of `put` get its argument `size`."""
        self._asked = 0
        self._entries: OrderedDict[Key, tuple[Decoded, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._spaces: dict[tuple[str, str], int] = {}
        self._numbers = count()
        begin_anew_in_children(self)

    def space(self, store_key: str, realm: str) -> int:
        """Return the number that stands for a realm of a store in this cache. The key of each object of the realm
        begins with this number."""
        with self._lock:
            number = self._spaces.get((store_key, realm))
            if number is None:
                number = self._spaces[store_key, realm] = next(self._numbers)
            return number

    def get(self, key: Key) -> Decoded | None:
        """Return the object and mark it as the most recently used; None if it is not cached. No lock is needed, because
        each step is atomic."""
        try:
            self._entries.move_to_end(key)
            return self._entries[key][0]
        except KeyError:
            return None

    def put(self, key: Key, value: Decoded, size: int) -> None:
        """Cache an object that takes `size` bytes of memory, unless it takes more than an eighth of the capacity."""
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
        """Change the capacity, in bytes. Entries that no longer fit are evicted at once."""
        with self._lock:
            self._resize(capacity)

    def provide(self, capacity: int) -> None:
        """Request a capacity, in bytes. The cache gets the largest capacity that was requested by any call of this
        method."""
        with self._lock:
            self._asked = max(self._asked, capacity)
            self._resize(self._asked)

    def _resize(self, capacity: int) -> None:
        self.capacity = capacity
        while self._bytes > self.capacity:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def bytes(self) -> int:
        """Total size of the entries, in bytes, including `ENTRY_BYTES` for each."""
        return self._bytes

    def __contains__(self, key: Key) -> bool:
        """Whether an object is cached. Does not mark the object as recently used."""
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def begin_in_child(self) -> None:
        """Begin with an empty cache in a forked child."""
        self._lock = threading.Lock()
        self.clear()


_of_process = ObjectCache()


def process_cache() -> ObjectCache:
    """Return the cache of this process, which all its stores share."""
    return _of_process


def collect_seldom() -> None:
    """Make Python collect cyclic garbage less often, in a process that only serves catalogs.

    Long-lived objects, such as modules and shards, contain no collectable cycles. Scanning them again and again would
    slow down requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
