"""One connection to PostgreSQL: prepared statements, binary parameters and results, and a deadline for every answer.

Statements use `psycopg.pq`, psycopg's layer over libpq. psycopg's `Connection.execute` would wait forever for a server
that does not answer. It would also convert values, which is not needed, because this package uses them as bytes.
"""

from __future__ import annotations

import select
import time
from typing import NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from polaris_spark.backends.postgresql.failures import UNUSABLE_AFTER
from polaris_spark.backends.sessions import LostError, RefusedError

_GRACE_S = 5.0  # in addition to statement_timeout, which the server enforces
_COMPLETION_UNKNOWN = b"40003"
_PROTOCOL_VIOLATION = b"08P01"  # a message was rejected; the other errors of class 08 are about connections
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Statement(NamedTuple):
    """An SQL statement that is prepared once in each connection. Parameters and results are in binary format."""

    name: bytes
    text: bytes


class PostgreSQLSession:
    """One connection to PostgreSQL. Only one thread at a time may use it."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]], timeout_s: float) -> None:
        """
        Args:
            connection: a connection in autocommit mode, so that each statement is a transaction.
            timeout_s: the session's `statement_timeout`, in seconds.
        """
        self._connection, self._timeout_s = connection, timeout_s
        self._pgconn = connection.pgconn
        self._prepared: set[bytes] = set()
        self._readable, self._both = select.poll(), select.poll()
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._both.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)
        self.usable = True
        """Whether the session can run another statement; False after the connection was lost."""

    @property
    def alive(self) -> bool:
        """Whether an idle session can still be used. If its socket has input, the session has ended: the server has
        sent a message about this, or closed the connection."""
        return self.usable and self._pgconn.status == pq.ConnStatus.OK and not self._readable.poll(0)

    def run(self, statement: Statement, *parameters: bytes) -> PGresult:
        """Run a statement, which is one transaction, and return its result after the commit.

        Raises:
            RefusedError: the statement was rolled back.
            LostError: the outcome is unknown.
        """
        deadline = time.monotonic() + self._timeout_s + _GRACE_S
        try:
            if statement.name not in self._prepared:
                self._pgconn.send_prepare(statement.name, statement.text)
                self._answer(deadline)
                self._prepared.add(statement.name)
            formats = [pq.Format.BINARY] * len(parameters)
            self._pgconn.send_query_prepared(statement.name, parameters, formats, pq.Format.BINARY)
            return self._answer(deadline)
        except RefusedError as error:
            self.usable = error.code not in UNUSABLE_AFTER
            raise
        except (
            BaseException
        ) as error:  # otherwise a late answer could be mistaken for the answer to another statement
            self.usable = False
            if isinstance(error, psycopg.Error):
                raise LostError(" ".join(str(error).split())) from error
            raise

    def script(self, text: str) -> PGresult:
        """Run several statements in one transaction, and return the result of the last one, in text format.

        Raises:
            RefusedError: a statement failed, and the transaction was rolled back. The session must not be used again.
            LostError: the outcome is unknown. The session must not be used again.
        """
        try:
            self._pgconn.send_query(text.encode())
            return self._answer(time.monotonic() + self._timeout_s + _GRACE_S)
        except BaseException as error:
            self.usable = False
            if isinstance(error, psycopg.Error):
                raise LostError(" ".join(str(error).split())) from error
            raise

    def close(self) -> None:
        """Close the connection, in any state."""
        self.usable = False
        self._connection.close()

    def _answer(self, deadline: float) -> PGresult:
        """Wait until the server is ready for another command, and return the last result."""
        pgconn = self._pgconn
        while pgconn.flush():
            for _, event in self._wait(self._both, deadline):
                if event & select.POLLIN:
                    pgconn.consume_input()
        last = failed = None
        while True:
            while pgconn.is_busy():
                self._wait(self._readable, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
            if result.status not in _GOOD:
                failed = failed or result
        if failed is not None:
            raise _failure(failed)
        if last is None:
            raise LostError("the server sent an empty answer")
        return last

    @staticmethod
    def _wait(poll: select.poll, deadline: float) -> list[tuple[int, int]]:
        left = deadline - time.monotonic()
        events = poll.poll(left * 1_000) if left > 0 else []
        if not events:
            raise LostError("the server did not answer before the deadline")
        return events


def _failure(result: PGresult) -> RefusedError | LostError:
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    code = result.error_field(pq.DiagnosticField.SQLSTATE)
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    text = " ".join(message.decode("utf-8", "replace").split())
    lost = code == _COMPLETION_UNKNOWN or (
        code is not None and code.startswith(b"08") and code != _PROTOCOL_VIOLATION
    )
    if code is None or severity != b"ERROR" or lost:
        return LostError(text)
    return RefusedError(code.decode("ascii", "replace"), text)
