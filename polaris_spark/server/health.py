"""Whether requests can be served: what load balancers ask often, and anyone may."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from polaris_spark.errors import NoStoreError, RealmMovedError, RealmStateError, StateError

log = logging.getLogger("polaris_spark.server")

_KEPT_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


class Health:
    """Checks the store in a thread of its own, at most once a second however many ask.

    A store that does not answer within five seconds counts as unreadable, and is not asked again before it does.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """
        Args:
            check: reads what every request reads; raises whatever a request would.
        """
        self._check = check
        self._pool = ThreadPoolExecutor(1, "polaris-health")
        self._running: asyncio.Future[str] | None = None
        self._at = float("-inf")

    async def problem(self) -> str:
        """Why requests cannot be served, as known a second ago or later; empty if they can.

        The text names no store: everyone may read it. The log has the details.
        """
        now = time.monotonic()
        running = self._running
        if running is None or (running.done() and now - self._at > _KEPT_SECONDS):
            running = self._running = asyncio.get_running_loop().run_in_executor(self._pool, self._try)
            self._at = now
        try:
            return await asyncio.wait_for(asyncio.shield(running), _PATIENCE_SECONDS)
        except asyncio.TimeoutError:
            return "the store does not answer"

    def _try(self) -> str:
        try:
            self._check()
        except Exception as error:  # whatever a database raises; details are for the log
            log.warning("requests cannot be served: %s", error)
            return _reason(error)
        return ""


def _reason(error: Exception) -> str:
    if isinstance(error, RealmMovedError):
        return "the realm was moved to another store"
    if isinstance(error, RealmStateError):
        return "the realm was deactivated or purged"
    if isinstance(error, NoStoreError):
        return "the database holds no store any more"
    if isinstance(error, StateError):
        return "the store or the catalog is not in a state to serve"
    return "the store cannot be read"
