"""The function that answers requests. Every transport calls it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from polaris_spark.access.control import AccessControl
from polaris_spark.access.needs import Asked, Needs
from polaris_spark.access.rules import Rules, Subject
from polaris_spark.catalog.branches.states import STATE, catalog_at, name_of_state
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName, namespace_in, table_key
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.errors import (
    BadRequestError,
    HistoryTrimmedError,
    NoSuchTableError,
    NoSuchViewError,
    NotFoundError,
)
from polaris_spark.rest.access import Caller, authorize, require_role, subject_of
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.messages import decode
from polaris_spark.rest.request import NotModified, Request, Response
from polaris_spark.rest.router import EXTENSION, Match, Router
from polaris_spark.system.realms import ServingRealm

STATE_HEADER = "polaris-state"
"""Header of a request that says which state of the catalog it means (`catalog.branches.states`), in lower case."""


class Derivable(Protocol):
    """The part of `rest.session.Session` that this module uses."""

    access: AccessControl
    """Access control of the realm."""
    serving: ServingRealm
    """Check whether the realm can still be used."""

    def derive(self, *, catalog: Catalog, roles: frozenset[str] | None) -> Derivable:
        """Return a session with another form of the catalog, for a caller with these roles."""
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
        if session is not None:
            session.serving.require()
        rules = None if session is None else session.access.rules()
        require_role(caller, match.route.least, path, has_rules=rules is not None)
        state, needs = lower.get(STATE_HEADER, ""), match.route.needs
        subject = None
        if rules is not None:
            subject = subject_of(rules, caller, needs, catalog, match.prefix, has_state=bool(state))
        catalog, params, body = _resolved(catalog, match, state, body, hides_names=rules is not None)
        keep = allow = None
        if rules is not None and subject is not None:
            route = match.route
            parsed = None if route.body is None else decode(body, route.body)
            key = path if method == "GET" and not query else None
            asked = partial(Asked, params, query, parsed)
            catalog, keep = authorize(rules, subject, needs, asked, catalog, key=key)
            allow = partial(_allowed, rules, subject)
        if catalog is not given and session is not None and match.route.base == EXTENSION:
            session = session.derive(catalog=catalog, roles=caller.roles)
        request = Request(
            method, path, params, dict(query), lower, body, caller, session, keep, rules is not None, allow
        )
        return match.route.answer(catalog, request)
    except Exception as error:
        return response_of(error)


def _allowed(
    rules: Rules, subject: Subject, catalog: Catalog, needs: Needs, asked: Callable[[], Asked]
) -> Catalog:
    """Check a request that is a part of another one (`Request.allow`)."""
    return authorize(rules, subject, needs, asked, catalog.resolving(()))[0]


def _resolved(
    catalog: Catalog, match: Match, state: str, body: str | None, *, hides_names: bool
) -> tuple[Catalog, Mapping[str, str], str | None]:
    """Find the state of the catalog to which a request refers: by its header, by the prefix of its path, or by names
    such as `t@dev` in its path and body.

    Args:
        state: the state in the header; empty if there is none.
        hides_names: whether an error must not contain the name of the catalog.
    Returns:
        the catalog in the state, and the parameters of the path and the body with names without states.
    Raises:
        BadRequestError: the names are in different states.
        NotFoundError: the prefix names another catalog, or there is no such state.
    """
    if match.prefix is not None and match.prefix != catalog.name:
        name, _, state = match.prefix.partition(STATE)
        if name != catalog.name or not state:
            here = "" if hides_names else f"; this catalog's name is {catalog.name!r}"
            raise NotFoundError(f"there is no catalog {match.prefix!r} here{here}")
    begun = found = catalog_at(catalog, state) if state else catalog
    params = match.params
    name = params.get("table") or params.get("view") or ""
    if STATE in name and "namespace" in params:  # else it is the id of a table
        namespace = namespace_in(params["namespace"])
        kind = NoSuchTableError if "table" in params else NoSuchViewError
        loaded = kind if match.route.method == "GET" else None
        found, plain = _at_named_state(begun, namespace, name, loaded)
        params = {key: plain if value == name else value for key, value in params.items()}
    if body and STATE in body and match.template in _NAMES_IN_BODY:
        found, body = _at_state_in_body(begun, found, params, body)
    return found, params, body


def _at_named_state(
    catalog: Catalog,
    namespace: tuple[str, ...],
    name: str,
    loaded: type[NoSuchTableError] | type[NoSuchViewError] | None = None,
) -> tuple[Catalog, str]:
    """Resolve the name `t@dev` of a table or view, which means `t` in the state `dev` (`catalog.branches.states`). If a
    table or view has the whole name `t@dev`, or the text after `@` is not the name of a state, the name stays
    unchanged.

    Args:
        loaded: class of the error for a table or view that the request loads, if its state was trimmed from the
            history; None if the request does not load it, and so can also create a table or view of the whole name.
    Returns:
        the catalog in the state, and the name without the state.
    Raises:
        NoSuchTableError, NoSuchViewError: the state of what the request loads was trimmed from the history.
    """
    plain, _, state = name.rpartition(STATE)
    if not plain or not state:
        return catalog, name
    names = catalog.head().index(NAMES)
    own = [table_key(TableName(namespace, name), kind) for kind in (TABLE, VIEW)]
    if any(found is not None for found in names.get_many(sorted(own))):
        return catalog, name
    try:
        return catalog_at(catalog, state), plain
    except NotFoundError as error:
        if loaded is not None and isinstance(error.__cause__, HistoryTrimmedError):
            what = "Table" if loaded is NoSuchTableError else "View"
            full = ".".join((*namespace, name))
            raise loaded(f"{what} does not exist: {full}; {error.__cause__}") from error
        return catalog, name


_TABLE_OF_PATH = "namespaces/{namespace}/tables/{table}"
_VIEW_OF_PATH = "namespaces/{namespace}/views/{view}"
_RENAMES = ("tables/rename", "views/rename")
_CREATIONS = tuple(
    f"namespaces/{{namespace}}/{last}" for last in ("tables", "views", "register", "register-view")
)
_NAMES_IN_BODY = frozenset((_TABLE_OF_PATH, _VIEW_OF_PATH, *_RENAMES, *_CREATIONS, "transactions/commit"))
"""Templates of the routes whose bodies name tables or views."""


def _at_state_in_body(
    begun: Catalog, catalog: Catalog, params: Mapping[str, str], body: str
) -> tuple[Catalog, str]:
    """Resolve the names of tables and views in a body, such as `t@dev`. In a rename, the new name is in the same state
    as the old name, unless it contains a state of its own.

    Args:
        begun: the catalog in the state to which the header or the prefix refers.
        catalog: the catalog in the state to which the name in the path refers.
    Returns:
        the catalog in the state of all names, and the body with names without states.
    Raises:
        BadRequestError: the names are in different states. One request changes one state.
    """
    try:
        parsed = json.loads(body)
    except ValueError:
        return catalog, body  # the route reports it
    states = {} if catalog is begun else {name_of_state(catalog): catalog}
    for holder, namespace, follows in _named(parsed, params):
        name = holder["name"]
        found, plain = _at_named_state(begun, namespace, name) if STATE in name else (begun, name)
        if plain != name or not (follows and states):
            states[name_of_state(found)] = found
        holder["name"] = plain
    if len(states) > 1:
        raise BadRequestError(
            f"all names of a request must be in the same state, but they are in: {', '.join(sorted(states))}"
        )
    return next(iter(states.values()), catalog), json.dumps(parsed)


def _named(body: Any, params: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], tuple[str, ...], bool]]:
    """Yield the parts of a body that name a table or view. With each part, yield its namespace, and whether a name
    without a state is in the same state as the preceding names. Malformed parts are left out, because the route reports
    them."""
    if not isinstance(body, dict):
        return
    changes = body.get("table-changes")
    of_changes = (
        [one.get("identifier") for one in changes if isinstance(one, dict)]
        if isinstance(changes, list)
        else []
    )
    given = [(body.get("identifier"), True), (body.get("source"), False), (body.get("destination"), True)]
    for one, follows in (*given, *((one, False) for one in of_changes)):
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            namespace = one.get("namespace")
            if isinstance(namespace, list) and all(isinstance(level, str) for level in namespace):
                yield one, tuple(namespace), follows
    if isinstance(body.get("name"), str) and "namespace" in params:
        yield body, namespace_in(params["namespace"]), False


_UNKNOWN: Final[tuple[NotModified | None, object]] = (None, None)


class Unmodified:
    """Cache for one session of the requests whose response has status 304 (not modified). Thread-safe.

    Clients often request a table that they already have. While the head of the branch is unchanged, the response to a
    repeated request is unchanged too, so only the head is read.
    """

    def __init__(self, handle: Callable[..., Response], stamp: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            handle: `rest.handler.handle` as a partial function: the arguments that are the same for all requests of
                the session are bound.
            stamp: returns an object; a different object means that the caller's permissions may have changed.
        """
        self._handle = handle
        self._stamp = stamp
        self._known: dict[tuple[object, ...], tuple[NotModified | None, object]] = {}

    def handle(
        self,
        catalog: Catalog,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
    ) -> Response:
        """Answer one GET request without a body. The result is the same as from the function `handle`."""
        try:
            key = (path, *(query or {}).items(), None, *headers.items())
            known, stamp = self._known.get(key, _UNKNOWN)
        except (AttributeError, TypeError):  # values that are not text are refused by `handle`
            return self._handle(catalog, "GET", path, query=query, headers=headers)
        try:
            now = self._stamp()
            if known is not None:
                head = catalog.head()
                if known.holds_at(head) and now is stamp:
                    return known.fresh()
                catalog = catalog.beginning_at(head)
        except Exception as error:
            return response_of(error)
        response = self._handle(catalog, "GET", path, query=query, headers=headers)
        if isinstance(response, NotModified) and len(str(key)) <= SHORT:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = response, now
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
