"""Routes of the system views.

Only local callers can read views, because the options of a read contain the secrets of the store, and the response
contains pickled functions. HTTP clients can only request the descriptions of the views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polaris_spark.access.needs import OPEN, Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import current_row
from polaris_spark.catalog.catalogs.references import CATALOGS, catalogs_in, head_name
from polaris_spark.errors import NoSuchViewError, NotFoundError
from polaris_spark.extension.messages import PlanRequest, ViewOptions, ViewResponse, ViewsResponse
from polaris_spark.rest.access import Role
from polaris_spark.rest.messages import decode, encode
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import EXTENSION, Route
from polaris_spark.rest.session import Session

if TYPE_CHECKING:
    from polaris_spark.spark.logins import Granted


def list_views(_catalog: Catalog, _request: Request) -> Response:
    """Answer `GET views`: list the names of the views, without importing their modules."""
    from polaris_spark.spark.views import VIEWS

    return json_response(encode(ViewsResponse(list(VIEWS))))


def describe_view(_: Catalog, request: Request) -> Response:
    """Answer `GET views/{view}`: describe the view and its columns."""
    from polaris_spark.spark.views import VIEWS
    from polaris_spark.spark.views.columns import struct

    name = _name(request)
    view = VIEWS[name]
    return json_response(encode(ViewResponse(name, view.comment, struct(view.columns).jsonValue())))


def view_columns(_: Catalog, request: Request) -> Response:
    """Answer `POST views/{view}/columns`: return the columns, and whether `count_rows` supports the view."""
    from polaris_spark.spark.views.planner import columns

    return json_response(encode(columns(_options(request, decode(request.body, ViewOptions).options))))


def count_rows(_: Catalog, request: Request) -> Response:
    """Answer `POST views/{view}/count`: return the number of rows, counted without reading the view."""
    from polaris_spark.spark.views.planner import count

    options = _options(request, decode(request.body, ViewOptions).options)
    return json_response(encode({"count": count(options, _granted(request, options))}))


def plan_scan(_: Catalog, request: Request) -> Response:
    """Answer `POST views/{view}/plan`: return the partitions of a scan, and the function that reads them."""
    from polaris_spark.spark.views.planner import plan

    asked = decode(request.body, PlanRequest)
    options = _options(request, asked.options)
    planned = plan(options, asked.columns, asked.filters, _granted(request, options))
    return json_response(encode(planned))


def _options(request: Request, given: dict[str, str]) -> dict[str, str]:
    """Return the given options, and the option `view` with the name in the path of the request.

    If the option `catalog` is the name with which the session opened its catalog, it is replaced by the present name of
    this catalog, because the catalog may have been renamed, and another one may have the old name.

    Raises:
        NotFoundError: the session's catalog was dropped.
    """
    session = request.session
    if isinstance(session, Session) and _is_own(session, given):
        row = session.catalog.row
        present = current_row(session.catalog.references, row)
        if present is None:
            raise NotFoundError(
                f"catalog {row.name!r} was dropped; undrop_catalog restores it until its grace period ends"
            )
        given = {**given, "catalog": present.name}
    return {**given, "view": _name(request)}


def _granted(request: Request, options: dict[str, str]) -> Granted | None:
    """Return what the caller may see in a view; None if the options name a realm other than the session's, to which the
    caller must log in by the option `credential`.

    Raises:
        NotFoundError: the session's realm has access control, and the options name another realm.
    """
    from polaris_spark.spark.logins import Granted, granted_to
    from polaris_spark.spark.views import VIEWS

    session, caller = request.session, request.caller
    assert isinstance(session, Session)  # every transport with these routes passes a session
    realm, rules = options.get("realm", session.properties.realm), session.access.rules()
    if realm != session.properties.realm:
        if rules is None:
            return None
        raise NotFoundError(
            f"realm {realm!r} is not accessible: this session can read only its own realm, "
            f"{session.properties.realm!r}; leave out the option realm"
        )
    if rules is None:
        return Granted(None)
    subject = rules.subject(caller.principal, session.connection.clock.now_ms(), caller.roles)
    instance = session.catalog.references.store.realm
    references = session.catalog.references
    catalogs = catalogs_in(references.read(CATALOGS))
    return granted_to(
        rules,
        subject,
        instance,
        VIEWS[options["view"]].shown,
        catalogs,
        lambda row: references.read(head_name(row)),
    )


def _is_own(session: Session, given: dict[str, str]) -> bool:
    """Whether the options name the catalog of a session."""
    realm = given.get("realm", session.properties.realm)
    return given.get("catalog") == session.catalog.name and realm == session.properties.realm


def _name(request: Request) -> str:
    """Return the name of the view in the path of the request.

    Raises:
        NoSuchViewError: the view does not exist.
    """
    from polaris_spark.spark.views import VIEWS

    name = request.params["view"]
    if name not in VIEWS:
        raise NoSuchViewError(
            f"there is no system view {name[:200]!r}; the system views are: {', '.join(VIEWS)}"
        )
    return name


_READS = (Need("", On.KNOWN_CATALOG),)
"""A view shows only the rows that the caller may see (`SystemView.shown`)."""

ROUTES = (
    Route("GET", "views", list_views, EXTENSION, Role.ADMINISTRATOR, result=ViewsResponse, needs=OPEN),
    Route(
        "GET", "views/{view}", describe_view, EXTENSION, Role.ADMINISTRATOR, result=ViewResponse, needs=OPEN
    ),
    Route(
        "POST", "views/{view}/columns", view_columns, EXTENSION, Role.LOCAL, body=ViewOptions, needs=_READS
    ),
    Route("POST", "views/{view}/count", count_rows, EXTENSION, Role.LOCAL, body=ViewOptions, needs=_READS),
    Route("POST", "views/{view}/plan", plan_scan, EXTENSION, Role.LOCAL, body=PlanRequest, needs=_READS),
)
