"""Requests that wait for a commit (long polling). They occupy no thread: one task polls the head of a branch for all
requests that wait for its next commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from polaris_spark.catalog.branches.change_log import POLL_SECONDS
from polaris_spark.errors import TryAgainError
from polaris_spark.rest.request import PendingResponse


class _Watch:
    """The wait of several requests for the next commit of a branch."""

    def __init__(self) -> None:
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self.waiting = 0

    def end(self) -> None:
        """Wake the waiting requests."""
        if not self.changed.done():
            self.changed.set_result(None)


class Waits:
    """All waiting requests of a server. Only the thread of the event loop may use it."""

    def __init__(self, pool: ThreadPoolExecutor, most: int) -> None:
        """
        Args:
            pool: threads in which heads are read.
            most: maximum number of requests that wait at the same time.
        """
        self._pool = pool
        self._most = most
        self._waiting = 0
        self._watches: dict[Hashable, _Watch] = {}
        self._is_stopped = False

    def stop(self) -> None:
        """End all waits, now and later, because the server shuts down. The requests are answered as if their time were
        over."""
        self._is_stopped = True
        for watch in self._watches.values():
            watch.end()

    async def answer(
        self,
        request: Request,
        pending: PendingResponse,
        repeat: Callable[[PendingResponse], Awaitable[Response | PendingResponse]],
    ) -> Response | PendingResponse:
        """Repeat a request after each commit until its answer is not pending, and return this answer. If the wait time
        ends or the server stops first, return the last pending answer.

        Args:
            request: a request whose body was read.
            repeat: handles the request again.
        Raises:
            ClientDisconnect: the client closed the connection.
            TryAgainError: too many requests wait.
        """
        if self._waiting >= self._most:
            raise TryAgainError(
                f"{self._waiting} requests wait for changes, the maximum of this server (--threads); try again"
            )
        loop = asyncio.get_running_loop()
        until = loop.time() + pending.wait_seconds
        gone = asyncio.ensure_future(_disconnected(request))
        self._waiting += 1
        try:
            while await self._changed(pending, until, gone):
                answer = await repeat(pending)
                if not isinstance(answer, PendingResponse):
                    return answer
                pending = answer
            return pending
        finally:
            self._waiting -= 1
            gone.cancel()

    async def _changed(self, pending: PendingResponse, until: float, gone: asyncio.Future[None]) -> bool:
        """Wait for the next commit. Return False if it did not come in time, or the server stops."""
        watch = self._watches.get(pending.key)
        if watch is None:
            watch = self._watches[pending.key] = _Watch()
            watch.task = asyncio.ensure_future(self._follow(watch, pending))
        watch.waiting += 1
        try:
            left = until - asyncio.get_running_loop().time()
            if self._is_stopped or left <= 0:
                return False
            await asyncio.wait((watch.changed, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientDisconnect
            return watch.changed.done() and not self._is_stopped
        finally:
            watch.waiting -= 1
            if not watch.waiting:
                assert watch.task is not None
                watch.task.cancel()
                if self._watches.get(pending.key) is watch:
                    del self._watches[pending.key]

    async def _follow(self, watch: _Watch, pending: PendingResponse) -> None:
        """Read the head until it has changed, then wake the waiting requests."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            while not await run(self._pool, pending.has_changed):
                await asyncio.sleep(POLL_SECONDS)
        finally:
            if self._watches.get(pending.key) is watch:
                del self._watches[pending.key]
            watch.end()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
