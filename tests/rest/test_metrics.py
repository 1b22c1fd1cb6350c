"""Metrics reports: which are accepted and how many are kept. They are not part of the catalog's history."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.catalogs import metrics
from polaris_spark.catalog.catalogs.metrics import MAX_REPORT_BYTES, REPORTS, ReportBatch, metrics_reference
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.rest.client import Client
from tests.rest.conftest import Open
from tests.rest.staging import CREATE, creation, staged

COUNTER = {"unit": "count", "value": 3}
TIMER = {"count": 1, "time-unit": "milliseconds", "total-duration": 7}
SCAN: dict[str, Any] = {
    "report-type": "scan-report",
    "table-name": "polaris.db.t",
    "snapshot-id": 4711,
    "filter": {"type": "gt", "term": "a", "value": 1},
    "schema-id": 0,
    "projected-field-ids": [1, 2],
    "projected-field-names": ["a", "b"],
    "metrics": {"result-data-files": COUNTER, "total-planning-duration": TIMER},
    "metadata": {"engine-name": "spark"},
}
COMMIT: dict[str, Any] = {
    "report-type": "commit-report",
    "table-name": "polaris.db.t",
    "snapshot-id": 4711,
    "sequence-number": 1,
    "operation": "append",
    "metrics": {"added-records": COUNTER},
}
PLACE = "v1/namespaces/db/tables/t/metrics"


@pytest.fixture
def db(catalog: Client) -> Client:
    """A catalog with the table `db.t`."""
    catalog.create("t")
    return catalog


def send(client: Client, report: object, place: str = PLACE) -> int:
    """Send a report, and return the status."""
    return client.session.request("POST", place, body=json.dumps(report))[0]


def kept(client: Client) -> list[dict[str, Any]]:
    """Return the reports that the catalog keeps, oldest first."""
    catalog = client.session.catalog
    catalog.metrics.flush()
    head = catalog.references.read(metrics_reference(catalog.row))
    batches = [head.store.get(entry.pointer, ReportBatch) for _, entry in head.index(REPORTS).range()]
    return [json.loads(one.text) for batch in batches for one in batch.reports]


@pytest.mark.parametrize("report", [SCAN, COMMIT])
def test_reports_are_kept_as_they_came(db: Client, report: dict[str, Any]) -> None:
    assert send(db, {**report, "from-the-future": {"x": [1]}}) == 204
    assert kept(db) == [{**report, "from-the-future": {"x": [1]}}]


def test_the_endpoint_is_advertised_unless_nothing_is_kept(opened: Open, store: str, warehouse: Path) -> None:
    keeping = opened(store, warehouse)
    none = opened(store, warehouse, metrics_reports=0)
    advertised = [json.loads(c.session.request("GET", "v1/config")[2])["endpoints"] for c in (keeping, none)]
    endpoint = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"
    assert [endpoint in endpoints for endpoints in advertised] == [True, False]
    keeping.namespace("db")
    keeping.create("t")
    assert send(none, SCAN) == 406


@pytest.mark.parametrize(
    "report",
    [
        [],
        "scan-report",
        {},
        {**SCAN, "report-type": "other-report"},
        {**SCAN, "report-type": 1},
        {**SCAN, "snapshot-id": "4711"},
        {**SCAN, "snapshot-id": 2**63},
        {**SCAN, "metrics": {"n": 1}},
        {**SCAN, "metadata": {"n": 1}},
        {name: value for name, value in SCAN.items() if name != "filter"},
        {name: value for name, value in COMMIT.items() if name != "operation"},
        {**SCAN, "table-name": "x" * MAX_REPORT_BYTES},
    ],
)
def test_a_value_that_is_not_a_report_is_refused(db: Client, report: object) -> None:
    assert send(db, report) == 400
    status, _, body = db.session.request("POST", PLACE, body="{")
    assert (status, json.loads(body)["error"]["type"]) == (400, "BadRequestException")
    assert db.session.request("POST", PLACE)[0] == 400


def test_reports_on_a_table_that_is_being_created_are_accepted_and_not_kept(db: Client) -> None:
    metadata = staged(db, "new")
    place = "v1/namespaces/db/tables/new/metrics"
    assert send(db, COMMIT, place) == 204
    assert send(db, {**COMMIT, "operation": None}, place) == 400
    assert db.commit("new", *creation(metadata), requirements=CREATE).status == 200
    assert send(db, SCAN, place) == 204
    assert kept(db) == [SCAN]


def test_only_the_newest_are_kept(
    opened: Open, store: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "BATCH", 7)
    client = opened(store, warehouse, metrics_reports=20)
    client.namespace("db")
    client.create("t")
    for n in range(100):
        assert send(client, {**SCAN, "snapshot-id": n}) == 204
    numbers = [report["snapshot-id"] for report in kept(client)]
    assert numbers == list(range(numbers[0], 100))
    assert 20 <= len(numbers) < 20 + 7


def test_a_smaller_maximum_takes_effect_gradually(opened: Open, store: str, warehouse: Path) -> None:
    first = opened(store, warehouse)
    first.namespace("db")
    first.create("t")
    for n in range(130):  # batches of one
        send(first, {**SCAN, "snapshot-id": n})
        first.session.catalog.metrics.flush()
    second = opened(store, warehouse, metrics_reports=1)
    for n in (130, 131):
        send(second, {**SCAN, "snapshot-id": n})
        second.session.catalog.metrics.flush()
    assert [report["snapshot-id"] for report in kept(second)] == [131]


def test_many_senders_at_once_lose_nothing(opened: Open, store: str, warehouse: Path) -> None:
    clients = [opened(store, warehouse) for _ in range(2)]
    clients[0].namespace("db")
    clients[0].create("t")
    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(lambda n: send(clients[n % 2], {**SCAN, "snapshot-id": n}), range(1_200)))
    assert set(statuses) == {204}
    clients[1].session.catalog.metrics.flush()
    assert sorted(report["snapshot-id"] for report in kept(clients[0])) == list(range(1_200))


def test_metrics_reports_are_not_part_of_the_catalogs_history(db: Client) -> None:
    before = db.session.catalog.head().head.commit
    send(db, SCAN)
    assert kept(db)
    assert db.session.catalog.head().head.commit == before


def test_metrics_reports_are_committed_automatically(db: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FLUSH_SECONDS", 0.01)
    send(db, SCAN)
    catalog = db.session.catalog
    name = metrics_reference(catalog.row)
    wait_until(
        lambda: catalog.references.lookup(name) and catalog.references.read(name).head.number == 1,
        "the report is committed",
    )


def test_flushing_waits_for_running_commits(db: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on, done = threading.Event(), threading.Event(), threading.Event()
    reports = db.session.catalog.metrics
    commit = reports._commit

    def slowly(batch: tuple[metrics.KeptReport, ...]) -> None:
        began.set()
        assert go_on.wait(PATIENCE_S)
        commit(batch)
        done.set()

    monkeypatch.setattr(reports, "_commit", slowly)
    send(db, SCAN)
    other = threading.Thread(target=reports.flush)
    other.start()
    assert began.wait(PATIENCE_S)
    threading.Timer(0.1, go_on.set).start()
    reports.flush()
    assert done.is_set()
    other.join(60)


def test_closing_commits_waiting_changes(opened: Open, tmp_path: Path, warehouse: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    first = opened(store, warehouse)
    first.namespace("db")
    first.create("t")
    send(first, SCAN)
    first.session.close()
    assert kept(opened(store, warehouse)) == [SCAN]


def test_a_forked_child_commits_its_own_reports_only(opened: Open, tmp_path: Path, warehouse: Path) -> None:
    client = opened(f"sqlite://{tmp_path / 'store.db'}", warehouse)
    client.namespace("db")
    client.create("t")
    send(client, {**SCAN, "snapshot-id": 1})

    def child() -> None:
        send(client, {**SCAN, "snapshot-id": 2})
        client.session.catalog.metrics.flush()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert sorted(report["snapshot-id"] for report in kept(client)) == [1, 2]


def test_a_forked_child_that_closes_leaves_the_parents_reports_to_the_parent(
    opened: Open, tmp_path: Path, warehouse: Path
) -> None:
    client = opened(f"sqlite://{tmp_path / 'store.db'}", warehouse)
    client.namespace("db")
    client.create("t")
    send(client, SCAN)
    metrics = client.session.catalog.metrics

    def child() -> None:
        metrics.flush()
        os._exit(0)

    with metrics._guard:  # as another thread of the parent may hold it while this one forks
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
    assert process.exitcode == 0
    assert kept(client) == [SCAN]


def test_long_reports_lie_in_small_batches(db: Client) -> None:
    long = {**SCAN, "metadata": {"note": "x" * 60_000}}
    for _ in range(40):
        assert send(db, long) == 204
    catalog = db.session.catalog
    catalog.metrics.flush()
    assert len(list(catalog.references.read(metrics_reference(catalog.row)).index(REPORTS).range())) >= 3
    assert kept(db) == [long] * 40


def test_errors_of_the_store_are_only_logged(
    db: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    catalog = db.session.catalog
    monkeypatch.setattr(catalog.references, "commit", fail)
    assert send(db, SCAN) == 204
    catalog.metrics.flush()
    assert "1 metrics reports are lost: the disk is gone" in caplog.text
