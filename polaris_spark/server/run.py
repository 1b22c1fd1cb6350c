"""Serving: sockets, TLS, and an end that loses nothing."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Final, NamedTuple

import uvicorn

from polaris_spark.errors import InputError
from polaris_spark.server.app import MAX_BODY, create_app
from polaris_spark.server.catalogs import ServedCatalogs
from polaris_spark.server.connections import bounded
from polaris_spark.server.requests import is_loopback
from polaris_spark.server.tokens import Tokens

log = logging.getLogger("polaris_spark.server")

GRACE_SECONDS: Final = 30
"""How long clients may take to be served once the end was asked for; changes under way are always finished."""


class Endpoint(NamedTuple):
    """Where and to whom a server answers."""

    host: str = "127.0.0.1"
    port: int = 8181
    """0 lets the system choose."""
    tokens: Tokens | None = None
    insecure: bool = False
    """Whether no token is needed; on loopback only."""
    certificate: str | None = None
    """File of the certificate chain, PEM."""
    key: str | None = None
    """File of its private key, PEM."""
    threads: int = 16
    max_body: int = MAX_BODY
    """Bytes."""

    def check(self) -> bool:
        """Whether only this machine can reach it.

        Raises:
            InputError: it would let in everyone, or is contradictory.
        """
        local = is_loopback(self.host)
        if bool(self.certificate) != bool(self.key):
            raise InputError("TLS needs both a certificate and its key: --tls-cert and --tls-key")
        if self.tokens is not None and self.insecure:
            raise InputError("--insecure is for a server without tokens; leave one of the two out")
        if self.tokens is None and not local:
            raise InputError(
                f"a server on {self.host} can be reached by others, so it needs tokens: "
                "--token env:NAME or --token-file"
            )
        if self.tokens is None and not self.insecure:
            raise InputError(
                "a server needs tokens: --token env:NAME or --token-file; on loopback --insecure does without, "
                "and lets in everyone on this machine"
            )
        if not 0 < self.threads <= 1_000:
            raise InputError(f"the number of threads is {self.threads}; it is from 1 to 1000")
        return local


def serve(catalogs: ServedCatalogs, endpoint: Endpoint, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way and close the catalogs.

    Args:
        catalogs: what is served.
        endpoint: where.
        announce: called with the URI once it answers.
    Raises:
        InputError: the endpoint is not safe, or contradictory.
        OSError: the address cannot be had, or a file of TLS not read.
    """
    pool = ThreadPoolExecutor(max(endpoint.threads, 1), "polaris-http")
    try:
        local = endpoint.check()
        if not local and not endpoint.certificate:
            log.warning(
                "serving %s without TLS: whoever sees the traffic can read the tokens; give --tls-cert and --tls-key, "
                "or let a proxy in front do it",
                endpoint.host,
            )
        app = create_app(
            catalogs,
            pool,
            tokens=endpoint.tokens,
            threads=endpoint.threads,
            local=local,
            max_body=endpoint.max_body,
        )
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
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        config.load()
        with listening(endpoint.host, endpoint.port) as listener:
            _Server(config, _uri(endpoint, listener), announce).run(sockets=[listener])
    finally:
        pool.shutdown(wait=True)
        catalogs.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it answers, and leaves signals to be the end of serving only."""

    def __init__(self, config: uvicorn.Config, uri: str, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._uri = uri
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce(self._uri)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends on signals. uvicorn's own raises them again afterwards, which would end the process before its lease of
        ids is given back."""
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


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the address is taken, or not of this machine.
    """
    found = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
    family, type, protocol, _, address = found[0]
    # The protocol is said outright: asyncio switches Nagle's algorithm off only on sockets that name it, and with it
    # every answer waits 40 ms for an acknowledgement.
    listener = socket.socket(family, type, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2_048)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def _uri(endpoint: Endpoint, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if endpoint.certificate else 'http'}://{shown}:{port}"
