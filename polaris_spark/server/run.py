"""Running the server: sockets, TLS, and a shutdown that waits for the changes in progress."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from polaris_spark.access.tokens import check_lifetime
from polaris_spark.catalog.files.memory import MemoryBound
from polaris_spark.errors import InputError
from polaris_spark.rest.access import is_loopback
from polaris_spark.rest.router import Router
from polaris_spark.server.app import MAX_BODY, Protocol, application, create_app
from polaris_spark.server.authentication import FAILURES_PER_ADDRESS
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.connections import IDLE_SECONDS, BoundedConnection, bounded
from polaris_spark.server.listener import ConnectionBounds, Listener, listening
from polaris_spark.server.logins import Authenticator
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.realm_names import RealmNames
from polaris_spark.server.served_realms import MAX_OPEN, Issuing, Logins, ManyRealms
from polaris_spark.server.tokens import Tokens

log = logging.getLogger("polaris_spark.server")

GRACE_SECONDS: Final = 30
"""Maximum time for which a shutdown waits for the responses to requests in progress, in seconds. Changes in progress
are completed even if they take longer, but their clients then get no response."""

FAREWELL_SECONDS: Final = 5
"""Maximum time for which a shutdown waits until clients have read their responses, in seconds. This wait follows the
wait for the responses (`GRACE_SECONDS`)."""

MAX_MEMORY: Final = 2**30
"""Default memory limit for all requests and their large responses together, in bytes."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""This and the two constants above are the numbers of parameters of glibc's `mallopt`, from malloc.h."""

_LARGE_BYTES: Final = 2**20
_ARENAS: Final = 2

_TICKS_PER_SECOND: Final = 10
_POLL_SECONDS: Final = 0.02


class Endpoint(NamedTuple):
    """Address, tokens, TLS files and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8181
    """Port; 0 lets the operating system choose a free port."""
    tokens: Tokens | None = None
    authenticators: tuple[Authenticator, ...] = ()
    """Authenticators besides the tokens."""
    by_realm: Mapping[str, Sequence[Authenticator]] = {}
    """Authenticators of each realm, by its name, for a server of many realms."""
    issuing: Issuing | None = None
    """How tokens are issued to principals of a realm with access control; None if none are."""
    insecure: bool = False
    """True if requests need no token, which is allowed only on a loopback address."""
    certificate: str | None = None
    """Path of a PEM file with the certificate chain."""
    key: str | None = None
    """Path of a PEM file with the certificate's private key."""
    threads: int = 16
    max_body: int = MAX_BODY
    """Maximum size of a request body, in bytes."""
    max_memory: int = MAX_MEMORY
    """Memory limit for all requests together, in bytes; see `catalog.files.memory`."""
    connections: ConnectionBounds = ConnectionBounds()
    failures_per_address: int = FAILURES_PER_ADDRESS
    """Maximum number of failed logins from one address per minute; 0 for no limit."""

    def all_authenticators(self) -> tuple[Authenticator, ...] | None:
        """Return all authenticators; None if requests need no token."""
        tokens = () if self.tokens is None else (self.tokens,)
        found = (*tokens, *self.authenticators)
        return found if found or self.by_realm or self.issuing is not None else None

    def check(self) -> bool:
        """Check the settings. Return True if only this machine can reach the server.

        Raises:
            InputError: the settings would give everyone access, contradict each other, or are out of range.
        """
        local = is_loopback(self.host)
        if bool(self.certificate) != bool(self.key):
            raise InputError("TLS needs both a certificate and its key: --tls-cert and --tls-key")
        is_open = self.all_authenticators() is None
        if not is_open and self.insecure:
            raise InputError(
                "--insecure cannot be combined with tokens, --authentication or --token-key; leave one of them out"
            )
        if is_open and not local:
            raise InputError(
                f"a server on {self.host} can be reached by others, so it needs tokens: "
                "--token env:NAME, --token-file, --authentication or --token-key"
            )
        if is_open and not self.insecure:
            raise InputError(
                "a server needs tokens: --token env:NAME, --token-file, --authentication or --token-key; on loopback, "
                "--insecure allows requests without tokens from all users of this machine"
            )
        if self.failures_per_address < 0:
            raise InputError(
                f"--max-failures-per-address is {self.failures_per_address}; it must be 0 or more"
            )
        if not 0 < self.threads <= 1_000:
            raise InputError(f"the number of threads is {self.threads}; it must be from 1 to 1000")
        if self.connections.all < 1 or self.connections.per_address < 1:
            raise InputError(
                f"--max-connections is {self.connections.all} and --max-connections-per-address is "
                f"{self.connections.per_address}; both must be at least 1"
            )
        if self.max_memory < 4 * self.max_body:
            raise InputError(
                f"--max-memory is {self.max_memory} bytes; it must be at least four times --max-body, that is "
                f"{4 * self.max_body} bytes, because a request is kept in memory both as received and as parsed"
            )
        return local


def serve(catalogs: ServedCatalogs, endpoint: Endpoint, announce: Callable[[str], None]) -> None:
    """Serve requests until the process receives SIGTERM or SIGINT. Then complete the requests in progress, and close
    the catalogs.

    Args:
        catalogs: the catalogs to serve.
        endpoint: the settings of the server.
        announce: function to call with the server's URI when the server accepts connections.
    Raises:
        InputError: the settings are not valid (`Endpoint.check`), or the operating system does not let the process open
            enough files.
        OSError: the address cannot be used, or a TLS file cannot be read.
    """
    with contextlib.closing(catalogs), _pool(endpoint) as pool:
        local = endpoint.check()
        _check_access(catalogs, endpoint)
        app = create_app(
            catalogs,
            pool,
            authenticators=endpoint.all_authenticators(),
            failures_per_address=endpoint.failures_per_address,
            issuing=endpoint.issuing,
            threads=endpoint.threads,
            local=local,
            max_body=endpoint.max_body,
            memory=MemoryBound(endpoint.max_memory),
        )
        _run(app, endpoint, announce, local=local)


class ManySettings(NamedTuple):
    """Settings of a server of many realms: which realms it serves, how it opens them, and how requests name them."""

    open: Callable[[str], ServedCatalogs]
    """Opens the realm with a name. Called in several threads."""
    check: Callable[[], None]
    """Checks that the store can be read."""
    router: Router
    names: RealmNames
    served: Collection[str] | None = None
    """Names of the realms to serve; None for all."""
    most: int = MAX_OPEN
    """Maximum number of open realms."""


def serve_many(many: ManySettings, endpoint: Endpoint, announce: Callable[[str], None]) -> None:
    """Serve many realms, as `serve` serves one.

    Raises:
        InputError, OSError: as for `serve`.
    """
    many.names.check()
    if many.most < 1:
        raise InputError(f"--max-open-realms is {many.most}; it must be at least 1")
    if many.served is not None and many.names.default not in (None, *many.served):
        raise InputError(
            f"the default realm {many.names.default!r} is not one of the realms of --realms; add it there"
        )
    local = endpoint.check()
    if endpoint.issuing is not None:
        check_lifetime(endpoint.issuing.lifetime_seconds)
    needs_no_token, metrics = endpoint.all_authenticators() is None, Metrics()
    logins = Logins(
        None if needs_no_token else lambda realm: endpoint.by_realm.get(realm, ()),
        metrics,
        endpoint.issuing,
        endpoint.failures_per_address,
        has_many_realms=True,
    )
    realms = ManyRealms(
        many.open,
        logins,
        many.names,
        check=many.check,
        served=many.served,
        most=many.most,
        needs_no_token=needs_no_token,
    )
    with contextlib.closing(realms), _pool(endpoint) as pool:
        protocol = Protocol(
            realms,
            many.router,
            metrics,
            pool,
            endpoint.threads,
            endpoint.max_body,
            MemoryBound(endpoint.max_memory),
        )
        _run(application(protocol, logins.close, local=local), endpoint, announce, local=local)


def _pool(endpoint: Endpoint) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(endpoint.threads, 1), "polaris-http")


def _run(app: Starlette, endpoint: Endpoint, announce: Callable[[str], None], *, local: bool) -> None:
    """Serve requests with an application until the process receives SIGTERM or SIGINT."""
    try:
        bounds = endpoint.connections.within_descriptors(endpoint.threads)
        _return_memory()
        if not local and not endpoint.certificate:
            log.warning(
                "serving %s without TLS: anyone who can see the traffic can read the tokens; give --tls-cert and "
                "--tls-key, or use a proxy with TLS",
                endpoint.host,
            )
        with listening(endpoint.host, endpoint.port) as listener:
            server = BoundedServer(
                app,
                endpoint._replace(connections=bounds),
                listener,
                announce,
                stop_waits=app.state.waits.stop,
            )
            server.run(sockets=[listener])
    finally:
        app.state.close()


def _check_access(catalogs: ServedCatalogs, endpoint: Endpoint) -> None:
    """Check that the settings fit the access control of the served realm.

    Raises:
        InputError: the settings do not fit.
    """
    is_on = catalogs.session.access.is_on
    if is_on and endpoint.all_authenticators() is None:
        raise InputError(
            "the realm has access control, so --insecure is not allowed; give --token-key, --token-file or "
            "--authentication"
        )
    if endpoint.issuing is not None and not is_on:
        raise InputError(
            "the realm has no access control, so there are no principals to whom --token-key could issue tokens; run "
            "polaris-spark bootstrap first, or leave --token-key out"
        )


def _return_memory() -> None:
    """Make glibc return large blocks to the system as soon as they are freed. Does nothing with other C libraries.

    glibc returns a freed block at once only if the block's size is above a threshold. By default, when a larger block
    is freed, the threshold rises to the size of that block. So, after a request body of 16 MiB, glibc would keep freed
    blocks of up to 16 MiB, in an arena for each thread. This function sets a fixed threshold and a small number of
    arenas, so that less freed memory is kept.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


class BoundedServer(uvicorn.Server):
    """uvicorn's server with a `Listener`. Unlike uvicorn's own server, it announces its start, enforces the deadlines
    of connections, shuts down promptly, and does not raise signals again after the shutdown."""

    def __init__(
        self,
        app: ASGIApp,
        endpoint: Endpoint,
        listener: socket.socket,
        announce: Callable[[str], None],
        *,
        stop_waits: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            app: the application that answers requests.
            endpoint: settings, including the bounds and the certificate.
            listener: the listening socket.
            announce: function to call with the server's URI when the server accepts connections.
            stop_waits: function to call when the server shuts down, which ends the waits of requests.
        """
        config = uvicorn.Config(
            app,
            http=bounded(endpoint.max_body),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=endpoint.certificate,
            ssl_keyfile=endpoint.key,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.load()
        super().__init__(config)
        self._uri = _uri(endpoint, listener)
        self._bounds = endpoint.connections
        self._announce = announce
        self._stop_waits = stop_waits

    @property
    def connections(self) -> list[BoundedConnection]:
        """All open connections, except connections in their TLS handshake."""
        return list(self.server_state.connections)  # type: ignore[arg-type]  # the listener makes only these

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        assert sockets
        config, loop = self.config, asyncio.get_running_loop()

        def make() -> BoundedConnection:
            connection: BoundedConnection = config.http_protocol_class(  # type: ignore[call-arg, assignment]
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )  # the class that `bounded` returned
            return connection

        self._listener = Listener(
            sockets[0],
            self._bounds,
            make=make,
            tls=config.ssl,
            connections=self.server_state.connections,  # type: ignore[arg-type]  # as above
        )
        self.started = True
        self._announce(self._uri)

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second. Return True to shut the server down."""
        if counter % _TICKS_PER_SECOND == 0:
            self.expire(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def expire(self, now: float) -> None:
        """Enforce the deadlines of all connections.

        Args:
            now: time of the event loop, in seconds.
        """
        for connection in self.connections:
            connection.expire(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Complete the requests in progress, and close all other connections at once."""
        self._listener.close()
        self._stop_waits()
        for connection in self.connections:
            connection.shutdown()
        await self._ends(self._unanswered, GRACE_SECONDS)
        await self._ends(lambda: len(self.connections), FAREWELL_SECONDS)
        if left := self._unanswered():
            log.warning(
                "%d requests were still running after %d s: their clients get no response",
                left,
                GRACE_SECONDS,
            )
        for connection in self.connections:
            connection.transport.abort()
        await asyncio.sleep(0)  # let the connections' `connection_lost` run
        for task in list(self.server_state.tasks):
            task.cancel()

    def _unanswered(self) -> int:
        """Return the number of requests in progress whose responses have not begun."""
        return len(self.server_state.tasks) - sum(one.answering for one in self.connections)

    async def _ends(self, under_way: Callable[[], int], seconds: float) -> None:
        """Wait until `under_way` returns 0, but no longer than `seconds` seconds. A second Ctrl-C ends the wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while under_way() and loop.time() < until and not self.force_exit:
            await asyncio.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut the server down if SIGTERM or SIGINT arrives while the context is open.

        uvicorn's own method also raises the signal again after the shutdown. That would end the process before it
        releases its lease of ids.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.handle_exit(number, frame)


def _uri(endpoint: Endpoint, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.certificate else 'http'}://{shown}:{port}"
