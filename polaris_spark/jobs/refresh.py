"""`refresh`: computes the stored rows of a materialized view again, as a Spark job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.catalog.entities import TableName
    from polaris_spark.catalog.metadata.rows import View
    from polaris_spark.catalog.view_sources import Freshness, PinnedQuery, QueryEngine
    from polaris_spark.commits.state import State

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
    summary: dict[str, str]
    """Entries for the summary of the new snapshot."""
    reason: str
    before: _ViewState
    added: PinnedQuery | None = None
    """The query of the rows to add to the stored rows; None to compute all rows."""
    rows: int = 0
    """Number of rows that will be read, as in the summaries of the snapshots."""
    files: int = 0

    @property
    def strategy(self) -> str:
        return "full" if self.added is None else "incremental"


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
    adds = True
    for tries in range(1, _TRIES + 1):
        call.progress("reading the states of the sources")
        plan = catalog.loading(partial(_planned, call, name, full=full, adds=adds), call.session.principal)
        if plan is None:
            return Refreshed("none", "the rows are fresh")
        try:
            _write(call, name, plan)
        except Exception as error:  # Spark reports all errors in its own classes
            after = _state_of(catalog.view(), name)
            if after.refresh_id == plan.id:  # it was written, although Spark reports an error
                return _result(catalog.view(), name, plan)
            if plan.added is not None and after == plan.before:
                adds = False  # for example, a snapshot has expired; all rows may still be computed
                continue
            if after == plan.before or after.uuid != plan.before.uuid or tries == _TRIES:
                raise _failure(name, after, error) from error
            full = full and after.refresh_id == plan.before.refresh_id
        else:
            return _result(catalog.view(), name, plan)
    raise AssertionError("the last try returns or raises")


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


def _planned(call: Call, name: TableName, *, full: bool, adds: bool = True) -> _Plan | None:
    """Return the refresh to make; None if the rows are fresh and `full` is false.

    Args:
        adds: whether rows may be added to the stored rows.
    """
    import msgspec

    from polaris_spark.catalog.materialized_views import (
        REFRESH,
        REFRESH_START,
        REFRESH_STATE,
        SESSION,
        strategy_of,
    )
    from polaris_spark.catalog.view_sources import (
        SOURCE_STATES,
        columns_of,
        freshness,
        materialized,
        pin,
        query_of,
    )

    state = call.session.catalog.view()
    view = materialized(state, name)
    now = freshness(state, name)
    if now.fresh and not full:
        return None
    spark = call.spark()
    session = {setting: str(spark.conf.get(setting)) for setting in SETTINGS}
    query = pin(state, spark_catalog(call), query_of(state, view), name, query_engine(spark), session=session)
    before = _state_of(state, name)
    id = secrets.randbits(62)
    started = call.session.connection.clock.now_ms()
    record = {
        "refresh-id": id,
        "version-id": view.current_version_id,
        "view-uuid": view.uuid,
        "replaces": before.refresh_id,
        "base-tables": query.base_tables(),
        SOURCE_STATES: query.source_states(),
        REFRESH_START: started,
        SESSION: session,
    }
    proposal = {
        "view-version-id": view.current_version_id,
        REFRESH_START: started,
        SOURCE_STATES: query.source_states(),
    }
    summary = {
        REFRESH: msgspec.json.encode(record).decode(),
        REFRESH_STATE: msgspec.json.encode(proposal).decode(),
    }
    plan = _Plan(
        id,
        query,
        tuple(columns_of(state, view)),
        summary,
        now.reason or "it was asked for",
        before,
        rows=sum(one.rows for one in query.tables),
        files=sum(one.files for one in query.tables),
    )
    if full or not adds or strategy_of(view) != "incremental":
        return plan
    found = _increment(call, state, name, view, session)
    if isinstance(found, str):
        return plan._replace(reason=f"{plan.reason}; not incremental, because {found}")
    added, rows, files = found
    return plan._replace(added=added, rows=rows, files=files)


def _increment(
    call: Call, state: State, name: TableName, view: View, session: Mapping[str, str]
) -> tuple[PinnedQuery, int, int] | str:
    """Return the query of the rows to add to the stored rows, and the numbers of rows and files that it reads; or why
    the stored rows cannot be kept.

    A query is linear if it only selects columns and filters rows of its tables, or is a UNION ALL of such queries. The
    result for tables that got more rows is then the result before, and the result for the added rows (Budiu et al.,
    "DBSP: Automatic Incremental View Maintenance for Rich Query Languages", VLDB 2023, section 3).
    """
    from pyspark.errors import AnalysisException

    from polaris_spark.catalog.materialized_views import SESSION
    from polaris_spark.catalog.nondeterminism import nondeterministic_functions
    from polaris_spark.catalog.view_sources import appended_since, last_refresh, pin, query_of
    from polaris_spark.errors import BadRequestError

    record = last_refresh(state, name)
    if record is None:
        return "it has no rows yet"
    if record.get("version-id") != view.current_version_id:
        return "its query was replaced"
    if record.get(SESSION) != session:
        return "the session has another time zone or ANSI mode than that of the last refresh"
    spark, query = call.spark(), query_of(state, view)
    catalog, engine = spark_catalog(call), query_engine(call.spark())
    whole = pin(state, catalog, query, name, engine)
    found = appended_since(state, record, whole)
    if isinstance(found, str):
        return found
    functions = nondeterministic_functions(whole.sql)
    if functions:
        return f"it calls {', '.join(functions)}"
    why = _not_linear(spark.sql(whole.sql))
    if why:
        return why
    try:
        added = pin(state, catalog, query, name, engine, since=found.since)
        spark.sql(added.sql)
    except (BadRequestError, AnalysisException) as error:  # such as a table with options of its own
        return f"the appended rows cannot be read: {str(error).partition(chr(10))[0]}"
    return added, found.rows, found.files


_LINEAR = frozenset(
    (
        *("Project", "Filter", "SubqueryAlias", "Union", "Generate", "RelationV2", "DataSourceV2Relation"),
        *("WithCTE", "CTERelationDef", "CTERelationRef", "OneRowRelation"),
    )
)
"""Nodes of Spark's plans of linear queries."""


_METADATA_COLUMN = "__metadata_col"
"""Key by which Spark marks metadata columns, such as `_file` (`METADATA_COL_ATTR_KEY`)."""


def _not_linear(rows: DataFrame) -> str:
    """Return why a query is not linear; an empty string if it is."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    waiting, tables = [plan], 0
    while waiting:
        node = waiting.pop()
        kind = str(node.nodeName())
        if kind.partition(" ")[0] not in _LINEAR:
            return f"it contains {kind}"
        if not node.deterministic():
            return "it is not deterministic"
        if not node.subqueries().isEmpty():
            return "it contains a subquery in an expression"
        if kind == "OneRowRelation":
            return "it returns rows that are in no table"
        children = node.children()
        waiting += [children.apply(position) for position in range(children.length())]
        if children.isEmpty():
            tables += 1
            output = node.output()
            for position in range(output.length()):
                if output.apply(position).metadata().contains(_METADATA_COLUMN):
                    return "it reads metadata columns"
    return "" if tables else "it reads no table"


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


def _write(call: Call, name: TableName, plan: _Plan) -> None:
    """Write the rows of the query to the storage table, in one commit with the state of the sources."""
    from pyspark.sql.functions import expr

    from polaris_spark.catalog.materialized_views import storage_name
    from polaris_spark.catalog.snapshot_sql import quoted
    from polaris_spark.catalog.view_sources import has_same_columns
    from polaris_spark.errors import TryAgainError

    spark = call.spark()
    call.progress("computing the rows")
    rows = by_position(spark.sql((plan.added or plan.query).sql), plan.columns)
    if plan.added is not None and not has_same_columns(call.session.catalog.view(), plan.query):
        raise TryAgainError(f"the columns of a table were changed during the refresh of {name}")
    storage = storage_name(name)
    writer = rows.writeTo(quoted((spark_catalog(call), *storage.namespace, storage.name)))
    for key, text in plan.summary.items():
        writer = writer.option(f"snapshot-property.{key}", text)
    call.check()
    if plan.added is None:
        writer.overwrite(expr("true"))
    else:
        writer.append()


def _result(state: State, name: TableName, plan: _Plan) -> Refreshed:
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
        plan.strategy,
        plan.reason,
        plan.rows,
        plan.files,
        int(summary.get("added-records", "0")),
        int(summary.get("added-data-files", "0")),
    )


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    begun = time.monotonic()
    name = view_named(call, arguments["view"])
    done = refresh(call, name, full=arguments.get("full", False))
    return [(*done, round(time.monotonic() - begun, 3))]


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
    reason = now.reason or "the rows are fresh"
    if now.fresh:
        strategy = "none"
    elif strategy == "incremental" and call.has_spark:
        plan = catalog.loading(partial(_planned, call, name, full=False), call.session.principal)
        strategy, reason = ("none", reason) if plan is None else (plan.strategy, plan.reason)
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
            str(table.name) in now.changed,
        )
        for table in query.tables
    ] or [(strategy, reason, None, None, 0, 0, False)]


_VIEW = Parameter("view", "STRING", "name of the materialized view, such as db.v", required=True)

REFRESH = Procedure(
    name="refresh",
    comment="Compute the stored rows of a materialized view again, unless they are fresh.",
    parameters=(
        _VIEW,
        Parameter("full", "BOOLEAN", "whether to compute all rows again even if they are fresh"),
    ),
    columns=(
        Column("strategy", "STRING"),
        Column("reason", "STRING"),
        Column("rows_read", "BIGINT"),
        Column("files_read", "BIGINT"),
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
    parameters=(_VIEW,),
    columns=(
        Column("strategy", "STRING"),
        Column("reason", "STRING"),
        Column("source", "STRING"),
        Column("snapshot_id", "BIGINT"),
        Column("rows", "BIGINT"),
        Column("files", "BIGINT"),
        Column("changed", "BOOLEAN"),
    ),
    run=_explain,
    over_http=True,
    uses_spark=True,
)
