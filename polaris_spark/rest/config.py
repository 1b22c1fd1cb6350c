"""The configuration endpoint, and the list of all routes of the Iceberg protocol."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.files.locations import segments
from polaris_spark.errors import BadRequestError, NotFoundError
from polaris_spark.rest import (
    credential_routes,
    metrics,
    namespace_routes,
    snapshots,
    table_routes,
    transaction_routes,
    unsupported,
    view_routes,
)
from polaris_spark.rest.permissions import hidden_catalog
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import POLARIS, Route, Router

CONTENT_ROUTES = [
    *namespace_routes.ROUTES,
    *table_routes.ROUTES,
    *transaction_routes.ROUTES,
    *snapshots.ROUTES,
    *view_routes.ROUTES,
    *metrics.ROUTES,
    *credential_routes.ROUTES,
]


def endpoints(catalog: Catalog, *, has_storage: bool = False) -> list[str]:
    """Return the endpoints to advertise to clients. The endpoint for metrics reports is left out if the catalog's
    properties say that no reports are kept.

    Args:
        has_storage: whether clients can get access to the storage of tables.
    """
    reports = catalog.effective_properties().metrics_reports
    routes = [
        route
        for route in CONTENT_ROUTES
        if (reports or route not in metrics.ROUTES) and (has_storage or route not in credential_routes.ROUTES)
    ]
    return [f"{route.method} /v1/{{prefix}}/{route.path}" for route in routes]


def config(catalog: Catalog, request: Request) -> Response:
    """Answer `GET config`: return the catalog's configuration for a client."""
    warehouse = request.query.get("warehouse")
    name, _, state = (warehouse or "").partition("@")
    if state and name == catalog.name and name not in _ROOTS:
        catalog_at(catalog, state)  # refuses a state that does not exist
        warehouse = name
    if warehouse and warehouse != catalog.name and not same_place(warehouse, catalog.context.warehouse):
        if request.has_rules:
            raise hidden_catalog(None)
        raise NotFoundError(
            f"there is no warehouse {warehouse!r} here; to use this catalog, set the warehouse to {catalog.name!r}"
        )
    lifetime = catalog.context.operation_lifetime_ms // 1_000
    answer = {
        "defaults": {},
        "overrides": _prefix(catalog, state) if warehouse == catalog.name else {},
        "endpoints": [
            *endpoints(catalog, has_storage=credential_routes.storage_of(request) is not None),
            *_policy_endpoints(request),
        ],
        "idempotency-key-lifetime": f"PT{lifetime}S",
    }
    return json_response(msgspec.json.encode(answer).decode())


def _policy_endpoints(request: Request) -> list[str]:
    """Return the endpoints for policies; none if the transport does not have these routes."""
    router = getattr(request.session, "router", None)
    routes = router.routes if isinstance(router, Router) else ()
    return [f"{one.method} /{POLARIS}/{{prefix}}/{one.path}" for one in routes if one.base == POLARIS]


def _prefix(catalog: Catalog, state: str) -> dict[str, str]:
    """Return the property `prefix`, which clients put into every path: the catalog's name, and the state that the
    client asked for. Return an empty dictionary if the name equals the first part of a route's path, because paths
    would then be ambiguous.

    Clients put the prefix into paths unchanged, so the name is escaped here.
    """
    name = f"{catalog.name}@{state}" if state else catalog.name
    return {} if catalog.name in _ROOTS else {"prefix": quote(name, safe="")}


def same_place(one: str, other: str) -> bool:
    """Whether two texts are the same location; False if one of them is not a location."""
    try:
        return segments(one) == segments(other)
    except BadRequestError:
        return False


ROUTES = [
    Route("GET", "config", config, query=("warehouse",), needs=(Need("", On.KNOWN_CATALOG),)),
    *CONTENT_ROUTES,
    *unsupported.ROUTES,
]

_ROOTS = Router(ROUTES).roots
