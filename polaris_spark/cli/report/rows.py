"""Figures of a realm's objects in the database: their sizes by type and age, and the objects that no reference
needs."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from polaris_spark.backends.base import Backend
from polaris_spark.cli.stores import OpenRealm
from polaris_spark.commits.log import commits
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import id_time_ms
from polaris_spark.jobs.stored_sizes import AGES, OLDEST, age_group
from polaris_spark.spark.views.stored import stored_objects
from polaris_spark.system.registry import ROOT

K = TypeVar("K")

MOST_MARKED = 500_000
"""Maximum number of objects in a realm for which a report determines the unneeded objects."""

AGE_NAMES = (*(name for _, name in AGES), OLDEST)
"""Names of the age groups, the youngest first."""

_SPLITS = 64
_SEED = 20250301
_LOOK_EVERY = 500


class Amount(NamedTuple):
    """Number of objects, and the size of their rows in bytes."""

    objects: int = 0
    bytes: int = 0

    def and_one(self, bytes: int) -> Amount:
        """Return this amount with one more object, which has `bytes` bytes."""
        return Amount(self.objects + 1, self.bytes + bytes)


class Stored(NamedTuple):
    """The data that is kept in memory about an object, to determine which objects are needed."""

    strong: tuple[int, ...]
    type: str
    bytes: int


@dataclass
class ObjectFigures:
    """Figures of a realm's objects."""

    now_ms: int = 0
    """Time at which the objects were read, in milliseconds since 1970."""
    parts: int = 0
    """Number of parts into which the table of objects was divided for reading."""
    read: int = 0
    """Number of parts that were read completely. The parts are read in random order."""
    total: Amount = field(default_factory=Amount)
    groups: dict[tuple[str, int], Amount] = field(default_factory=dict)
    """Amount of objects by (type, position of the age group in `AGE_NAMES`)."""
    days: dict[int, Amount] = field(default_factory=dict)
    """Amount of objects by the day on which they were made, in days since 1970 (UTC)."""
    unneeded: dict[tuple[str, int], Amount] | None = None
    """Amount of unneeded objects, by the keys of `groups`; None if not determined. An object is unneeded if strong
    pointers do not lead to it from any commit between the history floor and the head of a reference."""
    why_not: str = ""
    """Why `unneeded` was not determined; empty if it was."""


def read_rows(backend: Backend, place: OpenRealm, now_ms: int, until: float) -> ObjectFigures:
    """Return the figures of a realm, from as much of the table of objects as can be read until the time `until`
    of `time.monotonic`."""
    splits = backend.splits("objects", [place.record.instance], _SPLITS)
    random.Random(_SEED).shuffle(splits)
    found, remembered = ObjectFigures(now_ms, len(splits)), dict[int, Stored]()
    for split in splits:
        for position, stored in enumerate(stored_objects(backend, split, whole=False)):
            type = sys.intern(stored.header.type) if stored.header else "unreadable"
            found.total = found.total.and_one(stored.size)
            _add(found.groups, (type, age_group(stored.id, now_ms)), stored.size)
            _add(found.days, id_time_ms(stored.id) // 86_400_000, stored.size)
            if stored.header is not None and len(remembered) <= MOST_MARKED:
                remembered[stored.id] = Stored(stored.header.strong, type, stored.size)
            if position % _LOOK_EVERY == 0 and time.monotonic() >= until:
                found.why_not = "not all rows were read within the time limit (--seconds)"
                return found
        found.read += 1
    if len(remembered) > MOST_MARKED:
        found.why_not = f"there are more than {MOST_MARKED:,} objects"
    else:
        _mark(found, place, remembered, now_ms, until)
    return found


def _add(sums: dict[K, Amount], key: K, bytes: int) -> None:
    sums[key] = sums.get(key, Amount()).and_one(bytes)


def _mark(
    found: ObjectFigures, place: OpenRealm, remembered: dict[int, Stored], now_ms: int, until: float
) -> None:
    """Determine the unneeded objects: those that are not reached by strong pointers from any commit of any reference.

    Heads are read after the rows, so all committed objects among the rows are reached.
    """
    try:
        pending = _roots(place, until)
    except CorruptionError as error:
        found.why_not = f"a history cannot be read ({error})"
        return
    reached = set(pending)
    while pending:
        if time.monotonic() >= until:
            found.why_not = "the time limit was reached (--seconds)"
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


def _roots(place: OpenRealm, until: float) -> list[int]:
    roots, heads = [], [place.head(ROOT)]
    for registered in place.references():
        # A sweep may have deleted the commits of a reference that was dropped long ago.
        with contextlib.suppress(*[CorruptionError] if registered.registration.state == "dropped" else []):
            heads.append(place.head_of(registered))
    for head in heads:
        for id, _ in commits(place.objects, head.head):
            roots.append(id)
            if time.monotonic() >= until:
                return roots
    return roots


def _strong(place: OpenRealm, id: int) -> Iterable[int]:
    """Return the strong pointers of an object that was written after its part of the table had been read. If the object
    cannot be read, the result is empty."""
    try:
        return place.objects.read((id,))[id].header.strong
    except CorruptionError:
        return ()
