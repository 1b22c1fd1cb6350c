"""The route of the REST protocol for metrics reports."""

from __future__ import annotations

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.metrics import KeptReport, parse_report
from polaris_spark.catalog.entities.entities import find, table_key
from polaris_spark.errors import BadRequestError, UnsupportedOperationError
from polaris_spark.rest.request import NO_CONTENT, Request, Response
from polaris_spark.rest.router import Route
from polaris_spark.rest.table_routes import name_of


def report_metrics(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables/{table}/metrics`: store a scan or commit report.

    A report on a table that is not in the catalog is accepted but not stored. Engines also report on tables whose
    creation is staged and not committed yet.
    """
    head = catalog.head()
    if not catalog.context.binding.of(head).metrics_reports:
        raise UnsupportedOperationError(
            "this catalog keeps no metrics reports, because its property 'metrics-reports' is 0"
        )
    text = request.body
    if not text:
        raise BadRequestError("the request has no body")
    parse_report(text)
    name = name_of(request)
    found = find(catalog.view(head), table_key(name))
    if found is not None:
        now = catalog.context.clock.now_ms()
        catalog.metrics.add(KeptReport(now, request.principal, *name, found.entity_id, text))
    return NO_CONTENT


ROUTES = [
    Route(
        "POST",
        "namespaces/{namespace}/tables/{table}/metrics",
        report_metrics,
        needs=(Need("TABLE_READ_PROPERTIES", On.TABLE),),
    )
]
