"""Test cases of the storage contract for databases that execute statements in sessions: connections that are shared by
threads, sessions that are killed, and statements that wait for locks."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import ClassVar

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.errors import TryAgainError
from polaris_spark.testing.admin_cases import AdminCases, StoreAdmin
from polaris_spark.testing.processes import exit_status, in_threads, rows, started
from polaris_spark.testing.server import Server
from polaris_spark.testing.stores import row, with_options
from polaris_spark.testing.waiting import until_it_works, wait_until


class SessionAdmin(StoreAdmin):
    """The administrator of a database that has sessions, locks, and the URI options `timeout` and `pool`."""

    slow_statement: ClassVar[str]
    """Regular expression for the message of an operation whose statement took longer than `timeout`."""
    long_wait: ClassVar[str]
    """Regular expression for the message of an operation that waited longer than `timeout` for a locked row."""

    uri: str
    """URI of the store. Its options let `sessions` and `blocked` recognize the sessions of a backend."""

    @abstractmethod
    def sessions(self) -> set[int]:
        """Return the server's sessions that belong to backends with this `uri`."""

    @abstractmethod
    def kill(self, session: int) -> None:
        """End a session, even while it executes a statement."""

    @abstractmethod
    def blocked(self, operation: str) -> int:
        """Wait until a session waits for a lock, and return the session.

        Args:
            operation: name of the backend's operation that the session executes, such as `read_objects`.
        """

    @abstractmethod
    def locked_tables(self) -> AbstractContextManager[object]:
        """Lock the tables of the store, so that other sessions can neither read nor write them, until the context
        ends."""

    @abstractmethod
    def locked_reference(self, name: str) -> AbstractContextManager[object]:
        """Lock the row of a reference, so that other sessions cannot change it, until the context ends."""

    @abstractmethod
    def occupy(self, backend: Backend, work: Callable[[], None]) -> None:
        """Call `work` while this thread uses a connection of `backend`."""


class SessionCases(AdminCases):
    """Test cases for sessions and locks. A subclass defines the fixture `store_admin`, a `SessionAdmin`, and inherits
    `ServerConformance` too."""

    @pytest.fixture
    def store_admin(self, uri: str) -> SessionAdmin:
        """The administrator of the store `uri`."""
        raise NotImplementedError("the test class must define the fixture 'store_admin'")

    @pytest.fixture
    def watched(self, backend: Backend, store_admin: SessionAdmin) -> Iterator[Backend]:
        """A backend whose sessions the administrator can recognize."""
        with closing(open_backend(store_admin.uri)) as watched:
            yield watched

    # Connections

    def test_many_threads_share_few_connections(self, store_admin: SessionAdmin) -> None:
        backend = open_backend(with_options(store_admin.uri, "pool=3"))
        backend.setup()

        def work(number: int) -> int:
            for id in range(5):
                backend.write_objects("realm", [ObjectRow(number * 10 + id, 0, b"x")])
            return len(store_admin.sessions()) if number == 0 else 0

        assert 1 <= max(in_threads(32, work)) <= 3
        assert len(rows(backend, backend.splits("objects", None, 2))) == 160
        backend.close()
        wait_until(lambda: not store_admin.sessions(), "its sessions are gone")

    def test_no_thread_waits_forever_for_a_connection(
        self, backend: Backend, store_admin: SessionAdmin
    ) -> None:
        with closing(open_backend(with_options(store_admin.uri, "pool=1&timeout=200ms"))) as narrow:
            until_it_works(lambda: narrow.read_reference("realm", "name"))

            def one_more() -> None:
                with pytest.raises(TryAgainError, match="all 1 connections"):
                    narrow.read_reference("realm", "name")

            store_admin.occupy(narrow, one_more)
            assert until_it_works(lambda: narrow.read_reference("realm", "name")) is None

    def test_idle_sessions_that_the_server_ended_cause_no_errors(
        self, server: Server, watched: Backend, store_admin: SessionAdmin
    ) -> None:
        watched.insert_reference("realm", "name", current := row())
        in_threads(8, lambda _: watched.read_reference("realm", "name"))
        for session in store_admin.sessions():
            store_admin.kill(session)
        wait_until(lambda: not store_admin.sessions(), "its sessions are gone")
        assert watched.swap_reference("realm", "name", current.version, new := row()) == Swapped()
        in_threads(8, lambda _: watched.read_reference("realm", "name"))
        server.restart()
        assert watched.swap_reference("realm", "name", new.version, row()) == Swapped()

    def test_idempotent_operations_are_repeated_on_a_new_connection(
        self, watched: Backend, store_admin: SessionAdmin
    ) -> None:
        operations: dict[str, Callable[[], object]] = {
            "write_objects": lambda: watched.write_objects("realm", [ObjectRow(1, 0, b"x")]),
            "read_objects": lambda: watched.read_objects("realm", [ObjectKey(1)]),
        }
        for name, operation in operations.items():
            with store_admin.locked_tables():
                thread, outcome = started(operation)
                first = store_admin.blocked(name)
                store_admin.kill(first)
                wait_until(
                    lambda name=name, first=first: store_admin.blocked(name) != first,  # type: ignore[misc]  # bound at once
                    "another session repeats it",
                )
            thread.join()
            assert outcome == [None if name == "write_objects" else {ObjectKey(1): b"x"}]

    def test_a_child_leaves_its_parents_sessions_alone(
        self, watched: Backend, store_admin: SessionAdmin
    ) -> None:
        watched.read_reference("realm", "name")
        before = store_admin.sessions()
        assert before
        child = os.fork()
        if child == 0:
            done = False
            try:
                done = watched.insert_reference("realm", "child", row()) == Swapped()
                watched.close()
            finally:  # whatever it is, the child must not go on as if it were the test run
                os._exit(0 if done else 1)
        assert exit_status(child) == 0
        assert watched.read_reference("realm", "child") is not None
        wait_until(lambda: store_admin.sessions() == before, "the child's sessions are gone")

    # Locks and time-outs

    def test_a_statement_that_takes_too_long_was_not_done(
        self, backend: Backend, store_admin: SessionAdmin
    ) -> None:
        backend.insert_reference("realm", "name", current := row())
        with closing(open_backend(with_options(store_admin.uri, "timeout=300ms"))) as hasty:
            until_it_works(lambda: hasty.read_reference("realm", "name"))
            commit = [ObjectRow(1, 0, b"x")]
            attempts: list[Callable[[], object]] = [
                lambda: hasty.swap_reference("realm", "name", current.version, row()),
                lambda: hasty.write_and_swap("realm", commit, "name", current.version, row()),
                lambda: hasty.read_reference("realm", "name"),
            ]
            with store_admin.locked_tables():
                for attempt in attempts:
                    with pytest.raises(TryAgainError, match=store_admin.slow_statement):
                        attempt()
            assert until_it_works(lambda: hasty.read_reference("realm", "name")) == current

    def test_a_wait_for_a_locked_row_has_a_time_limit(
        self, backend: Backend, store_admin: SessionAdmin
    ) -> None:
        backend.insert_reference("realm", "name", current := row())
        with closing(open_backend(with_options(store_admin.uri, "timeout=1s"))) as hasty:
            until_it_works(lambda: hasty.read_reference("realm", "name"))
            commit, new = [ObjectRow(1, 0, b"x")], row()
            attempts: list[Callable[[], object]] = [
                lambda: hasty.swap_reference("realm", "name", current.version, row()),
                lambda: hasty.write_and_swap("realm", commit, "name", current.version, row()),
                lambda: hasty.delete_reference("realm", "name", current.version),
            ]
            with store_admin.locked_reference("name"):
                for attempt in attempts:
                    with pytest.raises(TryAgainError, match=store_admin.long_wait):
                        attempt()
                thread, outcome = started(
                    lambda: backend.swap_reference("realm", "name", current.version, new)
                )
            thread.join()
        assert outcome == [Swapped()]
        assert backend.read_reference("realm", "name") == new
        assert backend.read_objects("realm", [ObjectKey(1)]) == {}
