"""The plan of a refresh of a materialized view: the state of its sources, and their changes since the last refresh."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.errors import InputError
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.materialized_views import query_engine
from polaris_spark.jobs.procedure import Call, Parameter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.outside_sources import OutsideSources
    from polaris_spark.catalog.materialized.source_changes import SnapshotKey
    from polaris_spark.catalog.materialized.view_sources import PinnedQuery
    from polaris_spark.catalog.metadata.rows import View
    from polaris_spark.catalog.metadata.texts import Json
    from polaris_spark.commits.state import State

VIEW_ARGUMENT = Parameter("view", "STRING", "name of the materialized view, such as db.v", required=True)


class ViewState(NamedTuple):
    """The state of a materialized view. If the view does not exist, all fields are 0 or empty."""

    uuid: str = ""
    version_id: int = 0
    refresh_id: int | None = None
    content: int = 0
    """Object id of the content of the storage table."""


class RefreshPlan(NamedTuple):
    """A refresh that is to be made."""

    id: int
    query: PinnedQuery
    columns: tuple[str, ...]
    """Names of the view's columns."""
    record: dict[str, Any]
    """The refresh record."""
    reason: str
    before: ViewState
    since: dict[SnapshotKey, int] | str | None = None
    """The snapshots that the last refresh read; a text that says why the changes since then cannot be computed; None
    for a view with the strategy `full`."""
    limit: float = 0
    """Maximum fraction of the bytes of a full refresh that an incremental refresh may read."""
    state: list[Json] | None = None
    """What the last refresh recorded about hidden columns."""
    hidden: Mapping[str, Json] = MappingProxyType({})
    """The hidden columns of the storage table, as fields of its Iceberg schema."""
    stored: str = ""
    """Name of the storage table and its snapshot, in SQL."""
    lineage: Json | None = None
    """The lineage of the view's version, as it was recorded when the view was created."""


def planned(call: Call, name: TableName, *, full: bool) -> RefreshPlan | None:
    """Return the refresh to make; None if the rows are fresh and `full` is false."""
    from polaris_spark.catalog.entities.materialized_views import SESSION, strategy_of
    from polaris_spark.catalog.entities.refresh_records import COLUMN_IDS, REFRESH_START
    from polaris_spark.catalog.materialized.lineage import lineage_of_version
    from polaris_spark.catalog.materialized.query_pinning import pin
    from polaris_spark.catalog.materialized.stored_views import materialized
    from polaris_spark.catalog.materialized.view_freshness import freshness, stored_rows
    from polaris_spark.catalog.materialized.view_sources import SOURCE_STATES, columns_of, query_of
    from polaris_spark.jobs.materialized_views.incremental import hidden_fields
    from polaris_spark.jobs.materialized_views.rights import require_owner_reads

    state = call.session.catalog.view()
    view = materialized(state, name)
    spark = call.spark()
    engine = query_engine.query_engine(spark)
    now = freshness(state, name, engine.outside)
    if now.fresh and not full:
        return None
    session = query_engine.session_settings(spark)
    catalog = spark_catalog(call)
    pinned = partial(pin, state, catalog, query_of(state, view), name, engine)
    require_owner_reads(call.session, name, partial(pinned, stored=lambda *_: "stored rows"))
    query = pinned(stored=stored_rows(state, catalog, session, engine.outside))
    before = state_of(state, name)
    id = secrets.randbits(62)
    record = {
        "refresh-id": id,
        "version-id": view.current_version_id,
        "view-uuid": view.uuid,
        "replaces": before.refresh_id,
        REFRESH_START: call.session.connection.clock.now_ms(),
        COLUMN_IDS: _column_ids(state, name),
        SESSION: session,
    }
    plan = RefreshPlan(
        id,
        query,
        tuple(columns_of(state, view)),
        record,
        now.reason or "it was asked for",
        before,
        hidden=hidden_fields(state, name),
        lineage=lineage_of_version(state, view),
    )
    if strategy_of(view) == "incremental":
        plan = _with_changes(call, state, name, view, plan, pinned, engine.outside, full=full)
    record["base-tables"] = plan.query.base_tables()
    record[SOURCE_STATES] = plan.query.source_states()
    return plan


def _column_ids(state: State, name: TableName) -> list[int]:
    """Return the ids of the columns of a materialized view in its storage table."""
    from polaris_spark.catalog.entities.entities import require
    from polaris_spark.catalog.entities.materialized_views import storage_name
    from polaris_spark.catalog.entities.refresh_records import shown_column_ids
    from polaris_spark.catalog.metadata.draft import TableDraft
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE

    table = state.get(require(state, storage_name(name), TABLE).content, Table)
    return shown_column_ids(TableDraft(table, state, now_ms=0))


def _with_changes(
    call: Call,
    state: State,
    name: TableName,
    view: View,
    plan: RefreshPlan,
    pinned: Callable[[], PinnedQuery],
    outside: OutsideSources,
    *,
    full: bool,
) -> RefreshPlan:
    """Return the plan of a view with the strategy `incremental`, with the snapshots that the last refresh read.

    Args:
        pinned: returns the pinned query, in which each materialized view is replaced by its query instead of its rows.
    """
    from polaris_spark.catalog.entities.entities import require
    from polaris_spark.catalog.entities.materialized_views import (
        SESSION,
        STATE,
        incremental_limit,
        storage_name,
    )
    from polaris_spark.catalog.entities.refresh_records import has_current_columns
    from polaris_spark.catalog.materialized.snapshot_sql import quoted
    from polaris_spark.catalog.materialized.source_changes import snapshots_since
    from polaris_spark.catalog.materialized.stored_views import last_refresh
    from polaris_spark.catalog.metadata.draft import TableDraft
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE

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
    before, now = record.get(SESSION) or {}, plan.record[SESSION]
    other = [setting for setting in sorted({*before, *now}) if before.get(setting) != now.get(setting)]
    if other:
        return plan._replace(since=f"the session has another {other[0]} than that of the last refresh")
    if not has_current_columns(TableDraft(table, state, now_ms=0), table.current_snapshot_id):
        return plan._replace(since="the stored rows have the columns of an earlier version of the view")
    since = snapshots_since(state, record, plan.query, outside)
    if isinstance(since, str) and any(one.stored for one in plan.query.views):
        query = pinned()
        found = snapshots_since(state, record, query, outside)
        if not isinstance(found, str):
            return plan._replace(query=query, since=found)
    return plan._replace(since=since)


def state_of(state: State, name: TableName) -> ViewState:
    from polaris_spark.catalog.entities.entities import require
    from polaris_spark.catalog.entities.materialized_views import storage_name
    from polaris_spark.catalog.materialized.stored_views import last_refresh, materialized
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.errors import RequestError

    try:
        view, record = materialized(state, name), last_refresh(state, name)
        content = require(state, storage_name(name), TABLE).content
    except RequestError:  # it was dropped or renamed
        return ViewState()
    return ViewState(
        view.uuid, view.current_version_id, None if record is None else record["refresh-id"], content
    )


def view_named(call: Call, text: str) -> TableName:
    """Return the name of the view in an argument of a procedure.

    Raises:
        InputError: the text is not the name of a view.
    """
    from polaris_spark.catalog.entities.entities import TableName

    levels = levels_named(call.session.catalog.head(), spark_catalog(call), "table", text)
    return TableName(levels[:-1], levels[-1])


def new_view_named(call: Call, text: str) -> TableName:
    """Return the name in an argument of a procedure that a materialized view is to get.

    Raises:
        InputError: the text is not the name of a view, or contains `@`, which separates names from states.
    """
    from polaris_spark.catalog.branches.states import STATE

    name = view_named(call, text)
    plain, mark, state = name.name.rpartition(STATE)
    if mark:
        raise InputError(
            f"the name of a materialized view must not contain {STATE!r}, got {text!r}; to create {plain!r} in the "
            f"branch {state!r}, use this branch first: CALL {spark_catalog(call)}.system.use({state!r})"
        )
    return name


def spark_catalog(call: Call) -> str:
    """Return the name under which Spark knows the catalog."""
    return call.session.properties.other.get("spark.catalog") or call.session.catalog.name


def refuse_hidden_inputs(spark: SparkSession, sql: str, plan: Any) -> None:
    """Refuse a query whose rows depend on what the catalog cannot record: on the user or session, or on tables that are
    named only in a function. A view that it reads can have been replaced since the materialized view was created.

    Args:
        sql: the pinned query, which contains the queries of the views that it reads.
        plan: Spark's analyzed plan of the query, in the JVM.
    Raises:
        InputError: the query calls `current_user`, reads a session variable, contains a text such as `${env:NAME}`,
            which Spark replaces by a setting of the session or of its environment, or calls a temporary function, or a
            SQL function that reads a table.
    """
    from polaris_spark.catalog.materialized.nondeterminism import called_functions

    jvm: Any = spark._jvm
    values: Any = jvm.io.polarisspark.incremental.SessionValues
    found = str(getattr(values, "in")(spark._jsparkSession, sql, plan))
    if found:
        raise InputError(
            f"the query {found}; a materialized view would show the rows of the user and session that refreshed it to "
            "all users"
        )
    for name in called_functions(sql):
        if values.isTemporaryFunction(spark._jsparkSession, name):
            raise InputError(
                f"{name} is a temporary function of this session; a materialized view cannot call it, because other "
                "sessions do not have it"
            )
    function = str(jvm.io.polarisspark.incremental.SqlFunctions.readingTables(plan))
    if function:
        raise InputError(
            f"the query calls the function {function}, which reads a table whose changes would not be noticed; write "
            "the query of the function into the query of the view"
        )


def changing_functions(spark: SparkSession, sql: str, plan: Any) -> list[str]:
    """Return those functions in a query whose results can differ for the same rows.

    Args:
        sql: the pinned query, which contains the queries of the views that it reads.
        plan: Spark's analyzed plan of the query, in the JVM. It does not show literals such as TIMESTAMP 'now', nor
            whether TABLESAMPLE has a seed.
    """
    import msgspec

    from polaris_spark.catalog.materialized.nondeterminism import nondeterministic_clauses

    jvm: Any = spark._jvm
    called = msgspec.json.decode(str(jvm.io.polarisspark.incremental.Hindrance.changingFunctions(plan)))
    return list(dict.fromkeys([*called, *nondeterministic_clauses(sql)]))


def lineage_of(call: Call, plan: Any, query: PinnedQuery, columns: int) -> Json:
    """Return the document of lineage of a query.

    Args:
        plan: Spark's analyzed plan of the query, in the JVM.
        query: the pinned query.
        columns: number of columns of the view; the query can have more.
    """
    import msgspec

    from polaris_spark.catalog.materialized.lineage import document_of_lineage

    jvm: Any = call.spark()._jvm
    found = msgspec.json.decode(str(jvm.io.polarisspark.ColumnLineage.of(plan, columns)))
    return document_of_lineage(found, query, spark_catalog(call))
