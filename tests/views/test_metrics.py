"""The view `metrics`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from polaris_spark.clock import ManualClock
from tests.rest.test_metrics import COMMIT, SCAN
from tests.views.catalogs import Catalog, rows


def test_reports_are_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    catalog = Catalog(tmp_path / "c.db", clock=clock, catalog="c", principal="ann")
    catalog.namespace("a.b")
    entity = catalog.table("a.b", "t")
    assert catalog.read("metrics") == []
    place = "v1/namespaces/a.b/tables/t/metrics"
    before = catalog.head()
    clock.advance(5_000)
    for report in (SCAN, COMMIT):
        catalog.request("POST", place, report)
        catalog.session.catalog.metrics.flush()
        clock.advance(5_000)
    scan, commit = catalog.read("metrics")
    assert (scan["catalog"], scan["namespace"], scan["name"]) == ("c", "`a.b`", "t")
    assert (scan["principal"], scan["report_number"], commit["report_number"]) == ("ann", 0, 1)
    assert scan["entity_id"] == catalog.read("tables")[0]["entity_id"]
    assert entity["table-uuid"] == catalog.read("tables")[0]["uuid"]
    assert scan["metrics"] == {"result-data-files": 3, "total-planning-duration": 7_000_000}
    assert scan["filter"] == '{"type":"gt","term":"a","value":1}'
    assert scan["projected_columns"] == ["a", "b"]
    assert scan["metadata"] == {"engine-name": "spark"}
    assert (commit["operation"], commit["sequence_number"], commit["filter"]) == ("append", 1, None)
    assert commit["received_at"] > scan["received_at"]
    assert rows("metrics", store=catalog.store) == [scan, commit]
    kinds = {row["name"]: (row["kind"], row["catalog"]) for row in rows("references", store=catalog.store)}
    assert ("metrics", "c") in kinds.values()
    assert rows("metrics", store=catalog.store, catalog="c", as_of=str(before)) == []
    early = (scan["received_at"] + timedelta(seconds=1)).isoformat()
    assert rows("metrics", store=catalog.store, as_of=early) == [scan]
