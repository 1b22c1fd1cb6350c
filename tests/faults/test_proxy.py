"""Commits to real servers through a proxy that cuts, stalls, half-closes, delays and truncates connections."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from polaris_spark.clock import SystemClock
from polaris_spark.commits.change import new_operation_id
from polaris_spark.commits.retry import retried
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.testing.proxy import LOST_ANSWERS, NONE, UNHEARD_ANSWERS, Faults, FaultyProxy, Kind
from polaris_spark.testing.stores import with_options
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.faults.checking import check, log_of
from tests.faults.workers import Workers
from tests.rest.client import connect, new_key, set_properties, table
from tests.sizes import TIMES
from tests.stores import NETWORKED, ServerOf, databases


class Place(NamedTuple):
    """A store on a real server: its URI as it is, and through a proxy."""

    calm_uri: str
    uri: str
    proxy: FaultyProxy


@pytest.fixture(params=databases(NETWORKED, ordinary=("postgresql",)))
def place(request: pytest.FixtureRequest, server_of: ServerOf) -> Iterator[Place]:
    """A store on each server, behind a proxy that forwards everything until a test sets faults."""
    server, name = server_of(request.param), f"behind_{uuid.uuid4().hex[:12]}"
    with FaultyProxy("127.0.0.1", server.port, seed=1, faults=NONE) as proxy:
        far_uri = with_options(server.uri(name, port=proxy.port), server.hasty)
        yield Place(server.uri(name), far_uri, proxy)


def test_nothing_is_lost_or_doubled_when_connections_break(
    place: Place, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(place.uri, 1, calm_uri=place.calm_uri)
    some.wait_for(3)
    place.proxy.faults = Faults()
    some.wait_for(8 * TIMES)
    wait_until(
        lambda: (
            set(place.proxy.happened) == set(get_args(Kind))
            or not all(process.is_alive() for process in some.running.values())
        ),
        f"everything happens, so far {place.proxy.happened}",
    )
    place.proxy.faults = NONE
    some.stop()
    print(place.proxy.happened, check(place.calm_uri, tmp_path))


def test_a_commit_whose_answers_are_lost_for_a_while_is_done_once(place: Place, tmp_path: Path) -> None:
    client = connect(place.uri, tmp_path / "warehouse", metadata_files="never")
    client.namespace("db")
    client.create("t")
    before = len(log_of(client))
    answers: list[Any] = []
    body = {"requirements": [], "updates": [set_properties(a="1")]}
    place.proxy.faults = LOST_ANSWERS
    thread = threading.Thread(
        target=lambda: answers.append(client.send("POST", table("t"), body, key=new_key()))
    )
    thread.start()
    wait_until(lambda: place.proxy.happened["cut"] >= 3 or not thread.is_alive(), "answers are lost")
    place.proxy.faults = NONE
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [answer.status for answer in answers] == [200], answers
    assert len(log_of(client)) == before + 1
    assert client.load("t")["metadata"]["properties"]["a"] == "1"
    client.session.close()


def test_a_task_is_added_once_although_the_answer_is_lost(place: Place, tmp_path: Path) -> None:
    client = connect(place.uri, tmp_path / "warehouse", metadata_files="never", commit_timeout="1 s")
    calm = connect(place.calm_uri, tmp_path / "warehouse", metadata_files="never")

    def enqueue(operation: str) -> None:
        call(client.session, "enqueue", procedure="expire", operation=operation)

    def count() -> int:
        return len(call(calm.session, "show_queue"))

    enqueue(_operation())  # creates the queue
    for exchanges in range(30):  # one more each time, until the answer of the write is the first that is lost
        retried(SystemClock(), lambda: call(client.session, "show_queue"))  # connects again
        before, operation = count(), _operation()
        place.proxy.faults = UNHEARD_ANSWERS._replace(after=place.proxy.exchanges + exchanges)
        try:
            enqueue(operation)
            has_failed = False
        except (TryAgainError, OutcomeUnknownError):
            has_failed = True
        finally:
            place.proxy.faults = NONE
        if has_failed and count() > before:
            break
    else:
        pytest.fail("no task was added by a call that failed")
    for _ in range(2):
        retried(SystemClock(), lambda: enqueue(operation))
    assert count() == before + 1
    for one in (client, calm):
        one.session.close()


def _operation() -> str:
    return str(uuid.UUID(bytes=new_operation_id(SystemClock().now_ms())))
