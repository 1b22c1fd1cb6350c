"""Parts of the demo that need no Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from polaris_spark.cli.demo import data, model
from polaris_spark.cli.demo.stage import Figure
from tests.cli.catalogs import run


def frame(**columns: Any) -> Any:
    return pd.DataFrame(columns)


def test_missing_values_become_null_and_never_nan() -> None:
    table = data.as_arrow(frame(whole=[1.0, None], fraction=[0.5, None], text=["a", None]))
    assert table.to_pylist() == [
        {"whole": 1, "fraction": 0.5, "text": "a"},
        {"whole": None, "fraction": None, "text": None},
    ]


def test_whole_numbers_with_gaps_become_integers_and_measurements_stay_floats() -> None:
    table = data.as_arrow(frame(gaps=[1.0, None], measured=[1.0, 2.0], counted=[1, 2]))
    assert [str(field.type) for field in table.schema] == ["int32", "double", "int32"]


def test_times_become_timestamps() -> None:
    table = data.as_arrow(frame(time_hour=["2013-01-01T10:00:00Z"]))
    assert str(table.schema.field("time_hour").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        (1, 1, True),
        (1, 2, False),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (float("nan"), 0.3, False),
        (None, 0.3, False),
        ({"a": 1.0}, {"a": 1.0}, True),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, False),
        (["x"], ["x"], True),
    ],
)
def test_figures_agree_only_where_they_are_the_same(found: object, expected: object, right: bool) -> None:
    assert Figure("", found, expected).right is right


@pytest.fixture
def history() -> model.Flights:
    hours = [f"2013-0{month}-01T10:00:00Z" for month in (1, 2, 2, 2)]
    return model.flights(
        frame(
            month=[1, 2, 2, 2],
            time_hour=hours,
            carrier=["A", "A", "B", "C"],
            flight=[1, 1, 1, 1],
            tailnum=["N1", None, "N2", "N3"],
            dep_time=[1.0, 2.0, None, 4.0],
            dep_delay=[1.0, 5.0, None, 4.0],
            arr_delay=[1.0, 2.0, None, None],
        )
    )


def test_the_model_deletes_cancelled_flights(history: model.Flights) -> None:
    assert list(history.deleted.carrier) == ["A", "A", "C"]
    assert list(history.deleted.tailnum) == ["N1", model.UNKNOWN, "N3"]


def test_the_model_merges_the_report_of_one_month(history: model.Flights) -> None:
    merged = history.merged.sort_values(["month", "carrier"])
    assert list(merged.carrier) == ["A", "A", "B"]
    assert [None if gained != gained else gained for gained in merged.gained] == [None, 3.0, None]


@pytest.mark.parametrize("left", ["file", "folder"])
def test_a_directory_with_something_in_it_is_refused(tmp_path: Path, left: str) -> None:
    (tmp_path / "used" / "x").mkdir(parents=True)
    given = tmp_path / "used" if left == "folder" else tmp_path / "file"
    if left == "file":
        given.write_text("x")
    answer = run("demo", "--directory", str(given))
    assert answer.code == 2
    assert "is not a new directory" in answer.err


def test_a_store_in_memory_is_refused(tmp_path: Path) -> None:
    answer = run("demo", "--store", "memory:", "--directory", str(tmp_path / "new"))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert not (tmp_path / "new").exists()


def test_a_missing_library_is_one_line_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    answer = run("demo")
    assert answer.code == 2
    assert "pip install 'polaris-spark[demo]'" in answer.err


def test_missing_java_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    answer = run("demo", "--directory", str(tmp_path / "new"))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "install a JDK 17" in answer.err


def test_an_old_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from polaris_spark.cli.demo import session

    monkeypatch.setattr(
        session.subprocess, "run", lambda *_, **__: SimpleNamespace(stderr='openjdk version "11.0.2"')
    )
    with pytest.raises(session.MissingLibraryError, match="is Java 11"):
        session.require_java()


def test_a_password_in_the_uri_is_refused_before_anything_is_shown_or_made(tmp_path: Path) -> None:
    store = "postgresql://user:open-sesame@127.0.0.1:1/database"
    done = run("demo", "--store", store, "--directory", str(tmp_path / "new"))
    assert done.code != 0
    assert "--password env:NAME" in done.err
    assert "open-sesame" not in done.out + done.err
    assert not (tmp_path / "new").exists()


def test_a_store_of_an_unknown_scheme_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    answer = run("demo", "--store", "postgresq://h/db", "--directory", str(tmp_path / "new"))
    assert answer.code == 2
    assert "did you mean 'postgresql'" in answer.err
    assert not (tmp_path / "new").exists()
