"""Metrics reports over the REST protocol."""

from __future__ import annotations

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.entities import require
from polaris_spark.catalog.metrics import KeptReport, parse_report
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import BadRequestError, UnsupportedOperationError
from polaris_spark.rest.request import NO_CONTENT, Request, Response
from polaris_spark.rest.router import Route
from polaris_spark.rest.tables import name_of


def report_metrics(catalog: Catalog, request: Request) -> Response:
    """POST namespaces/{namespace}/tables/{table}/metrics"""
    if not catalog.metrics.keep:
        raise UnsupportedOperationError("this catalog keeps no metrics reports ('metrics-reports' is 0)")
    name = name_of(request)
    found = require(catalog.view(), name, TABLE)
    text = request.body
    if not text:
        raise BadRequestError("the request has no body")
    parse_report(text)
    now = catalog.context.clock.now_ms()
    catalog.metrics.add(KeptReport(now, request.principal, *name, found.entity_id, text))
    return NO_CONTENT


ROUTES = [Route("POST", "namespaces/{namespace}/tables/{table}/metrics", report_metrics)]
