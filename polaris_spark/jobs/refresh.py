"""`refresh`: computes the stored rows of a materialized view again, as a Spark job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.catalog.entities import TableName
    from polaris_spark.catalog.metadata.rows import View
    from polaris_spark.catalog.metadata.texts import Json
    from polaris_spark.catalog.source_changes import SnapshotKey
    from polaris_spark.catalog.view_sources import Freshness, PinnedQuery, QueryEngine
    from polaris_spark.commits.state import State
    from polaris_spark.jobs.incremental import HiddenColumn, IncrementalQuery

_TRIES = 3
"""Number of times that a refresh is tried. It begins again if another refresh or a change of the view came first."""
SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings of Spark sessions on which results of queries depend. `MaterializedView.java` compares them."""


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


class _ViewState(NamedTuple):
    """The state of a materialized view. Zeros and an empty text if it does not exist."""

    uuid: str = ""
    version_id: int = 0
    refresh_id: int | None = None
    content: int = 0
    """Object id of the content of the storage table."""


class _Plan(NamedTuple):
    """A refresh that is to be made."""

    id: int
    query: PinnedQuery
    columns: tuple[str, ...]
    """Names of the view's columns."""
    record: dict[str, Any]
    """The refresh record."""
    reason: str
    before: _ViewState
    since: dict[SnapshotKey, int] | str | None = None
    """The snapshots that the last refresh read; a text that says why the changes since then cannot be computed; None
    for a view with the strategy `full`."""
    limit: float = 0
    """The largest part of the bytes of a full refresh that an incremental refresh may read."""
    state: list[Json] | None = None
    """What the last refresh recorded about hidden columns."""
    hidden: Mapping[str, Json] = MappingProxyType({})
    """The hidden columns of the storage table, as fields of its Iceberg schema."""
    stored: str = ""
    """Name of the storage table and its snapshot, in SQL."""


def view_named(call: Call, text: str) -> TableName:
    """Return the name of the view in an argument of a procedure.

    Raises:
        InputError: the text is not the name of a view.
    """
    from polaris_spark.catalog.entities import TableName

    levels = levels_named(call.session.catalog.head(), spark_catalog(call), "table", text)
    return TableName(levels[:-1], levels[-1])


def spark_catalog(call: Call) -> str:
    """Return the name under which Spark knows the catalog."""
    return call.session.properties.other.get("spark.catalog") or call.session.catalog.name


def refresh(call: Call, name: TableName, *, full: bool = False) -> Refreshed:
    """Refresh a materialized view, unless its rows are fresh.

    All sources are read as of one commit. If another refresh comes first, it is enough if its rows are fresh. If the
    view is changed meanwhile, the refresh begins again.

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
        plan = catalog.loading(partial(_planned, call, name, full=full), call.session.principal)
        if plan is None:
            return Refreshed("none", "the rows are fresh")
        if failed and plan.since is not None:
            plan = plan._replace(since=f"computing the change failed: {failed}")
        done = _Done("full", plan.reason)
        try:
            done = _made(call, name, plan)
        except (
            _IncrementalError
        ) as error:  # for example, a snapshot has expired; all rows may still be computed
            failed = str(error)
            done = _Done("incremental", plan.reason)
            cause: Exception = error
        except Exception as error:  # Spark reports all errors in its own classes
            cause = error
        else:
            return _result(catalog.view(), name, plan, done)
        after = _state_of(catalog.view(), name)
        if after.refresh_id == plan.id:  # it was written, although Spark reports an error
            return _result(catalog.view(), name, plan, done)
        same = after == plan.before
        if not same:  # another refresh or change came first, which is no reason to refresh in full
            failed = ""
        if tries == _TRIES or after.uuid != plan.before.uuid or (same and done.strategy == "full"):
            raise _failure(name, after, cause) from cause
        full = full and after.refresh_id == plan.before.refresh_id
    raise AssertionError("the last try returns or raises")


class _Done(NamedTuple):
    """How a refresh was made, and what it has read."""

    strategy: str
    reason: str
    rows: int = 0
    files: int = 0
    size: int = 0
    """Bytes of the files that were read."""


class _IncrementalError(Exception):
    """The change of the stored rows could not be computed or written."""


def _state_of(state: State, name: TableName) -> _ViewState:
    from polaris_spark.catalog.entities import require
    from polaris_spark.catalog.materialized_views import storage_name
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.catalog.view_sources import last_refresh, materialized
    from polaris_spark.errors import RequestError

    try:
        view, record = materialized(state, name), last_refresh(state, name)
        content = require(state, storage_name(name), TABLE).content
    except RequestError:  # it was dropped or renamed
        return _ViewState()
    return _ViewState(
        view.uuid, view.current_version_id, None if record is None else record["refresh-id"], content
    )


def _failure(name: TableName, after: _ViewState, error: Exception) -> Exception:
    """Return the error to report for a refresh that Spark could not write."""
    from py4j.protocol import Py4JJavaError

    from polaris_spark.errors import InputError

    if not after.uuid:
        return InputError(f"materialized view {name} was dropped or renamed during its refresh")
    if isinstance(error, Py4JJavaError):
        return InputError(f"the refresh of {name} failed: {error.java_exception.getMessage()}")
    return error


def _planned(call: Call, name: TableName, *, full: bool) -> _Plan | None:
    """Return the refresh to make; None if the rows are fresh and `full` is false."""
    from polaris_spark.catalog.materialized_views import REFRESH_START, SESSION, strategy_of
    from polaris_spark.catalog.view_sources import (
        SOURCE_STATES,
        columns_of,
        freshness,
        materialized,
        pin,
        query_of,
    )
    from polaris_spark.jobs.incremental import hidden_fields

    state = call.session.catalog.view()
    view = materialized(state, name)
    now = freshness(state, name)
    if now.fresh and not full:
        return None
    spark = call.spark()
    session = {setting: str(spark.conf.get(setting)) for setting in SETTINGS}
    pinned = partial(pin, state, spark_catalog(call), query_of(state, view), name, query_engine(spark))
    query = pinned(session=session)
    before = _state_of(state, name)
    id = secrets.randbits(62)
    record = {
        "refresh-id": id,
        "version-id": view.current_version_id,
        "view-uuid": view.uuid,
        "replaces": before.refresh_id,
        REFRESH_START: call.session.connection.clock.now_ms(),
        SESSION: session,
    }
    plan = _Plan(
        id,
        query,
        tuple(columns_of(state, view)),
        record,
        now.reason or "it was asked for",
        before,
        hidden=hidden_fields(state, name),
    )
    if strategy_of(view) == "incremental":
        plan = _with_changes(call, state, name, view, plan, pinned, full=full)
    record["base-tables"] = plan.query.base_tables()
    record[SOURCE_STATES] = plan.query.source_states()
    return plan


def _with_changes(
    call: Call,
    state: State,
    name: TableName,
    view: View,
    plan: _Plan,
    pinned: Callable[[], PinnedQuery],
    *,
    full: bool,
) -> _Plan:
    """Return the plan of a view with the strategy `incremental`, with the snapshots that the last refresh read.

    Args:
        pinned: returns the query with the queries of all materialized views that it reads, instead of their rows.
    """
    from polaris_spark.catalog.entities import require
    from polaris_spark.catalog.materialized_views import (
        SESSION,
        STATE,
        incremental_limit,
        storage_name,
    )
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.catalog.snapshot_sql import quoted
    from polaris_spark.catalog.source_changes import snapshots_since
    from polaris_spark.catalog.view_sources import last_refresh

    storage = storage_name(name)
    table = state.get(require(state, storage, TABLE).content, Table)
    where = quoted((spark_catalog(call), *storage.namespace, storage.name))
    record = last_refresh(state, name)
    plan = plan._replace(
        limit=incremental_limit(view),
        stored=f"{where} VERSION AS OF {table.current_snapshot_id}",
        state=None if record is None else record.get(STATE),
    )
    if full:
        return plan._replace(since="a full refresh was asked for")
    if record is None:
        return plan._replace(since="it has no rows yet")
    if record.get("version-id") != view.current_version_id:
        return plan._replace(since="its query was replaced")
    if record.get(SESSION) != plan.record[SESSION]:
        why = "the session has another time zone or ANSI mode than that of the last refresh"
        return plan._replace(since=why)
    since = snapshots_since(state, record, plan.query)
    if isinstance(since, str) and any(one.stored for one in plan.query.views):
        query = pinned()
        found = snapshots_since(state, record, query)
        if not isinstance(found, str):
            return plan._replace(query=query, since=found)
    return plan._replace(since=since)


def query_engine(spark: SparkSession) -> QueryEngine:
    """Return what the session says about names and queries."""
    from polaris_spark.catalog.view_sources import QueryEngine

    session: Any = spark._jsparkSession
    manager = session.sessionState().catalogManager()
    return QueryEngine(
        lambda name: bool(manager.isCatalogRegistered(name)), lambda sql: len(spark.sql(sql).columns)
    )


def by_position(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the first columns of a query under other names. The query can have more columns than its view if it is
    `SELECT *` and a table has got columns since then."""
    unique = rows.toDF(*[f"c{position}" for position in range(len(rows.columns))])
    return unique.select(*[f"c{position}" for position in range(len(columns))]).toDF(*columns)


def _made(call: Call, name: TableName, plan: _Plan) -> _Done:
    """Write the rows of the query to the storage table, in one commit with the state of the sources.

    Raises:
        _IncrementalError: the refresh was incremental and failed.
    """
    from polaris_spark.catalog.materialized_views import STATE, storage_name
    from polaris_spark.catalog.snapshot_sql import quoted
    from polaris_spark.jobs.incremental import IncrementalQuery, recorded

    spark, storage = call.spark(), storage_name(name)
    table = quoted((spark_catalog(call), *storage.namespace, storage.name))
    done = _Done(
        "full",
        plan.reason,
        sum(one.rows for one in plan.query.tables),
        sum(one.files for one in plan.query.tables),
        sum(one.size for one in plan.query.tables),
    )
    if plan.since is None:
        rows = by_position(spark.sql(plan.query.sql), plan.columns)
        _overwrite(call, name, table, rows, [], plan, done)
        return done
    with IncrementalQuery(spark, plan.query.sql, plan.columns) as query:
        columns = [] if _hindrance(query, plan) else query.hidden()
        plan.record[STATE] = recorded(columns, plan.hidden)
        why = _why_full(call, query, plan)
        if why:
            rows = query.rows() if columns else by_position(spark.sql(plan.query.sql), plan.columns)
            done = done._replace(reason=f"{plan.reason}; not incremental, because {why}")
            _overwrite(call, name, table, rows, columns, plan, done)
            return done
        changed = query.changed()
        done = _Done("incremental", plan.reason, changed.rows, changed.files, changed.size)
        try:
            _write_change(call, name, table, query, plan, done)
        except Exception as error:
            raise _IncrementalError(_first_line(error)) from error
        return done


def _hindrance(query: IncrementalQuery, plan: _Plan) -> str:
    """Return why a query can never be refreshed incrementally; an empty string if it can."""
    from polaris_spark.catalog.nondeterminism import nondeterministic_functions

    functions = nondeterministic_functions(plan.query.sql)
    return f"it calls {', '.join(functions)}" if functions else query.hindrance


def _why_full(call: Call, query: IncrementalQuery, plan: _Plan) -> str:
    """Return why a refresh is full; an empty string if the change of the stored rows has been computed."""
    from polaris_spark.catalog.materialized_views import STATE

    why = _hindrance(query, plan)
    if why or isinstance(plan.since, str):
        return why or str(plan.since)
    if plan.record[STATE] != plan.state:
        return "the storage table lacks the hidden columns that this needs"
    assert plan.since is not None
    try:
        why = query.estimate(plan.since, plan.stored, plan.limit)
        if not why:
            call.check()
            call.progress("computing the change of the rows")
            why = query.compute(plan.limit)
    except Exception as error:
        raise _IncrementalError(_first_line(error)) from error
    return why


def _first_line(error: BaseException) -> str:
    """Return the first line of the message of an error's cause."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(error, Py4JJavaError):
        return (str(error) or type(error).__name__).partition("\n")[0]
    cause: Any = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage() or cause.getClass().getSimpleName()).partition("\n")[0]


def _write_change(
    call: Call, name: TableName, table: str, query: IncrementalQuery, plan: _Plan, done: _Done
) -> None:
    from polaris_spark.catalog.view_sources import has_same_columns
    from polaris_spark.errors import TryAgainError

    if not has_same_columns(call.session.catalog.view(), plan.query):
        raise TryAgainError(f"the columns of a table were changed during the refresh of {name}")
    call.check()
    query.write(table, _summary(plan, done))


def _overwrite(
    call: Call,
    name: TableName,
    table: str,
    rows: DataFrame,
    columns: Sequence[HiddenColumn],
    plan: _Plan,
    done: _Done,
) -> None:
    """Replace all stored rows.

    Args:
        columns: the hidden columns among the columns of the rows.
    """
    from pyspark.sql.functions import expr

    from polaris_spark.catalog.materialized_views import STATE
    from polaris_spark.jobs.incremental import hidden_fields, recorded, set_hidden_columns

    catalog, hidden = call.session.catalog, plan.hidden
    if set_hidden_columns(call.spark(), table, columns, hidden):
        hidden = catalog.loading(lambda: hidden_fields(catalog.view(), name), call.session.principal)
    if columns:
        plan.record[STATE] = recorded(columns, hidden)
    call.progress("computing the rows")
    writer = rows.writeTo(table)
    for key, text in _summary(plan, done).items():
        writer = writer.option(f"snapshot-property.{key}", text)
    call.check()
    writer.overwrite(expr("true"))


def _summary(plan: _Plan, done: _Done) -> dict[str, str]:
    """Return the entries for the summary of the new snapshot."""
    import msgspec

    from polaris_spark.catalog.materialized_views import (
        FILES_READ,
        REASON,
        REFRESH,
        REFRESH_START,
        REFRESH_STATE,
        ROWS_READ,
        SIZE_READ,
        USED_STRATEGY,
    )
    from polaris_spark.catalog.view_sources import SOURCE_STATES

    record = {
        **plan.record,
        USED_STRATEGY: done.strategy,
        REASON: done.reason,
        ROWS_READ: done.rows,
        FILES_READ: done.files,
        SIZE_READ: done.size,
    }
    proposal = {
        "view-version-id": plan.record["version-id"],
        REFRESH_START: plan.record[REFRESH_START],
        SOURCE_STATES: plan.record[SOURCE_STATES],
    }
    return {
        REFRESH: msgspec.json.encode(record).decode(),
        REFRESH_STATE: msgspec.json.encode(proposal).decode(),
    }


def _result(state: State, name: TableName, plan: _Plan, done: _Done) -> Refreshed:
    from polaris_spark.catalog.entities import require
    from polaris_spark.catalog.materialized_views import REFRESH, storage_name
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


def _explained(call: Call, name: TableName, reason: str) -> tuple[str, str, tuple[int | None, ...]]:
    """Return the strategy and the reason of the next refresh of a view with the strategy `incremental`; and the numbers
    of rows, files and bytes that have changed, if they had to be found out."""
    from polaris_spark.jobs.incremental import IncrementalQuery, recorded

    unknown = (None, None, None)
    plan = call.session.catalog.loading(partial(_planned, call, name, full=False), call.session.principal)
    if plan is None:
        return "none", reason, unknown
    with IncrementalQuery(call.spark(), plan.query.sql, plan.columns) as query:
        why = _hindrance(query, plan) or (plan.since if isinstance(plan.since, str) else "")
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


def _explain(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.materialized_views import strategy_of
    from polaris_spark.catalog.view_sources import freshness, materialized, pin, query_of

    name = view_named(call, arguments["view"])
    catalog = call.session.catalog

    def read() -> tuple[str, Freshness, PinnedQuery]:
        state = catalog.view()
        view = materialized(state, name)
        query = pin(state, spark_catalog(call), query_of(state, view), name)
        return strategy_of(view), freshness(state, name), query

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
            str(table.name),
            None if table.snapshot_id < 0 else table.snapshot_id,
            table.rows,
            table.files,
            table.size,
            str(table.name) in now.changed,
            *changed,
        )
        for table in query.tables
    ] or [(strategy, reason, None, None, 0, 0, 0, False, *changed)]


VIEW_ARGUMENT = Parameter("view", "STRING", "name of the materialized view, such as db.v", required=True)

REFRESH = Procedure(
    name="refresh",
    comment="Compute the stored rows of a materialized view again, unless they are fresh.",
    parameters=(
        VIEW_ARGUMENT,
        Parameter("full", "BOOLEAN", "whether to compute all rows again even if they are fresh"),
    ),
    columns=(
        Column("strategy", "STRING"),
        Column("reason", "STRING"),
        Column("rows_read", "BIGINT"),
        Column("files_read", "BIGINT"),
        Column("bytes_read", "BIGINT"),
        Column("rows_written", "BIGINT"),
        Column("files_written", "BIGINT"),
        Column("seconds", "DOUBLE"),
    ),
    run=_run,
    uses_spark=True,
)
EXPLAIN = Procedure(
    name="explain_refresh",
    comment="Show how a materialized view would be refreshed now, and why: a row for each table that it reads.",
    parameters=(VIEW_ARGUMENT,),
    columns=(
        Column("strategy", "STRING"),
        Column("reason", "STRING"),
        Column("source", "STRING"),
        Column("snapshot_id", "BIGINT"),
        Column("rows", "BIGINT"),
        Column("files", "BIGINT"),
        Column("bytes", "BIGINT"),
        Column("changed", "BOOLEAN"),
        Column("changed_rows", "BIGINT"),
        Column("changed_files", "BIGINT"),
        Column("changed_bytes", "BIGINT"),
    ),
    run=_explain,
    over_http=True,
    uses_spark=True,
)
