"""The archived log after faults of trims."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql.types import StructType

from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.branches.archived_log import ARCHIVE, LOG, encode_range, part_key
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import HistoryTrimmedError, OutcomeUnknownError
from polaris_spark.index import Entry
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance import trim as trimming
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from polaris_spark.spark.feed_reader import FeedReader
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.views import VIEWS
from polaris_spark.store.cache import process_cache
from polaris_spark.system.reference_reader import ReferenceReader
from tests.cli.catalogs import run
from tests.views.archived_log.steps import DAY, assert_same, changes, days, floor, parts, sweep
from tests.views.catalogs import Catalog


class TestGaps:
    """The log was not archived for a time, for example by an earlier release."""

    @pytest.fixture
    def gap(self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
        """Make a gap. Return the numbers of its first and last commit."""
        days(catalog, clock, 8)
        sweep(catalog)
        first = floor(catalog)
        days(catalog, clock, 8)
        monkeypatch.setattr(trimming, "archive_log", lambda *_, **__: None)
        call(catalog.session, "trim")
        monkeypatch.undo()
        days(catalog, clock, 8)
        last = floor(catalog) - 1
        sweep(catalog)
        return first, last

    def test_no_part_has_a_gap(self, catalog: Catalog, gap: tuple[int, int]) -> None:
        first, last = gap
        of_main = [part for part in parts(catalog) if part.line.startswith(b"cat/")]
        assert [(part.first, part.range.last) for part in of_main] == [
            (0, first - 1),
            (last + 1, floor(catalog) - 1),
        ]

    def test_the_whole_log_has_what_is_kept(self, catalog: Catalog, gap: tuple[int, int]) -> None:
        first, last = gap
        numbers = {row["number"] for row in catalog.read("changes")}
        assert numbers == {*range(1, first), *range(last + 1, max(numbers) + 1)}

    def test_it_is_not_skipped(self, catalog: Catalog, gap: tuple[int, int]) -> None:
        first, last = gap
        [time] = [row["committed_at"] for row in catalog.read("commits") if row["number"] == 2]
        for point in ("2", str(first - 1), time.isoformat(), "2001-01-01T00:00:00Z"):
            with pytest.raises(HistoryTrimmedError, match="has a gap"):
                catalog.read("changes", **{"from": point})
            options = {"view": "changes", "store": catalog.store, "catalog": "polaris", "start": point}
            stream = FeedReader(ViewOptions.parse(options, VIEWS), StructType([]))
            with pytest.raises(HistoryTrimmedError, match="has a gap"):
                stream.initialOffset()
        for point in (str(last), str(last + 3)):
            found = catalog.read("changes", **{"from": point})
            assert min(row["number"] for row in found) == int(point) + 1
        assert min(row["number"] for row in catalog.read("changes", to="2")) == 1
        followed = run("log", catalog.store, "--json", "--since", "2").json
        assert followed[-1]["number"] == last + 1

    def test_the_removal_of_old_logs_makes_none(
        self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A part whose times are ahead is kept, and so are the later parts."""
        monkeypatch.setattr("polaris_spark.catalog.branches.archived_log.COMMITS_OF_A_PART", 4)
        days(catalog, clock, 8)
        catalog.session.set_catalog_properties({"log-retention": "30 d"})
        sweep(catalog)
        before = [part.first for part in parts(catalog) if part.line.startswith(b"cat/")]
        assert len(before) > 1
        [first, *_] = [part for part in parts(catalog) if part.line.startswith(b"cat/")]
        ahead = msgspec.structs.replace(first.range, latest=first.range.latest + 100 * DAY)
        references = catalog.session.catalog.references

        class Ahead(Change[None, None]):
            operation = Operation(b"", "")

            def prepare(self, view: State) -> None:
                return None

            def apply(self, state: State, prepared: None) -> None:
                state.put(LOG, part_key(first.line, first.first), Entry(first.id, encode_range(ahead)))

            def repeat(self, state: State, entries: list[LogEntry]) -> None:
                raise AssertionError

        references.commit(ARCHIVE, Ahead())
        clock.advance(50 * DAY)
        sweep(catalog)
        assert [part.first for part in parts(catalog) if part.line.startswith(b"cat/")] == before
        clock.advance(100 * DAY)
        sweep(catalog)
        assert min(row["number"] for row in catalog.read("commits")) == floor(catalog)


class TestFaults:
    """A trim that fails, or runs at the same time as another one."""

    def test_a_trim_that_died_before_it_raised_the_floor(
        self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        days(catalog, clock, 8)
        before = changes(catalog)

        def die(*_: object) -> None:
            raise OutcomeUnknownError("the process died")

        monkeypatch.setattr(trimming, "_raise", die)
        with pytest.raises(OutcomeUnknownError):
            call(catalog.session, "trim")
        assert floor(catalog) == 0
        assert_same(changes(catalog), before)
        monkeypatch.undo()
        days(catalog, clock, 3)
        before = changes(catalog)
        sweep(catalog)
        assert floor(catalog) > 8
        assert_same(changes(catalog), before)

    @pytest.mark.parametrize("later", [False, True])
    def test_two_trims_at_once(
        self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, *, later: bool
    ) -> None:
        days(catalog, clock, 8)
        before = changes(catalog)
        references = catalog.session.catalog.references
        periods = [Policy(2 * DAY, 0, 365 * DAY), Policy(5 * DAY, 0, 365 * DAY)]
        archive = trimming.archive_log
        first, second = periods if later else reversed(periods)

        def meet(*arguments: Any, **named: Any) -> None:
            monkeypatch.setattr(trimming, "archive_log", archive)
            trim(references, second)
            archive(*arguments, **named)

        monkeypatch.setattr(trimming, "archive_log", meet)
        trim(references, first)
        sweep(catalog)
        assert_same(changes(catalog), before)

    @pytest.mark.parametrize("lost", ["entries_id", "commit_id"])
    def test_a_commit_that_is_lost_is_a_gap(
        self, catalog: Catalog, clock: ManualClock, caplog: pytest.LogCaptureFixture, lost: str
    ) -> None:
        """It does not stop trims and sweeps."""
        days(catalog, clock, 30)
        before = {row["number"] for row in catalog.read("changes")}
        references = catalog.session.catalog.references
        ids = {row["number"]: row[lost] for row in catalog.read("commits")}
        references.store.backend.delete_objects(references.store.realm, [ObjectKey(ids[5])])
        process_cache().clear()
        sweep(catalog)
        assert "the log of commit 5 of" in caplog.text
        found = {row["number"] for row in catalog.read("changes")}
        assert 5 in before - found
        assert lost == "commit_id" or before - found == {5}
        with pytest.raises(HistoryTrimmedError):
            catalog.read("changes", **{"from": "3"})
        assert call(catalog.session, "fsck") == []

    def test_a_part_that_is_lost_is_an_error(self, catalog: Catalog, clock: ManualClock) -> None:
        days(catalog, clock, 8)
        sweep(catalog)
        assert call(catalog.session, "fsck") == []
        objects = catalog.session.catalog.references.store
        lost = parts(catalog)[0].id
        objects.backend.delete_objects(objects.realm, [ObjectKey(lost)])
        process_cache().clear()
        assert call(catalog.session, "fsck") != []

    def test_commits_that_a_recovery_replaced_are_replaced_in_the_archive(
        self, catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A trim ends after it has archived commits. Then the reference is reset, and other commits get the same
        numbers."""
        days(catalog, clock, 8)
        name = catalog.session.catalog.reference
        references = catalog.session.catalog.references
        head = references.read(name).head
        monkeypatch.setattr(trimming, "_raise", lambda *_: None)
        trim(references, Policy(0, 0, 365 * DAY))
        monkeypatch.undo()
        third = ReferenceReader(references.store).open(head)
        reset = msgspec.structs.replace(head, commit=ancestor(references.store, head, 3), number=3, recent=())
        references.open(name).amend(lambda _: reset)
        assert third.head.number == 10
        days(catalog, clock, 9)
        before = changes(catalog)
        sweep(catalog)
        assert floor(catalog) > 6
        assert_same(changes(catalog), before)
