"""Rows in PostgreSQL, beyond the storage contract."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import psycopg
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectRow, Swapped
from polaris_spark.backends.postgresql import PostgreSQLBackend
from polaris_spark.backends.postgresql.settings import _PLANS
from polaris_spark.errors import (
    StateError,
)
from polaris_spark.testing.processes import in_threads, rows
from polaris_spark.testing.stores import row
from tests.backends.postgresql.support import schema_of


def test_a_conflict_carries_the_row_that_won(backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    new = [ObjectRow(1, 0, b"x")]
    assert backend.swap_reference("realm", "name", b"stale", row()) == Conflict(current)
    assert backend.write_and_swap("realm", new, "name", b"stale", row()) == Conflict(current)
    assert backend.insert_reference("realm", "name", row()) == Conflict(current)
    assert backend.delete_reference("realm", "name", b"stale") == Conflict(current)


@pytest.mark.parametrize("statement", ["get", "remove"])
def test_the_plan_for_rows_of_given_keys_uses_the_whole_key(
    uri: str, admin: psycopg.Connection[Any], statement: str
) -> None:
    """A session makes a plan once, perhaps while the table is empty. The plan must stay good when the table is
    large."""
    backend = open_backend(uri)
    backend.setup()
    assert isinstance(backend, PostgreSQLBackend)
    with admin.transaction(force_rollback=True):
        for name, value in _PLANS.items():
            admin.execute(f"SET LOCAL {name} = {value}")
        admin.execute(b"PREPARE of_keys AS " + getattr(backend._statements, statement).text)
        lines = admin.execute("EXPLAIN EXECUTE of_keys ('realm', '{1,2}', '{0,0}')").fetchall()
    backend.close()
    conditions = [line for (line,) in lines if "Index Cond" in line]
    assert conditions, lines
    assert all("(id = k.id)" in line and "(part = k.part)" in line for line in conditions), lines


# Tables


def test_swaps_move_no_row_to_another_page(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    backend.insert_reference("realm", "name", current := row(b"x" * 1_000))
    for _ in range(200):
        new = row(b"x" * 1_000)
        assert backend.swap_reference("realm", "name", current.version, new) == Swapped()
        current = new
    size = admin.execute(f"SELECT pg_relation_size('{schema_of(uri)}.references')").fetchone()
    assert size is not None
    assert size[0] <= 4 * 8_192


def test_splits_follow_the_servers_statistics_and_cover_all_rows_once(
    uri: str, backend: Backend, admin: psycopg.Connection[Any]
) -> None:
    dense = [ObjectRow(1_000_000 + id, 0, b"x") for id in range(3_000)]
    backend.write_objects("realm", [*dense, ObjectRow(0, 0, b"x"), ObjectRow(2**62, 0, b"x")])
    admin.execute(f"ANALYZE {schema_of(uri)}.objects")
    backend.write_objects("realm", [ObjectRow(2**61 + id, 0, b"late") for id in range(10)])
    splits = backend.splits("objects", ["realm"], 6)
    counts = [len(rows(backend, [split])) for split in splits]
    assert sum(counts) == 3_012
    assert max(counts) < 1_000
    ends = sorted(part for split in splits for part in split.detail)
    assert all(before[2] + 1 == after[1] for before, after in pairwise(ends))  # type: ignore[index]


def test_a_closed_store_has_no_sessions_left(uri: str, backend: Backend) -> None:
    in_threads(4, lambda _: backend.read_reference("realm", "name"))
    backend.close()
    with pytest.raises(StateError, match="closed"):
        backend.splits("objects", None, 1)
