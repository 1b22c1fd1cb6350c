"""Totals in snapshot summaries, computed again from the totals of another parent."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.tables.summaries import counted_on, number_in


def test_totals_are_counted_on_from_those_of_the_head() -> None:
    sent = {"operation": "append", "added-records": "5", "deleted-records": "2", "total-records": "999"}
    assert counted_on(sent, {"total-records": "10"}, 0) == {
        "operation": "append", "added-records": "5", "deleted-records": "2", "total-records": "13"
    }  # fmt: skip  # one summary


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5", "٣", "9" * 19, "9" * 4_300, "9" * 5_000])
def test_a_summary_value_that_is_not_a_number_gives_no_total(text: str) -> None:
    assert number_in({"total-records": text}, "total-records") is None
    assert counted_on({"added-records": "1"}, {"total-records": text}, 0) == {"added-records": "1"}
    assert "total-records" not in counted_on({"added-records": text}, {"total-records": "1"}, 0)
