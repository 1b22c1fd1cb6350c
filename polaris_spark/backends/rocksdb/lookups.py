"""Values of many keys at once.

RocksDB's own lookup of many keys finds each of them anew, which takes as long as single reads in this process. Ids of
one commit follow one another, and so do their rows: an iterator gets from one to the next in a fraction of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from rocksdict import Rdict, ReadOptions

_FEWEST: Final = 8
"""Of fewer keys the lookup takes no longer than an iterator."""
_SEEK: Final = 3
"""A seek of the iterator is worth its time if so many keys follow on it (measured with rows of 500 bytes)."""
_PATIENCE: Final = 24
"""How much of that may be missing until the remaining keys are left to the lookup."""
_SKIPPED: Final = 100
"""Deleted rows that the iterator steps over; behind more of them it becomes invalid, and seeks the next key."""


def values(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
    """The values of some keys in their order; None where there is none."""
    found = _followed(sought, database) if len(sought) >= _FEWEST else []
    gaps = [position for position, value in enumerate(found) if value is None] if None in found else []
    if len(found) < len(sought):
        found += _looked_up(sought[len(found) :], database)
    if gaps:
        missing = _looked_up([sought[gap] for gap in gaps], database)
        for gap, value in zip(gaps, missing, strict=True):
            found[gap] = value
    return found


def _looked_up(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
    return cast("Any", database.get)(sought)  # type: ignore[no-any-return]  # the driver tells of single keys only


def _followed(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
    """The values of the first of these keys, as many as it is worth; None where the iterator did not find one, for
    whatever reason: the lookup tells an error from a row that is missing."""
    options = ReadOptions()
    options.set_max_skippable_internal_keys(_SKIPPED)
    found: list[bytes | None] = []
    left = _PATIENCE
    place = database.iter(options)
    try:
        place.seek(sought[0])
        for key in sought:
            if place.key() != key:
                left -= _SEEK
                if left < 0:
                    break
                place.seek(key)
                if place.key() != key:
                    found.append(None)
                    continue
            found.append(place.value())
            place.next()  # which crashes the process unless there is a row at its place
            left += 1
    finally:
        del place  # the frame of an interrupt that somebody keeps would keep the database open, and its lock
    return found
