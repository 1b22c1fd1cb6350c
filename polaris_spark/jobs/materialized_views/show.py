"""Procedures that list and describe materialized views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.materialized_views.plan import VIEW_ARGUMENT, spark_catalog, view_named
from polaris_spark.jobs.materialized_views.query_engine import query_engine
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.catalogs.catalog import Catalog
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.outside_sources import OutsideSources
    from polaris_spark.catalog.metadata.rows import View


def _show(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.entities.entities import require_namespace
    from polaris_spark.catalog.materialized.stored_views import materialized_views

    catalog = call.session.catalog
    state = catalog.view()
    namespace = None
    if "namespace" in arguments:
        namespace = levels_named(state.base, spark_catalog(call), "namespace", arguments["namespace"])
        require_namespace(state, namespace)
    outside = _outside(call)
    for name, view in materialized_views(state, namespace):
        call.check()
        row = partial(_row, catalog, name, view, outside, is_limited=call.session.access.is_on)
        yield catalog.loading(row, call.session.principal)


def _outside(call: Call) -> OutsideSources | None:
    """Return the tables outside of the catalog; None if the call has no Spark session that knows them."""
    return query_engine(call.spark()).outside if call.has_spark else None


def _row(
    catalog: Catalog, name: TableName, view: View, outside: OutsideSources | None, *, is_limited: bool
) -> tuple[Any, ...]:
    from polaris_spark.catalog.entities.materialized_views import allows_stale, strategy_of
    from polaris_spark.catalog.entities.refresh_records import REFRESH_START
    from polaris_spark.catalog.materialized.stored_views import last_refresh
    from polaris_spark.catalog.materialized.view_freshness import freshness
    from polaris_spark.spark.views.columns import micros

    state = catalog.view()
    now, last = freshness(state, name, outside, only_recorded=is_limited), last_refresh(state, name)
    at = None if last is None else micros(last.get(REFRESH_START))
    return (
        ".".join(name.namespace),
        name.name,
        strategy_of(view),
        allows_stale(view),
        None if now.unknown else now.fresh,
        now.reason or None,
        None if at is None else datetime.fromtimestamp(at / 1_000_000, timezone.utc),
    )


def _describe(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.entities.materialized_views import (
        STORAGE_LOCATION,
        allows_stale,
        document_of,
        storage_name,
        strategy_of,
    )
    from polaris_spark.catalog.materialized.stored_views import last_refresh, materialized
    from polaris_spark.catalog.materialized.view_freshness import freshness
    from polaris_spark.catalog.materialized.view_sources import columns_of, query_of

    name, state = view_named(call, arguments["view"]), call.session.catalog.view()
    view = materialized(state, name)
    now = freshness(state, name, _outside(call), only_recorded=call.session.access.is_on)
    last = last_refresh(state, name)
    bases = [] if last is None else [str(one.get("identifier")) for one in last.get("base-tables", ())]
    facts = {
        "view": str(name),
        "columns": ", ".join(columns_of(state, view)),
        "query": query_of(state, view).sql,
        "refresh-strategy": strategy_of(view),
        "allow-stale-data": str(allows_stale(view)).lower(),
        "fresh": "unknown" if now.unknown else str(now.fresh).lower(),
        "reason": now.reason,
        "base-tables": ", ".join(bases),
        "storage-table": str(storage_name(name)),
        "storage-table-location": document_of(view.properties)[STORAGE_LOCATION],
    }
    return list(facts.items())


SHOW = Procedure(
    name="show_materialized_views",
    needs=(Need("VIEW_LIST", On.NAMESPACE, parameter="namespace"),),
    comment="List the materialized views of a namespace or of the catalog, and whether their rows are fresh.",
    parameters=(
        Parameter("namespace", "STRING", "the namespace, such as db; by default, the whole catalog"),
    ),
    columns=columns(
        "namespace STRING, name STRING, refresh_strategy STRING, allow_stale_data BOOLEAN, fresh BOOLEAN, "
        "reason STRING, last_refresh TIMESTAMP"
    ),
    run=_show,
    over_http=True,
    only_reads=True,
    uses_spark=True,
    queries=True,
)
DESCRIBE = Procedure(
    name="describe_materialized_view",
    needs=(Need("VIEW_READ_PROPERTIES", On.VIEW, parameter=VIEW_ARGUMENT.name),),
    comment="Show the query, settings, freshness and storage table of a materialized view.",
    parameters=(VIEW_ARGUMENT,),
    columns=columns("name STRING, value STRING"),
    run=_describe,
    over_http=True,
    only_reads=True,
    uses_spark=True,
    queries=True,
)
