"""The cost of a request grows no faster than its size."""

from __future__ import annotations

import math
from typing import Any

import pytest

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.paths import normal_path
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.catalog.files.store_files import StoreFiles
from polaris_spark.catalog.metadata import overflow
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.errors import UnreadableFileError
from tests.rest.client import Client
from tests.rest.growth import growth, timed, work
from tests.rest.kinds import KINDS, add_schema, column, of_table

_FEW, _MANY = 50, 200
_INDEXED_MANY = 1_000
"""A size that lies beyond the move from a row into an index, which is a step."""
_STEEPEST = 6.0
"""Four times the size takes about four times the work, or sixteen times if each part reads all others."""

_STEEPENING = 1.4
"""A further part costs about as much in a large request as in a small one, or twice as much if it reads all others.
This finds such a step even if most of a small request's work does not depend on its size."""
_LITTLE = 2.0
"""Below this ratio the parts take so little of the work that its growth is due to steps in memory sizes."""

_STEEPEST_TIME = 8.0
"""The bound for processor time, which also depends on how much fits into the processor's caches."""
_TIMES = 3
"""How often a small request is measured; the shortest time counts. A large request is measured again, up to this number
of times, while its time is above the bound."""


_LEVELS = BOUNDS["levels of a namespace"] // 4
"""The size of the kind "levels of a namespace", which is limited further."""

_SPEEDY_S = 2.0
"""Far more than it takes to read a text of `_LONG` characters once, and far less than to read it for each character."""
_LONG = 30_000


_INDEXED = ("snapshots", "a snapshot", "tags", "a tag", "properties")
"""Prefixes of the names of those kinds that touch refs or properties."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_of_a_request_grows_with_its_size(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The move from a row into an index is a step. Here all sizes are in rows, in the next test in indexes.
    monkeypatch.setattr(overflow, "BOUND", math.inf)
    found = growth(KINDS[kind], _LEVELS if kind.startswith("levels") else _FEW)
    assert found.ratio < _STEEPEST, found
    assert found.steepening < _STEEPENING or found.ratio < _LITTLE, found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith(_INDEXED)])
def test_the_work_on_refs_and_properties_of_an_index_grows_with_their_number(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "BOUND", 0)
    found = growth(KINDS[kind], 2 * _FEW)
    assert found.ratio < _STEEPEST, found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_processor_time_of_a_large_request_grows_with_its_size(kind: str) -> None:
    size = _INDEXED_MANY if kind.startswith(_INDEXED) else _MANY
    if kind.startswith("levels"):
        size = _LEVELS
    work(KINDS[kind], size, timed)  # fills caches
    least = min(work(KINDS[kind], size, timed) for _ in range(_TIMES))
    large: list[int] = []
    for _ in range(_TIMES):
        large.append(work(KINDS[kind], 4 * size, timed))
        if large[-1] < _STEEPEST_TIME * least:
            return
    raise AssertionError(f"{large} ns for four times the size that takes {least} ns")


def test_the_measurement_finds_a_step_with_quadratic_cost() -> None:
    def prepare(client: Client, size: int) -> Any:  # as every kind
        parts = list(range(size))
        return lambda: [part for part in parts for other in parts if part is other]

    found = growth(prepare, _FEW)
    assert found.ratio > 2 * _STEEPEST
    assert found.steepening > 1.9


@pytest.mark.parametrize(
    "type",
    [
        "geometry(" + " " * _LONG,
        "geometry" + " " * _LONG + "(",
        "geography(" + " " * _LONG + "," + " " * _LONG,
        "decimal(" + "9" * _LONG,
        "fixed[" + "9" * _LONG + "]",
        "decimal(" + "9" * _LONG + ", 1)",
    ],
    ids=["geometry", "geometry without end", "geography", "decimal", "fixed", "digits"],
)
def test_the_text_of_a_type_is_read_once(catalog: Client, type: str) -> None:
    catalog.create("t")
    body = {"requirements": [], "updates": [add_schema(column(1, type=type))]}
    answers = []
    took = timed(lambda: answers.append(catalog.send("POST", "v1/namespaces/db/tables/t", body)))
    assert answers[0].kind == (400, "IllegalArgumentException")
    assert len(answers[0].error["message"]) < 1_000
    assert took < _SPEEDY_S * 1e9


def test_the_digits_of_a_default_value_are_read_once(catalog: Client) -> None:
    text = "1" * _LONG + "x"
    wrong = column(1, type="decimal(9, 2)", **{"initial-default": text})
    action = of_table(catalog, [add_schema(wrong)], properties={"format-version": "3"})

    def refused() -> None:
        with pytest.raises(AssertionError, match="Cannot parse default"):
            action()

    assert timed(refused) < _SPEEDY_S * 1e9


@pytest.mark.parametrize("escape", ["%" + "25" * _LONG, "%2%35" * _LONG, "%" * _LONG + "32%35" * _LONG])
def test_the_escapes_of_a_path_are_read_once(escape: str) -> None:
    assert timed(lambda: normal_path(f"/a/{escape}")) < _SPEEDY_S * 1e9


@pytest.mark.parametrize(
    "file",
    ["/w" + "/a" * 100 * _LONG, "file:///w" + "/b/.." * _LONG + "/c", "s3://b/%" + "25" * 100 * _LONG],
    ids=["segments", "upwards", "escapes"],
)
def test_a_file_with_a_long_path_is_refused_before_its_path_is_resolved(file: str) -> None:
    permit = Permit(["/w", "s3://b"], StoreFiles())
    assert timed(lambda: permit.may(file)) < _SPEEDY_S * 1e9
    assert permit.may(file) is None


def test_a_file_with_a_long_path_is_not_opened() -> None:
    with pytest.raises(UnreadableFileError, match="the maximum is 4096"):
        Files({}).stream("/w" + "/a" * 100 * _LONG)


def test_slashes_at_the_end_of_a_location_are_read_once(catalog: Client) -> None:
    location = "file:///tmp/growth" + "/" * 100 * _LONG
    action = of_table(catalog, [{"action": "set-location", "location": location}])
    assert timed(action) < _SPEEDY_S * 1e9
    assert catalog.load()["metadata"]["location"] == "file:///tmp/growth"
