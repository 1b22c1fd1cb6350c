"""Lookups of many keys at once.

RocksDB's own lookup of many keys searches for each key separately, which takes as long as single reads. But the ids of
one commit are consecutive, and so are the rows. An iterator moves from one row to the next in a fraction of the time of
a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from rocksdict import Rdict, ReadOptions

_FEWEST: Final = 8
"""Minimum number of keys for which an iterator is used. For fewer keys, RocksDB's own lookup is as fast."""
_SEEK: Final = 3
"""Cost of a seek of the iterator, as a number of keys: a seek saves time if it is followed by at least this many
consecutive keys (measured with rows of 500 bytes)."""
_PATIENCE: Final = 24
"""Initial budget for seeks, as a number of keys. Each seek costs `_SEEK`, and each row found adds one. When the budget
is used up, the remaining keys are read with RocksDB's own lookup."""
_SKIPPED: Final = 100
"""Maximum number of deleted rows that the iterator skips. After more deleted rows, the iterator becomes invalid, and
must seek the next key."""


def values(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
    """Return the values of keys in the order of `sought`; None for missing keys."""
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
    return cast("Any", database.get)(sought)  # type: ignore[no-any-return]  # the driver's types cover single keys only


def _followed(sought: Sequence[bytes], database: Rdict) -> list[bytes | None]:
    """Read keys in the order of `sought` with an iterator, and stop when its seeks would cost more time than single
    lookups. Return the values of the keys that were read until then. A value of None means that the iterator did not
    find the key, either because the row is missing or because of an error. For such a key, and for the keys that were
    not read, the caller uses RocksDB's own lookup."""
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
            place.next()  # would crash the process if the iterator were not at a row
            left += 1
    finally:
        del place  # otherwise the frame in a stored traceback would keep the database and its lock open
    return found
