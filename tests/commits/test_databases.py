"""The commit protocol on databases: every acknowledged commit exists once, with several threads and processes and with
broken sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import SystemClock
from polaris_spark.errors import TryAgainError
from polaris_spark.testing.processes import in_threads
from tests.servers.postgresql import PostgreSQL
from tests.stores import StoreOn, in_turn

from .support import Add, committer, number


@pytest.fixture(params=in_turn(ordinary=("sqlite", "postgresql")))
def uri(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    return store_on(request.param)


@pytest.fixture
def backends(uri: str) -> Iterator[list[Backend]]:
    """The same store, opened twice as by two processes."""
    opened = [open_backend(uri), open_backend(uri)]
    yield opened
    for backend in opened:
        backend.close()


def test_two_processes_that_count_lose_nothing(backends: list[Backend]) -> None:
    both = [committer(backend, clock=SystemClock()) for backend in backends]

    def count(thread: int) -> None:
        for _ in range(25):
            both[thread % 2].commit(Add("a"))

    in_threads(8, count)
    assert number(both[0], "a") == 200
    assert committer(backends[1]).read().head.number <= 200


def test_what_one_process_committed_another_reads_and_continues(backends: list[Backend]) -> None:
    one, two = (committer(backend) for backend in backends)
    for expected in range(1, 20, 2):
        assert one.commit(Add("a")) == expected
        assert two.commit(Add("a", expect=expected)) == expected + 1


def test_commits_whose_sessions_are_killed_are_done_once_each(
    postgresql: PostgreSQL, postgresql_uri: str
) -> None:
    backend = open_backend(f"{postgresql_uri}&application_name=killed")
    c = committer(backend, clock=SystemClock())
    moved, over = threading.Event(), threading.Event()

    def commit() -> int:
        try:
            for _ in range(40):
                while True:
                    try:
                        c.commit(Add("a"))
                        break
                    except TryAgainError:
                        pass
                moved.set()
        finally:
            over.set()
        return 40

    def kill(owner: psycopg.Connection[Any]) -> int:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'killed'"
        kills = len(owner.execute(query).fetchall())
        while not over.is_set():
            moved.clear()
            moved.wait(10)  # so that commits go on, however slow they are
            kills += len(owner.execute(query).fetchall())
        assert kills
        return 0

    with psycopg.connect(postgresql.database, autocommit=True) as owner:
        done = sum(in_threads(5, lambda thread: commit() if thread else kill(owner)))
    assert number(c, "a") == done
    backend.close()
