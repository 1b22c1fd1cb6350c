"""Reading ranges of tokens page by page, and less of a range at once where it is too much for a request.

A page ends with a number of rows that are *found*. What the nodes pass on their way to them has other bounds: deleted
rows `tombstone_failure_threshold` (100,000) in one request, and partitions of other realms `range_request_timeout`
(10 s). Beyond them the request fails, and would fail again. Keys are hashed, so a sixteenth of the range is a sixteenth
of the work: that is asked for next, and twice as much after each answer that came quickly. A single partition that is
too much is read by ranges of ids, as its rows lie one after another, and those are narrowed in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from polaris_spark.backends.cassandra.failures import too_much
from polaris_spark.backends.cassandra.partitions import Partition, partition, token
from polaris_spark.backends.cassandra.requests import Request, Requests, Row
from polaris_spark.errors import TryAgainError

TOKENS: Final = (-(2**63), 2**63 - 1)
"""Of Murmur3Partitioner, the first of which no key has."""

_IDS: Final = (-1, 2**63 - 1)
_OF_IDS: Final = {"objects": "objects/ids", "partitions": "buckets/ids"}
"""Statements that read of a partition the rows of some ids, by that which reads all of them."""

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
        TryAgainError: it fails, or a single reference or object is too much for a request.
    """
    given = _Given(title)
    patience = requests.settings.timeout / 1_000

    def read(title: str, bounds: tuple[int, ...], *, narrower: bool) -> Iterator[list[Row]]:
        return map(given.added, _read(requests, title, bounds, realms, page_rows, narrower=narrower))

    def of_tokens(low: int, end: int) -> Iterator[list[Row]]:
        return read(title, (low, end), narrower=end - low > 1 or title in _OF_IDS)

    def of_token(low: int, end: int, error: TryAgainError) -> Iterator[list[Row]]:
        if title not in _OF_IDS:
            raise error

        def of_ids(first: int, last: int) -> Iterator[list[Row]]:
            return read(_OF_IDS[title], (low, end, first, last), narrower=last - first > 1)

        def again(first: int) -> int:
            given.until(low)
            return first

        return _narrowed(*_IDS, of_ids, again, _refuse, patience)

    return _narrowed(low, high, of_tokens, given.until, of_token, patience)


def _narrowed(
    low: int,
    high: int,
    read: Callable[[int, int], Iterator[list[Row]]],
    again: Callable[[int], int],
    one: Callable[[int, int, TryAgainError], Iterator[list[Row]]],
    patience: float,
) -> Iterator[list[Row]]:
    """Rows of the numbers above `low` and up to `high`.

    Args:
        read: pages of rows of such a part.
        again: from where on to read again a part that failed, which begins at a number.
        one: pages of rows of a single number that is too much, from the error that says so.
        patience: how long nothing but failures may come, seconds.
    """
    width = high - low
    refused = low
    """The end of what was last too much: up to there the rest is not likely to be less."""
    since = time.monotonic()
    while low < high:
        end = min(high, low + width)
        single = None
        try:
            for rows in read(low, end):
                quick = time.monotonic() - since < _QUICK_S
                if rows:
                    yield rows
                since = time.monotonic()
        except TryAgainError as error:
            if time.monotonic() - since > patience or not too_much(error.__cause__):
                raise
            if end - low > 1:
                low, refused = again(low), end
                width = max(1, (end - low) // _NARROWER)
                continue
            single = error
        if single is not None:
            again(low)
            yield from one(low, end, single)
            since = time.monotonic()
        elif quick and end >= refused:
            width *= 2
        low = end


def _refuse(_: int, __: int, error: TryAgainError) -> Iterator[list[Row]]:
    raise error


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
    requests: Requests,
    title: str,
    bounds: tuple[int, ...],
    realms: list[str] | None,
    page_rows: int,
    *,
    narrower: bool,
) -> Iterator[list[Row]]:
    values = bounds if realms is None else (*bounds, realms)
    title = title if realms is None else f"{title}/realms"
    page: bytes | None = None
    while True:
        request = Request(title, values, page=page, page_rows=page_rows, narrower=narrower)
        (answer,) = requests.read([request])
        yield answer.rows
        page = answer.page
        if page is None:
            return
