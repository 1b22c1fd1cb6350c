"""Whether the store can be read: what load balancers ask often, and anyone may."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

log = logging.getLogger("polaris_spark.server")

_KEPT_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


class Health:
    """Checks the store in a thread of its own, at most once a second however many ask.

    A store that does not answer within five seconds counts as unreadable, and is not asked again before it does.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._pool = ThreadPoolExecutor(1, "polaris-health")
        self._running: asyncio.Future[bool] | None = None
        self._at = float("-inf")

    async def readable(self) -> bool:
        """Whether the store could be read just now."""
        now = time.monotonic()
        running = self._running
        if running is None or (running.done() and now - self._at > _KEPT_SECONDS):
            running = self._running = asyncio.get_running_loop().run_in_executor(self._pool, self._try)
            self._at = now
        try:
            return await asyncio.wait_for(asyncio.shield(running), _PATIENCE_SECONDS)
        except asyncio.TimeoutError:
            return False

    def _try(self) -> bool:
        try:
            self._check()
        except Exception as error:  # whatever a database raises; details are for the log
            log.warning("the store cannot be read: %s", error)
            return False
        return True
