"""Route by which an engine asks whether it may delete files of a table that it considers unneeded."""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import require
from polaris_spark.catalog.merges.transactions import refuse_nested
from polaris_spark.catalog.rows import TABLE
from polaris_spark.rest.request import NO_CONTENT, Request, Response
from polaris_spark.rest.router import EXTENSION, Route
from polaris_spark.rest.shared_tables import require_unshared
from polaris_spark.rest.table_routes import name_of


def check_deletion(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables/{table}/check-deletion`: refuse if another branch or tag may need
    files of the table, or if the catalog shows a state of the past or of a transaction."""
    refuse_nested(catalog)
    name = name_of(request)
    require(catalog.view(), name, TABLE)
    require_unshared(catalog, name)
    return NO_CONTENT


ROUTES = (
    Route(
        "POST",
        "namespaces/{namespace}/tables/{table}/check-deletion",
        check_deletion,
        EXTENSION,
        needs=(Need("TABLE_READ_PROPERTIES", On.TABLE),),
    ),
)
