"""The function that answers requests. Every transport calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.entities import TableName, table_key
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.catalog.states import catalog_at
from polaris_spark.errors import BadRequestError, NotFoundError
from polaris_spark.rest.access import Caller, authorize
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.namespace_routes import namespace_of
from polaris_spark.rest.request import NotModified, Request, Response
from polaris_spark.rest.router import Router

STATE_HEADER = "polaris-state"
"""Header of a request that says which state of the catalog it means (`catalog.states`), in lower case."""

STATE = "@"
"""Separates the name of a catalog, in a prefix or warehouse, or of a table or view from a state."""


class Derivable(Protocol):
    """The part of `rest.session.Session` that this module uses."""

    def derive(self, *, catalog: Catalog) -> Derivable:
        """Return a session with another form of the catalog."""
        ...


ROUTER = Router(ROUTES)
"""Router for the routes of the Iceberg protocol, without the routes of the extension."""

REMEMBERED = 1_024
"""Maximum number of requests whose responses a session caches."""
SHORT = 1_024
"""Maximum length of a request whose response is cached, in characters."""


def handle(
    catalog: Catalog,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    caller: Caller,
    router: Router = ROUTER,
    session: Derivable | None = None,
) -> Response:
    """Answer one request to one catalog. An error becomes a response in the form of the REST error model.

    Args:
        path: path in the form of the specification, with or without a prefix: `v1/namespaces/a%1Fb/tables`, or a path
            of the extension: `polaris-spark/v1/procedures`.
        query: decoded parameters.
        body: JSON text.
        headers: headers by name; the case of names does not matter.
        caller: the sender of the request.
        router: the routes that the request can use.
        session: the `rest.session.Session` of the catalog. Routes of the extension need it.
    """
    given = catalog
    try:
        query, headers = query or {}, headers or {}
        _refuse_no_text(*query, *query.values(), *headers, *headers.values(), method, path, body or "")
        lower = {name.lower(): value for name, value in headers.items()}
        match = router.find(method, path)
        authorize(caller, match.route.least, path)
        params, state = match.params, lower.get(STATE_HEADER, "")
        if match.prefix is not None and match.prefix != catalog.name:
            name, _, state = match.prefix.partition(STATE)
            if name != catalog.name or not state:
                raise NotFoundError(
                    f"there is no catalog {match.prefix!r} here; this catalog's name is {catalog.name!r}"
                )
        if state:
            catalog = catalog_at(catalog, state)
        name = params.get("table") or params.get("view") or ""
        if STATE in name:
            catalog, params = _at_named_state(catalog, params, name)
        if catalog is not given and session is not None:
            session = session.derive(catalog=catalog)
        request = Request(method, path, params, dict(query), lower, body, caller, session)
        return match.route.answer(catalog, request)
    except Exception as error:
        return response_of(error)


def _at_named_state(
    catalog: Catalog, params: Mapping[str, str], name: str
) -> tuple[Catalog, Mapping[str, str]]:
    """Resolve the name `t@dev` of a table or view, which means `t` in the state `dev` (`catalog.states`). A table or
    view that has this name itself goes first. If the text after `@` means no state, the name stays as it is."""
    namespace = namespace_of(params["namespace"])
    names = catalog.head().index(NAMES)
    own = [table_key(TableName(namespace, name), kind) for kind in (TABLE, VIEW)]
    plain, _, state = name.rpartition(STATE)
    if not plain or not state or any(found is not None for found in names.get_many(sorted(own))):
        return catalog, params
    try:
        found = catalog_at(catalog, state)
    except NotFoundError:
        return catalog, params
    return found, {key: plain if value == name else value for key, value in params.items()}


class Unmodified:
    """Cache for one session of the requests whose response has status 304 (not modified). Thread-safe.

    Clients often request a table that they already have. While the head of the branch is unchanged, the response to a
    repeated request is unchanged too, so only the head is read.
    """

    def __init__(self, handle: Callable[..., Response]) -> None:
        """
        Args:
            handle: `rest.handler.handle` as a partial function: the arguments that are the same for all requests of
                the session are bound.
        """
        self._handle = handle
        self._known: dict[tuple[object, ...], NotModified] = {}

    def handle(
        self,
        catalog: Catalog,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
    ) -> Response:
        """Answer one GET request without a body. The result is the same as that of the function `handle`."""
        try:
            key = (path, *(query or {}).items(), None, *headers.items())
            known = self._known.get(key)
        except (AttributeError, TypeError):  # values that are not text are refused by `handle`
            return self._handle(catalog, "GET", path, query=query, headers=headers)
        if known is not None:
            try:
                head = catalog.head()
            except Exception as error:
                return response_of(error)
            if known.holds_at(head):
                return known.fresh()
            catalog = catalog.beginning_at(head)
        response = self._handle(catalog, "GET", path, query=query, headers=headers)
        if isinstance(response, NotModified) and len(str(key)) <= SHORT:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = response
            return response.fresh()
        return response


def _refuse_no_text(*given: object) -> None:
    """Refuse values that are not text. A Python caller can pass any type, which must not be reported as an internal
    error."""
    for one in given:
        if one is not None and not isinstance(one, str):
            raise BadRequestError(
                f"a part of the request is of type {type(one).__name__}: the body must be JSON text (str), and method, "
                "path, parameters and headers must be str"
            )
