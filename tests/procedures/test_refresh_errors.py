"""Errors of refreshes that lost against another change. No test here needs Spark."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.jobs.materialized_views.plan import ViewState
from polaris_spark.jobs.materialized_views.refresh import failure

NAME = TableName(("db",), "v")
BEFORE = ViewState("one", 1, 5, 7)
ERROR = ValueError("Cannot find snapshot with ID 9136874613152068564")


@pytest.mark.parametrize("after", [ViewState(), ViewState("other", 1)], ids=["no view", "another view"])
def test_a_refresh_of_a_view_that_lost_its_name_says_so(after: ViewState) -> None:
    assert str(failure(NAME, BEFORE, after, ERROR)) == (
        "materialized view db.v was dropped or renamed during its refresh"
    )


def test_other_errors_are_reported_as_they_are() -> None:
    assert failure(NAME, BEFORE, BEFORE._replace(refresh_id=6), ERROR) is ERROR
