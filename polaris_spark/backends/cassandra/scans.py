"""Paged reads of token ranges. If a range is too much for one request, it is read in narrower parts.

The page size limits only the rows that a request *returns*. Rows that the nodes read and skip have other limits:
`tombstone_failure_threshold` (100,000) for deleted rows in one request, and `range_request_timeout` (10 s) for
partitions of other realms. A request beyond these limits fails, and would fail again. Then the next request reads a
sixteenth of the range. This is a sixteenth of the work, because keys are hashed. The width doubles after each quick
answer. If a single partition is too much for one request, it is read by ranges of ids, which are the order of the rows
in the partition. These ranges are narrowed in the same way.
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
"""Minimum and maximum token of Murmur3Partitioner. No key has the minimum."""

_IDS: Final = (-1, 2**63 - 1)
_OF_IDS: Final = {"objects": "objects/ids", "partitions": "buckets/ids"}
"""Maps the title of a statement that reads whole partitions to the title of the statement that reads a range of ids."""

_NARROWER: Final = 16
_QUICK_S: Final = 1.0
_KEY: Final = {"objects": 3, "references": 2, "partitions": 2}  # columns that identify a row


def pages(
    requests: Requests, title: str, low: int, high: int, realms: list[str] | None, page_rows: int
) -> Iterator[list[Row]]:
    """Return pages of the rows with tokens above `low` and up to `high`. Each row appears once.

    Args:
        title: title of a statement that scans, in `statements`.
        realms: the realms whose rows to return; None for all realms.
        page_rows: maximum number of rows in a page.
    Raises:
        TryAgainError: the scan failed, or a single reference or object is too much for one request.
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
    """Yield pages of the rows whose numbers (tokens or ids) are above `low` and up to `high`. The range is read in
    parts. If one request cannot read a part, because the part has too many rows, narrower parts are read.

    Args:
        read: called with the two bounds of a part; returns its pages.
        again: called with the lower bound of a part that failed; returns the lower bound from which to read again.
        one: called with the bounds of a part that failed and contains a single number, and with the error; returns the
            pages of the part.
        patience: maximum time without a successful answer, in seconds.
    """
    width = high - low
    refused = low
    """End of the last part that was too much for one request. The width does not grow before this point."""
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
    """The rows that a scan has returned from its latest partition. They are skipped when the scan resumes after an
    error."""

    def __init__(self, title: str) -> None:
        self._title, self._key = title, _KEY[title]
        self._last: Partition | None = None
        self._keys: list[Row] = []
        self._again: set[Row] = set()

    def added(self, rows: list[Row]) -> list[Row]:
        """Return the rows of a page that the scan has not returned yet, and record them as returned."""
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
        """Prepare to read again after an error: make `added` skip the rows that the scan has already returned. Return
        the token after which the scan must read again; it is not less than `low`."""
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
