"""Routes of the system views: descriptions for administrators, and scans for the driver only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extension.callers import Asking


@pytest.mark.parametrize("question", ["columns", "count", "plan"])
def test_an_administrator_does_not_plan_scans_of_views(admin: Asking, question: str) -> None:
    body = {"options": {"store": "sqlite:///etc/passwd"}, "columns": [], "filters": []}
    assert admin.send("POST", f"views/tables/{question}", body)[0] == 403


def test_views_are_described(admin: Asking) -> None:
    from polaris_spark.spark.views import VIEWS

    assert admin.send("GET", "views")[1] == {"views": list(VIEWS)}
    status, view = admin.send("GET", "views/tables")
    assert (status, view["name"]) == (200, "tables")
    assert [field["name"] for field in view["schema"]["fields"]] == [c.name for c in VIEWS["tables"].columns]
    assert admin.send("GET", "views/nothing")[1]["error"]["type"] == "NoSuchViewException"


def test_a_view_is_counted_for_the_driver(local: Asking, tmp_path: Path) -> None:
    options = {"store": f"sqlite://{tmp_path}/store.db", "catalog": "polaris"}
    assert local.send("POST", "views/tables/count", {"options": options}) == (200, {"count": 0})
    assert local.send("POST", "views/tables/columns", {"options": options})[1]["counted"] is True
    status, body = local.send("POST", "views/snapshots/count", {"options": options})
    assert status == 400
    assert "cannot be counted" in body["error"]["message"]
