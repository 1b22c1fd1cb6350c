"""Metrics reports of scans and commits. A catalog keeps the newest reports.

Reports are stored apart from the catalog's own history, in the reference `cat/<id>/metrics`, so that reads do not add
commits to that history. Reports that are committed together form a batch (`ReportBatch`). The index `reports` of this
reference maps the number of a batch's first report (8 bytes, big-endian) to the batch; numbers go up by one with each
report. Reports are not essential: they are committed in the background, a batch at a time, and a crash loses
the reports that are still in memory.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from polaris_spark.catalog.catalogs.catalogs import ensure_reference
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError
from polaris_spark.index import Entry
from polaris_spark.objects import object_type
from polaris_spark.system.registry import References

log = logging.getLogger("polaris_spark")

REPORTS: Final = "reports"
"""Name of the index of reports. It maps the number of a batch's first report to the batch."""

MAX_REPORT_BYTES: Final = 64 * 1024
"""Maximum size of a report, in bytes; a larger report is refused."""

BATCH: Final = 500
"""Number of queued reports at which a batch is committed."""

BATCH_BYTES: Final = 2**20
"""Total length of the queued reports at which a batch is committed, in characters. It limits the memory for reading a
batch."""

FLUSH_SECONDS: Final = 1.0
"""Time for which reports are collected before they are committed, in seconds."""

_REMOVED_TOGETHER: Final = 100
_UNITS: Final = {
    "nanoseconds": 1,
    "microseconds": 10**3,
    "milliseconds": 10**6,
    "seconds": 10**9,
    "minutes": 60 * 10**9,
    "hours": 3_600 * 10**9,
    "days": 86_400 * 10**9,
}

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Metric(msgspec.Struct, frozen=True, rename="kebab"):
    """A counter (`value` in `unit`), or a timer (`count` measurements, which together took `total_duration` in
    `time_unit`)."""

    unit: str | None = None
    value: Int64 | None = None
    time_unit: str | None = None
    count: Int64 | None = None
    total_duration: Int64 | None = None

    def number(self) -> int | None:
        """Return the value of a counter, or the total duration of a timer in nanoseconds. Return None if the value is
        missing, or the duration does not fit in 64 bits."""
        if self.total_duration is None:
            return self.value
        duration = self.total_duration * _UNITS.get((self.time_unit or "").lower(), 1)
        return duration if abs(duration) < 2**63 else None


class Report(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """A scan or commit report (`ReportMetricsRequest` of the REST specification)."""

    report_type: str
    table_name: str
    snapshot_id: Int64
    metrics: dict[str, Metric]
    metadata: dict[str, str] | None = None
    filter: Any = None
    schema_id: Int32 | None = None
    projected_field_ids: list[Int32] | None = None
    projected_field_names: list[str] | None = None
    sequence_number: Int64 | None = None
    operation: str | None = None


_REQUIRED: Final = {
    "scan-report": ("filter", "schema_id", "projected_field_ids", "projected_field_names"),
    "commit-report": ("sequence_number", "operation"),
}
_decode = msgspec.json.Decoder(Report).decode


def parse_report(text: str) -> Report:
    """Return the report in a JSON text.

    Raises:
        BadRequestError: the text is not a scan or commit report, lacks a field, or is longer than `MAX_REPORT_BYTES`.
    """
    if len(text) > MAX_REPORT_BYTES or len(text.encode(errors="surrogatepass")) > MAX_REPORT_BYTES:
        raise BadRequestError(f"the metrics report is too long; the maximum is {MAX_REPORT_BYTES} bytes")
    try:
        report = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise BadRequestError(f"cannot parse the metrics report: {error}") from error
    required = _REQUIRED.get(report.report_type)
    if required is None:
        raise BadRequestError(
            f"report-type is {report.report_type[:80]!r}; it must be {' or '.join(map(repr, _REQUIRED))}"
        )
    missing = [name.replace("_", "-") for name in required if getattr(report, name) is None]
    if missing:
        raise BadRequestError(f"the {report.report_type} lacks the fields {', '.join(missing)}")
    return report


class KeptReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A report as received, with the principal that sent the report and the table that the report is about."""

    received: int
    """Time when the report was received, in milliseconds since 1970."""
    principal: str
    namespace: tuple[str, ...]
    name: str
    entity_id: int
    """Entity id of the table."""
    text: str
    """The report as JSON."""


@object_type("metrics-reports", revision=1)
class ReportBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Reports that were committed together, the oldest first."""

    reports: tuple[KeptReport, ...]


def metrics_reference(row: CatalogRow) -> str:
    """Return the name of the reference that holds a catalog's reports."""
    return f"cat/{row.entity_id:x}/metrics"


def first_number(key: bytes) -> int:
    """Return the number of a batch's first report, from the batch's key."""
    return int.from_bytes(key, "big")


def report_count(entry: Entry) -> int:
    """Return the number of reports in a batch, from its entry in the index."""
    return int.from_bytes(entry.value, "big")


class AddReports(Change[None, None]):
    """Change that adds a batch of reports, and removes old batches that contain none of the newest `keep` reports."""

    def __init__(self, reports: tuple[KeptReport, ...], keep: int, operation: Operation) -> None:
        self.reports = reports
        self.keep = keep
        self.operation = operation

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> None:
        newest = state.scan(REPORTS, b"", None, limit=1, reverse=True)
        number = sum(_end(key, entry) for key, entry in newest)
        end = number + len(self.reports)
        for key, entry in state.scan(REPORTS, b"", None, limit=_REMOVED_TOGETHER):
            if _end(key, entry) > end - self.keep:
                break
            state.remove(REPORTS, key)
        batch = state.add(ReportBatch(self.reports))
        state.put(REPORTS, number.to_bytes(8, "big"), Entry(batch, len(self.reports).to_bytes(4, "big")))

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


def _end(key: bytes, entry: Entry) -> int:
    """Return the number of a batch's last report, plus one."""
    return first_number(key) + report_count(entry)


class MetricsReports:
    """Collects the reports of one process and commits them in batches. Thread-safe."""

    def __init__(self, references: References, row: CatalogRow, *, keep: Callable[[], int]) -> None:
        """
        Args:
            keep: function that returns the approximate number of reports that the catalog keeps; 0 means none.
        """
        self.keep = keep
        self._references = references
        self._name = metrics_reference(row)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._committing = threading.Lock()
        self._waiting: list[KeptReport] = []
        self._size = 0
        self._timer: threading.Timer | None = None

    def add(self, report: KeptReport) -> None:
        """Queue a report to be committed soon. If reports arrive faster than they are committed, the caller waits."""
        self._leave_to_parent()
        with self._guard:
            self._waiting.append(report)
            self._size += len(report.text)
            full = len(self._waiting) >= BATCH or self._size >= BATCH_BYTES
            if not full and self._timer is None:
                self._timer = threading.Timer(FLUSH_SECONDS, self.flush)
                self._timer.daemon = True
                self._timer.start()
        if full:
            self.flush()

    def flush(self) -> None:
        """Commit the queued reports. If the commit fails, the failure is logged and the reports are lost.

        If another thread is committing, this waits until that commit ends. So the caller can close the store after this
        returns.
        """
        self._leave_to_parent()
        with self._committing:
            with self._guard:
                if self._timer is not None:
                    self._timer.cancel()
                reports, self._waiting, self._timer, self._size = self._waiting, [], None, 0
            if not reports:
                return
            try:
                self._commit(tuple(reports))
            except (
                Exception
            ) as error:  # databases raise many types: a lost report must not fail a scan or commit
                log.warning("%d metrics reports are lost: %s", len(reports), error, exc_info=error)

    def _leave_to_parent(self) -> None:
        """In a forked child process, begin with an empty queue and new locks. The parent commits the queued reports. A
        lock that another thread of the parent held would never be released in the child."""
        if self._process != os.getpid():
            self._begin()

    def _commit(self, reports: tuple[KeptReport, ...]) -> None:
        operation = Operation(b"", reports[-1].principal)
        ensure_reference(self._references, self._name, operation)
        self._references.commit(self._name, AddReports(reports, self.keep(), operation))
