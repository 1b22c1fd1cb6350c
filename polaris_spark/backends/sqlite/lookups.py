"""Reads of many rows at once.

A statement joins a list of ids with the table. This is faster in SQLite than `IN`, which copies the ids into a sorted
temporary table. The ids of one commit are consecutive. If many ids are consecutive, the statement joins a list of
ranges instead, which takes two thirds of the time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from operator import sub
from typing import Final

from polaris_spark.backends.base import ObjectKey
from polaris_spark.backends.chunks import chunks

_CHUNK: Final = 512
"""Maximum number of parameters of one statement, besides the realm; a power of two."""
_GET: Final = "SELECT value FROM objects WHERE realm = ? AND id = ? AND part = ?"


def found(connection: sqlite3.Connection, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
    """Return the values of the rows that exist among `keys`, by key."""
    rows: dict[ObjectKey, bytes] = {}
    firsts = {key.id: key for key in keys if key.part == 0}
    if len(firsts) > 1:
        for id, value in _first_parts(connection, realm, list(firsts)):
            rows[firsts[id]] = value
    if len(firsts) == 1 or len(firsts) < len(keys):
        for key in keys:
            if key.part or len(firsts) == 1:
                row = connection.execute(_GET, (realm, key.id, key.part)).fetchone()
                if row is not None:
                    rows[key] = row[0]
    return rows


def _first_parts(
    connection: sqlite3.Connection, realm: str, ids: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield the id and the value of each row that has one of these ids and the part 0."""
    steps = list(map(sub, ids[1:], ids))
    joined, values = _of_ids, ids
    if 2 * steps.count(1) > len(ids):
        joined, values = _of_ranges, _ends(ids, steps)
    for some in chunks(values, _CHUNK):
        width = 1 << (len(some) - 1).bit_length()  # a power of two, so that few statements are prepared
        padding = [None] * (width - len(some))  # equal to no id
        yield from connection.execute(joined(width), (*some, *padding, realm))


def _ends(ids: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Return the ends of all ranges of consecutive ids: first and last id of the first range, then of the second range,
    and so on.

    Args:
        steps: the differences between each id and the next one.
    """
    starts = [0, *[position for position, step in enumerate(steps, 1) if step != 1]]
    ends: list[int] = []
    for start, following in zip(starts, [*starts[1:], len(ids)], strict=True):
        ends += (ids[start], ids[following - 1])
    return ends


@cache
def _of_ids(width: int) -> str:
    """Return an SQL statement that selects id and value of the rows of `objects` with part 0 and given ids. Its
    parameters are `width` ids and a realm."""
    ids = ", ".join(["(?)"] * width)
    return (
        f"WITH wanted(id) AS (VALUES {ids}) SELECT objects.id, value FROM wanted CROSS JOIN objects"
        " WHERE objects.id = wanted.id AND part = 0 AND realm = ?"
    )


@cache
def _of_ranges(width: int) -> str:
    """Return an SQL statement that selects id and value of the rows of `objects` with part 0 and ids in given ranges.
    Its parameters are `width` ends of ranges (two for each range, both inclusive) and a realm."""
    ranges = ", ".join(["(?, ?)"] * (width // 2))
    return (
        f"WITH wanted(low, high) AS (VALUES {ranges}) SELECT objects.id, value FROM wanted CROSS JOIN objects"
        " WHERE objects.id BETWEEN wanted.low AND wanted.high AND part = 0 AND realm = ?"
    )
