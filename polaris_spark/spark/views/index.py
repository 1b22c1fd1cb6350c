"""The system view `index`: the entries of the index `names`, which maps the names in a catalog to entities."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.access.needs import Need, On
from polaris_spark.access.privileges import SEES_NAMESPACE, SEES_TABLE, SEES_VIEW
from polaris_spark.spark.views.changes import kind_name
from polaris_spark.spark.views.columns import BINARY, STRING, ViewColumn
from polaris_spark.spark.views.entities import IDENTITY, EntityEntry, EntityView
from polaris_spark.store.objects import ObjectStore


class IndexView(EntityView[EntityEntry]):
    """A system view with one row for each entry of the index `names`. The objects of the entities are not read."""

    comment = "Every name of a catalog: namespaces, tables and views"
    kind = None
    shown = (Need(SEES_NAMESPACE, On.NAMESPACE), Need(SEES_TABLE, On.TABLE), Need(SEES_VIEW, On.VIEW))
    one_each = True
    rows_per_partition = 5_000
    columns = (
        *IDENTITY,
        ViewColumn(
            "kind",
            STRING,
            "Kind of the entity: namespace, table or view",
            lambda row: kind_name(row.kind),
            "",
        ),
        ViewColumn("key", BINARY, "Key by which the index sorts entries", lambda row: row.key, ""),
    )

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[EntityEntry]:
        return entries


SYSTEM_VIEW = IndexView()
