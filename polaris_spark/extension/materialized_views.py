"""Routes by which an engine asks how to read a materialized view, now and as of an earlier refresh."""

from __future__ import annotations

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName, namespace_in
from polaris_spark.catalog.entities.materialized_views import MAX_STALENESS, SESSION, allows_stale
from polaris_spark.catalog.entities.refresh_records import REFRESH_START
from polaris_spark.catalog.materialized.outside_sources import OutsideSources
from polaris_spark.catalog.materialized.query_pinning import recursion
from polaris_spark.catalog.materialized.stored_views import last_refresh, materialized, stored_query
from polaris_spark.catalog.materialized.view_freshness import freshness
from polaris_spark.catalog.materialized.view_time_travel import rows_at, rows_of_version
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError
from polaris_spark.extension.messages import AsOfRequest, AsOfResponse, ReadRequest, ReadResponse
from polaris_spark.property_values import duration_ms
from polaris_spark.rest.messages import decode, encode
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import EXTENSION, Route


def read(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/materialized-views/{view}/read`: return a query of the stored rows, if
    readers may use them.

    Readers may use the rows if a refresh of the loaded version of the view computed them, in a session with the same
    settings, and if they are fresh. They may also use stale rows that are not older than `max-staleness`, if the view
    allows stale data.
    """
    name = TableName(namespace_in(request.params["namespace"]), request.params["view"])
    asked = decode(request.body, ReadRequest)
    limited = request.has_rules
    return catalog.loading(
        lambda: json_response(encode(_answer(catalog, name, asked, is_limited=limited))), request.principal
    )


def _answer(catalog: Catalog, name: TableName, asked: ReadRequest, *, is_limited: bool) -> ReadResponse:
    answer = _how(catalog, name, asked, is_limited=is_limited)
    if answer.query is not None or answer.unknown:
        return answer
    return msgspec.structs.replace(
        answer, recursion=recursion(catalog.view(), asked.catalog or catalog.name, name)
    )


def _how(catalog: Catalog, name: TableName, asked: ReadRequest, *, is_limited: bool) -> ReadResponse:
    state = catalog.view()
    view = materialized(state, name)
    if (view.uuid, view.current_version_id) != (asked.uuid, asked.version_id):
        return ReadResponse(None, refreshable=False, reason="the view was replaced")
    record = last_refresh(state, name)
    outside = OutsideSources(_known(asked).get, reads_delta=catalog.context.allowed is None)
    now = freshness(state, name, outside, only_recorded=is_limited)
    if now.unknown and not _may_be_stale(catalog, view, record or {}):
        unknown = [list(parts) for parts in now.unknown]
        return ReadResponse(None, refreshable=True, reason=now.reason, unknown=unknown)
    if record is None or not (now.fresh or _may_be_stale(catalog, view, record)):
        return ReadResponse(None, refreshable=True, reason=now.reason)
    if record.get(SESSION, asked.session) != asked.session:
        reason = "the rows were computed in a session with other settings"
        return ReadResponse(None, refreshable=False, reason=reason)
    query = stored_query(state, asked.catalog or catalog.name, name, view)
    return ReadResponse(query, refreshable=False, reason="")


def _known(asked: ReadRequest) -> dict[tuple[str, ...], Json]:
    """Return the descriptions that the engine sent of tables and views outside of the catalog, by their full names.

    Raises:
        BadRequestError: one has no name.
    """
    try:
        return {tuple(str(part) for part in one["parts"]): one for one in asked.outside}
    except (KeyError, TypeError):
        raise BadRequestError(
            "an object of 'outside' has no 'parts', which must be a list of names"
        ) from None


def _may_be_stale(catalog: Catalog, view: View, record: Json) -> bool:
    """Whether readers may use the rows of this refresh even if they are stale."""
    bound = view.properties.get(MAX_STALENESS)
    if not allows_stale(view) or record.get("version-id") != view.current_version_id:
        return False
    age = catalog.context.clock.now_ms() - record.get(REFRESH_START, 0)
    return bound is None or age <= duration_ms(MAX_STALENESS, bound)


def as_of(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/materialized-views/{view}/as-of`: return where the rows of an earlier refresh
    are."""
    name = TableName(namespace_in(request.params["namespace"]), request.params["view"])
    asked = decode(request.body, AsOfRequest)
    return catalog.loading(lambda: json_response(encode(_past(catalog, name, asked))), request.principal)


def _past(catalog: Catalog, name: TableName, asked: AsOfRequest) -> AsOfResponse:
    state = catalog.view()
    if asked.version is not None and asked.timestamp_us is None:
        found = rows_of_version(state, name, asked.version)
    elif asked.timestamp_us is not None and asked.version is None:
        found = rows_at(state, name, asked.timestamp_us)
    else:
        raise BadRequestError("the request must have either a version or a timestamp")
    return AsOfResponse(found.snapshot_id, found.columns)


ROUTES = (
    Route(
        "POST",
        "namespaces/{namespace}/materialized-views/{view}/read",
        read,
        EXTENSION,
        result=ReadResponse,
        needs=(Need("VIEW_READ_PROPERTIES", On.VIEW),),
        body=ReadRequest,
    ),
    Route(
        "POST",
        "namespaces/{namespace}/materialized-views/{view}/as-of",
        as_of,
        EXTENSION,
        result=AsOfResponse,
        needs=(Need("VIEW_READ_PROPERTIES", On.VIEW),),
        body=AsOfRequest,
    ),
)
