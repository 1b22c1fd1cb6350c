"""Requests of one process to a cluster, with limits on their number and duration. Only idempotent requests are
repeated.

The first request opens a session, which all threads share. The session has one connection to each node of the
datacenter, and another connection that follows the cluster's state. Callbacks run in threads of the driver. A forked
child does not have these threads, so its requests are refused.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import BatchStatement, BatchType

from polaris_spark.backends.cassandra import failures, schema, statements
from polaris_spark.backends.cassandra.clusters import ClusterSession, open_session
from polaris_spark.backends.cassandra.driver import NoHostAvailable
from polaris_spark.backends.cassandra.in_flight import RequestLimit
from polaris_spark.backends.cassandra.settings import Settings
from polaris_spark.backends.concurrency import LimitReachedError
from polaris_spark.errors import PolarisError, StateError, TryAgainError

_PAUSE_S: Final = 0.05
Row = tuple[Any, ...]

logging.getLogger("cassandra").addHandler(logging.NullHandler())  # failures are raised as errors


class Request(NamedTuple):
    """A request to run a statement. `title` is the statement's title in `statements`, and `values` are its parameters.
    If `several` is not empty, the statement is run once for each tuple of parameters in it, as one CQL batch in one
    partition."""

    title: str
    values: tuple[object, ...] = ()
    several: tuple[tuple[object, ...], ...] = ()
    page: bytes | None = None
    """Paging state of the previous answer, after which the read continues; None to read from the start."""
    page_rows: int | None = None
    narrower: bool = False
    """Whether the caller can send a request for a narrower range if this request reads too much. If true, this request
    is not repeated after such a failure, and it fails after half of the remaining time."""


class Answer(NamedTuple):
    """The answer to a request: rows, names of the columns, and the paging state of the next page (None: no more
    pages)."""

    rows: list[Row]
    columns: tuple[str, ...]
    page: bytes | None


class Requests:
    """Sends the requests of one store to its cluster. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._under_way = RequestLimit(settings.concurrency)
        self._opening = threading.Lock()
        self._session: ClusterSession | None = None
        self._level: schema.Level | None = None
        self._prepared: dict[str, Any] = {}
        self._closed = False
        self._pid = os.getpid()

    def create(self) -> None:
        """Create the keyspace and the tables if they are missing.

        Raises:
            StoreURIError, NewerFormatError, StateError: see `schema.create`.
            TryAgainError: the cluster cannot be reached.
        """
        with self._opening:
            session = self._connected()
            ask = self._schema(session)
            self._use(session, schema.create(ask, self.settings, session.datacenter, session.nodes))

    def read(self, requests: Sequence[Request]) -> list[Answer]:
        """Send read-only requests in parallel, repeat those that fail, and return the answer to each.

        Raises:
            TryAgainError: a request still failed after a third of the time-out. Or a request whose `narrower` is true
                failed, perhaps because it reads too many rows. The `__cause__` of the error is the driver's error.
            StoreURIError, StateError: see `failures`.
        """
        return self._repeated(requests, writes=False)

    def write(self, requests: Sequence[Request]) -> None:
        """Send idempotent requests in parallel, and repeat those that fail.

        Raises:
            OutcomeUnknownError, TryAgainError, StoreURIError, StateError: see `failures`.
        """
        self._repeated(requests, writes=True)

    def change(self, request: Request) -> Answer:
        """Send a conditional request, and return its answer. The request is repeated only if it was sent to no node.

        Raises:
            OutcomeUnknownError, TryAgainError, StoreURIError, StateError: see `failures`.
        """
        deadline = _Deadline(self.settings.timeout)
        while True:
            future = self._sent(request, deadline)
            try:
                return _answer(future)
            except Exception as error:
                sent = bool(future.attempted_hosts) or not isinstance(error, NoHostAvailable)
                if sent or deadline.impatient:
                    raise self._explained(error, writes=True, sent=sent, conditional=True) from error
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close all connections. Later calls raise `StateError`."""
        self._closed = True
        if self._pid != os.getpid():  # a thread of the parent may hold the lock
            return
        with self._opening:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _repeated(self, requests: Sequence[Request], *, writes: bool) -> list[Answer]:
        deadline = _Deadline(self.settings.timeout)
        answers: list[Answer | None] = [None] * len(requests)
        left, sent = list(range(len(requests))), False
        while True:
            futures = [self._sent(requests[number], deadline) for number in left]
            failed, worst = [], None
            for number, future in zip(left, futures, strict=True):
                try:
                    answers[number] = _answer(future)
                except Exception as error:
                    sent = sent or bool(future.attempted_hosts)
                    failed.append(number)
                    if worst is None or failures.transient(worst):
                        worst = error
            if worst is None:
                return answers  # type: ignore[return-value]  # every request has an answer
            narrower = failures.too_much(worst) and any(requests[number].narrower for number in failed)
            if narrower or not failures.transient(worst) or deadline.impatient:
                raise self._explained(worst, writes=writes, sent=sent) from worst
            left = failed
            time.sleep(_PAUSE_S)

    def _sent(self, request: Request, deadline: _Deadline) -> Any:
        """Send a request, and return the driver's future for the answer."""
        session = self._opened()
        statement = self._statement(session, request)

        def send() -> Any:
            patience = deadline.left / (2 if request.narrower else 1)
            return session.send(statement, max(0.001, patience), request.page)

        try:
            return self._under_way.sent(send, deadline.left)
        except LimitReachedError:
            raise TryAgainError(
                f"{self.settings.where}: {self.settings.concurrency} requests, the maximum, were in progress "
                f"for {self.settings.timeout} ms; try again later, or raise the option 'concurrency'"
            ) from None

    def _statement(self, session: ClusterSession, request: Request) -> Any:
        prepared = self._prepared.get(request.title) or self._prepare(session, request.title)
        if request.several:
            batch = BatchStatement(BatchType.UNLOGGED)
            for values in request.several:
                batch.add(prepared, values)
            return batch
        bound = prepared.bind(request.values)
        bound.fetch_size = request.page_rows
        return bound

    def _prepare(self, session: ClusterSession, title: str) -> Any:
        deadline = _Deadline(self.settings.timeout)
        while True:
            try:
                prepared = session.prepare(statements.text(title, self.settings.keyspace))
                break
            except Exception as error:
                if not failures.transient(error) or deadline.impatient:
                    raise self._explained(error, writes=False, sent=False) from error
            time.sleep(_PAUSE_S)
        if title == "read":
            assert self._level is not None
            prepared.consistency_level = ConsistencyLevel.name_to_value[self._level.serial]
        self._prepared[title] = prepared
        return prepared

    def _opened(self) -> ClusterSession:
        """Return the session. The first call connects, and checks that the keyspace holds a store."""
        if self._session is not None and self._level is not None and self._pid == os.getpid():
            return self._session
        self._refuse_if_unusable()
        with self._opening:
            session = self._connected()
            if self._level is None:
                self._use(session, schema.check(self._schema(session), self.settings, session.datacenter))
            return session

    def _connected(self) -> ClusterSession:
        self._refuse_if_unusable()
        if self._session is None:
            self._session = open_session(self.settings)
        return self._session

    def _use(self, session: ClusterSession, level: schema.Level) -> None:
        session.learn(self.settings.keyspace)
        session.agree(level)
        self._level = level

    def _schema(self, session: ClusterSession) -> schema.Ask:
        def ask(query: str, *arguments: object) -> list[Row]:
            try:
                return session.ask(query, arguments, self.settings.timeout / 1_000)
            except Exception as error:
                writes = query.startswith("CREATE")
                raise self._explained(error, writes=writes) from error

        return ask

    def _explained(
        self, error: Exception, *, writes: bool, sent: bool = True, conditional: bool = False
    ) -> PolarisError:
        if self._closed and not (writes and sent):
            return self._closed_error()
        where = self.settings.where
        return failures.explained(where, error, writes=writes, sent=sent, conditional=conditional)

    def _refuse_if_unusable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if self._pid != os.getpid():
            raise StateError(
                f"{self.settings.where} was opened before this process was forked, and its driver's threads do not "
                "exist here: open the store in this process, or start this process with 'spawn'"
            )

    def _closed_error(self) -> StateError:
        return StateError(f"the store {self.settings.where} is closed; open it again")


class _Deadline:
    def __init__(self, timeout: int) -> None:
        self._start = time.monotonic()
        self._seconds = timeout / 1_000

    @property
    def left(self) -> float:
        """Remaining time, in seconds."""
        return self._start + self._seconds - time.monotonic()

    @property
    def impatient(self) -> bool:
        """Whether a third of the time-out has passed. After that, no request is retried."""
        return self.left < self._seconds * 2 / 3


def _answer(future: Any) -> Answer:
    result = future.result()
    return Answer(result.current_rows, tuple(result.column_names or ()), result.paging_state)
