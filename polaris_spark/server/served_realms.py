"""The realms that a server serves: one, or many that are opened when clients first request them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol

from polaris_spark.access.token_keys import ServerKey
from polaris_spark.access.tokens import LIFETIME_SECONDS, TokenIssuer
from polaris_spark.errors import (
    CorruptionError,
    InputError,
    NotFoundError,
    RealmStateError,
    StateError,
    TryAgainError,
)
from polaris_spark.rest.session import Session
from polaris_spark.server.authentication import FAILURES_PER_ADDRESS, Authentication, RealmName
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.login_limits import LoginMemory, VerifyingThreads
from polaris_spark.server.logins import Authenticator
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.oauth import TokenEndpoint
from polaris_spark.server.realm_logins import RealmLogins
from polaris_spark.server.realm_names import RealmNames

log = logging.getLogger("polaris_spark.server")

MAX_OPEN: Final = 256
"""Default maximum number of realms that a server has open."""

_MISSING_SECONDS: Final = 1.0
"""Time for which a server remembers that it cannot serve a realm."""
_MOST_MISSING: Final = 10_000
_OPENING_THREADS: Final = 4
_CLOSING_THREADS: Final = 4
_MOST_OPENING: Final = 64
"""Maximum number of realms that are being opened. Requests for further realms get status 503."""


class Issuing(NamedTuple):
    """How a server issues tokens."""

    server_key: ServerKey
    lifetime_seconds: int = LIFETIME_SECONDS


class ServedRealm(NamedTuple):
    """A realm of a server, and its authentication, for the use of one request."""

    name: RealmName
    catalogs: ServedCatalogs | None
    """The catalogs of the realm; None if the realm is not served."""
    authentication: Authentication | None
    """Identifies callers; None if requests need no token."""
    tokens: TokenEndpoint | None
    """Issues tokens; None if the server issues none."""


class Logins:
    """Makes the authentication of realms, which share threads and memory. For the thread of the event loop only."""

    def __init__(
        self,
        authenticators: Callable[[str], Sequence[Authenticator]] | None,
        metrics: Metrics,
        issuing: Issuing | None = None,
        failures_per_address: int = FAILURES_PER_ADDRESS,
        *,
        has_many_realms: bool = False,
    ) -> None:
        """
        Args:
            authenticators: returns the authenticators of the realm with a name. None if requests need no token.
            issuing: how tokens are issued; None if none are.
            failures_per_address: maximum number of failed logins per minute from one address; 0 for no limit.
            has_many_realms: whether answers must not reveal which realms exist.
        """
        self._authenticators = authenticators
        self._metrics = metrics
        self._issuing = issuing
        self._has_many_realms = has_many_realms
        self._threads = VerifyingThreads()
        self._memory = LoginMemory(failures_per_address)
        self._memory_of_missing = LoginMemory(failures_per_address, self._memory.everywhere)
        """Failed logins to realms that are not served. One memory serves all such names, because a client can invent
        any number of them. Failures of an address in all realms are counted together as well."""

    def realm(self, catalogs: ServedCatalogs) -> ServedRealm:
        """Return an open realm with its authentication."""
        session = catalogs.session
        references, name = session.catalog.references, session.properties.realm
        shown = name if self._has_many_realms else None
        named = RealmName(name, references.store.realm, shown, shown)
        if self._authenticators is None:
            return ServedRealm(named, catalogs, None, None)
        logins = RealmLogins(name, session.access, references.clock)
        authentication = Authentication(
            (*self._authenticators(name), logins),
            self._metrics,
            self._threads,
            self._memory,
            named,
            admit=logins.admit,
            is_served=partial(_is_served, session) if self._has_many_realms else lambda: True,
        )
        tokens = None
        if self._issuing is not None:
            lifetime = self._issuing.lifetime_seconds
            issuer = TokenIssuer(
                references, name, self._issuing.server_key, session.operation(), lifetime_seconds=lifetime
            )
            tokens = TokenEndpoint(references, issuer, authentication, is_discreet=self._has_many_realms)
        return ServedRealm(named, catalogs, authentication, tokens)

    def missing(self, name: str) -> ServedRealm:
        """Return the realm that stands for a realm that is not served. All logins to it fail as logins with wrong
        credentials do."""
        named = RealmName(name, "", name[:200])
        if self._authenticators is None:
            return ServedRealm(named, None, None, None)
        authentication = Authentication((), self._metrics, self._threads, self._memory_of_missing, named)
        tokens = None
        if self._issuing is not None:
            tokens = TokenEndpoint(None, None, authentication, is_discreet=True)
        return ServedRealm(named, None, authentication, tokens)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def _is_served(session: Session) -> bool:
    try:
        session.serving.require()
    except StateError as error:
        log.info("the realm %r is no longer served: %s", session.properties.realm, error)
        return False
    return True


class Realms(Protocol):
    """The realms of a server. Only the thread of the event loop may use them, except for `check`."""

    names: RealmNames | None
    """How requests name a realm; None if the server serves only one."""

    def using(self, name: str) -> AbstractAsyncContextManager[ServedRealm]:
        """Return a context in which a realm stays open. Its value is the realm."""

    def check(self) -> None:
        """Check, in any thread, that requests can be served."""


class OneRealm:
    """The only realm of a server."""

    def __init__(self, realm: ServedRealm) -> None:
        assert realm.catalogs is not None
        self.names: RealmNames | None = None
        self._realm = realm

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[ServedRealm]:
        """Return a context whose value is the realm."""
        yield self._realm

    def check(self) -> None:
        """Check that requests can be served."""
        assert self._realm.catalogs is not None
        self._realm.catalogs.check()


class _Entry:
    """A realm that is being opened or open."""

    def __init__(self, opening: asyncio.Task[ServedRealm | None]) -> None:
        self.opening = opening
        self.users = 0
        """Number of requests that use the realm, or wait until it is open."""

    def catalogs(self) -> ServedCatalogs | None:
        """Return the catalogs of the realm, if it is open."""
        if not self.opening.done() or self.opening.cancelled() or self.opening.exception() is not None:
            return None
        found = self.opening.result()
        return None if found is None else found.catalogs


class ManyRealms:
    """Many realms of one store. Each is opened when a client first requests it. If too many are open, the one that was
    used least recently is closed, unless requests, runs or transactions still use it. For the thread of the event loop
    only, except `check` and `close`.

    To clients, a realm that cannot be served looks like a realm that does not exist: a realm that is not ACTIVE, has no
    catalog, is damaged, was made by a newer release, or is not among the realms to serve. Whether an open realm is
    still ACTIVE is checked by its requests, in the threads where they are handled or their tokens are verified, so this
    costs no further switch of threads. After a check that failed, the next request opens the realm again.
    """

    def __init__(
        self,
        open: Callable[[str], ServedCatalogs],
        logins: Logins,
        names: RealmNames,
        *,
        check: Callable[[], None],
        served: Collection[str] | None = None,
        most: int = MAX_OPEN,
        needs_no_token: bool = False,
    ) -> None:
        """
        Args:
            open: opens a realm.
            names: how requests name a realm.
            check: checks that requests can be served.
            served: names of the realms to serve; None for all.
            most: maximum number of open realms.
            needs_no_token: whether requests need no token. Realms with access control are then not served.
        """
        self.names: RealmNames | None = names
        self._check = check
        self._open = open
        self._logins = logins
        self._served = None if served is None else frozenset(served)
        self._most = most
        self._needs_no_token = needs_no_token
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._missing: OrderedDict[str, float] = OrderedDict()
        """Names of realms that cannot be served, with the time until which this is remembered."""
        self._retired: list[_Entry] = []
        """Realms that can no longer be used, but that requests still use."""
        self._pool = ThreadPoolExecutor(_OPENING_THREADS, "polaris-realms")
        # Closing waits for runs that were cancelled, so it must not delay the opening of other realms.
        self._closing = ThreadPoolExecutor(_CLOSING_THREADS, "polaris-realms-closing")

    def __len__(self) -> int:
        """Number of realms that are open."""
        return sum(one.catalogs() is not None for one in self._entries.values())

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[ServedRealm]:
        """Return a context in which a realm stays open. Its value is the realm.

        Raises:
            TryAgainError: too many realms are in use or being opened.
        """
        if self._is_missing(name):
            yield self._logins.missing(name)
            return
        entry, found = await self._use(name)
        try:
            yield self._logins.missing(name) if found is None else found
        finally:
            entry.users -= 1
            self._close_retired()

    async def _use(self, name: str) -> tuple[_Entry, ServedRealm | None]:
        """Return the entry of a realm, which now has one user more, and the realm; None if it is missing."""
        again = False
        while True:
            entry = self._entry(name)
            entry.users += 1
            try:
                found = await asyncio.shield(entry.opening)
            except BaseException:
                entry.users -= 1
                if entry.opening.done():
                    failed = entry.opening.cancelled() or entry.opening.exception() is not None
                    if failed and self._entries.get(name) is entry:
                        del self._entries[name]
                raise
            catalogs = entry.catalogs()
            if catalogs is not None and not catalogs.session.serving.is_refused:
                return entry, found
            if self._entries.get(name) is entry:
                del self._entries[name]
                if found is not None:
                    self._retired.append(entry)
            if found is None or again:  # a new realm may have the name
                self._missing[name] = time.monotonic() + _MISSING_SECONDS
                if len(self._missing) > _MOST_MISSING:
                    self._missing.popitem(last=False)
                return entry, None
            entry.users -= 1
            self._close_retired()
            again = True

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            if sum(not one.opening.done() for one in self._entries.values()) >= _MOST_OPENING:
                raise TryAgainError(f"{_MOST_OPENING} realms are being opened, the maximum; try again")
            opening = asyncio.get_running_loop().create_task(self._opened(name))
            # An error is raised to the waiting requests; if none is left, it must not be reported as lost.
            opening.add_done_callback(lambda one: one.cancelled() or one.exception())
            entry = self._entries[name] = _Entry(opening)
        self._entries.move_to_end(name)
        return entry

    def _make_room(self) -> None:
        """Close the realms that were used least recently, until another one can be open.

        Raises:
            TryAgainError: all open realms are in use.
        """
        while len(self) >= self._most:
            for name, entry in self._entries.items():
                catalogs = entry.catalogs()
                if not entry.users and catalogs is not None and not catalogs.is_busy():
                    del self._entries[name]
                    self._closing.submit(_close, catalogs)
                    break
            else:
                raise TryAgainError(
                    f"{len(self)} realms are in use, the maximum of this server (--max-open-realms); try again"
                )

    def _close_retired(self) -> None:
        unused = [one for one in self._retired if not one.users]
        self._retired = [one for one in self._retired if one.users]
        for entry in unused:
            catalogs = entry.catalogs()
            if catalogs is not None:
                self._closing.submit(_close, catalogs)

    def _is_missing(self, name: str) -> bool:
        until = self._missing.get(name)
        if until is not None and until <= time.monotonic():
            del self._missing[name]
            until = None
        return until is not None or (self._served is not None and name not in self._served)

    async def _opened(self, name: str) -> ServedRealm | None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            catalogs = await run(self._pool, self._open_checked, name)
        except (InputError, NotFoundError, RealmStateError) as error:
            log.info("the realm %r is not served: %s", name[:200], error)
            return None
        except (StateError, CorruptionError) as error:
            # The error says what the realm has, and the client has not logged in.
            log.warning("the realm %r cannot be served: %s", name[:200], error)
            return None
        try:
            self._make_room()
            return self._logins.realm(catalogs)
        except BaseException:
            self._closing.submit(_close, catalogs)
            raise

    def _open_checked(self, name: str) -> ServedCatalogs:
        catalogs = self._open(name)
        try:
            # The realm may have been refused when it was open before.
            catalogs.session.serving.require()
            if self._needs_no_token and catalogs.session.access.is_on:
                raise InputError(
                    "the realm has access control, so a server with --insecure does not serve it"
                )
        except BaseException:
            catalogs.close()
            raise
        return catalogs

    def check(self) -> None:
        """Check that the store can be read."""
        self._check()

    def close(self) -> None:
        """Close all realms, after the last request."""
        for entry in (*self._entries.values(), *self._retired):
            catalogs = entry.catalogs()
            if catalogs is not None:
                self._closing.submit(_close, catalogs)
        self._pool.shutdown(wait=True)
        self._closing.shutdown(wait=True)


def _close(catalogs: ServedCatalogs) -> None:
    """Close a realm, and free the memory that its store uses for it."""
    session = catalogs.session
    connection, instance = session.connection, session.catalog.references.store.realm
    try:
        catalogs.close()
    except Exception as error:
        log.warning("closing the realm %r failed: %s", session.properties.realm, error)
    connection.forget_realm(instance)
