"""Computes the rows of a refresh, and writes them to the storage table of the materialized view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.jobs.materialized_views.plan import (
    RefreshPlan,
    lineage_of,
    refuse_hidden_inputs,
    spark_catalog,
)
from polaris_spark.jobs.materialized_views.query_engine import first_line
from polaris_spark.jobs.procedure import Call

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.jobs.materialized_views.incremental import HiddenColumn, IncrementalQuery


class Done(NamedTuple):
    """The result of a refresh: its strategy, and the data that it has read."""

    strategy: str
    reason: str
    rows: int = 0
    files: int = 0
    size: int = 0
    """Bytes of the files that were read."""


class IncrementalError(Exception):
    """The change of the stored rows could not be computed or written."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(first_line(cause))
        self.cause = cause


def write_rows(call: Call, name: TableName, plan: RefreshPlan) -> Done:
    """Write the rows of the query to the storage table, in one commit with the state of the sources.

    Raises:
        IncrementalError: the refresh was incremental and failed.
    """
    from polaris_spark.catalog.entities.materialized_views import STATE, storage_name
    from polaris_spark.catalog.materialized.snapshot_sql import quoted
    from polaris_spark.jobs.materialized_views.incremental import IncrementalQuery, recorded

    spark, storage = call.spark(), storage_name(name)
    table = quoted((spark_catalog(call), *storage.namespace, storage.name))
    done = Done(
        "full",
        plan.reason,
        sum(one.rows for one in plan.query.tables),
        sum(one.files for one in plan.query.tables),
        sum(one.size for one in plan.query.tables),
    )
    if plan.since is None:
        result = spark.sql(plan.query.sql)
        analyzed = result._jdf.queryExecution().analyzed()
        _check_query(call, plan.query.sql, analyzed, table)
        _record_lineage(call, plan, analyzed)
        _overwrite(call, name, table, by_position(result, plan.columns), [], plan, done)
        return done
    with IncrementalQuery(spark, plan.query.sql, plan.columns) as query:
        _check_query(call, plan.query.sql, query.analyzed, table)
        _record_lineage(call, plan, query.analyzed)
        columns = [] if hindrance_of(query, plan) else query.hidden()
        plan.record[STATE] = recorded(columns, plan.hidden)
        why = _why_full(call, query, plan)
        if why:
            rows = query.rows() if columns else by_position(spark.sql(plan.query.sql), plan.columns)
            done = done._replace(reason=f"{plan.reason}; not incremental, because {why}")
            _overwrite(call, name, table, rows, columns, plan, done)
            return done
        changed = query.changed()
        done = Done("incremental", plan.reason, changed.rows, changed.files, changed.size)
        try:
            _write_change(call, name, table, query, plan, done)
        except Exception as error:
            raise IncrementalError(error) from error
        return done


def _record_lineage(call: Call, plan: RefreshPlan, analyzed: Any) -> None:
    """Add the lineage to the refresh record, unless it equals the lineage of the view's version."""
    from polaris_spark.catalog.materialized.lineage import LINEAGE

    lineage = lineage_of(call, analyzed, plan.query, len(plan.columns))
    if lineage != plan.lineage:
        plan.record[LINEAGE] = lineage


def by_position(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the first columns of a query under the given names. A query has more columns than its view if it contains
    `SELECT *`, and columns were added to a table after the view was created."""
    unique = rows.toDF(*[f"c{position}" for position in range(len(rows.columns))])
    return unique.select(*[f"c{position}" for position in range(len(columns))]).toDF(*columns)


def _check_query(call: Call, sql: str, analyzed: Any, table: str) -> None:
    """Check that the rows of the query are the same for all users, and that the storage table can store them without a
    change.

    Args:
        sql: the pinned query.
        analyzed: Spark's plan of the query.
        table: name of the storage table in SQL.
    Raises:
        InputError: the rows differ between users, or the table cannot store them unchanged.
    """
    from polaris_spark.errors import InputError

    spark = call.spark()
    refuse_hidden_inputs(spark, sql, analyzed)
    jvm: Any = spark._jvm
    misfit = str(jvm.io.polarisspark.incremental.StoredTypes.misfit(spark._jsparkSession, analyzed, table))
    if misfit:
        raise InputError(misfit)


def hindrance_of(query: IncrementalQuery, plan: RefreshPlan) -> str:
    """Return why a query can never be refreshed incrementally; an empty string if it can."""
    from polaris_spark.catalog.materialized.nondeterminism import nondeterministic_clauses

    clauses = nondeterministic_clauses(plan.query.sql)
    return f"it calls {', '.join(clauses)}" if clauses else query.hindrance


def _why_full(call: Call, query: IncrementalQuery, plan: RefreshPlan) -> str:
    """Return why a refresh is full; an empty string if the change of the stored rows has been computed."""
    from polaris_spark.catalog.entities.materialized_views import STATE

    why = hindrance_of(query, plan)
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
        raise IncrementalError(error) from error
    return why


def _write_change(
    call: Call, name: TableName, table: str, query: IncrementalQuery, plan: RefreshPlan, done: Done
) -> None:
    from polaris_spark.catalog.materialized.view_freshness import has_same_columns
    from polaris_spark.errors import TryAgainError

    if not has_same_columns(call.session.catalog.view(), plan.query):
        raise TryAgainError(
            f"the columns of a table that {name} reads were changed during its refresh; refresh it again"
        )
    call.check()
    query.write(table, _summary(plan, done))


def _overwrite(
    call: Call,
    name: TableName,
    table: str,
    rows: DataFrame,
    columns: Sequence[HiddenColumn],
    plan: RefreshPlan,
    done: Done,
) -> None:
    """Replace all stored rows.

    Args:
        columns: the hidden columns among the columns of the rows.
    """
    from pyspark.sql.functions import expr

    from polaris_spark.catalog.entities.materialized_views import STATE
    from polaris_spark.jobs.materialized_views.incremental import hidden_fields, recorded, set_hidden_columns

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


def _summary(plan: RefreshPlan, done: Done) -> dict[str, str]:
    """Return the entries for the summary of the new snapshot."""
    import msgspec

    from polaris_spark.catalog.entities.refresh_records import (
        FILES_READ,
        REASON,
        REFRESH,
        REFRESH_START,
        REFRESH_STATE,
        ROWS_READ,
        SIZE_READ,
        USED_STRATEGY,
    )
    from polaris_spark.catalog.materialized.view_sources import SOURCE_STATES

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
