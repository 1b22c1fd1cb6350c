"""`refresh`: computes the stored rows of a materialized view again, as a Spark job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.materialized_views.plan import (
    VIEW_ARGUMENT,
    RefreshPlan,
    ViewState,
    planned,
    state_of,
    view_named,
)
from polaris_spark.jobs.materialized_views.query_engine import first_line
from polaris_spark.jobs.materialized_views.write import Done, IncrementalError, write_rows
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.commits.state import State

_TRIES = 3
"""Maximum number of attempts of a refresh. It begins again if another refresh or a change of the view came first."""


class Refreshed(NamedTuple):
    """The result of a refresh."""

    strategy: str
    """`full`, `incremental`, or `none` if the rows were fresh."""
    reason: str
    """Why this strategy was used."""
    rows_read: int = 0
    """Number of rows that were read, as in the summaries of the snapshots."""
    files_read: int = 0
    """Number of data files that were read."""
    bytes_read: int = 0
    """Size of these files."""
    rows_written: int = 0
    files_written: int = 0


def refresh(call: Call, name: TableName, *, full: bool = False) -> Refreshed:
    """Refresh a materialized view, unless its rows are fresh.

    All sources are read as of one commit. If another refresh is committed first and its rows are fresh, nothing more is
    done. If the view is changed meanwhile, the refresh begins again.

    Args:
        full: whether to compute the rows again even if they are fresh.
    Raises:
        NoSuchViewError: the view does not exist.
        BadRequestError: the view is not materialized, or its query cannot be refreshed.
    """
    catalog = call.session.catalog
    failed = ""
    for tries in range(1, _TRIES + 1):
        call.progress("reading the states of the sources")
        plan = catalog.loading(partial(planned, call, name, full=full), call.session.principal)
        if plan is None:
            return Refreshed("none", "the rows are fresh")
        if failed and plan.since is not None:
            plan = plan._replace(since=f"computing the change failed: {failed}")
        done = Done("full", plan.reason)
        cause: Exception
        try:
            done = write_rows(call, name, plan)
        except IncrementalError as error:
            # For example, a snapshot has expired. The next attempt computes all rows.
            failed = str(error)
            done = Done("incremental", plan.reason)
            cause = error.cause
        except Exception as error:  # Spark reports all errors in its own classes
            cause = error
        else:
            return _result(catalog.view(), name, plan, done)
        after = state_of(catalog.view(), name)
        if after.refresh_id == plan.id:  # it was written, although Spark reports an error
            return _result(catalog.view(), name, plan, done)
        same = after == plan.before
        if not same:  # another refresh or change came first, which does not require a full refresh
            failed = ""
        if tries == _TRIES or after.uuid != plan.before.uuid or (same and done.strategy == "full"):
            raise failure(name, plan.before, after, cause) from cause
        full = full and after.refresh_id == plan.before.refresh_id
    raise AssertionError("the loop must end in its last attempt")


def failure(name: TableName, before: ViewState, after: ViewState, error: Exception) -> Exception:
    """Return the error to report for a refresh that Spark could not write.

    Args:
        before: the view when the refresh began.
        after: the view, or another one that has got its name, when Spark reported the error.
    """
    from py4j.protocol import Py4JJavaError

    from polaris_spark.errors import InputError

    if after.uuid != before.uuid:
        return InputError(f"materialized view {name} was dropped or renamed during its refresh")
    if isinstance(error, Py4JJavaError):
        return InputError(f"the refresh of {name} failed: {first_line(error)}")
    return error


def _result(state: State, name: TableName, plan: RefreshPlan, done: Done) -> Refreshed:
    from polaris_spark.catalog.entities.entities import require
    from polaris_spark.catalog.entities.materialized_views import storage_name
    from polaris_spark.catalog.entities.refresh_records import REFRESH
    from polaris_spark.catalog.metadata.draft import TableDraft
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE

    table = TableDraft(state.get(require(state, storage_name(name), TABLE).content, Table), state, now_ms=0)
    snapshot = table.snapshots.get(table.current_snapshot_id or 0) or {}
    summary = snapshot.get("summary") or {}
    if str(plan.id) not in summary.get(REFRESH, ""):  # a compaction came after it
        summary = {}
    return Refreshed(
        *done,
        int(summary.get("added-records", "0")),
        int(summary.get("added-data-files", "0")),
    )


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    begun = time.monotonic()
    name = view_named(call, arguments["view"])
    done = refresh(call, name, full=arguments.get("full", False))
    return [(*done, round(time.monotonic() - begun, 3))]


PROCEDURE = Procedure(
    name="refresh",
    needs=(Need("VIEW_WRITE_PROPERTIES", On.VIEW, parameter=VIEW_ARGUMENT.name),),
    comment="Compute the stored rows of a materialized view again, unless they are fresh.",
    parameters=(
        VIEW_ARGUMENT,
        Parameter("full", "BOOLEAN", "whether to compute all rows again even if they are fresh"),
    ),
    columns=columns(
        "strategy STRING, reason STRING, rows_read BIGINT, files_read BIGINT, bytes_read BIGINT, "
        "rows_written BIGINT, files_written BIGINT, seconds DOUBLE"
    ),
    run=_run,
    uses_spark=True,
    needs_spark=True,
    queries=True,
)
