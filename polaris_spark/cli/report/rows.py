"""The objects of a realm as they lie in the database: by type and age, and which of them nothing needs."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from polaris_spark.backends.base import Backend
from polaris_spark.cli.opening import OpenRealm
from polaris_spark.cli.report.deadline import Deadline
from polaris_spark.commits.log import commits
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import id_time_ms
from polaris_spark.spark.jobs.storage import AGES, OLDEST, age_group
from polaris_spark.spark.views.stored import stored_objects
from polaris_spark.system.registry import ROOT

K = TypeVar("K")

MOST_MARKED = 500_000
"""Of more objects it is not worked out here which are needed: `sweep` does that on executors."""

AGE_NAMES = (*(name for _, name in AGES), OLDEST)
"""What the age groups are called, the youngest first."""

_SPLITS = 64
_SEED = 20250301
_LOOK_EVERY = 500


class Amount(NamedTuple):
    """Objects, and the bytes of their rows."""

    objects: int = 0
    bytes: int = 0

    def and_one(self, bytes: int) -> Amount:
        """These and one more."""
        return Amount(self.objects + 1, self.bytes + bytes)


class Stored(NamedTuple):
    """What is remembered of an object for marking."""

    strong: tuple[int, ...]
    type: str
    bytes: int


@dataclass
class Rows:
    """Figures of a realm's objects."""

    now_ms: int = 0
    """When they were read."""
    parts: int = 0
    """Parts that the table was divided into."""
    read: int = 0
    """Parts that were read to their end, in random order."""
    total: Amount = field(default_factory=Amount)
    groups: dict[tuple[str, int], Amount] = field(default_factory=dict)
    """By type, and age group of `AGE_NAMES`."""
    days: dict[int, Amount] = field(default_factory=dict)
    """By the day since 1970 (UTC) on which the object was made."""
    unneeded: dict[tuple[str, int], Amount] | None = None
    """Of these, what no reference leads to from its history floor on; None if that was not worked out."""
    why_not: str = ""
    """If it was not worked out, why."""


def read_rows(backend: Backend, place: OpenRealm, now_ms: int, deadline: Deadline) -> Rows:
    """The figures of a realm, of as much of its table as the time allows."""
    splits = backend.splits("objects", [place.record.instance], _SPLITS)
    random.Random(_SEED).shuffle(splits)
    found, remembered = Rows(now_ms, len(splits)), dict[int, Stored]()
    for split in splits:
        for position, stored in enumerate(stored_objects(backend, split, whole=False)):
            type = sys.intern(stored.header.type) if stored.header else "unreadable"
            found.total = found.total.and_one(stored.size)
            _add(found.groups, (type, age_group(stored.id, now_ms)), stored.size)
            _add(found.days, id_time_ms(stored.id) // 86_400_000, stored.size)
            if stored.header is not None and len(remembered) <= MOST_MARKED:
                remembered[stored.id] = Stored(stored.header.strong, type, stored.size)
            if position % _LOOK_EVERY == 0 and deadline.passed():
                found.why_not = "time did not allow for all rows (see --seconds)"
                return found
        found.read += 1
    if len(remembered) > MOST_MARKED:
        found.why_not = f"there are more than {MOST_MARKED:,} objects"
    else:
        _mark(found, place, remembered, now_ms, deadline)
    return found


def _add(sums: dict[K, Amount], key: K, bytes: int) -> None:
    sums[key] = sums.get(key, Amount()).and_one(bytes)


def _mark(
    found: Rows, place: OpenRealm, remembered: dict[int, Stored], now_ms: int, deadline: Deadline
) -> None:
    """Follow strong pointers from every commit of every reference. Heads are read after the rows, so whatever was
    committed among the rows is reached."""
    try:
        pending = _roots(place, deadline)
    except CorruptionError as error:
        found.why_not = f"a history cannot be read ({error})"
        return
    reached = set(pending)
    while pending:
        if deadline.passed():
            found.why_not = "time did not allow for it (see --seconds)"
            return
        id = pending.pop()
        stored = remembered.get(id)
        strong = stored.strong if stored else _strong(place, id)
        new = [child for child in strong if child not in reached]
        reached.update(new)
        pending += new
    found.unneeded = {}
    for id, stored in remembered.items():
        if id not in reached:
            _add(found.unneeded, (stored.type, age_group(id, now_ms)), stored.bytes)


def _roots(place: OpenRealm, deadline: Deadline) -> list[int]:
    roots, heads = [], [place.head(ROOT)]
    for registered in place.references():
        # Of a reference that was dropped long ago a sweep may have left nothing.
        with contextlib.suppress(*[CorruptionError] if registered.registration.state == "dropped" else []):
            heads.append(place.head_of(registered))
    for head in heads:
        for id, _ in commits(place.objects, head.head):
            roots.append(id)
            if deadline.passed():
                return roots
    return roots


def _strong(place: OpenRealm, id: int) -> Iterable[int]:
    """Pointers of an object that came after its part of the table was read."""
    try:
        return place.objects.read((id,))[id].header.strong
    except CorruptionError:
        return ()
