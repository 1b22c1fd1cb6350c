"""The view `index`: the names of catalogs, as stored in the index `names`."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.spark.reading import ReadStore
from polaris_spark.spark.views.changes import kind_name
from polaris_spark.spark.views.columns import BINARY, STRING, ViewColumn
from polaris_spark.spark.views.entities import IDENTITY, EntityEntry, NamesTask, named, plan_names
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted


class IndexView(SystemView[NamesTask, EntityEntry]):
    """One row per entry of the index `names`; no content is read."""

    name = "index"
    comment = "Every name of a catalog: namespaces, tables and views"
    rows_per_partition = 5_000
    columns = (
        *IDENTITY,
        ViewColumn(
            "kind", STRING, "Kind of the entity: namespace, table or view", lambda row: kind_name(row.kind)
        ),
        ViewColumn("key", BINARY, "Key by which the index sorts entries", lambda row: row.key),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[NamesTask]]:
        return plan_names(request, None, self.rows_per_partition)

    def rows(self, store: ReadStore, task: NamesTask, needs: frozenset[str]) -> Iterator[EntityEntry]:
        return named(task.pin.snapshot(store.objects(task.pin.realm)), task, None)

    def weigh(self, row: EntityEntry) -> int:
        return 128 + 2 * len(row.key)
