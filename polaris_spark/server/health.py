"""Health check: whether the server can serve requests. Load balancers request it often, without a token."""

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
    """Checks that the store can be read. At most one check begins per second, in a separate thread, however many
    requests arrive.

    If a check takes longer than five seconds, the health check reports that requests cannot be served. No new check
    begins before the running check has ended.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """
        Args:
            check: function that reads the rows that every request reads, and raises an error if requests cannot be
                served.
        """
        self._check = check
        self._pool = ThreadPoolExecutor(1, "polaris-health")
        self._running: asyncio.Future[str] | None = None
        self._at = float("-inf")

    async def problem(self) -> str:
        """Return why requests cannot be served, or an empty text if they can be served. The result of a check is reused
        for a second.

        The text does not contain the store's URI, because every client may read it. The log contains the details.
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
        except Exception as error:  # any error of a database; details are only logged
            log.warning("requests cannot be served: %s", error)
            return _reason(error)
        return ""


def _reason(error: Exception) -> str:
    if isinstance(error, RealmMovedError):
        return "the realm was moved to another store"
    if isinstance(error, RealmStateError):
        return "the realm was deactivated or purged"
    if isinstance(error, NoStoreError):
        return "the database no longer contains a store"
    if isinstance(error, StateError):
        return "the store or the catalog is not in a state that allows requests"
    return "the store cannot be read"
