"""The option `as-of`: an earlier state of the catalog."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.clock import ManualClock
from polaris_spark.commits.as_of import AsOf
from polaris_spark.errors import BeforeHistoryError, HistoryTrimmedError, InputError, NotFoundError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.views import VIEWS
from tests.views.catalogs import Catalog, rows


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `catalog`."""
    return ManualClock()


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> Catalog:
    """A catalog whose table t gets the properties i=0 to i=9, one a second."""
    made = Catalog(tmp_path / "c.db", clock=clock)
    made.namespace("db")
    made.table("db", "t")
    for i in range(10):
        clock.advance(1_000)
        made.set_property("db", "t", "i", str(i))
    return made


def _i(catalog: Catalog, as_of: str) -> str | None:
    [row] = catalog.read("tables", as_of=as_of)
    found: str | None = row["properties"].get("i")
    return found


def _commit(catalog: Catalog, i: int) -> int:
    changes = sorted(catalog.read("changes"), key=lambda row: row["number"])
    found: int = changes[i + 2]["commit_id"]
    return found


def test_a_commit_is_named_in_decimal_or_hexadecimal(catalog: Catalog) -> None:
    commit = _commit(catalog, 3)
    assert [_i(catalog, text) for text in (str(commit), f"{commit:x}", f"0x{commit:X}")] == ["3"] * 3


def test_a_time_is_named_in_milliseconds_or_as_text(catalog: Catalog, clock: ManualClock) -> None:
    then = clock.now_ms() - 3_000
    moment = datetime.fromtimestamp(then / 1_000, timezone.utc)
    texts = [
        str(then),
        moment.isoformat(),
        moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "+00:00",
        (moment + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "+02:00",
        moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "789Z",
    ]
    assert [_i(catalog, text) for text in texts] == ["6"] * len(texts)


def test_before_and_after_a_change(catalog: Catalog, clock: ManualClock) -> None:
    before = str(clock.now_ms())
    clock.advance(10)
    catalog.table("db", "late")
    assert [row["name"] for row in catalog.read("tables", as_of=before)] == ["t"]
    assert sorted(row["name"] for row in catalog.read("tables")) == ["late", "t"]
    assert len(catalog.read("index", as_of=before)) == 2
    assert max(row["number"] for row in catalog.read("commits", as_of=before)) == 12
    assert len(catalog.read("changes", as_of=before)) == 12


def test_a_commit_is_named_by_its_number(catalog: Catalog) -> None:
    numbers = {row["properties"]["i"]: row for row in catalog.read("tables")}
    assert list(numbers) == ["9"]
    for i in range(10):
        [change] = [row for row in catalog.read("changes") if row["commit_id"] == _commit(catalog, i)]
        assert _i(catalog, str(change["number"])) == str(i)
    assert len(catalog.read("changes", as_of="5")) == 5
    assert len(catalog.read("index", as_of="0")) == 0


def test_a_number_that_no_commit_has_is_refused(catalog: Catalog) -> None:
    for text in ("13", "99999999999"):
        with pytest.raises(InputError, match=f"as-of '{text}' is not a commit .* \\(number 12\\)"):
            catalog.read("tables", as_of=text)
    _raise_floor(catalog, 10)
    with pytest.raises(HistoryTrimmedError, match="as-of '9' is before commit number 10"):
        catalog.read("tables", as_of="9")


def test_a_number_needs_a_catalog(catalog: Catalog) -> None:
    for option in ("as_of", "from", "to"):
        with pytest.raises(
            InputError, match=r"the number of a commit of a catalog's branch: give .*'catalog'"
        ):
            rows("changes", store=catalog.store, **{option: "3"})


def test_a_number_is_one_of_the_branch_in_views_of_other_references(
    catalog: Catalog, clock: ManualClock
) -> None:
    report = {
        "report-type": "commit-report",
        "table-name": "polaris.db.t",
        "snapshot-id": 1,
        "sequence-number": 1,
        "operation": "append",
        "metrics": {},
    }
    catalog.request("POST", "v1/namespaces/db/tables/t/metrics", report)
    catalog.session.catalog.metrics.flush()
    clock.advance(1_000)
    catalog.set_property("db", "t", "i", "10")
    assert len(catalog.read("metrics", as_of="13")) == 1
    assert catalog.read("metrics", as_of="11") == []


def test_small_numbers_are_commits_and_large_ones_are_times() -> None:
    assert AsOf.parse("99999999999").number == 99_999_999_999
    assert AsOf.parse("100000000000").time == 100_000_000_000
    assert AsOf.parse("253402300799999").time == 253_402_300_799_999
    assert AsOf.parse("253402300800000").commits[0] == 253_402_300_800_000
    assert AsOf.parse("0xa").commits == (10,)


def test_a_time_before_the_catalog_is_refused(catalog: Catalog, clock: ManualClock) -> None:
    began = min(catalog.read("commits"), key=lambda row: row["number"])["committed_at"]
    when = began.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    with pytest.raises(BeforeHistoryError, match=rf"begins at {when}.*Z, after the time asked for, [^\n]*Z$"):
        catalog.read("tables", as_of=str(clock.now_ms() - 86_400_000))


def test_an_id_of_no_commit_is_refused(catalog: Catalog) -> None:
    [table] = catalog.read("tables")
    for id in (table["content_id"], catalog.head() + 12345):
        with pytest.raises(InputError, match="is not a commit of this history"):
            catalog.read("tables", as_of=str(id))


def test_a_commit_of_another_catalog_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    other = Catalog(tmp_path / "c.db", catalog="other")
    other.namespace("x")
    with pytest.raises(InputError, match="is not a commit of this history"):
        catalog.read("tables", as_of=str(other.head()))
    with pytest.raises(InputError, match="is not a commit of this history"):  # one from before `other` began
        other.read("tables", as_of=str(_commit(catalog, 3)))
    other.session.close()


def test_without_a_catalog_the_others_are_shown_as_of_that_commit(
    catalog: Catalog, clock: ManualClock, tmp_path: Path
) -> None:
    other = Catalog(tmp_path / "c.db", catalog="other")
    clock.advance(1_000)
    other.namespace("x")
    clock.advance(1_000)
    catalog.namespace("between")
    between = catalog.head()
    clock.advance(1_000)
    other.namespace("y")
    for view in ("index", "namespaces"):
        found = rows(view, store=catalog.store, as_of=f"{between:x}")
        names = sorted((row["catalog"], row["name"]) for row in found if row.get("kind") != "table")
        assert names == [("other", "x"), ("polaris", "between"), ("polaris", "db")]
    changes = rows("changes", store=catalog.store, as_of=str(between))
    assert {row["name"] for row in changes if row["catalog"] == "other"} == {"x"}
    other.session.close()


def test_catalogs_that_did_not_exist_yet_are_left_out(
    catalog: Catalog, clock: ManualClock, tmp_path: Path
) -> None:
    then = str(clock.now_ms())
    clock.advance(1_000)
    other = Catalog(tmp_path / "c.db", catalog="other")
    other.namespace("x")
    assert {row["catalog"] for row in rows("index", store=catalog.store)} == {"polaris", "other"}
    assert {row["catalog"] for row in rows("index", store=catalog.store, as_of=then)} == {"polaris"}
    other.session.close()


def test_below_the_history_floor_is_refused(catalog: Catalog) -> None:
    third, last = _commit(catalog, 3), _commit(catalog, 9)
    _raise_floor(catalog, 10)
    with pytest.raises(HistoryTrimmedError, match="is before commit number 10"):
        catalog.read("tables", as_of=str(third))
    assert _i(catalog, str(last)) == "9"
    assert sorted(row["number"] for row in catalog.read("commits")) == [10, 11, 12]


@pytest.mark.parametrize(
    "text", ["yesterday", "", "-5", "2026-13-01", "0xzz", "12345678901234567890123", "9" * 5_000]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"as-of is .*ISO 8601"):
        AsOf.parse(text)


@pytest.mark.parametrize("option", ["as-of", "from", "to", "start"])
@pytest.mark.parametrize("text", ["2026-01-31T12:00:00", "2026-01-31 12:00:00.5", "2026-01-31"])
def test_a_time_without_a_zone_is_refused(option: str, text: str) -> None:
    given = {"store": "sqlite:///x.db", "view": "changes", option: text}
    with pytest.raises(InputError, match=rf"^{option} is '{text}', a time without a zone: .*T12:00:00Z or"):
        ViewOptions.parse(given, VIEWS)


@pytest.mark.parametrize("view", ["objects", "references"])
def test_views_of_rows_have_no_as_of(catalog: Catalog, view: str) -> None:
    with pytest.raises(InputError, match=f"view '{view}' does not support the option as-of"):
        catalog.read(view, as_of=str(catalog.head()))


def _raise_floor(catalog: Catalog, number: int) -> None:
    [floor] = [row for row in catalog.read("commits") if row["number"] == number]
    references = catalog.session.catalog.references
    age = references.clock.now_ms() - round(floor["committed_at"].timestamp() * 1_000)
    trimmed = {one.reference: one.after for one in trim(references, Policy(age, 0))}
    assert trimmed[head_name(catalog.session.catalog.row)] == number


def test_a_tag_or_branch_is_named(catalog: Catalog) -> None:
    call(catalog.session, "create_tag", name="v1", at=str(_commit(catalog, 4)))
    call(catalog.session, "create_branch", name="dev", at=str(_commit(catalog, 6)))
    assert (_i(catalog, "v1"), _i(catalog, "dev"), _i(catalog, "main")) == ("4", "6", "9")
    assert [row["properties"]["i"] for row in catalog.read("tables", branch="v1")] == ["4"]
    with pytest.raises(NotFoundError, match="has no branch or tag of this name"):
        catalog.read("tables", as_of="v2")
    for name in ("beef", "2026"):  # also the hexadecimal id and the number of no commit
        call(catalog.session, "create_tag", name=name, at=str(_commit(catalog, 5)))
        assert _i(catalog, name) == "5"
    with pytest.raises(InputError, match="as-of '2027' is not a commit of this history"):
        catalog.read("tables", as_of="2027")
    with pytest.raises(InputError, match="as-of is 'v1'; it must be a commit number"):
        catalog.read("changes", as_of="v1")
