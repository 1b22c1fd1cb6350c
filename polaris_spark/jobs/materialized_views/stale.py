"""`refresh_stale`: refreshes all materialized views whose rows are not fresh."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import InputError, TryAgainError
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.materialized_views.plan import spark_catalog
from polaris_spark.jobs.materialized_views.query_engine import query_engine
from polaris_spark.jobs.materialized_views.refresh import Refreshed, refresh
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName

_MOST_THREADS = 64


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    threads = arguments.get("threads", 4)
    if not 1 <= threads <= _MOST_THREADS:
        raise InputError(f"the argument 'threads' is {threads}; it must be from 1 to {_MOST_THREADS}")
    namespace = None
    catalog = call.session.catalog
    if "namespace" in arguments:
        namespace = levels_named(catalog.head(), spark_catalog(call), "namespace", arguments["namespace"])
    reads = catalog.loading(partial(_reads, call, namespace), call.session.principal)
    return [row for row in _refreshed(call, reads, threads) if row is not None]


def _reads(call: Call, namespace: tuple[str, ...] | None) -> dict[TableName, set[TableName]]:
    """Return the materialized views of a namespace or of the catalog. With each, return the others of them that its
    query reads, directly or through other views."""
    from pyspark.errors import AnalysisException

    from polaris_spark.catalog.materialized.query_pinning import pin
    from polaris_spark.catalog.materialized.stored_views import materialized_views
    from polaris_spark.catalog.materialized.view_sources import query_of
    from polaris_spark.errors import RequestError

    state, engine = call.session.catalog.view(), query_engine(call.spark())
    found: dict[TableName, set[TableName]] = {}
    for name, view in materialized_views(state, namespace):
        call.progress("reading the queries of the views", len(found))
        try:
            views = pin(state, spark_catalog(call), query_of(state, view), name, engine).views
        except (RequestError, AnalysisException):  # its refresh reports the error
            views = ()
        found[name] = {one.name for one in views}
    return {name: views & found.keys() for name, views in found.items()}


def _refreshed(
    call: Call, reads: Mapping[TableName, set[TableName]], threads: int
) -> Iterator[tuple[Any, ...] | None]:
    """Refresh views, several at a time. A view is refreshed after the views that it reads. For each view, yield its row
    of the result, or None if the view was already up to date."""
    from pyspark import inheritable_thread_target

    order = TopologicalSorter(reads)
    try:
        order.prepare()
    except CycleError as error:  # views that read each other cannot be created in one order, but replaced
        raise InputError(
            "these materialized views read each other in a circle, so none can be refreshed first: "
            f"{', '.join(map(str, error.args[1]))}; replace one of them so that it does not read the others"
        ) from error
    session: Any = call.spark()
    inheriting: Any = inheritable_thread_target(session)
    if inheriting is session:  # threads of Python have no threads of their own in the JVM
        inheriting = partial
    running: dict[Future[tuple[Any, ...] | None], TableName] = {}
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        while order.is_active():
            call.progress("refreshing materialized views", done, len(reads))
            for name in order.get_ready():
                running[pool.submit(inheriting(partial(_row, call, name)))] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                order.done(running.pop(future))
                done += 1
                yield future.result()


def _row(call: Call, name: TableName) -> tuple[Any, ...] | None:
    begun = time.monotonic()
    error = None
    try:
        call.check()
        found = refresh(call, name)
    except TryAgainError:  # the call was cancelled, or the database does not answer
        raise
    except Exception as failure:  # Spark reports all errors in its own classes; the other views are refreshed
        found, error = Refreshed("failed", ""), str(failure)
    if found.strategy == "none":
        return None
    seconds = round(time.monotonic() - begun, 3)
    return (
        str(name),
        found.strategy,
        found.reason or None,
        found.rows_written,
        found.files_written,
        seconds,
        error,
    )


def _failure(rows: list[tuple[Any, ...]]) -> str | None:
    failed = [row[0] for row in rows if row[-1] is not None]
    return (
        f"{len(failed)} of {len(rows)} views could not be refreshed: {', '.join(failed)}" if failed else None
    )


PROCEDURE = Procedure(
    name="refresh_stale",
    needs=(Need("VIEW_WRITE_PROPERTIES", On.BRANCH),),
    comment="Refresh all materialized views whose rows are not fresh; a row for each, with the error if it failed.",
    parameters=(
        Parameter(
            "namespace", "STRING", "the namespace whose views are refreshed; by default, the whole catalog"
        ),
        Parameter("threads", "INT", "number of views that are refreshed at a time; 4 by default"),
    ),
    columns=columns(
        "view STRING, strategy STRING, reason STRING, rows_written BIGINT, files_written BIGINT, "
        "seconds DOUBLE, error STRING"
    ),
    run=_run,
    uses_spark=True,
    needs_spark=True,
    queries=True,
    failure=_failure,
)
