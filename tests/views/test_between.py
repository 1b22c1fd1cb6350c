"""The options `from` and `to`: the changes between two points."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual

from polaris_spark.backends.base import ObjectKey
from polaris_spark.clock import ManualClock
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError, InputError
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from polaris_spark.spark.views import VIEWS
from polaris_spark.store.cache import process_cache
from tests.views.catalogs import Catalog, Row, archive, reader, rows


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `catalog`."""
    return ManualClock()


@pytest.fixture
def stored(tmp_path: Path, clock: ManualClock) -> Catalog:
    """A catalog with the commits number 0 to 11, one a second: its creation, a namespace, and ten tables."""
    made = Catalog(tmp_path / "c.db", clock=clock)
    clock.advance(1_000)
    made.namespace("db")
    for i in range(10):
        clock.advance(1_000)
        made.table("db", f"t{i}")
    return made


@pytest.fixture(params=[0, 8, 11])
def catalog(stored: Catalog, request: pytest.FixtureRequest) -> Catalog:
    """The same catalog, with the log of a number of commits archived and the commits deleted."""
    if request.param:
        archive(stored, request.param)
    return stored


def _commits(catalog: Catalog) -> dict[int, Row]:
    return {row["number"]: row for row in catalog.read("commits")}


def _numbers(catalog: Catalog, view: str = "changes", **options: str) -> list[int]:
    return sorted(row["number"] for row in catalog.read(view, **options))


def test_the_beginning_is_left_out_and_the_end_is_included(catalog: Catalog) -> None:
    ids = {number: row["commit_id"] for number, row in _commits(catalog).items()}
    for view in ("changes", "commits"):
        between = {"from": str(ids[3]), "to": f"{ids[6]:x}"}
        assert _numbers(catalog, view, **between) == [4, 5, 6]
        assert _numbers(catalog, view, **{"from": str(ids[9])}) == [10, 11]
        assert _numbers(catalog, view, **{"from": str(ids[11])}) == []
        assert _numbers(catalog, view, **{"from": str(ids[5]), "to": str(ids[5])}) == []
    assert _numbers(catalog, "commits", to=str(ids[2])) == [0, 1, 2]
    assert _numbers(catalog, "commits", **{"from": str(ids[9]), "as-of": str(ids[10])}) == [10]


def test_numbers_are_points_too(catalog: Catalog) -> None:
    assert _numbers(catalog, **{"from": "3", "to": "6"}) == [4, 5, 6]
    assert _numbers(catalog, "commits", **{"from": "0"}) == list(range(1, 12))
    assert _numbers(catalog, "commits", to="0") == [0]
    assert _numbers(catalog, **{"from": "11"}) == []
    with pytest.raises(InputError, match=r"'from' \('6'\) comes after the option 'to' \('3'\)"):
        catalog.read("changes", **{"from": "6", "to": "3"})
    with pytest.raises(InputError, match="from '12' is not a commit"):
        catalog.read("changes", **{"from": "12"})


def test_times_are_points_too(catalog: Catalog) -> None:
    at = {number: row["committed_at"] for number, row in _commits(catalog).items()}
    between = {"from": at[3].isoformat(), "to": str(round(at[6].timestamp() * 1_000))}
    assert _numbers(catalog, **between) == [4, 5, 6]
    almost = str(round(at[6].timestamp() * 1_000) - 1)
    assert _numbers(catalog, **{"from": at[3].isoformat(), "to": almost}) == [4, 5]
    assert _numbers(catalog, **{"from": almost}) == [6, 7, 8, 9, 10, 11]
    assert _numbers(catalog, "commits", **{"from": "2001-01-01T00:00:00Z"}) == list(range(12))
    assert _numbers(catalog, **{"from": "2101-01-01T00:00:00Z"}) == []


def test_together_the_pieces_between_points_are_the_whole(catalog: Catalog) -> None:
    ids = [str(row["commit_id"]) for _, row in sorted(_commits(catalog).items())]
    points = [None, ids[2], ids[2], ids[7], None]
    found: list[int] = []
    for since, until in pairwise(points):
        given = {"from": since, "to": until}
        found += _numbers(catalog, "commits", **{k: v for k, v in given.items() if v is not None})
    assert found == list(range(12))


def test_filters_cut_further(catalog: Catalog) -> None:
    ids = {number: row["commit_id"] for number, row in _commits(catalog).items()}
    at_least = GreaterThanOrEqual(("number",), 5)
    found = catalog.read("changes", at_least, prune="true", **{"from": str(ids[3]), "to": str(ids[6])})
    assert sorted(row["number"] for row in found) == [5, 6]
    below = GreaterThanOrEqual(("number",), 1)
    found = catalog.read("changes", below, prune="true", **{"from": str(ids[3]), "to": str(ids[6])})
    assert sorted(row["number"] for row in found) == [4, 5, 6]


def test_points_that_are_none_of_the_history_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    other = Catalog(tmp_path / "c.db", catalog="other")
    other.namespace("x")
    [table] = [row for row in catalog.read("tables") if row["name"] == "t0"]
    for id in (other.head(), table["content_id"], other.head() + 4_711):
        for option in ("from", "to"):
            with pytest.raises(InputError, match=f"{option} '{id}' is not a commit of this history"):
                catalog.read("changes", **{option: str(id)})
    with pytest.raises(InputError, match="from is 'soon'; it must be a commit number"):
        catalog.read("changes", **{"from": "soon"})
    with pytest.raises(BeforeHistoryError, match=r"begins at .*Z, after"):
        catalog.read("changes", to="2001-01-01T00:00:00Z")
    other.session.close()


def test_a_beginning_after_the_end_is_refused(catalog: Catalog) -> None:
    rows_by_number = _commits(catalog)
    late, early = rows_by_number[9], rows_by_number[4]
    as_text = [(str(row["commit_id"]), row["committed_at"].isoformat()) for row in (late, early)]
    for since in as_text[0]:
        for until in as_text[1]:
            with pytest.raises(
                InputError, match=rf"'from' .* comes after the option 'to' \('.*{until[-5:]}'\)"
            ):
                catalog.read("changes", **{"from": since, "to": until})
    with pytest.raises(InputError, match="comes after"):
        catalog.read("changes", **{"from": "2101-01-02T00:00:00Z", "to": "2101-01-01T00:00:00Z"})


def test_each_end_can_be_given_only_once(catalog: Catalog) -> None:
    with pytest.raises(InputError, match="'to' and 'as-of' both set the end of a history"):
        catalog.read("changes", **{"to": "2101-01-01T00:00:00Z", "as-of": "2101-01-01T00:00:00Z"})


def test_trimmed_commits_are_refused_and_later_ones_are_not(stored: Catalog, clock: ManualClock) -> None:
    commits = _commits(stored)
    references = stored.session.catalog.references
    age = clock.now_ms() - round(commits[6]["committed_at"].timestamp() * 1_000)
    trim(references, Policy(age, 0))
    assert min(_commits(stored)) == 6
    for number in (0, 4):
        for point in (str(commits[number]["commit_id"]), commits[number]["committed_at"].isoformat()):
            with pytest.raises(HistoryTrimmedError, match=r"is before commit number 6|begins at"):
                stored.read("changes", **{"from": point})
    # All that came after the last one that was trimmed away is there, even once that itself is swept.
    backend, realm = references.store.backend, references.store.realm
    backend.delete_objects(realm, [ObjectKey(commits[n]["commit_id"]) for n in range(6)])
    process_cache().clear()
    assert _numbers(stored, **{"from": str(commits[5]["commit_id"])}) == [6, 7, 8, 9, 10, 11]
    assert _numbers(stored, **{"from": "5"}) == [6, 7, 8, 9, 10, 11]
    with pytest.raises(HistoryTrimmedError, match="from '4' is before commit number"):
        stored.read("changes", **{"from": "4"})
    until = str(commits[8]["commit_id"])
    assert _numbers(stored, **{"from": str(commits[5]["commit_id"]), "to": until}) == [6, 7, 8]
    gone = f"0x{commits[4]['commit_id']:x}"
    with pytest.raises(HistoryTrimmedError, match=f"from '{gone}' is before commit number"):
        stored.read("changes", **{"from": gone})


def test_without_a_catalog_other_references_are_cut_at_the_time_of_the_commit(
    catalog: Catalog, clock: ManualClock, tmp_path: Path
) -> None:
    other = Catalog(tmp_path / "c.db", catalog="other", clock=clock)
    clock.advance(1_000)
    other.namespace("x")
    clock.advance(1_000)
    catalog.namespace("between")
    between = str(catalog.head())
    clock.advance(1_000)
    other.namespace("y")
    clock.advance(1_000)
    catalog.namespace("after")

    def names(**options: str) -> set[tuple[str, str]]:
        found = rows("changes", store=catalog.store, **options)
        return {(row["catalog"], row["name"]) for row in found if row["kind"] == "namespace"}

    assert names(**{"from": between}) == {("other", "y"), ("polaris", "after")}
    assert names(to=between) == {("other", "x"), ("polaris", "between"), ("polaris", "db")}
    assert names(**{"from": str(other.head())}) == {("polaris", "after")}
    with pytest.raises(InputError, match="from '12345678901234567' is not a commit"):
        names(**{"from": "12345678901234567"})
    other.session.close()


def test_a_commit_of_another_catalog_is_found_though_its_number_is_below_the_floor(
    stored: Catalog, clock: ManualClock, tmp_path: Path
) -> None:
    references = stored.session.catalog.references
    trim(references, Policy(1_000, 0))
    clock.advance(10_000)
    other = Catalog(tmp_path / "c.db", catalog="other", clock=clock)
    other.namespace("x")  # its number 1 is far below the floor of the first catalog
    point = str(other.head())
    clock.advance(1_000)
    other.namespace("y")
    for view in ("namespaces", "index"):
        found = {row["name"] for row in rows(view, store=stored.store, as_of=point)}
        assert {"x", "db"} <= found
        assert "y" not in found
    assert [row["name"] for row in rows("changes", store=stored.store, **{"from": point})] == ["y"]
    other.session.close()


@pytest.mark.parametrize("view", [name for name, view in VIEWS.items() if not view.has_range])
def test_views_of_a_state_have_neither(catalog: Catalog, view: str) -> None:
    for option in ("from", "to"):
        with pytest.raises(
            InputError, match=f"view '{view}' does not support the option {option}: it shows a state"
        ):
            catalog.read(view, **{option: "2101-01-01T00:00:00Z"})


def test_planning_between_points_reads_no_more_than_that(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    for i in range(500):
        catalog.set_property("db", "t", "i", str(i))
    ids = {row["number"]: str(row["commit_id"]) for row in catalog.read("commits")}
    options = {"store": catalog.store, "catalog": "polaris", "splits": "4", "from": ids[210], "to": ids[215]}
    [partition] = reader("changes", **options).partitions()
    [task] = partition.tasks  # type: ignore[attr-defined]  # of this data source
    assert (task.low, task.high) == (211, 215)
    everything = {"store": catalog.store, "catalog": "polaris", "splits": "4"}
    assert len(reader("changes", **everything).partitions()) == 3
    catalog.session.close()
