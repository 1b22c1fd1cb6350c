"""Test cases of the storage contract for concurrent threads and processes, and for transactions."""

from __future__ import annotations

import os
import threading
from typing import Final

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import (
    MAX_ROW_BYTES,
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    Swapped,
    fits_transaction,
)
from polaris_spark.errors import ObjectTooLargeError, StateError
from polaris_spark.testing.histories import linearizable, record, record_of_store
from polaris_spark.testing.processes import (
    exit_status,
    in_processes,
    in_threads,
    increments,
    increments_of_store,
    killed_counter,
    read_of_store,
)
from polaris_spark.testing.stores import StoreCases, row
from polaris_spark.testing.waiting import until_it_works

_DONE: Final = 0
_REFUSED: Final = 10


class RaceCases(StoreCases):
    """Test cases in which several threads or processes use one store."""

    def test_what_one_backend_wrote_another_reads_at_once(self, uri: str, backend: Backend) -> None:
        other = open_backend(uri)
        current = row()
        backend.insert_reference("realm", "name", current)
        for number in range(10):
            new = row(b"%d" % number)
            backend.swap_reference("realm", "name", current.version, new)
            current = new
            assert other.read_objects("realm", [ObjectKey(number)]) == {}
            backend.write_objects("realm", [ObjectRow(number, 0, b"%d" % number)])
            assert other.read_reference("realm", "name") == new
            assert other.read_objects("realm", [ObjectKey(number)]) == {ObjectKey(number): b"%d" % number}
        backend.delete_objects("realm", [ObjectKey(3)])
        backend.delete_reference("realm", "name", current.version)
        assert set(other.read_objects("realm", [ObjectKey(3), ObjectKey(4)])) == {ObjectKey(4)}
        assert other.read_reference("realm", "name") is None
        other.close()

    def test_of_racing_inserts_one_wins(self, backend: Backend) -> None:
        def insert(number: int) -> Swapped | Conflict:
            return backend.insert_reference("realm", name, row(b"%d" % number))

        for attempt in range(10):
            name = f"name-{attempt}"
            outcomes = in_threads(8, insert)
            winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Swapped)]
            assert len(winners) == 1
            found = backend.read_reference("realm", name)
            assert found is not None
            assert found.value == b"%d" % winners[0]

    def test_of_racing_deletes_one_wins(self, backend: Backend) -> None:
        def delete(_: int) -> Swapped | Conflict:
            return backend.delete_reference("realm", "name", current.version)

        for _ in range(10):
            current = row()
            backend.insert_reference("realm", "name", current)
            outcomes = in_threads(4, delete)
            assert [type(outcome) for outcome in outcomes].count(Swapped) == 1

    def test_threads_that_increment_lose_nothing(self, backend: Backend) -> None:
        backend.insert_reference("realm", "counter", row(b"0"))
        tallies = in_threads(6, lambda _: increments(backend, "realm", "counter", 25))
        self._check_counter(backend, [tally.done for tally in tallies], [tally.perhaps for tally in tallies])

    def test_processes_that_increment_lose_nothing(self, uri: str, backend: Backend) -> None:
        backend.insert_reference("realm", "counter", row(b"0"))
        if backend.scope == "process":
            assert in_processes(read_of_store, [(uri, "realm", "counter")]) == [None]
            return
        if backend.scope == "writer":
            self._check_others_only_read(uri, backend)
            return
        tallies = in_processes(increments_of_store, [(uri, "realm", "counter", 40)] * 4)
        self._check_counter(backend, [tally.done for tally in tallies], [tally.perhaps for tally in tallies])

    def test_what_racing_clients_are_told_of_a_reference_could_have_happened_one_after_the_other(
        self, uri: str, backend: Backend
    ) -> None:
        if backend.scope in ("process", "writer"):
            parts = in_threads(4, lambda n: record(backend, "realm", "name", f"{n}", 60))
        else:
            parts = in_processes(record_of_store, [(uri, "realm", "name", f"{n}", 60) for n in range(4)])
        history = [operation for part in parts for operation in part]
        history += record(backend, "realm", "name", "afterwards", 5)
        assert linearizable(history), history

    def test_threads_may_write_and_delete_the_same_rows_at_once(self, backend: Backend) -> None:
        written = [ObjectRow(id, part, b"%d" % id * 50) for id in range(40) for part in range(2)]
        keys = [ObjectKey(each.id, each.part) for each in written]

        def write(number: int) -> None:
            backend.write_objects("realm", written[number:] + written[:number])
            assert len(backend.read_objects("realm", keys)) == len(keys)

        in_threads(6, write)
        in_threads(4, lambda number: backend.delete_objects("realm", keys[number * 7 :]))
        assert backend.read_objects("realm", keys) == {}

    def test_each_thread_finds_what_it_wrote_at_once(self, backend: Backend) -> None:
        def work(number: int) -> None:
            name = f"name {number}"
            current = row(b"")
            assert backend.insert_reference("realm", name, current) == Swapped()
            for id in range(number * 100, number * 100 + 15):
                backend.write_objects("realm", [ObjectRow(id, 0, b"%d" % id)])
                assert backend.read_objects("realm", [ObjectKey(id)]) == {ObjectKey(id): b"%d" % id}
                new = row(b"%d" % id)
                assert backend.swap_reference("realm", name, current.version, new) == Swapped()
                assert backend.read_reference("realm", name) == new
                current = new

        in_threads(8, work)

    def test_acknowledged_writes_of_a_killed_process_exist(self, uri: str) -> None:
        backend = open_backend(uri)
        backend.setup()
        backend.insert_reference("realm", "counter", row(b"0"))
        scope = backend.scope
        backend.close()
        if scope == "process":
            return
        told = killed_counter(uri, "realm", "counter", 25)
        again = open_backend(uri)
        found = until_it_works(lambda: again.read_reference("realm", "counter"))
        assert found is not None
        assert told >= 25
        assert told <= int(found.value) <= told + 1
        assert len(again.read_objects("realm", [ObjectKey(id) for id in range(1, told + 1)])) == told
        increments(again, "realm", "counter", 1)
        again.close()

    def test_a_forked_child_uses_the_store_beside_its_parent_or_is_refused(self, backend: Backend) -> None:
        backend.insert_reference("realm", "counter", row(b"0"))
        increments(backend, "realm", "counter", 1)
        child = os.fork()
        if child == 0:
            os._exit(self._of_child(backend))
        increments(backend, "realm", "counter", 20)
        status = exit_status(child)
        assert status in ((_REFUSED,) if backend.scope == "process" else (_DONE, _REFUSED))
        found = backend.read_reference("realm", "counter")
        assert found is not None
        assert found.value == (b"21" if status == _REFUSED else b"41")

    def test_rows_and_swap_are_written_together_or_not_at_all(self, backend: Backend) -> None:
        if not backend.transactional:
            self._check_no_transactions(backend)
            return
        first, second = row(b"first"), row(b"second")
        backend.insert_reference("realm", "name", first)
        written = [ObjectRow(1, 0, b"a"), ObjectRow(1, 1, b"b")]
        for some in (written, []):
            outcome = backend.write_and_swap("realm", some, "name", os.urandom(16), second)
            assert outcome in (Conflict(None), Conflict(first))
            assert backend.write_and_swap("realm", some, "other", os.urandom(16), second) == Conflict(None)
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(1, 1)]) == {}
        assert backend.read_reference("realm", "other") is None
        assert backend.write_and_swap("realm", written, "name", first.version, second) == Swapped()
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(1, 1)]) == {
            ObjectKey(1): b"a",
            ObjectKey(1, 1): b"b",
        }
        assert backend.read_reference("realm", "name") == second
        too_large = [ObjectRow(2, 0, b"a"), ObjectRow(3, 0, b"x" * (MAX_ROW_BYTES + 1))]
        with pytest.raises(ObjectTooLargeError):
            backend.write_and_swap("realm", too_large, "name", second.version, row())
        assert backend.read_reference("realm", "name") == second

    def test_a_transaction_may_hold_rows_that_are_there_and_none(self, backend: Backend) -> None:
        if not backend.transactional:
            self._check_no_transactions(backend)
            return
        first, second, third = row(b"first"), row(b"second"), row(b"third")
        backend.insert_reference("realm", "name", first)
        backend.write_objects("realm", [ObjectRow(1, 0, b"a")])
        again = [ObjectRow(1, 0, b"a"), ObjectRow(2, 0, b"b")]
        assert backend.write_and_swap("realm", again, "name", first.version, second) == Swapped()
        assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {
            ObjectKey(1): b"a",
            ObjectKey(2): b"b",
        }
        assert backend.write_and_swap("realm", [], "name", second.version, third) == Swapped()
        assert backend.read_reference("realm", "name") == third

    def test_a_transaction_may_hold_many_rows_and_large_ones(self, backend: Backend) -> None:
        if not backend.transactional:
            self._check_no_transactions(backend)
            return
        backend.insert_reference("realm", "name", first := row())
        many = [ObjectRow(id, 0, b"x" * (id % 500)) for id in range(1_500)]
        many += [ObjectRow(2_000 + id, 0, os.urandom(MAX_ROW_BYTES)) for id in range(8)]
        while not fits_transaction(backend, many):  # the backend declares lower limits
            many.pop()
        second = row(b"second")
        assert backend.write_and_swap("realm", many, "name", first.version, second) == Swapped()
        found = backend.read_objects("realm", [ObjectKey(each.id) for each in many])
        assert found == {ObjectKey(each.id): each.value for each in many}
        with pytest.raises(ObjectTooLargeError):
            backend.write_and_swap(
                "realm", [ObjectRow(9_000, 0, b"x" * (MAX_ROW_BYTES + 1))], "name", second.version, row()
            )
        assert backend.read_reference("realm", "name") == second

    def test_a_transaction_may_be_as_large_as_the_backend_declares(self, backend: Backend) -> None:
        if not backend.transactional:
            self._check_no_transactions(backend)
            return
        count = backend.transaction_rows
        size = min(backend.transaction_bytes // count, MAX_ROW_BYTES)
        most_rows = [ObjectRow(id, 0, b"x" * size) for id in range(count)]
        larger = min(backend.transaction_bytes, MAX_ROW_BYTES)
        most_bytes = [
            ObjectRow(count + id, 0, os.urandom(larger)) for id in range(backend.transaction_bytes // larger)
        ]
        current = row()
        backend.insert_reference("realm", "name", current)
        for rows_of_one in (most_rows, most_bytes):
            assert fits_transaction(backend, rows_of_one)
            new = row(b"new")
            assert backend.write_and_swap("realm", rows_of_one, "name", current.version, new) == Swapped()
            some = [*rows_of_one[::1_000], rows_of_one[-1]]
            found = backend.read_objects("realm", [ObjectKey(each.id) for each in some])
            assert found == {ObjectKey(each.id): each.value for each in some}
            current = new

    def test_racing_transactions_leave_only_the_winners_rows(self, backend: Backend) -> None:
        if not backend.transactional:
            self._check_no_transactions(backend)
            return
        backend.insert_reference("realm", "name", current := row())

        def attempt(number: int) -> bool:
            new = [ObjectRow(number, part, b"x") for part in range(3)]
            return isinstance(
                backend.write_and_swap("realm", new, "name", current.version, row(b"%d" % number)), Swapped
            )

        won = [number for number, swapped in enumerate(in_threads(8, attempt)) if swapped]
        keys = [ObjectKey(number, part) for number in range(8) for part in range(3)]
        assert len(won) == 1
        assert set(backend.read_objects("realm", keys)) == {ObjectKey(won[0], part) for part in range(3)}

    def test_a_reader_never_sees_a_swap_without_its_rows(self, uri: str, backend: Backend) -> None:
        backend.insert_reference("realm", "name", current := row(b"0"))
        other, over = open_backend(uri), threading.Event()

        def write(version: bytes) -> int:
            try:
                for id in range(1, 60):
                    new, rows_of_id = row(b"%d" % id), [ObjectRow(id, 0, b"x")]
                    if backend.transactional:
                        outcome = backend.write_and_swap("realm", rows_of_id, "name", version, new)
                    else:
                        backend.write_objects("realm", rows_of_id)
                        outcome = backend.swap_reference("realm", "name", version, new)
                    assert outcome == Swapped()
                    version = new.version
                return 59
            finally:
                over.set()

        def read() -> int:
            id, last = 0, False
            while not last:
                last = over.is_set()
                found = other.read_reference("realm", "name")
                assert found is not None
                assert int(found.value) >= id
                id = int(found.value)
                assert id == 0 or other.read_objects("realm", [ObjectKey(id)])
            return id

        assert in_threads(2, lambda number: write(current.version) if number else read()) == [59, 59]
        other.close()

    @staticmethod
    def _of_child(backend: Backend) -> int:
        """Use the store in a forked child, and return the child's exit status: `_DONE` if the store works correctly,
        `_REFUSED` if it refuses to work, and another number otherwise."""
        try:
            backend.read_reference("realm", "counter")
        except StateError:
            return _REFUSED
        except BaseException:  # whatever the error is, the child must not continue the test run
            return 1
        try:
            done = increments(backend, "realm", "counter", 20).done
            backend.close()
        except BaseException:  # as above
            return 2
        return _DONE if done == 20 else 3

    @staticmethod
    def _check_others_only_read(uri: str, backend: Backend) -> None:
        assert increments(backend, "realm", "counter", 3).done == 3
        with pytest.raises(StateError):
            in_processes(increments_of_store, [(uri, "realm", "counter", 1)])
        found = in_processes(read_of_store, [(uri, "realm", "counter")] * 2)
        assert found == [backend.read_reference("realm", "counter")] * 2

    @staticmethod
    def _check_no_transactions(backend: Backend) -> None:
        with pytest.raises(NotImplementedError):
            backend.write_and_swap("realm", [], "name", b"version", row())

    @staticmethod
    def _check_counter(backend: Backend, done: list[int], perhaps: list[int]) -> None:
        found = backend.read_reference("realm", "counter")
        assert found is not None
        assert sum(done) <= int(found.value) <= sum(done) + sum(perhaps)
