"""The catalogs of a realm that one server serves."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from polaris_spark.catalog.catalogs import find_catalog, list_catalogs
from polaris_spark.catalog.properties import WAREHOUSE
from polaris_spark.errors import BadRequestError
from polaris_spark.names import MAIN
from polaris_spark.rest.config import same_place
from polaris_spark.rest.session import Session, open_session
from polaris_spark.system.stores import check_store


class ServedCatalogs:
    """All catalogs of the realm of an open session. The session's catalog is the default catalog. Each other catalog is
    opened when a client first requests it.

    All catalogs are restricted: locations that clients give must lie below the catalog's warehouse or below an allowed
    location. Thread-safe. `close` closes all sessions, including the given one.
    """

    def __init__(self, session: Session, *, allowed: Sequence[str] = (), follow_links: bool = False) -> None:
        """Serve a session's realm.

        Args:
            session: the session of the default catalog.
            allowed: locations that clients may use besides the warehouses.
            follow_links: True to follow symbolic links below the warehouse or an allowed location, if their targets
                lie below one of these locations.
        Raises:
            BadRequestError: an allowed location is not absolute.
        """
        self.session = session
        self._allowed = tuple(allowed)
        self._follow_links = follow_links
        self.default = self._restricted(session)
        """The session of the default catalog, restricted to the allowed locations."""
        self._others: dict[str, Session] = {}
        self._opened: list[Session] = []
        self._guard = threading.Lock()

    def choose(self, name: str | None) -> Session:
        """Return the session of the catalog with this name, after opening the catalog if necessary.

        If the name is None, return the default catalog's session. Also return this session if no catalog has the name:
        the handler then refuses the request, because the catalog name in its path is not the default catalog's.
        """
        if name is None or name == self.default.catalog.name:
            return self.default
        if "@" in name and find_catalog(self.default.catalog.references, name) is None:
            name = name.partition("@")[0]  # the handler finds the state
            if name == self.default.catalog.name:
                return self.default
        opened = self._others.get(name)  # without the guard, which is held while another catalog is opened
        if opened is not None:
            return opened
        with self._guard:
            found = self._others.get(name)
            if found is None:
                if find_catalog(self.default.catalog.references, name) is None:
                    return self.default
                found = self._others[name] = self._open(name)
            return found

    def of_warehouse(self, text: str | None) -> Session:
        """Return the session of the catalog whose name or warehouse location is `text`. If `text` is empty, or no
        catalog has this name or location, return the default catalog's session.

        Raises:
            BadRequestError: the catalog's name equals the first part of a route's path, so paths with the name as
                prefix would be ambiguous.
        """
        if not text or text == self.default.catalog.name:
            return self.default
        found = self.choose(text)
        if found is self.default and not same_place(text, self.default.catalog.context.warehouse):
            for row in list_catalogs(self.default.catalog.references):
                if same_place(text, row.properties.get(WAREHOUSE, "")):
                    found = self.choose(row.name)
                    break
        if found is not self.default and found.catalog.name in found.router.roots:
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

    def close(self) -> None:
        """Close the sessions of all catalogs, which releases the store."""
        with self._guard:
            opened = list(self._opened)
            self._opened.clear()
            self._others.clear()
        for session in (*opened, self.session):
            session.close()

    def _open(self, name: str) -> Session:
        properties = dataclasses.replace(
            self.session.properties, catalog=name, branch=MAIN, warehouse=None, create=False
        )
        session = open_session(properties, self.session.connection.clock, self.session.router)
        try:
            restricted = self._restricted(session)
        except BaseException:
            session.close()
            raise
        self._opened.append(session)
        return restricted

    def _restricted(self, session: Session) -> Session:
        catalog = session.catalog.restricted(self._allowed, follow_links=self._follow_links)
        return session.derive(catalog=catalog)
