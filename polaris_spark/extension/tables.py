"""Route by which an engine asks whether it may delete files of a table that it considers unneeded."""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.rest.request import NO_CONTENT, Request, Response
from polaris_spark.rest.router import EXTENSION, Route
from polaris_spark.rest.shared_tables import require_unshared
from polaris_spark.rest.table_routes import name_of


def allow_orphan_removal(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables/{table}/allow-orphan-removal`: refuse if another branch or tag of the
    catalog also has the table."""
    require_unshared(
        catalog, name_of(request), "orphan files of {} cannot be removed by a client", "remove_orphans"
    )
    return NO_CONTENT


ROUTES = (
    Route(
        "POST",
        "namespaces/{namespace}/tables/{table}/allow-orphan-removal",
        allow_orphan_removal,
        EXTENSION,
        needs=(Need("TABLE_READ_PROPERTIES", On.TABLE),),
    ),
)
