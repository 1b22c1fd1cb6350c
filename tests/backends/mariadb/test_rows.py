"""Rows in MariaDB, beyond the storage contract: packets, query plans, and splits by estimates."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import MAX_ROW_BYTES, Backend, Conflict, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.mariadb import statements
from polaris_spark.errors import StateError
from polaris_spark.testing.processes import in_threads, rows
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import wait_until
from tests.backends.mariadb.support import Admin, database_of, globally


def test_a_conflict_carries_the_row_that_won(backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    new = [ObjectRow(1, 0, b"x")]
    assert backend.swap_reference("realm", "name", b"stale", row()) == Conflict(current)
    assert backend.write_and_swap("realm", new, "name", b"stale", row()) == Conflict(current)
    assert backend.write_and_swap("realm", new, "other", b"stale", row()) == Conflict(None)
    assert backend.insert_reference("realm", "name", row()) == Conflict(current)
    assert backend.delete_reference("realm", "name", b"stale") == Conflict(current)


def test_the_mysql_scheme_opens_the_same_store(uri: str, backend: Backend) -> None:
    backend.insert_reference("realm", "name", current := row())
    other = open_backend(uri.replace("mariadb:", "mysql:"))
    assert other.swap_reference("realm", "name", current.version, new := row()) == Swapped()
    assert backend.read_reference("realm", "name") == new
    other.close()


def test_rows_and_commits_larger_than_a_packet_are_split(uri: str, backend: Backend, admin: Admin) -> None:
    large = os.urandom(MAX_ROW_BYTES)
    written = [ObjectRow(id, 0, large) for id in range(5)] + [ObjectRow(9, id, b"x") for id in range(9_000)]
    with globally(admin, {"max_allowed_packet": str(2**20)}):
        narrow = open_backend(uri)
        narrow.write_objects("a", written)
        narrow.insert_reference("b", "name", current := row(large))
        assert narrow.write_and_swap("b", written, "name", b"stale", row(large)) == Conflict(current)
        assert narrow.read_objects("b", [ObjectKey(0), ObjectKey(9, 8_999)]) == {}
        assert narrow.write_and_swap("b", written, "name", current.version, new := row(large)) == Swapped()
        assert narrow.read_reference("b", "name") == new
        narrow.close()
    for realm in ("a", "b"):
        assert rows(backend, backend.splits("objects", [realm], 1)) == [(realm, *each) for each in written]


def test_rows_that_exist_stay_as_they_are(backend: Backend) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"first")])
    backend.write_objects("realm", [ObjectRow(1, 0, b"second"), ObjectRow(2, 0, b"new")])
    assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {
        ObjectKey(1): b"first",
        ObjectKey(2): b"new",
    }


@pytest.mark.parametrize("n", [1, 10, 1_000])
def test_keys_are_looked_up_one_by_one_in_a_large_realm(
    uri: str, backend: Backend, admin: Admin, n: int
) -> None:
    backend.write_objects("realm", [ObjectRow(id * 7, 0, b"x" * 50) for id in range(5_000)])
    keys = [ObjectKey(id * 21, id % 2) for id in range(n)]
    admin.run(f"USE {database_of(uri)}")
    admin.run("SET in_predicate_conversion_threshold = 0")
    plan = admin.run(f"EXPLAIN {statements.get('realm', keys)}")
    assert len(plan) == 1
    access, key, estimated = plan[0][3], plan[0][5], plan[0][8]
    assert access in ("const", "range")
    assert (key, int(estimated)) == ("PRIMARY", n)


def test_splits_follow_the_servers_estimates_and_cover_all_rows_once(backend: Backend) -> None:
    dense = [ObjectRow(1_000_000 + id, 0, b"x" * 100) for id in range(3_000)]
    backend.write_objects("realm", [*dense, ObjectRow(0, 0, b"x"), ObjectRow(2**62, 0, b"x")])
    splits = backend.splits("objects", ["realm"], 6)
    counts = [len(rows(backend, [split])) for split in splits]
    assert sum(counts) == 3_002
    assert len(counts) <= 6
    assert max(counts) < 1_000
    ends = sorted(part for split in splits for part in split.detail)
    assert all(before[2] + 1 == after[1] for before, after in pairwise(ends))  # type: ignore[index]


def test_large_values_make_short_pages(backend: Backend) -> None:
    backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(500)])
    backend.write_objects("realm", [ObjectRow(1_000 + id, 0, b"x" * MAX_ROW_BYTES) for id in range(30)])
    batches = [batch for split in backend.splits("objects", None, 1) for batch in backend.scan(split)]
    assert sum(batch.num_rows for batch in batches) == 530
    assert max(batch.nbytes for batch in batches) < 5 * 2**20


def test_a_closed_store_has_no_sessions_left(uri: str, backend: Backend, admin: Admin) -> None:
    in_threads(4, lambda _: backend.read_reference("realm", "name"))
    assert admin.sessions(uri)
    backend.close()
    with pytest.raises(StateError, match="closed"):
        backend.splits("objects", None, 1)
    wait_until(lambda: not admin.sessions(uri), "its sessions are gone")
