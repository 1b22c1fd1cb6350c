"""A proxy between a client and a real server. It cuts, stalls, half-closes, delays and truncates connections.

    with FaultyProxy("127.0.0.1", 5432, seed=7) as proxy:
        backend = open_backend(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?timeout=2s")
        ...                      # answers of swaps get lost, requests arrive late or in part, connections go silent
        proxy.faults = NONE      # from now on all bytes pass
        print(proxy.happened)    # Counter({'delay': 31, 'cut': 12, ...})

The proxy counts the bytes in each direction of each connection, and injects a fault after a random number of bytes. So
a fault can occur in the middle of a statement or answer, or between two of them. The kinds and positions of faults do
not depend on time, but only on the seed, the direction, the bytes, and the number of the connection, counted in the
order in which clients connect. The proxy listens only on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from typing import Final, Literal, NamedTuple, get_args

from polaris_spark.errors import StateError

Kind = Literal["cut", "truncate", "half-close", "stall", "delay"]
Direction = Literal["requests", "answers"]

_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_CHUNK: Final = 64 * 1024
_START_S: Final = 30


class Faults(NamedTuple):
    """The faults to inject, and their frequency. A kind of fault occurs in proportion to its weight."""

    every: float = 30_000
    """Mean number of bytes from one fault to the next in one direction of a connection."""
    cut: float = 1
    """Weight of cuts: client and server see a connection reset, and bytes in transit are lost."""
    truncate: float = 1
    """Weight of truncations: the last bytes are dropped, then client and server see an orderly end of the
    connection."""
    half_close: float = 1
    """Weight of half-closes: the receiver sees an orderly end of this direction. The sender notices nothing, and its
    bytes are dropped. The other direction continues."""
    stall: float = 1
    """Weight of stalls: no bytes are forwarded in this direction for `stall_s`. Then all bytes are forwarded, even if
    the sender no longer waits for an answer."""
    delay: float = 4
    """Weight of delays: no bytes are forwarded in this direction for a random time up to `delay_s`."""
    stall_s: float = 3.0
    """Duration of a stall, in seconds."""
    delay_s: float = 0.05
    """Maximum duration of a delay, in seconds."""
    directions: tuple[Direction, ...] = get_args(Direction)
    """Where faults are injected: `requests` (client to server), `answers` (server to client), or both."""
    after: int | None = None
    """Number of exchanges since the proxy started (`exchanges`) in which no faults are injected; None for no such
    number."""
    until: int | None = None
    """Maximum total number of faults since the proxy started (`happened.total()`); None for no limit."""

    def weights(self, direction: Direction) -> tuple[float, ...]:
        """Return the weights of the kinds of faults, in the order of `Kind`; empty if the direction has no faults."""
        weights = self.cut, self.truncate, self.half_close, self.stall, self.delay
        return weights if direction in self.directions and any(weights) else ()


NONE: Final = Faults(cut=0, truncate=0, half_close=0, stall=0, delay=0)
"""Forward all bytes without faults."""

LOST_ANSWERS: Final = NONE._replace(cut=1, every=0.01, directions=("answers",))
"""Cut the connection whenever an answer arrives at the proxy: the server has executed the request, but the answer is
lost."""

UNHEARD_ANSWERS: Final = NONE._replace(half_close=1, every=0.01, directions=("answers",))
"""Drop all answers, and end the connection to the client, but not the connection to the server. So the server executes
the whole request, even if it answers in several parts. With `LOST_ANSWERS`, it could notice the loss and stop."""

SILENCE: Final = NONE._replace(stall=1, every=0.01, stall_s=3_600)
"""Forward no bytes in either direction. Neither client nor server notices an error."""


class FaultyProxy:
    """A proxy on a free port (`port`) of 127.0.0.1. It runs until `close`. `faults` can be changed at any time."""

    def __init__(self, host: str, port: int, *, seed: int = 0, faults: Faults | None = None) -> None:
        """
        Args:
            host, port: address of the server.
            seed: seed of the random kinds and positions of faults.
            faults: the faults to inject; by default `Faults()`.
        Raises:
            StateError: the proxy cannot listen.
        """
        self.faults = faults or Faults()
        self.happened: Counter[Kind] = Counter()
        """Number of injected faults, by kind."""
        self.exchanges = 0
        """Number of times that a client sent bytes at the beginning of a connection or after an answer. This is the
        number of requests, unless the client pipelines requests."""
        self.port = 0
        self._target, self._seed = (host, port), seed
        self._connections: set[_Connection] = set()
        self._number = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faulty-proxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S) or not self.port:
            raise StateError("the fault-injecting proxy could not listen on a port of 127.0.0.1")

    def cut_all(self) -> None:
        """Reset every open connection, on both sides."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def close(self) -> None:
        """Reset all connections and stop listening. Closing twice is allowed."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            self._loop.run_forever()
            server.close()
            self._cut_all()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._ready.set()
            self._loop.close()

    def _stop(self) -> None:
        self._loop.stop()

    def _cut_all(self) -> None:
        for connection in list(self._connections):
            connection.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._number += 1
        number = self._number
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        connection = _Connection(self, number, (reader, writer), there)
        self._connections.add(connection)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # by `close`
                await connection.run()
        finally:
            self._connections.discard(connection)

    def random(self, number: int, direction: Direction) -> random.Random:
        """Return the random generator for the faults in one direction of the connection with this number."""
        return random.Random(f"{self._seed}:{number}:{direction}")


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """A connection from a client to the proxy, and the corresponding connection from the proxy to the server."""

    def __init__(self, proxy: FaultyProxy, number: int, client: _Side, server: _Side) -> None:
        self._proxy, self._number = proxy, number
        self._client, self._server = client, server
        self._last: Direction = "answers"

    async def run(self) -> None:
        requests = self._pump("requests", self._client[0], self._server[1])
        answers = self._pump("answers", self._server[0], self._client[1])
        try:
            await asyncio.gather(requests, answers)
        except (OSError, _OverError):
            self.cut()
        finally:
            for _, writer in (self._client, self._server):
                writer.close()

    def cut(self) -> None:
        """Reset the connection to the client and the connection to the server."""
        for _, writer in (self._client, self._server):
            _reset(writer)

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward bytes and inject faults, until the sender ends."""
        rng = self._proxy.random(self._number, direction)
        luck = rng.expovariate(1)
        while data := await reader.read(_CHUNK):
            self._count(direction)
            while data:
                faults = self._proxy.faults
                over = faults.until is not None and self._proxy.happened.total() >= faults.until
                early = faults.after is not None and self._proxy.exchanges <= faults.after
                weights = () if over or early else faults.weights(direction)
                safe = int(luck * faults.every) if weights else len(data)
                if safe >= len(data):
                    luck -= len(data) / faults.every if weights else 0
                    await _send(writer, data)
                    break
                await _send(writer, data[:safe])
                luck = rng.expovariate(1)
                kind: Kind = rng.choices(get_args(Kind), weights)[0]
                data = await self._happen(kind, rng, faults, data[safe:], reader, writer)
        if writer.can_write_eof():
            writer.write_eof()

    def _count(self, direction: Direction) -> None:
        self._proxy.exchanges += (self._last, direction) == ("answers", "requests")
        self._last = direction

    async def _happen(
        self,
        kind: Kind,
        rng: random.Random,
        faults: Faults,
        data: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        """Inject a fault, and return the part of `data` that must be forwarded afterwards."""
        self._proxy.happened[kind] += 1
        if kind == "stall":
            await asyncio.sleep(faults.stall_s)
        elif kind == "delay":
            await asyncio.sleep(rng.uniform(0, faults.delay_s))
        elif kind == "half-close":
            writer.write_eof()
            while await reader.read(_CHUNK):
                pass
            return b""
        elif kind == "truncate":
            await _send(writer, data[: rng.randrange(len(data))])
            for _, each in (self._client, self._server):
                each.close()
            return b""
        else:
            raise _OverError
        return data


class _OverError(Exception):
    """Raised to reset the connections to the client and to the server."""


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data and not writer.is_closing():
        writer.write(data)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection (TCP RST) instead of closing it in order, and drop unsent bytes."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()
