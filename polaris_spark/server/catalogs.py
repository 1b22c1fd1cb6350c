"""The catalogs of a realm that one server serves."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from polaris_spark.catalog.catalogs.catalogs import changes_of_catalogs, list_catalogs
from polaris_spark.catalog.entities.properties import WAREHOUSE
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.errors import BadRequestError, TryAgainError
from polaris_spark.names import MAIN
from polaris_spark.rest.config import same_place
from polaris_spark.rest.opening import open_session
from polaris_spark.rest.session import Session
from polaris_spark.storage.access import StorageAccess
from polaris_spark.system.stores import check_store

NAMES_MS: Final = 1_000
"""Maximum time until a server notices that another process renamed, dropped or restored a catalog, in milliseconds. New
catalogs, and changes that were requested from this server, are noticed at once."""

DROPPED_MS: Final = 60_000
"""Time in milliseconds for which a server keeps the session of a dropped catalog open. Requests that began before the
drop end in this time."""


class _Opened(NamedTuple):
    """An open catalog."""

    session: Session
    """The session that was opened, which must be closed."""
    restricted: Session
    """The same session, restricted to the allowed locations, with the catalog's newest name."""


class ServedCatalogs:
    """All catalogs of one realm. The catalog of the given session is the default catalog. Every other catalog is opened
    when a client first requests it.

    Sessions are found by the entity id of their catalog, and names are read from the store at most `NAMES_MS` ago. So a
    name refers to the catalog that has this name now, even after renames and drops. If the default catalog was dropped,
    the catalog that has its name now is the default catalog.

    All catalogs are restricted: locations that clients give must lie below the catalog's warehouse or below an allowed
    location. Thread-safe. `close` closes all sessions, including the given one.
    """

    def __init__(
        self,
        session: Session,
        *,
        allowed: Sequence[str] = (),
        follow_links: bool = False,
        storage: StorageAccess | None = None,
        logs_in: bool = True,
    ) -> None:
        """Serve a session's realm.

        Args:
            session: the session of the default catalog.
            allowed: locations that clients may use besides the warehouses.
            follow_links: True to follow symbolic links below the warehouse or an allowed location, if their targets
                lie below one of these locations.
            storage: access to the storage of tables that clients get; None if they get none.
            logs_in: whether the sessions of other catalogs log in, as for `open_session`.
        Raises:
            BadRequestError: an allowed location is not absolute.
        """
        self.session = session
        self._allowed = tuple(allowed)
        self._follow_links = follow_links
        self._storage = storage
        self._logs_in = logs_in
        self._default = session.catalog.row
        self._opened = {self._default.entity_id: _Opened(session, self._restricted(session))}
        self._names: dict[str, CatalogRow] = {}
        self._read_at: float | None = None
        self._known = -1
        self._dropped: dict[int, float] = {}
        """Entity ids of dropped catalogs with an open session, with the time at which each was first missing."""
        self._guard = threading.Lock()
        self._opening: dict[int, threading.Lock] = {}
        """Locks by the entity id of a catalog, which is held while the catalog is opened. A catalog that is slow to
        open does not delay requests to others."""
        self._is_closed = False

    @property
    def default(self) -> Session:
        """The session of the default catalog, restricted to the allowed locations."""
        row = self._row_of_default()
        return self._opened[self._default.entity_id].restricted if row is None else self._of(row)

    def choose(self, name: str | None) -> Session:
        """Return the session of the catalog with this name, after opening the catalog if necessary.

        If the name is None, return the default catalog's session. Also return this session if no catalog has the name:
        the handler then refuses the request, because the catalog name in its path is not the default catalog's.
        """
        if name is None:
            return self.default
        row = self._find(name)
        if row is None and "@" in name:
            row = self._find(name.partition("@")[0])  # the handler finds the state
        return self.default if row is None else self._of(row)

    def of_warehouse(self, text: str | None) -> Session:
        """Return the session of the catalog whose name or warehouse location is `text`. If `text` is empty, or no
        catalog has this name or location, return the default catalog's session.

        Raises:
            BadRequestError: the catalog's name equals the first part of a route's path, so paths with the name as
                prefix would be ambiguous.
        """
        default = self.default
        if not text or text == default.catalog.name:
            return default
        found = self.choose(text)
        if found is default and not same_place(text, default.catalog.context.warehouse):
            for row in self._latest().values():
                if same_place(text, row.properties.get(WAREHOUSE, "")):
                    found = self.choose(row.name)
                    break
        if found is not default and found.catalog.name in found.router.roots:
            raise BadRequestError(
                f"catalog {found.catalog.name!r} cannot be selected here, because its name is also the first part of "
                "paths of the protocol: start a server with this catalog as its default"
            )
        return found

    def check(self) -> None:
        """Check that requests can be served, by reading the rows that requests read: the records of the store and the
        realm, and the default catalog's head.

        Raises:
            RealmMovedError: the realm was moved to another store.
            NoStoreError: the database no longer contains a store.
            StateError: the realm or the catalog no longer exists, or the realm was deactivated.
            Exception: any other error of a database that cannot be read.
        """
        check_store(self.session.connection.backend)
        self.session.connection.realms.active(self.session.properties.realm)
        self.default.catalog.head()

    def is_busy(self) -> bool:
        """Whether closing the sessions now would abort something that a client has begun, such as a run of a
        procedure."""
        return any(one.session.is_busy() for one in list(self._opened.values()))

    def close(self) -> None:
        """Close the sessions of all catalogs, which releases the store."""
        self._is_closed = True
        opened = [one.session for one in list(self._opened.values()) if one.session is not self.session]
        for session in (*opened, self.session):
            session.close()

    def _row_of_default(self) -> CatalogRow | None:
        """Return the newest row of the default catalog; None if it was dropped, and no catalog has its name."""
        rows = self._latest()
        named = rows.get(self._default.name)
        if named is not None and named.entity_id == self._default.entity_id:
            return named
        renamed = (row for row in rows.values() if row.entity_id == self._default.entity_id)
        return next(renamed, named)

    def _find(self, name: str) -> CatalogRow | None:
        return self._latest().get(name) or self._latest(fresh=True).get(name)

    def _latest(self, *, fresh: bool = False) -> dict[str, CatalogRow]:
        """Return the catalogs by name, as they were at most `NAMES_MS` ago.

        Args:
            fresh: whether to read them now.
        """
        clock, known = self.session.connection.clock, changes_of_catalogs()
        now = clock.elapsed_ms()
        with self._guard:
            is_old = self._read_at is None or now - self._read_at >= NAMES_MS or known != self._known
            if fresh or is_old:
                rows = list_catalogs(self.session.catalog.references)
                self._names = {row.name: row for row in rows}
                self._read_at, self._known = now, known
                self._close_dropped({row.entity_id for row in rows}, now)
            return self._names

    def _close_dropped(self, existing: Set[int], now: float) -> None:
        """Close the sessions of catalogs that were dropped `DROPPED_MS` ago. If one of them is restored later, it is
        opened again.

        Args:
            existing: entity ids of the catalogs that exist.
            now: the time of the monotonic clock, in milliseconds.
        """
        missing = self._opened.keys() - existing - {self._default.entity_id}
        self._dropped = {id: self._dropped.get(id, now) for id in missing}
        for id in [id for id, since in self._dropped.items() if now - since >= DROPPED_MS]:
            session = self._opened.pop(id).session
            # Closing waits for runs that were cancelled.
            threading.Thread(target=session.close, name="polaris-close-dropped", daemon=True).start()

    def _of(self, row: CatalogRow) -> Session:
        """Return the session of a catalog, after opening the catalog if necessary."""
        opened = self._opened.get(
            row.entity_id
        )  # without the lock, which is held while the catalog is opened
        if opened is not None and opened.restricted.catalog.name == row.name:
            return opened.restricted
        with self._opening.setdefault(row.entity_id, threading.Lock()):
            opened = self._opened.get(row.entity_id)
            if opened is None:
                opened = self._open(row)
            if opened.restricted.catalog.name != row.name:
                renamed = opened.restricted.derive(catalog=opened.restricted.catalog.renamed(row))
                opened = opened._replace(restricted=renamed)
            self._opened[row.entity_id] = opened
            if self._is_closed:  # since this catalog began to be opened
                opened.session.close()
            return opened.restricted

    def _open(self, row: CatalogRow) -> _Opened:
        properties = dataclasses.replace(
            self.session.properties, catalog=row.name, branch=MAIN, warehouse=None, create=False
        )
        session = open_session(
            properties, self.session.connection.clock, self.session.router, logs_in=self._logs_in
        )
        try:
            if session.catalog.row.entity_id != row.entity_id:
                raise TryAgainError(f"catalog {row.name!r} has just been renamed or dropped; try again")
            return _Opened(session, self._restricted(session))
        except BaseException:
            session.close()
            raise

    def _restricted(self, session: Session) -> Session:
        catalog = session.catalog.restricted(self._allowed, follow_links=self._follow_links)
        restricted = session.derive(catalog=catalog)
        restricted.storage = self._storage
        return restricted
