"""Test cases of the storage contract for stores on a server: lost answers, a server that does not answer, restarts,
credentials and permissions.

A `FaultyProxy` between client and server injects faults. The tests compare the outcome that a client gets for a change
with the state of the database, which they read without the proxy.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import OutcomeUnknownError, StateError, StoreURIError, TryAgainError
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.processes import Tally, in_threads, increments, rows
from polaris_spark.testing.proxy import LOST_ANSWERS, NONE, SILENCE, UNHEARD_ANSWERS, FaultyProxy
from polaris_spark.testing.server import ReservedPort, Server
from polaris_spark.testing.stores import StoreCases, row, with_options
from polaris_spark.testing.waiting import PATIENCE_S, until_it_works, wait_until

_KEYS = [ObjectKey(id) for id in range(20)]
_ROWS = [ObjectRow(id, 0, b"x") for id in range(20)]


class Change(NamedTuple):
    """A conditional operation on a reference. `then` is the row of the reference after it; None if there is no row."""

    name: str
    make: Callable[[Backend], Swapped | Conflict]
    then: ReferenceRow | None


class TroubleCases(StoreCases):
    """Test cases in which the server is killed and started again, or the network fails."""

    @pytest.fixture
    def server(self) -> Server:
        """The running server. Tests can use the same server one after the other, but not at the same time."""
        raise NotImplementedError("the test class must define the fixture 'server'")

    @pytest.fixture
    def store_name(self) -> str:
        """Name of the store on the server. It differs in each test."""
        return f"kit_{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def uri(self, server: Server, store_name: str) -> str:
        """URI of a store that does not exist yet."""
        return server.uri(store_name)

    @pytest.fixture
    def proxy(self, server: Server) -> Iterator[FaultyProxy]:
        """A proxy in front of the server. It injects no faults until a test sets `faults`."""
        with FaultyProxy("127.0.0.1", server.port, seed=1, faults=NONE) as proxy:
            yield proxy

    @pytest.fixture
    def far_uri(self, server: Server, store_name: str, proxy: FaultyProxy) -> str:
        """URI of the store through the proxy. Operations through this URI time out after a few seconds."""
        return with_options(server.uri(store_name, port=proxy.port), server.hasty)

    @pytest.fixture
    def far(self, backend: Backend, far_uri: str) -> Iterator[Backend]:
        """A backend for the same store as `backend`, but through the proxy. Its connections are already open."""
        far = open_backend(far_uri)
        until_it_works(far.setup)
        _warm_up(far)
        yield far
        far.close()

    # Lost answers

    def test_a_change_whose_answer_is_lost_is_an_unknown_outcome(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        for change in _changes():
            _lose_answer(change, proxy, backend, far)

    def test_a_change_is_not_called_a_conflict_because_it_was_sent_twice(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        """A driver may repeat a change whose first answer was lost. It then finds its own change in the database, and
        must not report a conflict."""
        for change in _changes():
            _warm_up(far)
            proxy.faults = LOST_ANSWERS._replace(until=proxy.happened.total() + 1)
            try:
                outcome = change.make(far)
            except OutcomeUnknownError:
                outcome = Swapped()
            proxy.faults = NONE
            assert outcome == Swapped(), change.name
            wait_until(
                lambda c=change: backend.read_reference("realm", "name") == c.then,  # type: ignore[misc]  # bound at once
                f"the {change.name} takes effect",
            )

    def test_repeating_a_change_of_unknown_outcome_changes_nothing_more(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        for change in _changes():
            _lose_answer(change, proxy, backend, far)
            outcome = until_it_works(lambda c=change: c.make(far))  # type: ignore[misc]  # bound at once
            if isinstance(outcome, Conflict):
                assert outcome.current in (None, change.then), change.name
            assert until_it_works(lambda: far.read_reference("realm", "name")) == change.then

    def test_rows_whose_answers_are_lost_are_no_certain_failure(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        proxy.faults = LOST_ANSWERS
        with pytest.raises((OutcomeUnknownError, TryAgainError)) as caught:
            far.write_objects("realm", _ROWS[:1])
        if isinstance(caught.value, TryAgainError):
            assert backend.read_objects("realm", _KEYS[:1]) == {}
        with pytest.raises((OutcomeUnknownError, TryAgainError)):
            far.write_objects("realm", _ROWS)
        with pytest.raises(TryAgainError):
            far.read_objects("realm", _KEYS)
        with pytest.raises(TryAgainError):
            far.read_reference("realm", "name")
        proxy.faults = NONE
        until_it_works(lambda: far.write_objects("realm", _ROWS))
        assert until_it_works(lambda: len(far.read_objects("realm", _KEYS))) == len(_ROWS)

    def test_deletions_whose_answers_are_lost_are_no_certain_failure(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        backend.write_objects("realm", _ROWS)
        proxy.faults = LOST_ANSWERS
        with pytest.raises((OutcomeUnknownError, TryAgainError)) as caught:
            far.delete_objects("realm", _KEYS)
        if isinstance(caught.value, TryAgainError):
            assert len(backend.read_objects("realm", _KEYS)) == len(_KEYS)
        proxy.faults = NONE
        until_it_works(lambda: far.delete_objects("realm", _KEYS))
        assert backend.read_objects("realm", _KEYS) == {}

    def test_a_scan_whose_connections_are_cut_goes_on_or_is_to_be_tried_again(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        written = [ObjectRow(id << 20, 0, b"x" * 2_000) for id in range(3_000)]
        backend.write_objects("realm", written)
        found = 0
        for split in until_it_works(lambda: far.splits("objects", ["realm"], 1)):
            seen: list[int] = []
            cut = False
            try:
                for batch in far.scan(split):
                    seen += batch.column("id").to_pylist()
                    proxy.cut_all()
            except TryAgainError:
                cut = True
            assert len(set(seen)) == len(seen)
            again = until_it_works(lambda split=split: rows(far, [split]))  # type: ignore[misc]  # bound at once
            ids = {id for _, id, _, _ in again}
            assert set(seen) <= ids if cut else set(seen) == ids
            found += len(again)
        assert found == len(written)

    def test_a_transaction_whose_answer_is_lost_is_an_unknown_outcome(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        if not backend.transactional:
            return
        first, second = row(b"first"), row(b"second")
        backend.insert_reference("realm", "name", first)
        _warm_up(far)
        # A server may roll back the transaction if its connection is reset while it answers.
        proxy.faults = UNHEARD_ANSWERS
        with pytest.raises(OutcomeUnknownError):
            far.write_and_swap("realm", _ROWS, "name", first.version, second)
        wait_until(lambda: backend.read_reference("realm", "name") == second, "the transaction takes effect")
        assert len(backend.read_objects("realm", _KEYS)) == len(_ROWS)

    def test_a_transaction_that_is_cut_off_is_an_unknown_outcome_and_is_done_whole_or_not_at_all(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        if not backend.transactional:
            return
        first, second = row(b"first"), row(b"second")
        backend.insert_reference("realm", "name", first)
        _warm_up(far)
        proxy.faults = LOST_ANSWERS
        with pytest.raises(OutcomeUnknownError):
            far.write_and_swap("realm", _ROWS, "name", first.version, second)
        proxy.faults = NONE
        written = backend.read_objects("realm", _KEYS)
        assert len(written) in (0, len(_ROWS))
        assert not written or backend.read_reference("realm", "name") == second
        outcome = until_it_works(lambda: far.write_and_swap("realm", _ROWS, "name", first.version, second))
        assert outcome in (Swapped(), Conflict(None), Conflict(second))
        assert backend.read_reference("realm", "name") == second
        assert len(backend.read_objects("realm", _KEYS)) == len(_ROWS)

    # Servers that do not answer or do not run

    def test_each_call_to_a_silent_server_has_a_time_limit(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        first = row()
        backend.insert_reference("realm", "name", first)
        backend.write_objects("realm", _ROWS)
        (split, *_) = until_it_works(lambda: far.splits("objects", ["realm"], 1))
        calls: dict[str, Callable[[], object]] = {
            "read_reference": lambda: far.read_reference("realm", "name"),
            "read_objects": lambda: far.read_objects("realm", _KEYS),
            "scan": lambda: rows(far, [split]),
            "write_objects": lambda: far.write_objects("realm", _ROWS),
            "delete_objects": lambda: far.delete_objects("realm", _KEYS),
            "insert_reference": lambda: far.insert_reference("realm", "other", row()),
            "swap_reference": lambda: far.swap_reference("realm", "name", first.version, row()),
            "delete_reference": lambda: far.delete_reference("realm", "name", first.version),
        }
        proxy.faults = SILENCE
        ends = _ends(calls)
        assert set(ends) == set(calls), f"still waiting: {set(calls) - set(ends)}"
        assert set(ends.values()) <= {"TryAgainError", "OutcomeUnknownError"}, ends
        assert ends["read_reference"] == ends["read_objects"] == ends["scan"] == "TryAgainError", ends

    def test_nothing_is_done_where_no_server_listens(self, server: Server, store_name: str) -> None:
        with ReservedPort() as port:
            nobody = open_backend(with_options(server.uri(store_name, port=port.number), server.hasty))
            with pytest.raises(TryAgainError, match="cannot be reached"):
                nobody.setup()
            with pytest.raises(TryAgainError):
                nobody.insert_reference("realm", "name", row())
            with pytest.raises(TryAgainError):
                nobody.write_objects("realm", _ROWS)
            nobody.close()

    def test_a_server_that_never_answers_is_given_up(self, server: Server, store_name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            unheard = open_backend(with_options(server.uri(store_name, port=port), server.hasty))
            with pytest.raises(TryAgainError):
                unheard.setup()
            unheard.close()

    @pytest.mark.parametrize("trouble", ["cut", "silence"])
    def test_connections_are_replaced_after_trouble(
        self, proxy: FaultyProxy, backend: Backend, far: Backend, trouble: str
    ) -> None:
        first, second = row(), row()
        backend.insert_reference("realm", "name", first)
        in_threads(8, lambda _: until_it_works(lambda: far.read_reference("realm", "name")))
        if trouble == "cut":
            proxy.cut_all()
        else:
            proxy.faults = SILENCE
            with pytest.raises((TryAgainError, OutcomeUnknownError)):
                far.swap_reference("realm", "name", b"another version", row())
            proxy.faults = NONE
        for _ in range(10):
            until_it_works(lambda: far.read_reference("realm", "name"))
        assert far.swap_reference("realm", "name", first.version, second) == Swapped()
        assert far.read_reference("realm", "name") == second

    # Servers that stop and start again

    def test_a_client_goes_on_by_itself_after_its_server_was_restarted(
        self, server: Server, backend: Backend
    ) -> None:
        first, second = row(), row()
        backend.insert_reference("realm", "name", first)
        backend.write_objects("realm", _ROWS)
        server.restart()
        if server.durable:
            assert until_it_works(lambda: backend.read_reference("realm", "name")) == first
            assert len(until_it_works(lambda: backend.read_objects("realm", _KEYS))) == len(_ROWS)
        else:
            until_it_works(backend.setup)
            until_it_works(lambda: backend.insert_reference("realm", "name", first))
        until_it_works(lambda: backend.swap_reference("realm", "name", first.version, second))
        assert backend.read_reference("realm", "name") == second

    def test_threads_that_increment_lose_nothing_when_the_server_is_killed(
        self, server: Server, backend: Backend
    ) -> None:
        if not server.durable:
            pytest.skip(f"{server.name} keeps nothing when it is killed")

        def kill() -> None:
            server.kill()
            server.start()

        _check_counting_beside(backend, backend, kill)

    def test_threads_that_increment_lose_nothing_when_connections_are_cut(
        self, proxy: FaultyProxy, backend: Backend, far: Backend
    ) -> None:
        def cut() -> None:
            before = proxy.happened.total()
            proxy.faults = LOST_ANSWERS._replace(every=2_000, until=before + 10)
            wait_until(lambda: proxy.happened.total() >= before + 10, "answers are lost")

        _check_counting_beside(backend, far, cut)

    # Credentials and permissions

    def test_wrong_credentials_are_reported_without_showing_them(
        self, server: Server, store_name: str
    ) -> None:
        uri = server.wrong_credentials(store_name)
        if uri is None:
            pytest.skip(f"{server.name} asks for no credentials")
        _check_refused(uri, r"(?i)password|credential|access|authenti|log.?in|secret|key")

    def test_missing_permissions_are_reported(self, server: Server, store_name: str) -> None:
        uri = server.unprivileged(store_name)
        if uri is None:
            pytest.skip(f"{server.name} lets every user set up a store")
        _check_refused(uri, r"(?i)permission|privilege|grant|may not|not allowed|access|denied|authori")


def _changes() -> list[Change]:
    """Return an insert, a swap and a delete of the same reference. Executed in this order, all succeed."""
    first, second = row(b"first"), row(b"second")
    return [
        Change("insert", lambda b: b.insert_reference("realm", "name", first), first),
        Change("swap", lambda b: b.swap_reference("realm", "name", first.version, second), second),
        Change("delete", lambda b: b.delete_reference("realm", "name", second.version), None),
    ]


def _lose_answer(change: Change, proxy: FaultyProxy, backend: Backend, far: Backend) -> None:
    """Make a change through the proxy, which drops the answer. Check that the client gets an unknown outcome, and wait
    until the change is in the database."""
    _warm_up(far)
    proxy.faults = LOST_ANSWERS
    with pytest.raises(OutcomeUnknownError):
        change.make(far)
    proxy.faults = NONE
    wait_until(
        lambda: backend.read_reference("realm", "name") == change.then, f"the {change.name} takes effect"
    )


def _warm_up(backend: Backend) -> None:
    """Execute every kind of operation once. Then the driver needs no further setup requests, and the next answer on the
    connection is the answer to the tested change."""
    one, two, three = row(), row(), row()

    def work() -> None:
        name = uuid.uuid4().hex
        backend.write_objects("other", [ObjectRow(1, 0, b"x")])
        backend.insert_reference("other", name, one)
        backend.swap_reference("other", name, one.version, two)
        if backend.transactional:
            backend.write_and_swap("other", [ObjectRow(1, 0, b"x")], name, two.version, three)
        backend.delete_reference("other", name, three.version if backend.transactional else two.version)
        backend.read_reference("realm", "name")

    until_it_works(work)


def _ends(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Run calls at the same time, each in a thread. Return the text of each result, or the name of the error, by the
    name of the call. A call that does not end within `PATIENCE_S` is missing."""
    ends: dict[str, str] = {}

    def call(name: str) -> None:
        try:
            ends[name] = repr(calls[name]())
        except (TryAgainError, OutcomeUnknownError) as error:
            ends[name] = type(error).__name__

    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return ends


def _check_counting_beside(backend: Backend, counting: Backend, trouble: Callable[[], None]) -> None:
    """Let threads add to a number through the backend `counting` while `trouble` runs. Then check, through `backend`,
    that the number is consistent with the outcomes that the threads got."""
    backend.insert_reference("realm", "counter", row(b"0"))
    over = threading.Event()

    def work(number: int) -> Tally:
        if number == 0:
            try:
                trouble()
            finally:
                over.set()
            return Tally(0, 0)
        tally, end = Tally(0, 0), time.monotonic() + 2 * PATIENCE_S
        while not over.is_set() or tally.done < 5:
            assert time.monotonic() < end, f"a thread has only {tally} after {2 * PATIENCE_S} s"
            one = increments(counting, "realm", "counter", 1)
            tally = Tally(tally.done + one.done, tally.perhaps + one.perhaps)
        return tally

    tallies = in_threads(5, work)
    found = until_it_works(lambda: backend.read_reference("realm", "counter"))
    assert found is not None
    sure = sum(tally.done for tally in tallies)
    assert sure <= int(found.value) <= sure + sum(tally.perhaps for tally in tallies)


def _check_refused(uri: str, words: str) -> None:
    """Check that setting up this store raises an error that a retry cannot fix. Its message must match the regular
    expression `words` and contain no password."""
    password = StoreURI.parse(uri).password
    with (
        pytest.raises((StateError, StoreURIError), match=words) as caught,
        closing(open_backend(uri)) as backend,
    ):
        backend.setup()
    error: BaseException | None = caught.value
    while error is not None and password is not None:
        assert password.reveal() not in f"{error!s} {error!r}"
        error = error.__cause__ or error.__context__
