"""A server on the event loop of a test, and connections that exchange raw bytes. The test advances the server's
deadlines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from polaris_spark.catalog.files.memory import MemoryBound
from polaris_spark.server import Endpoint, ServedCatalogs, Tokens
from polaris_spark.server.app import create_app
from polaris_spark.server.connections import LINGER_SECONDS
from polaris_spark.server.listener import listening
from polaris_spark.server.run import BoundedServer
from polaris_spark.testing.waiting import PATIENCE_S
from tests.rest.client import connect

TOKEN = "t" * 20
HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


class Talk:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, text: str | bytes) -> None:
        """Send bytes, as far as the server takes them."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(text.encode() if isinstance(text, str) else text)
            await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """Read until these bytes have arrived."""
        return await asyncio.wait_for(self.reader.readuntil(end), PATIENCE_S)

    async def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := await asyncio.wait_for(self.reader.read(65_536), PATIENCE_S):
                received += part
        return received


class Served:
    """A server under test."""

    def __init__(self, server: BoundedServer, port: int) -> None:
        self.server = server
        self.port = port
        self.memory = MemoryBound(2**30)
        self._talks = contextlib.AsyncExitStack()

    async def talk(self, **options: Any) -> Talk:
        """A new connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self._talks.callback(writer.close)
        return Talk(reader, writer)

    async def connections(self, number: int) -> None:
        """Wait until the server has this number of connections. Those that linger after an answer end at once."""

        def reached() -> bool:
            self.later(LINGER_SECONDS)
            return len(self.server.connections) == number

        await eventually(reached)

    def later(self, seconds: float) -> None:
        """Make the server enforce its deadlines as if this time had passed."""
        self.server.expire(asyncio.get_running_loop().time() + seconds)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), PATIENCE_S)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, endpoint: Endpoint | None = None) -> AsyncIterator[Served]:
    """Serve an application until the context is left."""
    endpoint = endpoint or Endpoint(port=0)
    with listening(endpoint.host, 0) as listener:
        started = asyncio.Event()
        server = BoundedServer(app, endpoint, listener, lambda _: started.set())
        task = asyncio.create_task(server.serve(sockets=[listener]))
        served = Served(server, listener.getsockname()[1])
        await asyncio.wait_for(started.wait(), PATIENCE_S)
        async with served._talks:
            yield served
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE_S)


def with_catalog(
    folder: Path,
    test: Callable[[Served], Awaitable[None]],
    *,
    endpoint: Endpoint | None = None,
    max_memory: int = 2**30,
    patience: float = 10.0,
    threads: int = 4,
) -> None:
    """Run a test with a server of a new catalog in a folder."""
    catalog = connect(f"sqlite://{folder / 'store.db'}", folder / "warehouse", catalog="polaris")

    async def run() -> None:
        memory = MemoryBound(max_memory, patience=patience)
        with ThreadPoolExecutor(threads) as pool:
            app = create_app(
                ServedCatalogs(catalog.session),
                pool,
                authenticators=[Tokens({TOKEN: "ann"})],
                threads=threads,
                local=True,
                memory=memory,
            )
            async with serving(app, endpoint) as served:
                served.memory = memory
                await test(served)

    try:
        asyncio.run(run())
    finally:
        catalog.session.close()


def with_app(
    app: ASGIApp, test: Callable[[Served], Awaitable[None]], endpoint: Endpoint | None = None
) -> None:
    """Run a test with a server of an application."""

    async def run() -> None:
        async with serving(app, endpoint) as served:
            await test(served)

    asyncio.run(run())


def answering(size: int) -> ASGIApp:
    """An application whose every answer has this number of bytes."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        length = (b"content-length", str(size).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": b"x" * size})

    return app
