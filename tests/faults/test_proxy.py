"""Commits to real servers through a proxy that cuts, stalls, half-closes, delays and truncates connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.proxy import NONE, Faults, FaultyProxy, Kind
from polaris_spark.testing.stores import row
from tests.faults.checking import PATIENCE_S, check, log_of, wait_until
from tests.faults.workers import Workers
from tests.rest.client import connect, new_key, set_properties, table
from tests.servers import ServerOf, StoreOn, with_options

LOST_ANSWERS = NONE._replace(cut=1, every=0.01, directions=("answers",))
"""Every answer is lost as soon as it comes, after the server did what it was asked."""

SILENCE = NONE._replace(stall=1, every=0.01, stall_s=3_600)
"""Nothing passes any more, and nobody is told."""


class Place(NamedTuple):
    """A store on a real server: its URI as it is, and through a proxy."""

    calm_uri: str
    uri: str
    proxy: FaultyProxy


@pytest.fixture(params=["postgresql", "s3"])
def place(request: pytest.FixtureRequest, server_of: ServerOf, store_on: StoreOn) -> Iterator[Place]:
    """A store on each server, behind a proxy that lets everything pass as yet."""
    server, calm = server_of(request.param), store_on(request.param)
    with FaultyProxy("127.0.0.1", server.port, seed=1, faults=NONE) as proxy:
        behind = calm.replace(f":{server.port}", f":{proxy.port}")
        yield Place(calm, with_options(behind, server.hasty), proxy)


@pytest.fixture
def backend(place: Place) -> Iterator[Backend]:
    """The store through the proxy, set up, with its connections open."""
    backend = open_backend(place.uri)
    backend.setup()
    yield backend
    backend.close()


@pytest.fixture
def calm(place: Place) -> Iterator[Backend]:
    """The store as it is."""
    backend = open_backend(place.calm_uri)
    backend.setup()
    yield backend
    backend.close()


def warm_up(backend: Backend) -> None:
    """Use a connection for everything, so that the first answer to come is that of the change itself."""
    one, two, three = row(), row(), row()
    backend.insert_reference("other", "name", one)
    backend.swap_reference("other", "name", one.version, two)
    if backend.transactional:
        backend.write_and_swap("other", [ObjectRow(1, 0, b"x")], "name", two.version, three)
        two = three
    backend.delete_reference("other", "name", two.version)


@pytest.mark.parametrize("commits", [12, pytest.param(200, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_when_connections_break(
    place: Place, commits: int, tmp_path: Path, workers: Callable[..., Workers]
) -> None:
    some = workers(place.uri, 1, calm_uri=place.calm_uri)
    some.wait_for(3)
    place.proxy.faults = Faults()
    some.wait_for(commits)
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


def test_a_change_whose_answer_is_lost_is_an_unknown_outcome(
    place: Place, backend: Backend, calm: Backend
) -> None:
    first, second = row(b"first"), row(b"second")
    for change, then in (
        (lambda: backend.insert_reference("realm", "name", first), first),
        (lambda: backend.swap_reference("realm", "name", first.version, second), second),
        (lambda: backend.delete_reference("realm", "name", second.version), None),
    ):
        warm_up(backend)
        backend.read_reference("realm", "name")
        place.proxy.faults = LOST_ANSWERS
        before = place.proxy.happened["cut"]
        with pytest.raises(OutcomeUnknownError):
            change()
        assert place.proxy.happened["cut"] == before + 1, "a change was sent more than once"
        place.proxy.faults = NONE
        wait_until(lambda then=then: calm.read_reference("realm", "name") == then, "it is done")  # type: ignore[misc]  # bound at once


def test_a_transaction_whose_answer_is_lost_is_an_unknown_outcome(
    place: Place, backend: Backend, calm: Backend
) -> None:
    if not backend.transactional:
        pytest.skip("this database has no transactions")
    first, second = row(b"first"), row(b"second")
    backend.insert_reference("realm", "name", first)
    warm_up(backend)
    place.proxy.faults = LOST_ANSWERS
    with pytest.raises(OutcomeUnknownError):
        backend.write_and_swap("realm", [ObjectRow(1, 0, b"x")], "name", first.version, second)
    wait_until(lambda: calm.read_reference("realm", "name") == second, "it is done")
    assert calm.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


def test_rows_whose_answers_are_lost_are_an_unknown_outcome(place: Place, backend: Backend) -> None:
    place.proxy.faults = LOST_ANSWERS
    with pytest.raises((OutcomeUnknownError, TryAgainError)) as caught:
        backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(3)])
    assert isinstance(caught.value, OutcomeUnknownError) or "nothing was changed" in str(caught.value)


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


def test_no_call_waits_for_ever_for_a_silent_server(place: Place, backend: Backend) -> None:
    first = row()
    backend.insert_reference("realm", "name", first)
    calls: dict[str, Callable[[], object]] = {
        "read_reference": lambda: backend.read_reference("realm", "name"),
        "read_objects": lambda: backend.read_objects("realm", [ObjectKey(id) for id in range(20)]),
        "write_objects": lambda: backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(20)]),
        "delete_objects": lambda: backend.delete_objects("realm", [ObjectKey(id) for id in range(20)]),
        "insert_reference": lambda: backend.insert_reference("realm", "other", row()),
        "swap_reference": lambda: backend.swap_reference("realm", "name", first.version, row()),
        "splits": lambda: backend.splits("objects", None, 2),
    }
    ends: dict[str, str] = {}

    def call(name: str) -> None:
        try:
            ends[name] = repr(calls[name]())
        except (TryAgainError, OutcomeUnknownError) as error:
            ends[name] = type(error).__name__

    place.proxy.faults = SILENCE
    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(ends) == set(calls), f"still waiting: {set(calls) - set(ends)}"
    assert set(ends.values()) <= {"TryAgainError", "OutcomeUnknownError"}, ends
    assert ends["read_reference"] == ends["read_objects"] == ends["splits"] == "TryAgainError"


@pytest.mark.parametrize("trouble", ["cut", "silence"])
def test_connections_are_replaced_after_trouble(place: Place, backend: Backend, trouble: str) -> None:
    first = row()
    backend.insert_reference("realm", "name", first)
    threads = [threading.Thread(target=backend.read_reference, args=("realm", "name")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if trouble == "cut":
        place.proxy.cut_all()
    else:
        place.proxy.faults = SILENCE
        with pytest.raises((TryAgainError, OutcomeUnknownError)):
            backend.swap_reference("realm", "name", b"another version", row())
        place.proxy.faults = NONE
    for _ in range(10):
        _until_it_passes(lambda: backend.read_reference("realm", "name"))
    second = row()
    assert backend.swap_reference("realm", "name", first.version, second) == Swapped()
    assert backend.read_reference("realm", "name") == second


def _until_it_passes(call: Callable[[], object]) -> None:
    """After silence each connection that was in use then may be found dead once."""
    for _ in range(10):
        try:
            call()
            return
        except TryAgainError:
            continue
    call()
