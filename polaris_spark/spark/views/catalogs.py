"""The system view `catalogs`: one row for each catalog of a realm, including dropped ones that can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.catalogs.references import CATALOGS, catalogs_in, dropped_in
from polaris_spark.catalog.entities.properties import WAREHOUSE
from polaris_spark.catalog.rows import CatalogRow, DroppedMark
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import LONG, STRING, STRING_MAP, TIMESTAMP, ViewColumn, micros, pairs
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted


class CatalogTask(NamedTuple):
    """A catalog."""

    row: CatalogRow
    dropped: DroppedMark | None
    """The drop of the catalog; None if it exists."""


class Catalogs(SystemView[CatalogTask, CatalogTask]):
    """A system view with one row for each catalog of a realm."""

    shown = (Need("CATALOG_READ_PROPERTIES", On.CATALOG),)
    comment = "Catalogs of the realm, one row each, including dropped catalogs that can be restored"
    columns = (
        ViewColumn("catalog", STRING, "Name of the catalog", lambda row: row.row.name),
        ViewColumn(
            "catalog_id",
            LONG,
            "Id of the catalog, which stays the same if it is renamed",
            lambda row: row.row.entity_id,
        ),
        ViewColumn(
            "state",
            STRING,
            "`active` or `dropped`",
            lambda row: "active" if row.dropped is None else "dropped",
        ),
        ViewColumn(
            "warehouse",
            STRING,
            "Location below which its tables are created",
            lambda row: row.row.properties.get(WAREHOUSE),
        ),
        ViewColumn(
            "owner",
            STRING,
            "Principal that created it; with access control, `show_owner` returns its owner",
            lambda row: row.row.owner,
        ),
        ViewColumn("created_at", TIMESTAMP, "Time of its creation", lambda row: micros(row.row.created)),
        ViewColumn(
            "dropped_at",
            TIMESTAMP,
            "Time of its drop",
            lambda row: None if row.dropped is None else micros(row.dropped.time),
        ),
        ViewColumn(
            "dropped_by",
            STRING,
            "Principal that dropped it",
            lambda row: None if row.dropped is None else row.dropped.principal,
        ),
        ViewColumn("properties", STRING_MAP, "Its properties", lambda row: pairs(row.row.properties)),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[CatalogTask]]:
        request.refuse_as_of("it shows the catalogs as they are now")
        realm = request.store.realm(request.options.realm)
        condition = request.condition("catalog")
        opened = realm.open(realm.live(CATALOGS)[1])
        found = [CatalogTask(row, None) for row in catalogs_in(opened)]
        found += [CatalogTask(one.row, one.mark) for one in dropped_in(opened)]
        return [Weighted(one, 1) for one in found if condition.allows(one.row.name)]

    def rows(self, store: ReadStore, task: CatalogTask, needs: frozenset[str]) -> Iterator[CatalogTask]:
        yield task

    def sees(self, store: ReadStore, scope: Scope, row: CatalogTask) -> bool:
        id = row.row.entity_id
        whole = (securables.catalog(id), securables.REALM)
        return scope.sees_all_of(id) or scope.may("CATALOG_READ_PROPERTIES", whole)


SYSTEM_VIEW = Catalogs()
