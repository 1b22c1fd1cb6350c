"""Ranges of ids for parallel scans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from polaris_spark.backends.chunks import runs
from polaris_spark.backends.id_ranges import starting_at
from polaris_spark.backends.postgresql import binary
from polaris_spark.backends.postgresql.session import PostgreSQLSession
from polaris_spark.backends.postgresql.statements import Statements


def of_realm(
    statements: Statements, schema: str, realm: bytes, n: int, session: PostgreSQLSession
) -> list[tuple[int, int]]:
    """Return about `n` ranges (both ends inclusive) that cover every id of a realm.

    The bounds come from the server's histogram of ids, which divides the rows of all realms into buckets of the same
    number of rows. If the histogram is missing or has too few bounds within the realm, evenly spaced ids are used
    instead. Each of these ids is moved to the next id that exists, so that no range is empty. The bounds affect only
    the sizes of the ranges, which always cover every id exactly once.
    """
    ends = session.run(statements.ends, realm)
    first, last = ends.get_value(0, 0), ends.get_value(0, 1)
    if first is None or last is None or n <= 1:
        return starting_at([])
    low, high = binary.integer(first), binary.integer(last)
    bounds = _histogram(statements, schema, session)
    starts = bounds[bisect_right(bounds, low) : bisect_left(bounds, high)]
    if len(starts) < 2 * n:
        starts = _guesses(statements, realm, low, high, n, session)
    return starting_at(group[0] for group in runs([low, *starts], n)[1:])


def _histogram(statements: Statements, schema: str, session: PostgreSQLSession) -> list[int]:
    found = session.run(statements.histogram, schema.encode()).get_value(0, 0)
    return sorted(set(binary.integers(found or b"")))


def _guesses(
    statements: Statements, realm: bytes, low: int, high: int, n: int, session: PostgreSQLSession
) -> list[int]:
    """Return existing ids above `low` whose values are spaced about evenly, at most four for each of the `n` ranges."""
    step = max(1, (high - low) // (4 * n))
    wanted = list(range(low + step, high + 1, step))[: 4 * n]
    found = session.run(statements.following, realm, binary.int8_array(wanted))
    ids = {binary.integer(value) for row in range(found.ntuples) if (value := found.get_value(row, 0))}
    return sorted(id for id in ids if id > low)
