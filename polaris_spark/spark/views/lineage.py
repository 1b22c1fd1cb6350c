"""The system view `lineage`: on which tables, views and columns the columns of each materialized view depend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.entities.materialized_views import is_materialized
from polaris_spark.catalog.materialized.lineage import DIRECT, Dependence, dependences
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import VIEW
from polaris_spark.commits.state import reading_state
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import STRING, ViewColumn
from polaris_spark.spark.views.entities import IDENTITY, EntityEntry, EntityView, NamesTask, loaded


class LineageRow(NamedTuple):
    """A dependence of a materialized view on a source."""

    entry: EntityEntry
    dependence: Dependence


class Lineage(EntityView[LineageRow]):
    """A system view with one row for each dependence of a materialized view on a source or a source column."""

    comment = "Columns on which the columns of each materialized view depend, one row for each pair and kind"
    shown = (Need("VIEW_READ_PROPERTIES", On.VIEW),)
    kind = VIEW
    rows_per_partition = 50
    columns = (
        *IDENTITY,
        ViewColumn(
            "view_column",
            STRING,
            "Column of the view; null if all rows depend on the source, as by a filter",
            lambda r: r.dependence.column,
        ),
        ViewColumn(
            "source_type",
            STRING,
            "table, view or materialized view",
            lambda r: r.dependence.source.type,
        ),
        ViewColumn(
            "source_catalog",
            STRING,
            "Catalog of the source; null if it is in none",
            lambda r: r.dependence.source.catalog,
        ),
        ViewColumn(
            "source_namespace",
            STRING,
            "Namespace of the source, written as in the column namespace",
            lambda r: dotted(r.dependence.source.namespace),
        ),
        ViewColumn("source_name", STRING, "Name of the source", lambda r: r.dependence.source.name),
        ViewColumn(
            "source_uuid", STRING, "UUID of the source; null if unknown", lambda r: r.dependence.source.uuid
        ),
        ViewColumn(
            "source_column",
            STRING,
            "Column of the source; null if only the source is known",
            lambda r: r.dependence.source_column,
        ),
        ViewColumn(
            "dependence",
            STRING,
            "DIRECT if values are computed from the source column, INDIRECT if it decides about them",
            lambda r: _dependence(r.dependence.kind),
        ),
        ViewColumn(
            "transformation",
            STRING,
            "IDENTITY, TRANSFORMATION, AGGREGATION; or JOIN, GROUP_BY, FILTER, SORT, WINDOW, CONDITIONAL",
            lambda r: r.dependence.kind,
        ),
    )

    def rows(self, store: ReadStore, task: NamesTask, needs: frozenset[str]) -> Iterator[LineageRow]:
        objects = store.objects(task.pin.realm)
        state = reading_state(task.pin.reader(objects))
        is_limited = task.pin.sight(store) is not None
        for entry, view in loaded(objects, self._named(store, task), View):
            if is_materialized(view):
                name = TableName(entry.path, entry.name)
                for one in dependences(state, entry.catalog, name, view, only_recorded=is_limited):
                    yield LineageRow(entry, one)


def _dependence(kind: str | None) -> str | None:
    return None if kind is None else "DIRECT" if kind in DIRECT else "INDIRECT"


SYSTEM_VIEW = Lineage()
