"""The amount of data that a realm stores, by object type and age. The job reads all rows once, in parallel splits."""

from __future__ import annotations

from typing import Any, NamedTuple

from polaris_spark.backends.base import Split
from polaris_spark.catalog.engine import Engine, MapFunction, Reach
from polaris_spark.ids import id_time_ms
from polaris_spark.spark.views.stored import stored_objects

_HOUR = 3_600_000
AGES = (
    (_HOUR, "under 1 hour"),
    (24 * _HOUR, "1 to 24 hours"),
    (7 * 24 * _HOUR, "1 to 7 days"),
    (30 * 24 * _HOUR, "7 to 30 days"),
    (90 * 24 * _HOUR, "30 to 90 days"),
)
"""Upper bound (excluded) of each age group, in milliseconds, and name of the group. `OLDEST` has no upper bound."""

OLDEST = "90 days and more"

_SPLITS_PER_PART = 8
"""Number of splits for each unit of `Engine.parts`. Splits are small because, if this process reads them, a call can be
cancelled only between two splits."""


class StoredSize(NamedTuple):
    """Numbers of objects, rows and bytes of one object type and age group."""

    type: str | None
    """Name of the object type; None for rows that cannot be read."""
    age_group: int
    """Number of the age group; 0 is the youngest."""
    objects: int
    rows: int
    bytes: int


class SumObjects(MapFunction[Split, list[StoredSize]]):
    """Function that counts the objects, rows and bytes of a split, by object type and age group."""

    result = list[StoredSize]
    few = 0
    threads = 1

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def __call__(self, reach: Reach, item: Split) -> list[StoredSize]:
        sums: dict[tuple[str | None, int], list[int]] = {}
        for stored in stored_objects(reach.backend, item, whole=False):
            key = (stored.header.type if stored.header else None, age_group(stored.id, self._now_ms))
            found = sums.setdefault(key, [0, 0, 0])
            found[0] += 1
            found[1] += stored.parts
            found[2] += stored.size
        return [StoredSize(*key, *found) for key, found in sums.items()]


def storage(engine: Engine, now_ms: int) -> list[tuple[Any, ...]]:
    """Return how much data the realm of the engine stores: one row per object type and age group.

    Args:
        now_ms: the time at which ages are computed, in milliseconds since 1970.
    Returns:
        rows (object type, number of the age group, name of the age group, objects, rows, bytes), sorted by type and age
        group. The type is None for rows that cannot be read. Age group 0 is the youngest.
    """
    own = engine.reach.own
    sums: dict[tuple[str | None, int], list[int]] = {}
    splits = own.backend.splits("objects", [own.realm], _SPLITS_PER_PART * engine.parts)
    for found in engine.map(SumObjects(now_ms), splits, "reading rows"):
        for one in found:
            before = sums.get((one.type, one.age_group), (0, 0, 0))
            sums[one.type, one.age_group] = [a + b for a, b in zip(before, one[2:], strict=True)]
    names = [name for _, name in AGES] + [OLDEST]
    ordered = sorted(sums.items(), key=lambda item: (item[0][0] is None, item[0]))
    return [(type, group, names[group], *numbers) for (type, group), numbers in ordered]


def age_group(id: int, now_ms: int) -> int:
    """Return the number of an object's age group; 0 is the youngest."""
    age = now_ms - id_time_ms(id)
    return next((group for group, (limit, _) in enumerate(AGES) if age < limit), len(AGES))
