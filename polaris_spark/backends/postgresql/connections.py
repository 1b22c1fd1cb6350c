"""The connections of one process to one PostgreSQL database.

psycopg_pool is not used. It is as fast as the pool here (3 us per use), but has the disadvantages that
`polaris_spark.backends.sessions` lists.
"""

from __future__ import annotations

import psycopg

from polaris_spark.backends.postgresql import failures, schema
from polaris_spark.backends.postgresql.session import PostgreSQLSession
from polaris_spark.backends.postgresql.settings import Settings
from polaris_spark.backends.sessions import LostError, RefusedError, Sessions
from polaris_spark.errors import PolarisError, TryAgainError


class Connections(Sessions[PostgreSQLSession]):
    """A pool of sessions with one PostgreSQL database."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.where, settings.timeout, settings.pool)
        self.settings = settings

    def make(self) -> None:
        self.write(lambda session: schema.create(session, self.settings.where, self.settings.schema))

    def refused(self, error: RefusedError) -> PolarisError:
        return failures.refused(self.settings.where, error)

    def opened(self) -> PostgreSQLSession:
        settings = self.settings
        password = None if settings.password is None else settings.password.reveal()
        try:
            connection = psycopg.connect(settings.connection, autocommit=True, password=password)
        except psycopg.Error as error:
            raise failures.connecting(settings.where, str(error)) from None
        session = PostgreSQLSession(connection, settings.timeout / 1_000)
        try:
            schema.begin(session, settings.session)
            if not self._checked:
                schema.check(session, settings.where, settings.schema)
                self._checked = True
        except LostError as error:
            session.close()
            raise TryAgainError(
                f"{settings.where} cannot be reached: {error}; nothing was changed"
            ) from error
        except BaseException:
            session.close()
            raise
        return session
