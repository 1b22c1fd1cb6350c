"""Throttling, failures of the service, refusals, forks, and threads that share and wait for connections."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, Swapped
from polaris_spark.errors import NoStoreError, OutcomeUnknownError, StateError, TryAgainError
from polaris_spark.testing.processes import exit_status, in_threads, rows
from polaris_spark.testing.stores import row
from tests.backends.dynamodb.gateway import Answer, Body, Forward, Gateway, Rule, refusal

_THROTTLED = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
]


def first(times: int, answer: Answer) -> Rule:
    """A rule that gives this answer a number of times, and then forwards all requests."""
    left = iter(range(times))
    lock = threading.Lock()

    def rule(operation: str, body: Body, forward: Forward) -> Answer | None:
        with lock:
            return None if next(left, None) is None else answer

    return rule


@pytest.mark.parametrize("code", _THROTTLED)
def test_throttled_requests_are_sent_again(gateway: Gateway, far: Backend, code: str) -> None:
    one, two = row(b"one"), row(b"two")
    gateway.rule = first(3, refusal(code))
    assert far.insert_reference("realm", "name", one) == Swapped()
    gateway.rule = first(3, refusal(code))
    assert far.swap_reference("realm", "name", one.version, two) == Swapped()
    assert gateway.count("PutItem") == 8
    gateway.rule = first(3, refusal(code))
    far.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(60)])
    gateway.rule = first(3, refusal(code))
    assert len(far.read_objects("realm", [ObjectKey(id) for id in range(60)])) == 60
    gateway.rule = first(3, refusal(code))
    assert len(rows(far, far.splits("references", None, 1))) == 1


def test_a_request_that_stays_throttled_fails_in_time_with_nothing_changed(
    gateway: Gateway, far_uri: str, backend: Backend
) -> None:
    backend.insert_reference("realm", "name", one := row())
    hasty = open_backend(f"{far_uri}&timeout=1500ms")
    gateway.rule = lambda *_: refusal("ThrottlingException", "slow down")
    with pytest.raises(TryAgainError, match="slow down"):
        hasty.swap_reference("realm", "name", one.version, row())
    with pytest.raises(TryAgainError):
        hasty.read_reference("realm", "name")
    with pytest.raises(TryAgainError):
        hasty.write_objects("realm", [ObjectRow(1, 0, b"x")])
    assert backend.read_reference("realm", "name") == one
    hasty.close()


def test_a_change_that_the_service_fails_at_is_in_doubt_and_sent_once(
    gateway: Gateway, backend: Backend, far: Backend
) -> None:
    def done_and_failed(operation: str, body: Body, forward: Forward) -> Answer:
        forward(body)
        return refusal("InternalServerError", status=500)

    backend.insert_reference("realm", "name", one := row())
    gateway.rule = done_and_failed
    with pytest.raises(OutcomeUnknownError, match="InternalServerError"):
        far.swap_reference("realm", "name", one.version, two := row())
    assert gateway.count("PutItem") == 1
    assert backend.read_reference("realm", "name") == two
    with pytest.raises(OutcomeUnknownError):
        far.delete_reference("realm", "name", two.version)
    assert gateway.count("DeleteItem") == 1
    assert backend.read_reference("realm", "name") is None


def test_idempotent_requests_are_repeated_when_the_service_fails(
    gateway: Gateway, far: Backend, far_uri: str
) -> None:
    gateway.rule = first(2, refusal("InternalServerError", status=500))
    far.write_objects("realm", [ObjectRow(1, 0, b"x")])
    gateway.rule = first(2, refusal("ServiceUnavailable", status=503))
    assert far.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}
    gateway.rule = lambda *_: refusal("InternalServerError", status=500)
    hasty = open_backend(f"{far_uri}&timeout=1500ms")
    with pytest.raises(OutcomeUnknownError, match="failed with status 500"):
        hasty.write_objects("realm", [ObjectRow(1, 0, b"x")])
    with pytest.raises(TryAgainError, match="failed with status 500"):
        hasty.read_reference("realm", "name")
    hasty.close()


def test_a_write_of_unknown_outcome_that_is_then_throttled_stays_unknown(
    gateway: Gateway, far_uri: str, backend: Backend
) -> None:
    failed = iter([refusal("InternalServerError", status=500)])
    gateway.rule = lambda *_: next(failed, refusal("ThrottlingException"))
    hasty = open_backend(f"{far_uri}&timeout=1500ms")
    with pytest.raises(OutcomeUnknownError):
        hasty.write_objects("realm", [ObjectRow(1, 0, b"x")])
    hasty.close()


def test_an_answer_that_is_cut_off_anywhere_is_never_taken_for_another(
    gateway: Gateway, backend: Backend, far: Backend
) -> None:
    backend.insert_reference("realm", "name", one := row())
    backend.write_objects("realm", [ObjectRow(1, 0, b"x" * 30)])
    places = range(0, 150, 3)  # in the status line, in every header, in the body
    for place in places:
        gateway.cuts = iter([place])
        assert far.read_reference("realm", "name") == one
        gateway.cuts = iter([place])
        assert far.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x" * 30}
        gateway.cuts = iter([place])
        with pytest.raises(OutcomeUnknownError):
            far.swap_reference("realm", "name", b"another", row())
    assert backend.read_reference("realm", "name") == one


def test_an_error_that_is_cut_off_is_not_taken_for_a_refusal(
    gateway: Gateway, backend: Backend, far: Backend
) -> None:
    backend.insert_reference("realm", "name", row())
    gateway.has_checksums = False
    for place in range(0, 300, 5):
        gateway.cuts = iter([place])
        with pytest.raises(OutcomeUnknownError):
            far.swap_reference("realm", "name", b"another", row())
    assert isinstance(far.swap_reference("realm", "name", b"another", row()), Conflict)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDeniedException", "grant"),
        ("UnrecognizedClientException", "access key"),
        ("InvalidSignatureException", "clock"),
        ("ExpiredTokenException", "access key"),
        ("ResourceNotFoundException", "create=true"),
        ("ValidationException", "check that it is DynamoDB"),
    ],
)
def test_refusals_name_the_remedy_and_are_not_repeated(
    gateway: Gateway, far: Backend, code: str, words: str
) -> None:
    gateway.rule = lambda *_: refusal(code, "because")
    for attempt in (
        lambda: far.read_reference("realm", "name"),
        lambda: far.swap_reference("realm", "name", b"version", row()),
        lambda: far.write_objects("realm", [ObjectRow(1, 0, b"x")]),
    ):
        gateway.asked.clear()
        kind = NoStoreError if code == "ResourceNotFoundException" else StateError
        with pytest.raises(kind, match=f"{code}: because") as caught:
            attempt()
        assert words in str(caught.value)
        assert len(gateway.asked) == 1


def test_a_server_of_another_kind_is_reported(gateway: Gateway, far: Backend) -> None:
    gateway.rule = lambda *_: Answer(404, {"detail": "Not Found"})
    with pytest.raises(StateError, match="check that it is DynamoDB"):
        far.setup()


def test_a_conflict_contains_the_existing_row(backend: Backend) -> None:
    assert backend.swap_reference("realm", "name", b"version", row()) == Conflict(None)
    backend.insert_reference("realm", "name", current := row())
    assert backend.insert_reference("realm", "name", row()) == Conflict(current)
    assert backend.swap_reference("realm", "name", b"version", row()) == Conflict(current)
    assert backend.delete_reference("realm", "name", b"version") == Conflict(current)


def test_many_threads_share_few_connections(gateway: Gateway, far_uri: str, backend: Backend) -> None:
    narrow = open_backend(f"{far_uri}&connections=3")
    in_threads(
        24, lambda n: narrow.write_objects("realm", [ObjectRow(n * 100 + i, 0, b"x") for i in range(60)])
    )
    assert len(rows(backend, backend.splits("objects", ["realm"], 2))) == 24 * 60
    assert gateway.connections <= 3
    narrow.close()


def test_no_thread_waits_forever_for_a_connection(gateway: Gateway, far_uri: str, backend: Backend) -> None:
    narrow = open_backend(f"{far_uri}&connections=1&timeout=3min")
    narrow.read_reference("realm", "name")
    held, go_on = threading.Event(), threading.Event()

    def hold(operation: str, body: Body, forward: Forward) -> None:
        held.set()
        go_on.wait(50)

    gateway.rule = hold
    slow = threading.Thread(target=narrow.read_reference, args=("realm", "name"))
    slow.start()
    assert held.wait(50)
    requests = narrow._requests  # type: ignore[attr-defined]
    requests.settings = replace(requests.settings, timeout=100)
    requests._places._timeout = 100
    try:
        with pytest.raises(TryAgainError, match="all 1 connections were in use"):
            narrow.read_reference("realm", "name")
    finally:
        go_on.set()
        slow.join()
    narrow.close()


@pytest.mark.parametrize("_", range(3))
def test_closing_in_mid_work_ends_all_of_it(uri: str, backend: Backend, _: int) -> None:
    used = open_backend(uri)
    begun = threading.Event()

    def write(number: int) -> None:
        while True:
            begun.set()
            used.write_objects("realm", [ObjectRow(number, part, b"x") for part in range(60)])

    def work(number: int) -> None:
        if number == 0:
            begun.wait(50)
            used.close()
            return
        with pytest.raises(StateError, match="closed"):
            write(number)

    in_threads(4, work)


def test_children_forked_in_mid_work_use_the_store_beside_their_parent(backend: Backend) -> None:
    over = threading.Event()

    def work(number: int) -> int:
        if number:
            done = 0
            while not over.is_set():
                backend.write_objects("realm", [ObjectRow(number, part, b"x") for part in range(60)])
                assert len(backend.read_objects("realm", [ObjectKey(number, p) for p in range(60)])) == 60
                done += 1
            return done
        statuses = [_of_child(backend, child) for child in range(5)]
        over.set()
        return sum(statuses)

    assert in_threads(4, work)[0] == 0
    found = backend.read_objects(
        "realm", [ObjectKey(1_000 + child, p) for child in range(5) for p in range(60)]
    )
    assert len(found) == 300


def _of_child(backend: Backend, number: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            backend.write_objects("realm", [ObjectRow(1_000 + number, part, b"x") for part in range(60)])
            backend.close()
        except BaseException:  # whatever it is, the child must not go on as if it were the test run
            os._exit(1)
        os._exit(0)
    return exit_status(child)
