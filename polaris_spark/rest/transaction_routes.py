"""The route `transactions/commit`: changes of several tables in one commit.

The field `requests` of the body is an addition to the protocol: further requests of the protocol that create, change,
rename and drop tables, views and namespaces. They are carried out in the same commit, after the changes of tables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from polaris_spark.access.needs import Asked, Need, On
from polaris_spark.catalog.branches.states import STATE, catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.merges.transactions import at_once
from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.tables.table_changes import CommitTables, TableCommit
from polaris_spark.commits.change import Operation, new_operation_id
from polaris_spark.errors import BadRequestError, NotFoundError, PolarisError
from polaris_spark.rest import messages, namespace_routes, table_routes, view_routes
from polaris_spark.rest.request import NO_CONTENT, Request, Response
from polaris_spark.rest.router import Route, Router
from polaris_spark.rest.shared_tables import require_removable_snapshots
from polaris_spark.rest.table_routes import commit_updates, identifier_name

_CHANGES = Router(
    route
    for route in (*namespace_routes.ROUTES, *table_routes.ROUTES, *view_routes.ROUTES)
    if route.method not in ("GET", "HEAD")
)
"""The requests that a transaction can contain."""


def commit_transaction(catalog: Catalog, request: Request) -> Response:
    """Answer `POST transactions/commit`: commit changes of tables, and further requests, atomically.

    All log entries of the transaction have its id. If the client sent no id, the transaction gets an id here: without
    ids, transactions that are in the same commit of the branch could not be distinguished.
    """
    body = messages.decode(request.body, messages.CommitTransactionRequest)
    commits = [_table_commit(change) for change in body.table_changes]
    if not commits and not body.requests:
        raise BadRequestError("the transaction has no table changes: 'table-changes' is empty")
    require_within("requests in a transaction", len(body.requests))
    operation = request.operation()
    if not operation.id:
        operation = operation._replace(id=new_operation_id(catalog.context.clock.now_ms()))
    if not body.requests:
        require_removable_snapshots(catalog, commits)
        commit_updates(catalog, CommitTables(catalog.context, operation, commits))
        return NO_CONTENT
    parts = []
    for number, one in enumerate(body.requests, 1):
        with _numbered(number, one.method, one.path):
            parts.append(_part(request, one))

    def work(copy: Catalog) -> None:
        if commits:
            own = Operation(b"", request.principal, notes=request.notes)
            require_removable_snapshots(copy, commits)
            commit_updates(copy, CommitTables(catalog.context, own, commits))
        _carry_out(copy, parts, request)

    at_once(catalog, operation, work)
    return NO_CONTENT


def _table_commit(change: messages.CommitTableRequest) -> TableCommit:
    if change.identifier is None:
        raise BadRequestError("a table change of the transaction has no 'identifier', which names the table")
    return TableCommit(identifier_name(change.identifier), change.requirements or [], change.updates or [])


def _part(request: Request, part: messages.TransactionRequest) -> tuple[Route, Request]:
    """Return the route of a request within a transaction, and the request with the caller of the transaction."""
    match = _CHANGES.find(part.method, part.path)
    if match.prefix is not None:
        raise BadRequestError("the path of the request has a prefix; leave the prefix out")
    headers = {name: text for name, text in request.headers.items() if name != "idempotency-key"}
    made = request._replace(
        method=part.method,
        path=part.path,
        params=match.params,
        query=dict(part.query),
        headers=headers,
        body=None if part.body is msgspec.UNSET else bytes(part.body).decode(),
        session=None,
    )
    return match.route, made


def _carry_out(catalog: Catalog, parts: Sequence[tuple[Route, Request]], whole: Request) -> None:
    """Carry out the requests of a transaction in their order. In a realm with access control, each request is checked
    in the state that the requests before it have made.

    Args:
        whole: the request that contains them.
    Raises:
        PolarisError: one of them is refused; the message says which.
    """
    for number, (route, request) in enumerate(parts, 1):
        with _numbered(number, request.method, request.path):
            _refuse_state(catalog, request)
            given = catalog
            if whole.allow is not None:
                given = whole.allow(catalog, route.needs, partial(_asked, route, request))
            route.answer(given, request)


def _asked(route: Route, request: Request) -> Asked:
    body = None if route.body is None else messages.decode(request.body, route.body)
    return Asked(request.params, request.query, body)


@contextlib.contextmanager
def _numbered(number: int, method: str, path: str) -> Iterator[None]:
    """Add the refused request's position in the transaction to the message of an error."""
    try:
        yield
    except PolarisError as error:
        text, *rest = error.args or ("",)
        error.args = (f"request {number} of the transaction ({method} {path[:200]}): {text}", *rest)
        raise


def _refuse_state(catalog: Catalog, request: Request) -> None:
    """Refuse a request that gives a table or view a new name of the form `t@dev`, if the state `dev` exists. Outside of
    a transaction, such a request changes the state `dev`. But all requests of a transaction must change the same state.

    Raises:
        BadRequestError: the body has such a name.
    """
    if not request.body or STATE not in request.body:
        return
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, RecursionError):
        return  # the route reports it
    new = body.get("destination", body) if isinstance(body, dict) else None
    name = new.get("name") if isinstance(new, dict) else None
    plain, _, state = name.rpartition(STATE) if isinstance(name, str) else ("", "", "")
    if plain and state:
        with contextlib.suppress(NotFoundError):
            catalog_at(catalog, state)
            raise BadRequestError(
                f"the name {name!r} refers to the state {state!r}, but all requests of a transaction must change the "
                f"same state: give the name as {plain!r}, and name the state in the header Polaris-State or in the "
                "prefix of the path of transactions/commit"
            )


ROUTES = [
    Route(
        "POST",
        "transactions/commit",
        commit_transaction,
        body=messages.CommitTransactionRequest,
        needs=(
            *table_routes.commit_needs(On.EACH_TABLE, On.EACH_NAMESPACE),
            Need("", On.EACH_REQUEST),
        ),
    ),
]
