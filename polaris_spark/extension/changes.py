"""The route by which a client follows the changes of a branch, with long polling.

A request that finds no changes gets a `PendingResponse`, so the transport can wait for the next commit without
occupying a thread that other requests need (`rest.request.Pending`).
"""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.change_log import (
    MAX_CHANGES,
    LogPosition,
    branch_log,
    changes_after,
    newest_position,
    oldest_position,
)
from polaris_spark.errors import BadRequestError, GoneError, HistoryTrimmedError
from polaris_spark.extension.messages import ChangesResponse
from polaris_spark.property_values import duration_ms
from polaris_spark.rest.access import Role
from polaris_spark.rest.messages import encode
from polaris_spark.rest.request import JSON_HEADERS, PendingResponse, Request, Response
from polaris_spark.rest.router import EXTENSION, Route

MAX_WAIT_MS = 60_000
"""Longest time that a request waits for a change, in milliseconds. A request for a longer wait waits this long."""

OLDEST = "oldest"
"""Value of `after` for the position before the oldest change whose log is kept."""

_HEADERS = {**JSON_HEADERS, "Cache-Control": "no-store"}


def list_changes(catalog: Catalog, request: Request) -> Response:
    """Answer `GET changes`: return changes of the branch after a position, oldest first, and the position after
    them."""
    query = request.query
    limit, wait = _limit(query.get("limit")), _wait(query.get("wait"))
    if catalog.point or catalog.in_transaction:
        raise BadRequestError(
            f"{catalog.point or 'the state of a transaction'} is not a branch; only the changes of a branch can be "
            "followed"
        )
    after = query.get("after")
    position = None if after in (None, OLDEST) else LogPosition.parse(after or "", "after")
    head = catalog.head()
    log = branch_log(head, catalog.reference)
    if position is None:
        position = newest_position(log) if after is None else oldest_position(log)
    try:
        page = changes_after(log, position, limit)
    except HistoryTrimmedError as error:
        raise GoneError(str(error), type="HistoryTrimmedException") from None
    answer = ChangesResponse(catalog.name, catalog.branch, page.changes, str(page.position))
    response = Response(200, _HEADERS, encode(answer))
    if page.changes or not wait:
        return response
    seen = head.head.commit
    return PendingResponse.of(
        response,
        query={**query, "after": str(page.position)},
        wait_seconds=wait / 1_000,
        key=(catalog.references, catalog.reference, seen),
        has_changed=lambda: catalog.head().head.commit != seen,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return MAX_CHANGES
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) > 0):
        raise BadRequestError(f"limit is {text[:80]!r}; it must be a whole number from 1")
    return min(int(text), MAX_CHANGES)


def _wait(text: str | None) -> int:
    return 0 if text is None else min(duration_ms("wait", text[:80]), MAX_WAIT_MS)


ROUTES = (
    Route(
        "GET",
        "changes",
        list_changes,
        EXTENSION,
        Role.ADMINISTRATOR,
        result=ChangesResponse,
        query=("after", "wait", "limit"),
        needs=(Need("CATALOG_READ_LOG", On.CATALOG),),
    ),
)
