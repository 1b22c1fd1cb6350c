"""`explain_refresh`: shows how a materialized view would be refreshed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.materialized_views.plan import VIEW_ARGUMENT, planned, spark_catalog, view_named
from polaris_spark.jobs.materialized_views.query_engine import query_engine
from polaris_spark.jobs.materialized_views.write import hindrance_of
from polaris_spark.jobs.procedure import Call, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.view_freshness import Freshness
    from polaris_spark.catalog.materialized.view_sources import PinnedQuery


def _explained(call: Call, name: TableName, reason: str) -> tuple[str, str, tuple[int | None, ...]]:
    """For a view with the strategy `incremental`, return which strategy the next refresh would use, and why. Also
    return the numbers of changed rows, files and bytes, if the choice depends on them."""
    from polaris_spark.jobs.materialized_views.incremental import IncrementalQuery, recorded

    unknown = (None, None, None)
    plan = call.session.catalog.loading(partial(planned, call, name, full=False), call.session.principal)
    if plan is None:
        return "none", reason, unknown
    with IncrementalQuery(call.spark(), plan.query.sql, plan.columns) as query:
        why = hindrance_of(query, plan) or (plan.since if isinstance(plan.since, str) else "")
        if not why and recorded(query.hidden(), plan.hidden) != plan.state:
            why = "the storage table lacks the hidden columns that this needs"
        if why or not isinstance(plan.since, dict):
            return "full", f"{plan.reason}; not incremental, because {why}", unknown
        why = query.estimate(plan.since, plan.stored, plan.limit)
        found = query.changed()
        changed = (found.rows, found.files, found.size)
        if why:
            return "full", f"{plan.reason}; not incremental, because {why}", changed
        return "incremental", plan.reason, changed


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.entities.materialized_views import strategy_of
    from polaris_spark.catalog.materialized.query_pinning import pin
    from polaris_spark.catalog.materialized.stored_views import materialized
    from polaris_spark.catalog.materialized.view_freshness import freshness
    from polaris_spark.catalog.materialized.view_sources import query_of
    from polaris_spark.jobs.materialized_views.rights import read_for_caller

    name = view_named(call, arguments["view"])
    catalog = call.session.catalog

    def read() -> tuple[str, Freshness, PinnedQuery]:
        state = catalog.view()
        view = materialized(state, name)
        engine = query_engine(call.spark()) if call.has_spark else None
        query = read_for_caller(
            call.session,
            name,
            lambda: pin(state, spark_catalog(call), query_of(state, view), name, engine),
        )
        return strategy_of(view), freshness(state, name, engine.outside if engine else None), query

    strategy, now, query = catalog.loading(read, call.session.principal)
    changed: tuple[int | None, ...] = (None, None, None)
    reason = now.reason or "the rows are fresh"
    if now.fresh:
        strategy = "none"
    elif strategy == "incremental" and call.has_spark:
        strategy, reason, changed = _explained(call, name, reason)
    elif strategy == "incremental":
        strategy = "incremental or full"
    return [
        (
            strategy,
            reason,
            table.full_name,
            None if table.snapshot_id < 0 else table.snapshot_id,
            table.rows,
            table.files,
            table.size,
            table.full_name in now.changed,
            *changed,
        )
        for table in query.tables
    ] or [(strategy, reason, None, None, 0, 0, 0, False, *changed)]


PROCEDURE = Procedure(
    name="explain_refresh",
    needs=(Need("VIEW_READ_PROPERTIES", On.VIEW, parameter=VIEW_ARGUMENT.name),),
    comment="Show how a materialized view would be refreshed now, and why: a row for each table that it reads.",
    parameters=(VIEW_ARGUMENT,),
    columns=columns(
        "strategy STRING, reason STRING, source STRING, snapshot_id BIGINT, rows BIGINT, files BIGINT, "
        "bytes BIGINT, changed BOOLEAN, changed_rows BIGINT, changed_files BIGINT, changed_bytes BIGINT"
    ),
    run=_run,
    over_http=True,
    only_reads=True,
    uses_spark=True,
    queries=True,
)
