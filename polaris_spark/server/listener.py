"""The listening socket, with bounds on the number of connections: in total, and from one address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from polaris_spark.errors import InputError
from polaris_spark.server.connections import HANDSHAKE_SECONDS, BoundedConnection

log = logging.getLogger("polaris_spark.server")

MAX_CONNECTIONS: Final = 1_000
MAX_CONNECTIONS_PER_ADDRESS: Final = 250

_BACKLOG: Final = 2_048
_PAUSE_SECONDS: Final = 1.0
_FEWEST: Final = 4
_RESERVE: Final = 64
_RESERVE_PER_THREAD: Final = 8
"""Number of file descriptors reserved per thread, besides `_RESERVE`, for the store, for metadata files and for
libraries."""

SLOW_HEAD_SECONDS: Final = 2.0
"""When the total bound is reached, a new connection can replace a connection that has been sending the head of a
request for longer than this, in seconds."""

_NO_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ConnectionBounds(NamedTuple):
    """Maximum numbers of simultaneous connections: `all` from all addresses together, `per_address` from one
    address."""

    all: int = MAX_CONNECTIONS
    per_address: int = MAX_CONNECTIONS_PER_ADDRESS
    """Maximum number of connections from one IPv4 address or one IPv6 /64 network. A value equal to `all` sets no bound
    per address, as is needed behind a proxy."""

    def within_descriptors(self, threads: int) -> ConnectionBounds:
        """Return these bounds, reduced if the operating system does not let the process open enough files. First raise
        the process's soft limit on open files, if needed and possible.

        Args:
            threads: number of the server's threads, for which file descriptors are reserved.
        Raises:
            InputError: the limit on open files leaves fewer than four connections.
        """
        reserve = _RESERVE + _RESERVE_PER_THREAD * threads
        needed = self.all + reserve
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return self
        left = soft - reserve
        if left < _FEWEST:
            raise InputError(
                f"this process may open {soft} files, of which {reserve} are reserved for the store and {threads} "
                f"threads, so fewer than {_FEWEST} are left for connections: raise the limit (ulimit -n), or lower "
                "--threads"
            )
        log.warning(
            "this process may open %d files, so it accepts only %d connections instead of %d (--max-connections): "
            "raise the limit (ulimit -n)",
            soft,
            left,
            self.all,
        )
        return ConnectionBounds(left, max(1, self.per_address * left // self.all))


class Listener:
    """Accepts connections, up to the bounds.

    At the total bound, a new connection replaces the connection that has been idle for the longest time. If no
    connection is idle, it replaces the connection that has been sending the head of a request for the longest time, if
    that time exceeds `SLOW_HEAD_SECONDS`. Otherwise the new connection waits until another connection ends, and the
    listener accepts no other connection until then. A connection over the bound of its address is closed at once. A
    connection counts from the moment it is accepted, also during its TLS handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        bounds: ConnectionBounds,
        *,
        make: Callable[[], BoundedConnection],
        tls: ssl.SSLContext | None,
        connections: Iterable[BoundedConnection],
    ) -> None:
        """
        Args:
            listening: the listening socket, non-blocking.
            make: function that returns the protocol object for a new connection.
            tls: TLS settings; None for plain HTTP.
            connections: all open connections.
        """
        self._socket = listening
        self._bounds = bounds
        self._make = make
        self._tls = tls
        self._connections = connections
        self._by_address: Counter[str] = Counter()
        self._all = 0
        self._room = asyncio.Event()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections, and close the connections that are in their TLS handshake."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    log.warning("no connection can be accepted: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:  # the client has already closed the connection
                    await asyncio.sleep(0)
                continue
            source = source_of(address[0])
            if self._bounds.all > self._bounds.per_address <= self._by_address[source]:
                connection.close()
                log.warning(
                    "refused a connection from %s, which already has %d connections, the maximum "
                    "(--max-connections-per-address)",
                    source,
                    self._bounds.per_address,
                )
                await asyncio.sleep(0)
                continue
            await self._await_room()
            self._all += 1
            self._by_address[source] += 1
            task = loop.create_task(self._begin(connection, source))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _await_room(self) -> None:
        while self._all >= self._bounds.all:
            longest = self._longest_idle() or self._slowest_head()
            if longest is not None:
                longest.transport.close()
            else:
                log.warning(
                    "a new connection must wait: there are already %d connections, the maximum (--max-connections), "
                    "and none is idle",
                    self._bounds.all,
                )
            self._room.clear()
            # After the time-out, check again whether a connection has become idle.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._room.wait(), _PAUSE_SECONDS)

    def _longest_idle(self) -> BoundedConnection | None:
        idle = [(since, one) for one in self._connections if (since := one.idle_since) is not None]
        return min(idle, key=lambda pair: pair[0])[1] if idle else None

    def _slowest_head(self) -> BoundedConnection | None:
        since = asyncio.get_running_loop().time() - SLOW_HEAD_SECONDS
        slow = [
            (at, one)
            for one in self._connections
            if (at := one.head_awaited_since) is not None and at < since
        ]
        return min(slow, key=lambda pair: pair[0])[1] if slow else None

    async def _begin(self, connection: socket.socket, source: str) -> None:
        protocol = self._make()
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._all -= 1
                self._by_address[source] -= 1
                if not self._by_address[source]:
                    del self._by_address[source]
                self._room.set()

        protocol.released = release
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
            )
        except BaseException as error:
            release()
            if not isinstance(error, OSError):  # a failed TLS handshake is not an error of the server
                raise


def source_of(address: str) -> str:
    """Return the key by which connections from an address are counted: the IPv4 address itself, or the /64 network of
    an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))


def listening(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket.

    Raises:
        OSError: the address is in use, or is not an address of this machine.
    """
    found = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE)
    family, type, protocol, _, address = found[0]
    # The protocol must be explicit: asyncio disables Nagle's algorithm only on sockets with an explicit protocol, and
    # Nagle's algorithm would delay every response by 40 ms.
    listener = socket.socket(family, type, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener
