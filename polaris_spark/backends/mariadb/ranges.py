"""Ranges of ids for parallel scans."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from polaris_spark.backends.id_ranges import starting_at
from polaris_spark.backends.mariadb import statements
from polaris_spark.backends.mariadb.session import MariaDBSession

_FEW: Final = 64  # a range of this many rows is not cut any further
_LONGEST: Final = 64  # number of halvings from all ids down to one


def of_realm(session: MariaDBSession, realm: str, n: int) -> list[tuple[int, int]]:
    """Return about `n` ranges (both ends inclusive), with about equally many rows each, that cover every id of a realm.

    InnoDB keeps no histogram of a key. But it quickly estimates the number of rows in a range, with one index dive for
    each end. So the range with the most rows is halved, at existing ids, until there are about `4 * n` pieces. The
    pieces are then combined into at most `n` ranges.
    """
    first, last = session.run(statements.ends(realm))[0].rows[0]
    if first is None or n <= 1:
        return starting_at([])
    pieces = [(-_estimate(session, realm, first, last), first, last)]
    for _ in range(4 * n + _LONGEST):
        weight, low, high = pieces[0]
        if len(pieces) >= 4 * n or -weight <= _FEW or low >= high:
            break
        heapq.heappop(pieces)
        for start, end in _halves(session, realm, low, high):
            heapq.heappush(pieces, (-_estimate(session, realm, start, end), start, end))
    return starting_at(_starts(sorted((low, -weight) for weight, low, _ in pieces), n))


def _halves(session: MariaDBSession, realm: str, low: int, high: int) -> list[tuple[int, int]]:
    """Divide a range of ids at the first existing id after its middle, and return the two parts. If there is no such
    id, return only the first half. `low` must be less than `high`."""
    middle = (low + high) // 2
    found = session.run(statements.following(realm, middle + 1, high))[0].rows[0][0]
    return [(low, middle)] if found is None else [(low, found - 1), (found, high)]


def _estimate(session: MariaDBSession, realm: str, low: int, high: int) -> int:
    plan = session.run(statements.estimate(realm, low, high))[0]
    return int(plan.rows[0][plan.columns.index("rows")] or 0)


def _starts(pieces: Sequence[tuple[int, int]], n: int) -> list[int]:
    """Divide pieces `(first id, number of rows)` into at most `n` groups with about equally many rows. Return the first
    id of each group except the first group."""
    each = sum(rows for _, rows in pieces) / n
    starts: list[int] = []
    so_far = 0
    for low, rows in pieces:
        if so_far >= each * (len(starts) + 1) and len(starts) < n - 1:
            starts.append(low)
        so_far += rows
    return starts
