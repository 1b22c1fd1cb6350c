"""A server of many realms of a store, for `polaris-spark serve --realms`."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from polaris_spark.cli.stores import OpenStore, open_store
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError, NotFoundError, PolarisError

if TYPE_CHECKING:
    from polaris_spark.config import Properties
    from polaris_spark.rest.session import Session
    from polaris_spark.server import Endpoint, RealmNames, ServedCatalogs
    from polaris_spark.storage.access import StorageAccess

log = logging.getLogger("polaris_spark.server")

REALM_FIELD: Final = "{realm}"
"""Part of `--allow-location` that stands for the name of the realm."""

_IN_LOCATION: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def served_realms(text: str) -> frozenset[str] | None:
    """Return the names of the realms to serve; None for all.

    Raises:
        InputError: the text has an empty name.
    """
    if text == "all":
        return None
    names = [one.strip() for one in text.split(",")]
    if not all(names):
        raise InputError(f"--realms is {text!r}; write all, or names with commas between them")
    return frozenset(names)


def check_options(
    property: Sequence[str] | None,
    allowed: Sequence[str],
    *,
    token: str | None,
    warehouse: str | None,
) -> None:
    """Check that the options fit a server or worker of many realms.

    Raises:
        InputError: they do not.
    """
    if token is not None:
        raise InputError(
            "--token is not allowed with --realms, because every realm needs its own tokens: give --token-file"
        )
    if warehouse is not None:
        raise InputError("--warehouse is not allowed with --realms: each catalog has its own warehouse")
    for one in property or ():
        name = one.partition("=")[0]
        if name == "warehouse":
            raise InputError(
                "the property 'warehouse' is not allowed with --realms: each catalog has its own warehouse"
            )
        if name in ("credential", "token", "principal"):
            raise InputError(
                f"the property {name!r} is not allowed with --realms, because there is no login to the realms"
            )
    for place in allowed:
        if REALM_FIELD not in place:
            raise InputError(
                f"--allow-location is {place!r}; with --realms it must contain {REALM_FIELD}, which stands for "
                "the name of the realm, because realms must not share locations"
            )


def warn_of_unserved(opened: OpenStore, names: Collection[str]) -> None:
    """Log a warning for each realm that cannot be served now, since its name may be a typing error.

    Args:
        names: names of realms that the options contain.
    """
    for name in sorted(names):
        try:
            _catalogs(opened, name)
        except PolarisError as error:
            log.warning("the realm %r is not served until this is corrected: %s", name[:200], error)


def _catalogs(opened: OpenStore, realm: str) -> list[str]:
    """Return the names of the catalogs of a realm.

    Raises:
        NotFoundError: the realm has no catalog.
        PolarisError: the realm is not ACTIVE, or cannot be read.
    """
    catalogs = [row.name for row in opened.active_realm(realm).catalogs()]
    if not catalogs:
        raise NotFoundError(f"realm {realm!r} has no catalog")
    return catalogs


class ServedStore:
    """A store whose realms a server opens when clients request them."""

    def __init__(
        self,
        store: str,
        properties: Properties,
        password: str | None,
        allowed: Sequence[str],
        *,
        follow_links: bool,
        storage: StorageAccess | None,
    ) -> None:
        """
        Args:
            properties: properties of all sessions. The realm and the catalog are replaced.
            allowed: locations that clients may use besides the warehouses. Each has `REALM_FIELD`.
        """
        self._store = store
        self._properties = properties
        self._password = password
        self._allowed = allowed
        self._follow_links = follow_links
        self._storage = storage

    def serve(
        self,
        names: RealmNames,
        served: Collection[str] | None,
        most: int,
        endpoint: Endpoint,
        announce: Callable[[str], None],
        workers: int = 0,
    ) -> None:
        """Serve the realms until the process receives SIGTERM or SIGINT.

        Args:
            most: maximum number of open realms.
            workers: maximum number of simultaneous runs of tasks of the realms; 0 to run none.
        """
        from polaris_spark.cli.realms_worker import RealmsWorker, WorkerThread
        from polaris_spark.extension import ROUTER
        from polaris_spark.server import ManySettings, serve_many
        from polaris_spark.system.stores import check_store

        options = self._properties.store_options
        with open_store(self._store, self._password, options) as opened:

            def check() -> None:
                check_store(opened.backend)

            default = () if names.default is None else (names.default,)
            warn_of_unserved(opened, {*(served or ()), *default})
            many = ManySettings(
                lambda name: self._open(opened, name),
                check,
                ROUTER,
                names,
                served,
                most,
            )
            worker: AbstractContextManager[object] = nullcontext()
            if workers:
                worker = WorkerThread(
                    RealmsWorker(
                        opened,
                        self._properties,
                        served,
                        concurrency=workers,
                        restrict=lambda name: partial(self._restricted, name),
                    )
                )
            with worker:
                serve_many(many, endpoint, announce)

    def _open(self, opened: OpenStore, name: str) -> ServedCatalogs:
        """Open a realm. Its default catalog is the catalog that `--catalog` names, or else its first catalog.

        Raises:
            NotFoundError: the realm has no catalog.
            PolarisError: the realm cannot be opened.
        """
        from polaris_spark.extension import ROUTER
        from polaris_spark.rest.opening import open_session
        from polaris_spark.server import ServedCatalogs

        catalogs = _catalogs(opened, name)
        wanted = self._properties.catalog
        properties = dataclasses.replace(
            self._properties,
            realm=name,
            catalog=wanted if wanted in catalogs else catalogs[0],
            create=False,
            credential=None,
        )
        session = open_session(properties, SystemClock(), ROUTER, logs_in=False)
        try:
            return ServedCatalogs(
                session,
                allowed=self._allowed_in(name),
                follow_links=self._follow_links,
                storage=self._storage,
                logs_in=False,
            )
        except BaseException:
            session.close()
            raise

    def _restricted(self, realm: str, session: Session) -> Session:
        catalog = session.catalog.restricted(self._allowed_in(realm), follow_links=False)
        return session.derive(catalog=catalog)

    def _allowed_in(self, realm: str) -> list[str]:
        """Return the allowed locations of a realm; none if its name could mean another location."""
        if not _IN_LOCATION.fullmatch(realm):
            return []
        return [place.replace(REALM_FIELD, realm) for place in self._allowed]
