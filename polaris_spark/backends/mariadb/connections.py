"""The connections of one process to one database of MariaDB or MySQL."""

from __future__ import annotations

import contextlib
from typing import Final

import pymysql

from polaris_spark.backends.mariadb import failures, schema
from polaris_spark.backends.mariadb.session import GARBLED, MariaDBSession
from polaris_spark.backends.mariadb.settings import Settings
from polaris_spark.backends.sessions import LostError, RefusedError, Sessions
from polaris_spark.errors import NoStoreError, PolarisError, StateError, TryAgainError

_LEAST_PACKET: Final = 2**20  # enough for a row of the maximum size, in hexadecimal


class Connections(Sessions[MariaDBSession]):
    """A pool of sessions with one MariaDB or MySQL database."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.where, settings.timeout, settings.pool)
        self._settings = settings

    def make(self) -> None:
        try:
            self._create_tables()
        except NoStoreError:
            self._create_database()
            self._create_tables()

    def _create_database(self) -> None:
        try:
            with contextlib.closing(self._connected(None)) as session:
                schema.create_database(session, self._settings.database)
        except RefusedError as error:
            raise self.refused(error) from error
        except LostError as error:
            raise self._unreachable(error) from error

    def _create_tables(self) -> None:
        self.write(lambda session: schema.create(session, self._settings.where))

    def refused(self, error: RefusedError) -> PolarisError:
        return failures.refused(self._settings.where, error)

    def opened(self) -> MariaDBSession:
        session = self._connected(self._settings.database)
        try:
            if not self._checked:
                schema.check(session, self._settings.where)
                self._checked = True
        except LostError as error:
            session.close()
            raise self._unreachable(error) from error
        except BaseException:
            session.close()
            raise
        return session

    def _connected(self, database: str | None) -> MariaDBSession:
        where = self._settings.where
        try:
            session = MariaDBSession(self._settings, database)
        except (pymysql.MySQLError, RuntimeError) as error:
            raise failures.connecting(where, error) from error
        except GARBLED as error:
            raise TryAgainError(
                f"{where} does not answer like MariaDB or MySQL: {error!r}; nothing was changed"
            ) from error
        except LostError as error:
            raise self._unreachable(error) from error
        if session.packet_bytes < _LEAST_PACKET:
            session.close()
            raise StateError(
                f"the server of {where} accepts packets of at most {session.packet_bytes} bytes; "
                f"set its max_allowed_packet to {_LEAST_PACKET} or more (16 MiB is MariaDB's default)"
            )
        return session

    def _unreachable(self, error: LostError) -> TryAgainError:
        return TryAgainError(f"{self._settings.where} cannot be reached: {error}; nothing was changed")
