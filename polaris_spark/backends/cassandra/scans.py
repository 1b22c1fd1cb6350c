"""Reading ranges of tokens page by page, and less of a range at once where it is too much for a request.

A page ends with a number of rows that are *found*. What the nodes pass on their way to them has other bounds: deleted
rows `tombstone_failure_threshold` (100,000) in one request, and partitions of other realms `range_request_timeout`
(10 s). Beyond them the request fails, and would fail again. Keys are hashed, so a sixteenth of the range is a sixteenth
of the work: that is asked for next, and twice as much after each answer that came quickly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from polaris_spark.backends.cassandra.failures import too_much
from polaris_spark.backends.cassandra.partitions import Partition, partition, token
from polaris_spark.backends.cassandra.requests import Request, Requests, Row
from polaris_spark.errors import TryAgainError

TOKENS: Final = (-(2**63), 2**63 - 1)
"""Of Murmur3Partitioner, the first of which no key has."""

_NARROWER: Final = 16
_QUICK_S: Final = 1.0
_KEY: Final = {"objects": 3, "references": 2, "partitions": 2}  # columns that identify a row


def pages(
    requests: Requests, title: str, low: int, high: int, realms: list[str] | None, page_rows: int
) -> Iterator[list[Row]]:
    """Rows of the tokens above `low` and up to `high`, each once.

    Args:
        title: of a statement that scans.
        realms: whose rows; None for those of all.
    Raises:
        TryAgainError: it fails, or a single partition is too much for a request.
    """
    given = _Given(title)
    width = high - low
    patience = requests.settings.timeout / 1_000
    since = time.monotonic()
    while low < high:
        end = min(high, low + width)
        try:
            for rows in _read(requests, title, low, end, realms, page_rows):
                quick = time.monotonic() - since < _QUICK_S
                if new := given.added(rows):
                    yield new
                since = time.monotonic()
        except TryAgainError as error:
            impatient = time.monotonic() - since > patience
            if impatient or end - low == 1 or not too_much(error.__cause__):
                raise
            low = given.until(low)
            width = max(1, (end - low) // _NARROWER)
        else:
            low = end
            width *= 2 if quick else 1


class _Given:
    """What a scan has given of the last partition that it came to: where a page failed, it goes on there."""

    def __init__(self, title: str) -> None:
        self._title, self._key = title, _KEY[title]
        self._last: Partition | None = None
        self._keys: list[Row] = []
        self._again: set[Row] = set()

    def added(self, rows: list[Row]) -> list[Row]:
        """The rows of a page that were not given yet; they are given from now on."""
        key = self._key
        if self._again:
            rows = [row for row in rows if row[:key] not in self._again]
        if rows:
            first, last = partition(self._title, rows[0]), partition(self._title, rows[-1])
            if not first == last == self._last:
                self._keys, self._last = [], last
            self._keys += [row[:key] for row in rows]
        return rows

    def until(self, low: int) -> int:
        """From which token on to read again, which is `low` at least."""
        self._again = set(self._keys)
        return low if self._last is None else max(low, token(self._last) - 1)


def _read(
    requests: Requests, title: str, low: int, high: int, realms: list[str] | None, page_rows: int
) -> Iterator[list[Row]]:
    values = (low, high) if realms is None else (low, high, realms)
    title = title if realms is None else f"{title}/realms"
    page: bytes | None = None
    while True:
        request = Request(title, values, page=page, page_rows=page_rows, narrower=high - low > 1)
        (answer,) = requests.read([request])
        yield answer.rows
        page = answer.page
        if page is None:
            return
