"""The route with which a client follows the changes of a branch, with long polling.

A request that finds no changes gets a `PendingResponse`, so the transport can wait for the next commit without
occupying a thread that other requests need (`rest.request.PendingResponse`).
"""

from __future__ import annotations

from collections.abc import Callable

from polaris_spark.access.delegated_scopes import delegated_scope
from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import SHOWS_CHANGES, Sight, privilege_for, scope_of, sees_change
from polaris_spark.catalog.branches.archived_log import ArchivedCommit
from polaris_spark.catalog.branches.change_log import (
    MAX_CHANGES,
    LogPosition,
    branch_log,
    changes_after,
    newest_position,
    oldest_position,
)
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError, CorruptionError, GoneError, HistoryTrimmedError
from polaris_spark.extension.messages import ChangesResponse
from polaris_spark.index.keys import decode_key
from polaris_spark.property_values import duration_ms
from polaris_spark.rest.access import Role
from polaris_spark.rest.messages import encode
from polaris_spark.rest.request import JSON_HEADERS, PendingResponse, Request, Response
from polaris_spark.rest.router import EXTENSION, Route
from polaris_spark.rest.session import Session

MAX_WAIT_MS = 60_000
"""Maximum time that a request waits for a change, in milliseconds. A request for a longer wait waits this long."""

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
        page = changes_after(log, position, limit, _shows(catalog, request, head))
    except HistoryTrimmedError as error:
        raise GoneError(str(error), type="HistoryTrimmedException") from None
    answer = ChangesResponse(catalog.name, catalog.branch, page.changes, str(page.position))
    response = Response(200, _HEADERS, encode(answer))
    if page.changes or page.is_full or not wait:
        return response
    seen = head.head.commit
    return PendingResponse.of(
        response,
        query={**query, "after": str(page.position)},
        wait_seconds=wait / 1_000,
        key=(catalog.references, catalog.reference, seen),
        has_changed=lambda: catalog.head().head.commit != seen,
    )


def _shows(
    catalog: Catalog, request: Request, head: CommitReader
) -> Callable[[ArchivedCommit, LogEntry], bool] | None:
    """Return a function that returns whether the caller may see a change; None if it may see all changes."""
    session, caller = request.session, request.caller
    rules = session.access.rules() if isinstance(session, Session) else None
    if rules is None:
        return None
    id, store = catalog.row.entity_id, catalog.references.store
    subject = rules.subject(caller.principal, catalog.references.clock.now_ms(), caller.roles)
    if subject.delegated is None:
        scope = scope_of(rules, subject, store.realm, SHOWS_CHANGES, None)
    else:
        here = [catalog.row]
        scope = delegated_scope(
            subject, store.realm, SHOWS_CHANGES, here, lambda _: (catalog.branch, head), known=None
        )
    if scope.sees_all_of(id):
        return None
    now = Sight(scope, id, catalog.branch, head, head)

    def then(commit: ArchivedCommit) -> Sight | None:
        if commit.number < head.head.floor_number:
            return None
        at = Head(commit.id, commit.number, commit.time)
        return Sight(
            scope, id, catalog.branch, CommitReader(store, b"", at, store.get(commit.id, Commit)), head
        )

    def shows(commit: ArchivedCommit, entry: LogEntry) -> bool:
        try:
            path, kind, _ = decode_key(entry.key)
        except CorruptionError:  # the name of a reference, in the entry of a recovery
            return False
        privilege = privilege_for(SHOWS_CHANGES, kind)
        return privilege is not None and sees_change(privilege, entry.entity, path, now, lambda: then(commit))

    return shows


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
        needs=(Need("", On.KNOWN_CATALOG),),  # the answer has only changes that the caller may see
    ),
)
