"""The system view `metrics`: one row for each metrics report of a scan or commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from pyspark.sql.types import LongType, MapType, StringType

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.catalogs.metrics import (
    REPORTS,
    KeptReport,
    Report,
    ReportBatch,
    first_number,
    metrics_reference,
    parse_report,
    report_count,
)
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.index import Entry
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import (
    INT,
    LONG,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
    pairs,
)
from polaris_spark.spark.views.kept_batches import BatchesTask, BatchesView

_LONG_MAP = MapType(StringType(), LongType(), valueContainsNull=False)


class MetricsRow(NamedTuple):
    """A metrics report, with its consecutive number in the catalog."""

    task: BatchesTask
    number: int
    kept: KeptReport
    report: Report


class Metrics(BatchesView[MetricsRow]):
    """A system view with one row for each stored metrics report."""

    index = REPORTS
    together = 50
    shown = (Need("TABLE_READ_DATA", On.TABLE),)  # filters contain values of the table
    comment = "Metrics reports of scans and commits, the newest ones, one row each"
    columns = (
        ViewColumn("catalog", STRING, "Catalog that the report was sent to", lambda row: row.task.catalog),
        ViewColumn("report_number", LONG, "Number of the report; consecutive", lambda row: row.number),
        ViewColumn(
            "received_at",
            TIMESTAMP,
            "Time at which the report arrived",
            lambda row: micros(row.kept.received),
        ),
        ViewColumn("principal", STRING, "Principal that sent the report", lambda row: row.kept.principal),
        ViewColumn("namespace", STRING, "Namespace of the table", lambda row: dotted(row.kept.namespace)),
        ViewColumn("name", STRING, "Name of the table at that time", lambda row: row.kept.name),
        ViewColumn("entity_id", LONG, "Stable id of the table", lambda row: row.kept.entity_id),
        ViewColumn("report_type", STRING, "scan-report or commit-report", lambda row: row.report.report_type),
        ViewColumn(
            "snapshot_id", LONG, "Snapshot that was read or created", lambda row: row.report.snapshot_id
        ),
        ViewColumn(
            "operation",
            STRING,
            "Of a commit: append, overwrite, delete or replace",
            lambda row: row.report.operation,
        ),
        ViewColumn(
            "sequence_number",
            LONG,
            "Of a commit: sequence number of its snapshot",
            lambda row: row.report.sequence_number,
        ),
        ViewColumn("filter", STRING, "Of a scan: its filter as JSON", lambda row: _json(row.report.filter)),
        ViewColumn("schema_id", INT, "Of a scan: schema that it used", lambda row: row.report.schema_id),
        ViewColumn(
            "projected_columns",
            STRINGS,
            "Of a scan: columns that it read",
            lambda row: row.report.projected_field_names,
        ),
        ViewColumn(
            "metrics",
            _LONG_MAP,
            "Counters, and durations in nanoseconds, by name",
            lambda row: [(k, n) for k, m in row.report.metrics.items() if (n := m.number()) is not None],
        ),
        ViewColumn(
            "metadata",
            STRING_MAP,
            "Further details, such as the versions of the engine and of Iceberg",
            lambda row: pairs(row.report.metadata),
        ),
        ViewColumn("report", STRING, "The whole report as JSON", lambda row: row.kept.text),
    )

    def reference(self, catalog: CatalogRow) -> str:
        return metrics_reference(catalog)

    def count(self, batch: Entry) -> int:
        return report_count(batch)

    def rows(self, store: ReadStore, task: BatchesTask, needs: frozenset[str]) -> Iterator[MetricsRow]:
        objects = store.objects(task.realm)
        found = objects.get_many([id for _, id in task.batches], ReportBatch)
        for key, id in task.batches:
            for number, kept in enumerate(found[id].reports, first_number(key)):
                yield MetricsRow(task, number, kept, parse_report(kept.text))

    def weigh(self, row: MetricsRow) -> int:
        return 512 + 2 * len(row.kept.text)

    def sees(self, store: ReadStore, scope: Scope, row: MetricsRow) -> bool:
        return self.sees_table(store, scope, row.task, row.kept.entity_id)


SYSTEM_VIEW = Metrics()


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
