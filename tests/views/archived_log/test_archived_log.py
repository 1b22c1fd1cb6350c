"""The log is kept after its commits were trimmed and swept: no entry is lost or duplicated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual

from polaris_spark.catalog.branches.archived_log import ARCHIVE, COMMITS_OF_A_PART, Archive, LogPart
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.clock import ManualClock
from polaris_spark.errors import HistoryTrimmedError
from polaris_spark.jobs.registry import call
from polaris_spark.spark.realm_reader import RealmReader
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registry import ROOT
from tests.cli.catalogs import run
from tests.views.archived_log.steps import (
    DAY,
    assert_same,
    branch,
    changes,
    days,
    floor,
    of_branch,
    parts,
    sweep,
)
from tests.views.catalogs import Catalog, rows


def test_every_change_is_in_the_log_after_a_sweep_and_says_whether_its_state_is_stored(
    catalog: Catalog, clock: ManualClock
) -> None:
    days(catalog, clock, 8)
    before, commits = changes(catalog), rows("commits", store=catalog.store)
    sweep(catalog)
    assert floor(catalog) > 5
    assert_same(changes(catalog), before)
    stored = {row["number"]: row["state_stored"] for row in catalog.read("changes")}
    assert stored == {number: number >= floor(catalog) for number in stored}
    gone = {(row["reference"], row["number"]): row for row in commits}
    for row in rows("commits", store=catalog.store):
        if row["state_stored"]:
            continue
        was = gone[row["reference"], row["number"]]
        differing = {name for name in row if row[name] != was[name]}
        assert differing <= {"state_stored", "entries_id", "indexes"}
        assert (row["entries_id"], row["indexes"]) == (None, {})


def test_the_state_of_an_archived_commit_cannot_be_read(catalog: Catalog, clock: ManualClock) -> None:
    days(catalog, clock, 8)
    sweep(catalog)
    with pytest.raises(HistoryTrimmedError, match="before commit number"):
        catalog.read("tables", as_of="3")
    assert max(row["number"] for row in catalog.read("changes", as_of="3")) == 3


def test_filters_read_only_the_parts_that_they_allow(
    catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, clock, 30)
    monkeypatch.setattr("polaris_spark.catalog.branches.archived_log.COMMITS_OF_A_PART", 5)
    sweep(catalog)
    line = [part for part in parts(catalog) if b"cat/" in part.line]
    assert len(line) > 5
    everything = catalog.read("changes")
    read: list[int] = []
    decode = LogPart.commits
    monkeypatch.setattr(LogPart, "commits", lambda part, id: read.append(1) or decode(part, id))
    twelfth = next(row for row in everything if row["number"] == 12)
    for pushed, allowed in (
        (EqualTo(("number",), 12), {12}),
        (EqualTo(("commit_id",), twelfth["commit_id"]), {12}),
        (EqualTo(("committed_at",), twelfth["committed_at"]), {12}),
        (In(("number",), (12, 13)), {12, 13}),
    ):
        read.clear()
        found = [row for row in catalog.read("changes", pushed, prune="true") if row["number"] in allowed]
        assert found == [row for row in everything if row["number"] in allowed]
        assert len(read) <= 2, pushed
    read.clear()
    newest = catalog.read("changes", GreaterThan(("number",), floor(catalog)), prune="true")
    assert newest
    assert not read
    oldest = catalog.read("changes", LessThanOrEqual(("number",), 4), prune="true")
    assert {row["number"] for row in oldest} >= {1, 2, 3, 4}


def test_nightly_trims_fill_parts(
    catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polaris_spark.catalog.branches.archived_log.COMMITS_OF_A_PART", 4)
    for _ in range(3):
        days(catalog, clock, 5)
        before = changes(catalog)
        sweep(catalog)
        assert_same(changes(catalog), before)
    of_main = [part for part in parts(catalog) if part.line.startswith(b"cat/")]
    assert [part.first for part in of_main] == list(range(0, floor(catalog), 4))
    assert [part.range.is_full for part in of_main[:-1]] == [True] * (len(of_main) - 1)


def test_the_log_is_removed_when_it_is_old(catalog: Catalog, clock: ManualClock) -> None:
    catalog.session.set_catalog_properties({"log-retention": "30 d"})
    days(catalog, clock, 8)
    sweep(catalog)
    assert min(row["number"] for row in catalog.read("changes")) == 1
    clock.advance(20 * DAY)
    days(catalog, clock, 1)
    sweep(catalog)
    assert min(row["number"] for row in catalog.read("changes")) == 1
    clock.advance(40 * DAY)
    sweep(catalog)
    assert [row["state_stored"] for row in catalog.read("changes")] == [True]
    assert parts(catalog) == [part for part in parts(catalog) if not part.line.startswith(b"cat/")]
    with pytest.raises(HistoryTrimmedError):
        catalog.read("changes", **{"from": "1"})


def test_a_log_that_is_kept_for_less_time_than_the_states_is_not_archived(
    catalog: Catalog, clock: ManualClock
) -> None:
    catalog.session.set_catalog_properties({"log-retention": "1 d"})
    days(catalog, clock, 8)
    sweep(catalog)
    assert floor(catalog) > 5
    assert {part.range.reference for part in parts(catalog)} <= {ROOT, CATALOGS}
    commits = [row for row in rows("commits", store=catalog.store) if row["reference"] == ARCHIVE]
    days(catalog, clock, 1)
    sweep(catalog)
    later = [row for row in rows("commits", store=catalog.store) if row["reference"] == ARCHIVE]
    assert len(later) <= len(commits) + 1


def test_without_log_retention_nothing_is_archived(catalog: Catalog, clock: ManualClock) -> None:
    catalog.session.set_catalog_properties({"log-retention": "0 s"})
    days(catalog, clock, 8)
    sweep(catalog)
    assert min(row["number"] for row in catalog.read("changes")) == floor(catalog)
    assert {part.range.reference for part in parts(catalog)} <= {ROOT, CATALOGS}


class TestRealm:
    """`changes` and `commits` without a catalog have the logs of all references."""

    @pytest.mark.parametrize("option", ["from", "to", "as-of"])
    @pytest.mark.parametrize("point", ["time", "early time", "id", "archived id", "id of a dropped branch"])
    def test_points(self, catalog: Catalog, clock: ManualClock, option: str, point: str) -> None:
        """A point is a commit of any reference, or a time; some of the references are gone, or began later."""
        days(catalog, clock, 3)
        branch(catalog, clock, n=4)
        call(catalog.session, "drop_branch", name="dev")
        branch(catalog, clock, "live", n=5)
        sweep(catalog)
        days(catalog, clock, 3)
        everything = rows("commits", store=catalog.store)
        main, dev = (
            sorted(
                (row for row in everything if row["reference"].endswith(f"heads/{name}")),
                key=lambda row: row["number"],
            )
            for name in ("main", "dev")
        )
        row = {
            "time": main[-2],
            "early time": main[1],
            "id": main[-2],
            "archived id": main[2],
            "id of a dropped branch": dev[-2],
        }[point]
        assert row["state_stored"] == (row is main[-2])
        text = row["committed_at"].isoformat() if "time" in point else str(row["commit_id"])
        time = row["committed_at"]
        expected = [
            (row["reference"], row["number"], row["commit_id"])
            for row in everything
            if (row["committed_at"] > time if option == "from" else row["committed_at"] <= time)
        ]
        found = rows("commits", store=catalog.store, **{option: text})
        assert sorted((row["reference"], row["number"], row["commit_id"]) for row in found) == sorted(
            expected
        )
        [reference] = {row["reference"] for row in main}
        pushed = EqualTo(("reference",), reference)
        of_main = rows("commits", pushed, store=catalog.store, prune="true", **{option: text})
        assert sorted(row["number"] for row in of_main) == sorted(
            number for name, number, _ in expected if name == reference
        )

    def test_a_renamed_branch_has_its_log_under_its_present_name(
        self, catalog: Catalog, clock: ManualClock
    ) -> None:
        branch(catalog, clock, n=8)
        sweep(catalog)
        call(catalog.session, "rename_branch", name="dev", to="new")
        for name in ("dev", "new"):
            reference = catalog.session.catalog.reference.replace("main", name)
            pushed = EqualTo(("reference",), reference)
            filtered = rows("changes", pushed, store=catalog.store, prune="true")
            found = [row["commit_id"] for row in of_branch(catalog, name)]
            assert sorted(row["commit_id"] for row in filtered) == sorted(found)
            assert bool(found) == (name == "new")

    @pytest.mark.parametrize("read", ["archive", "catalogs", "listed", "head_of"])
    def test_a_trim_during_planning(
        self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, read: str
    ) -> None:
        days(catalog, clock, 8)
        before = changes(catalog)
        method, trims = getattr(RealmReader, read), iter([True])

        def reads(*arguments: Any) -> Any:
            found = method(*arguments)
            if next(trims, False):
                call(catalog.session, "trim")
            return found

        monkeypatch.setattr(RealmReader, read, reads)
        during = changes(catalog)
        assert not next(trims, False)
        keys = [(row["reference"], row["number"], row["position"]) for row in during]
        assert len(keys) == len(set(keys))
        assert {(row["reference"], row["number"], row["position"]) for row in before} <= set(keys)


def test_the_command_log_shows_archived_commits(catalog: Catalog, clock: ManualClock) -> None:
    days(catalog, clock, 8)
    before = run("log", catalog.store, "--json").json
    sweep(catalog)
    after = run("log", catalog.store, "--json").json
    assert [{**commit, "stored": True} for commit in after] == before
    assert [commit["number"] for commit in after if not commit["stored"]] == list(
        range(floor(catalog) - 1, -1, -1)
    )
    text = run("log", catalog.store).out
    assert f"the states of commit {floor(catalog) - 1} and earlier were trimmed" in text
    some = run("log", catalog.store, "--json", "--since", "2", "--until", "5").json
    assert [commit["number"] for commit in some] == [5, 4, 3]
    of_root = run("log", catalog.store, "--json", "--reference", "root").json
    assert of_root[-1]["number"] == 0


def test_the_archive_moves_with_its_realm(catalog: Catalog, clock: ManualClock, tmp_path: Path) -> None:
    days(catalog, clock, 8)
    before = changes(catalog)
    sweep(catalog)
    target = f"sqlite://{tmp_path / 'other.db'}"
    call(catalog.session, "migrate_realm", target=target)
    found = rows("changes", store=target)
    commits = {(row["reference"], row["commit_id"], row["position"]) for row in before}
    assert commits <= {(row["reference"], row["commit_id"], row["position"]) for row in found}


def test_many_commits_fill_several_parts_of_little_size(catalog: Catalog, clock: ManualClock) -> None:
    for i in range(2 * COMMITS_OF_A_PART + 10):
        catalog.set_property("db", "t", "i", str(i))
    clock.advance(4 * DAY)
    days(catalog, clock, 1)
    clock.advance(4 * DAY)
    sweep(catalog)
    of_main = [part for part in parts(catalog) if part.line.startswith(b"cat/")]
    assert [part.range.is_full for part in of_main] == [True, True, False]
    objects = catalog.session.catalog.references.store
    size = sum(len(objects.get(part.id, LogPart).compressed) for part in of_main)
    assert size / (2 * COMMITS_OF_A_PART) < 100
    assert json.dumps(size)
    assert Archive(ReferenceReader(objects)).lines()
