"""The registry of procedures, their arguments and rows, without Spark."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.errors import InputError, TryAgainError
from polaris_spark.extension.runs import encoded
from polaris_spark.jobs import registry
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure
from polaris_spark.jobs.registry import call, find, procedures
from polaris_spark.jobs.types import TYPES
from polaris_spark.rest.session import Session


def echo(**changes: Any) -> Procedure:
    """A procedure that returns its arguments."""
    facts: dict[str, Any] = {
        "name": "echo",
        "parameters": (
            Parameter("text", "STRING", "what to say", required=True),
            Parameter("count", "INT", "how often"),
            Parameter("tags", "ARRAY<STRING>", "some texts"),
        ),
        "columns": (Column("text", "STRING"), Column("count", "BIGINT")),
        "run": lambda call, given: [(given["text"], given.get("count"))],
    }
    return Procedure(**{**facts, **changes})


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with polaris_spark.connect(store="memory:procedures", warehouse=str(tmp_path)) as opened:
        yield opened


def rows(session: Session, procedure: Procedure, **arguments: Any) -> list[tuple[Any, ...]]:
    return procedure.rows(Call(session), arguments)


def test_arguments_come_by_name_and_null_is_as_if_left_out(session: Session) -> None:
    assert rows(session, echo(), text="ü𝄞", count=3) == [("ü𝄞", 3)]
    assert rows(session, echo(), text="", count=None) == [("", None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'text' is missing; it is required"),
        ({"text": None}, "'text' is NULL; it is required"),
        ({"text": 1}, "'text' is 1; it must be text"),
        ({"text": "a", "counts": 1}, "no parameter 'counts'; its parameters are: text, count, tags"),
        ({"text": "a", "count": True}, "'count' is True; it must be a whole number of 32 bits"),
        ({"text": "a", "count": 1 << 31}, "it must be a whole number of 32 bits (INT)"),
        ({"text": "a", "tags": "b"}, "it must be a list of texts"),
        ({"text": "a", "tags": ["b", 1]}, "it must be a list of texts"),
    ],
)
def test_unusable_arguments_are_refused_with_the_valid_values(
    session: Session, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        rows(session, echo(), **arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Echo"},
        {"name": "ec ho"},
        {"columns": ()},
        {"columns": (Column("a", "TEXT"),)},
        {"columns": (Column("a", "INT"), Column("a", "INT"))},
        {"parameters": (Parameter("a", "INT", ""), Parameter("b", "INT", "", required=True))},
        {"parameters": (Parameter("a", "INT", ""), Parameter("a", "INT", ""))},
    ],
)
def test_a_definition_that_spark_could_not_use_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        echo(**changes)


@pytest.mark.parametrize("row", [("a",), ("a", 1, 2), (1, 1), ("a", "1"), ("a", 1 << 63)])
def test_rows_that_do_not_fit_the_columns_are_errors(session: Session, row: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="procedure echo returned"):
        rows(session, echo(run=lambda call, given: [row]), text="a")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STRING", "ü"),
        ("BOOLEAN", False),
        ("INT", -(1 << 31)),
        ("BIGINT", (1 << 63) - 1),
        ("DOUBLE", 1.5),
        ("DOUBLE", float("-inf")),
        ("TIMESTAMP", datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=timezone.utc)),
        ("TIMESTAMP", datetime(1582, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
        ("ARRAY<STRING>", ["a", None]),
        ("MAP<STRING,STRING>", {"a": "b", "c": None}),
    ],
)
def test_values_of_every_type_are_accepted_and_come_back_from_what_json_carries(
    name: str, value: object
) -> None:
    assert TYPES[name].accepts(value)
    assert TYPES[name].decode(TYPES[name].encode(value)) == value


def test_names_of_files_that_are_no_unicode_do_not_lose_the_result() -> None:
    [text] = encoded(echo(), [("caf\udce9 ü", 1)])
    assert json.loads(text.encode()) == ["caf\udce9 ü", 1]


@pytest.mark.parametrize("name", TYPES)
def test_values_of_another_type_are_not_accepted(name: str) -> None:
    assert not TYPES[name].accepts(object())
    assert not TYPES[name].accepts(datetime(2026, 1, 1))


def test_procedures_are_found_in_any_case_and_near_misses_are_named() -> None:
    assert find("STORAGE_Summary") is procedures()["storage_summary"]
    with pytest.raises(InputError, match="did you mean 'storage_summary'"):
        find("storage_sumary")


def test_a_spark_job_says_that_it_needs_a_session(session: Session) -> None:
    with pytest.raises(InputError, match="without a Spark session"):
        Call(session).spark()


def test_storage_is_summed_without_spark(session: Session) -> None:
    rows = call(session, "storage_summary")
    assert [row[2] for row in rows if row[0] == "commit"] == ["under 1 hour"]
    assert all(row[5] > 0 for row in rows)


def test_a_cancelled_call_stops_where_it_checks(session: Session) -> None:
    running = Call(session)
    running.check()
    running.cancel()
    with pytest.raises(TryAgainError, match="cancelled"):
        running.check()


OTHERS = echo(name="others")
CLASHING = echo(name="storage_summary")


def test_other_packages_add_procedures_and_broken_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        importlib.metadata.EntryPoint(f"one{n}", value, registry.GROUP)
        for n, value in enumerate(
            (f"{__name__}:OTHERS", f"{__name__}:CLASHING", f"{__name__}:echo", "nosuch:it")
        )
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    procedures.cache_clear()
    try:
        assert find("others") is OTHERS
        assert find("storage_summary") is not CLASHING
        assert set(procedures()) == {one.name for one in registry.BUILT_IN} | {"others"}
    finally:
        procedures.cache_clear()
