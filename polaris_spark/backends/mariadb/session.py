"""One connection to MariaDB or MySQL: packets of one or several statements, and a deadline for every answer.

With the client flag `FOUND_ROWS`, the server reports how many rows an `UPDATE` matched, not how many it changed.
`MULTI_STATEMENTS` allows several statements in one packet; after the first failure, the server runs no further
statements of the packet.
"""

from __future__ import annotations

import math
import select
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.constants import CLIENT

from polaris_spark.backends.mariadb.failures import DEADLOCK, ENDING, UNUSABLE_AFTER
from polaris_spark.backends.mariadb.settings import Settings
from polaris_spark.backends.sessions import LostError, RefusedError

GRACE_MS = 5_000
"""Time that the client waits for an answer after the time-out has passed, in milliseconds. At the time-out, the server
itself ends lock waits and most statements. In this additional time, the server's error reaches the client."""

GARBLED: Final = (AssertionError, LookupError, ValueError, struct.error)
"""Built-in exceptions that PyMySQL may raise, besides `pymysql.Error`, for packets that violate the protocol."""

_CLIENTS_OWN: Final = range(2_000, 3_000)


class Result(NamedTuple):
    """The result of one statement."""

    matched: int
    """Number of rows matched, inserted or deleted."""
    rows: Sequence[tuple[Any, ...]]
    columns: Sequence[str]
    """Names of the columns of `rows`."""


class StatementFailedError(RefusedError):
    """The server refused a statement. It has run the earlier statements of the same packet."""

    def __init__(self, code: str, message: str, position: int) -> None:
        super().__init__(code, message)
        self.position = position
        """Position of the failed statement in the packet, from 0."""


class MariaDBSession:
    """One connection in autocommit mode. Only one thread at a time may use it."""

    def __init__(self, settings: Settings, database: str | None) -> None:
        """Connect, and apply the session settings that the statements rely on.

        Args:
            settings: among others, the server's address, the account and the time-outs.
            database: the database to use, which must exist; None to select no database.
        Raises:
            pymysql.Error, RuntimeError, GARBLED: PyMySQL could not connect.
            RefusedError: the server refused the session's settings, or is read-only.
            LostError: the connection was lost.
        """
        password = "" if settings.password is None else settings.password.reveal()
        patience = max(0.001, settings.connect_timeout / 1_000)
        self._connection = pymysql.connections.Connection(
            **settings.login,
            password=password.encode(),  # UTF-8; PyMySQL's default is Latin-1
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=patience,
            read_timeout=patience,
            write_timeout=patience,
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            program_name="polaris_spark",
        )
        # An answer may take longer than connecting. PyMySQL has no public API to change these time-outs.
        self._connection._read_timeout = (settings.timeout + GRACE_MS) / 1_000
        self._connection._write_timeout = (settings.timeout + GRACE_MS) / 1_000
        self._cursor = self._connection.cursor()
        self._readable = select.poll()
        self._readable.register(self._connection._sock, select.POLLIN)
        self.usable = True
        """Whether the session can run another statement; False after the connection was lost."""
        self.of_mariadb = "MariaDB" in self._connection.get_server_info()
        try:
            self.packet_bytes = self._begin(settings)
            """Maximum size of a packet that the server accepts, in bytes."""
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether an idle session can still be used. If its socket has input, the session has ended: the server has
        sent a message about this, or closed the connection."""
        return self.usable and bool(self._connection.open) and not self._readable.poll(0)

    def run(self, *statements: str) -> list[Result]:
        """Send statements in one packet, and return the result of each. After a failure, the later statements are not
        run.

        Raises:
            StatementFailedError: a statement failed and was undone. In most cases, the session remains usable, and a
                transaction that was open before stays open.
            LostError: the outcome is unknown.
        """
        results: list[Result] = []
        cursor = self._cursor
        try:
            cursor.execute(";".join(statements))
            results.append(self._result())
            while cursor.nextset():
                results.append(self._result())
        except pymysql.MySQLError as error:
            raise self._failure(error, len(results)) from error
        except GARBLED as error:
            self.usable = False
            raise LostError(f"the server's answer cannot be understood: {error!r}") from error
        except BaseException:  # otherwise a late answer could be mistaken for the answer to another statement
            self.usable = False
            raise
        return results

    def commit(self, packets: Sequence[Sequence[str]]) -> None:
        """Run packets of statements that are together one transaction: the first statement begins the transaction, and
        the last statement commits it.

        Raises:
            StatementFailedError: nothing was done; the transaction was rolled back.
            LostError: the outcome of the commit is unknown.
        """
        for number, packet in enumerate(packets, 1):
            try:
                self.run(*packet)
            except StatementFailedError as error:
                if number == len(packets) and error.position == len(packet) - 1 and error.code != DEADLOCK:
                    self.usable = False
                    raise LostError(f"the commit failed: {error} (error {error.code})") from error
                self._roll_back()
                raise

    def close(self) -> None:
        """Close the connection, in any state."""
        self.usable = False
        if self._connection.open:
            self._connection.close()

    def _result(self) -> Result:
        columns = [column[0] for column in self._cursor.description or ()]
        return Result(self._cursor.rowcount, self._cursor.fetchall(), columns)

    def _roll_back(self) -> None:
        """Roll back the transaction. If this fails, mark the session as unusable; the server rolls the transaction back
        when the connection is closed."""
        try:
            if self.usable:
                self.run("ROLLBACK")
        except (RefusedError, LostError):
            self.usable = False

    def _failure(self, error: pymysql.MySQLError, position: int) -> StatementFailedError | LostError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
        if code <= 0 or code in _CLIENTS_OWN or str(code) in ENDING:
            self.usable = False
            return LostError(text or "the connection is closed")
        self.usable = str(code) not in UNUSABLE_AFTER
        return StatementFailedError(str(code), text, position)

    def _begin(self, settings: Settings) -> int:
        """Apply the settings of the session, which override those in `my.cnf`. Return the server's
        `max_allowed_packet`, in bytes."""
        seconds = math.ceil(settings.timeout / 1_000)
        found = self.run(
            "SET SESSION TRANSACTION READ WRITE, ISOLATION LEVEL READ COMMITTED",
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', completion_type = 'NO_CHAIN', "
            f"sql_select_limit = {2**64 - 1}, innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}",
            f"SET SESSION max_statement_time = {settings.timeout / 1_000}, in_predicate_conversion_threshold = 0"
            if self.of_mariadb
            else f"SET SESSION max_execution_time = {settings.timeout}",
            "SHOW VARIABLES WHERE Variable_name IN ('max_allowed_packet', 'read_only', 'wsrep_on')",
        )[-1]
        variables = {str(name): str(value) for name, value in found.rows}
        if variables.get("read_only", "OFF") != "OFF":
            raise RefusedError(
                "1290", "the server is read-only: it is a replica, or a failover is in progress"
            )
        if variables.get("wsrep_on") == "ON":  # Galera: make earlier commits of other nodes visible
            self.run("SET SESSION wsrep_sync_wait = 7")
        return int(variables["max_allowed_packet"])
