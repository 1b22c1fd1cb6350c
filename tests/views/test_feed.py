"""The feed without Spark. The tests call its reader as Spark does, with offsets that were converted to JSON and
back."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle

from polaris_spark.backends.base import ObjectKey
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    HistoryTrimmedError,
    InputError,
    MissingObjectError,
    ReferenceGoneError,
    StateError,
)
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.spark.datasource import PolarisObjects
from polaris_spark.spark.feed import Followed
from polaris_spark.spark.feed_reader import FeedReader
from polaris_spark.store.cache import process_cache
from polaris_spark.system.registry import ROOT
from tests.cli.catalogs import run
from tests.stores import SHARED, StoreOn, configured, databases
from tests.views.catalogs import Catalog, Row, archive, rows

TABLES = ("t0", "t1", "t2", "t3", "t4")


class Stream:
    """A streaming query that calls a reader like Spark 4.1: it logs the end of a batch before it reads the batch."""

    def __init__(self, store: str, **options: str) -> None:
        self.options = {**configured(store), "view": "changes"}
        self.options.update({name.replace("_", "-"): text for name, text in options.items()})
        if "reference" not in options:
            self.options.setdefault("catalog", "polaris")
        self.ends: list[str] = []
        self.committed = 0
        self.start()

    def start(self) -> None:
        """Begin, or continue from the checkpoint. A new process has a new reader."""
        source = pickle.loads(cloudpickle.dumps(PolarisObjects(self.options)))
        self.reader = source.streamReader(source.schema())
        if self.ends:
            latest = json.loads(self.ends[-1])
            assert list(self.reader.partitions(latest, latest)) == []

    def batch(self, *, crash: bool = False) -> list[Row]:
        """The rows of the next batch, in order; nothing if there is no new one.

        Args:
            crash: the query ends before the batch is committed.
        """
        if self.committed == len(self.ends):
            end = json.dumps(self.reader.latestOffset())
            if self.ends and end == self.ends[-1]:
                return []
            self.ends.append(end)
        first = self.ends[self.committed - 1] if self.committed else json.dumps(self.reader.initialOffset())
        partitions = self.reader.partitions(json.loads(first), json.loads(self.ends[-1]))
        found = []
        for partition in partitions:
            there, copy = pickle.loads(cloudpickle.dumps((self.reader, partition)))
            found += [row for batch in there.read(copy) for row in batch.to_pylist()]
        if crash:
            self.start()
        else:
            self.committed += 1
        return found

    def drain(self) -> list[list[Row]]:
        """Return all batches with rows, until there is no new one."""
        found = []
        while rows := self.batch():
            found.append(rows)
        return found


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `busy`."""
    return ManualClock()


@pytest.fixture
def busy(tmp_path: Path, clock: ManualClock) -> Iterator[Catalog]:
    """A catalog with five tables, and thirty commits. Each commit changes all tables, with one log entry for each."""
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    catalog.namespace("db")
    for name in TABLES:
        catalog.table("db", name)
    for i in range(30):
        clock.advance(1_000)
        transact(catalog, i)
    yield catalog
    catalog.session.close()


@pytest.fixture(params=[0, 20, 36])
def either(busy: Catalog, request: pytest.FixtureRequest) -> Catalog:
    """The same catalog, with and without an archived part of the log whose commits were deleted."""
    if request.param:
        archive(busy, request.param)
    return busy


def transact(catalog: Catalog, i: int) -> None:
    """Change all tables in one commit."""
    updates = [{"action": "set-properties", "updates": {"i": str(i)}}]
    changes = [
        {"identifier": {"namespace": ["db"], "name": name}, "requirements": [], "updates": updates}
        for name in TABLES
    ]
    catalog.request("POST", "v1/transactions/commit", {"table-changes": changes})


def logged(catalog: Catalog, **options: str) -> list[tuple[int, int]]:
    """Return the number and position of all changes, from the view `changes`."""
    found = rows("changes", **configured(catalog.store), **{"catalog": "polaris", **options})
    return sorted(order(row) for row in found)


def order(row: Row) -> tuple[int, int]:
    return row["number"], row["position"]


def trim(catalog: Catalog, number: int) -> None:
    """Raise the floor of the branch to a commit."""
    references, name = catalog.session.catalog.references, catalog.session.catalog.reference
    head = references.read(name).head
    floor = references.store.get(ancestor(references.store, head, number), Commit)
    references.open(name).amend(lambda head: raise_floor(head, floor))


def test_the_feed_is_the_log_in_order_with_the_same_rows(either: Catalog) -> None:
    stream = Stream(either.store)
    found = stream.batch()
    assert [order(row) for row in found] == logged(either)
    assert len(found) == 6 + 30 * 5
    table = {order(row): row for row in rows("changes", store=either.store, catalog="polaris")}
    for row in found:
        assert {**row, "summary": dict(row["summary"])} == table[order(row)]
    assert stream.batch() == []
    assert len(stream.ends) == 1


@pytest.mark.parametrize("most", [1, 3, 5, 7, 1_000])
def test_a_batch_holds_at_most_as_many_changes_as_asked_for_and_all_come_once(
    either: Catalog, most: int
) -> None:
    batches = Stream(either.store, max_changes_per_batch=str(most)).drain()
    assert [order(row) for batch in batches for row in batch] == logged(either)
    assert all(len(batch) == most for batch in batches[:-1])
    assert len(batches[-1]) <= most


def test_a_restart_in_mid_commit_goes_on_there_and_repeats_a_batch_that_was_not_committed(
    either: Catalog,
) -> None:
    stream = Stream(either.store, max_changes_per_batch="7")
    found = []
    for _ in range(60):
        lost = stream.batch(crash=True)
        transact(either, 0) if len(found) < 100 else None
        again = stream.batch()
        assert [order(row) for row in again] == [order(row) for row in lost]
        found += again
        stream.start()
    assert [order(row) for row in found] == logged(either)


def test_the_first_batch_begins_where_it_began_before_a_crash(busy: Catalog) -> None:
    early = Stream(busy.store, max_changes_per_batch="20")
    late = Stream(busy.store, start="latest")
    expected = early.batch(crash=True)
    assert late.batch(crash=True) == []
    transact(busy, 1)
    trim(busy, 4)  # what is left begins later than the batch did
    assert late.batch() == []
    assert [order(row) for row in late.batch()] == logged(busy)[-5:]
    with pytest.raises(HistoryTrimmedError, match=r"\(number 0, 0 of its log entries\).* commit number 4"):
        early.batch()
    assert len(expected) == 20


def test_the_start_is_the_earliest_or_latest_or_after_a_commit_or_a_time(either: Catalog) -> None:
    everything = logged(either)
    commit = next(row for row in either.read("commits") if row["number"] == 20)
    after = [at for at in everything if at[0] > 20]
    # Commits lie a second apart, and a time belongs to the commit before it.
    time = int(commit["committed_at"].timestamp() * 1_000) + 500
    for start, expected in {
        "earliest": everything,
        "latest": [],
        str(commit["commit_id"]): after,
        f"{commit['commit_id']:x}": after,
        str(commit["number"]): after,
        str(time): after,
        "1": [at for at in everything if at[0] > 1],
        "1990-01-01T00:00:00Z": everything,
    }.items():
        found = Stream(either.store, start=start).drain()
        assert [order(row) for batch in found for row in batch] == expected, start


def test_an_invalid_start_is_refused(busy: Catalog) -> None:
    for start, message in {
        "soon": "start is 'soon'; it must be a commit number",
        "abc1": "start 'abc1' is not a commit",
        "2100-01-01T00:00:00Z": "start is '2100-01-01T00:00:00Z', which is in the future by this machine's clock",
    }.items():
        with pytest.raises(InputError, match=message):
            Stream(busy.store, start=start).batch()
    with pytest.raises(InputError, match="start '4711' is not a commit"):
        Stream(busy.store, start="4711").batch()
    trim(busy, 10)
    with pytest.raises(
        HistoryTrimmedError, match=r"begins at .*, after the time asked for, 1990-01-01T00:00:00.000Z"
    ):
        Stream(busy.store, start="1990-01-01T00:00:00Z").batch()
    with pytest.raises(HistoryTrimmedError, match="start '1' is before commit number 10"):
        Stream(busy.store, start="1").batch()


def test_history_that_was_trimmed_beneath_the_checkpoint_is_an_error_and_no_gap(busy: Catalog) -> None:
    whole, partial = (Stream(busy.store, max_changes_per_batch=str(n)) for n in (6 + 15, 6 + 13))
    for stream in (whole, partial):
        stream.batch()
    # Commits 0 to 6 made the tables; three more were read, the last of them by one in part.
    trim(busy, 10)
    assert order(whole.batch()[0]) == (10, 0)
    for _ in range(2):
        with pytest.raises(
            HistoryTrimmedError,
            match=r"number 9, 3 of its log entries\), but .* begins with commit number 10",
        ):
            partial.batch()
        with pytest.raises(HistoryTrimmedError):
            partial.start()
    trim(busy, 36)
    with pytest.raises(
        HistoryTrimmedError, match=r"number 14, 1 of its log entries.* begins with commit number 36"
    ):
        whole.batch()


def test_a_position_that_a_recovery_took_back_is_an_error(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    for name in ("a", "b", "c"):
        catalog.namespace(name)
    ids = {row["number"]: row["commit_id"] for row in catalog.read("commits")}
    stream, behind = Stream(catalog.store), Stream(catalog.store, max_changes_per_batch="1")
    assert len(stream.batch()) == 3
    assert len(behind.batch()) == 1
    catalog.session.close()
    assert run("recover", catalog.store, "--branch", "main", "--to", f"{ids[1]:x}", "--yes").code == 0
    with pytest.raises(StateError, match=r"number 3\), which is not in the history .* recovered to an older"):
        stream.batch()
    # What this one has read is still true; the recovery is a change like others.
    assert [row["action"] for row in behind.batch()] == ["recover"]


def test_a_reference_that_is_dropped_or_created_again_is_an_error(busy: Catalog) -> None:
    references = busy.session.catalog.references
    name = busy.session.catalog.reference.replace("main", "dev")
    operation = Operation(b"", "ann")
    references.create(name, operation, source=references.read(busy.session.catalog.reference))
    stream = Stream(busy.store, branch="dev")
    assert [order(row) for row in stream.batch()] == logged(busy)
    references.drop(name, operation)
    for _ in range(2):
        with pytest.raises(ReferenceGoneError, match=r"branch 'dev' cannot be followed: it was dropped"):
            stream.batch()
        with pytest.raises(ReferenceGoneError):
            stream.start()
    references.create(name, operation, source=references.read(busy.session.catalog.reference))
    with pytest.raises(StateError, match="dropped and created again, or the options name another reference"):
        stream.batch()
    with pytest.raises(ReferenceGoneError, match=r"catalog 'none', branch 'main' cannot be followed"):
        Stream(busy.store, catalog="none").batch()


def test_the_registry_and_the_catalogs_are_followed_by_name(either: Catalog) -> None:
    root, catalogs = (Stream(either.store, reference=name) for name in (ROOT, CATALOGS))
    assert {row["action"] for row in root.batch()} == {"create-reference"}
    assert [row["name"] for row in catalogs.batch()] == ["polaris"]
    references = either.session.catalog.references
    references.create("extra", Operation(b"", "ann"))
    [row] = root.batch()
    assert (row["kind"], row["name"], row["catalog"], row["reference"]) == ("reference", "extra", None, ROOT)


def test_commits_of_others_meanwhile_come_once_and_in_order(either: Catalog) -> None:
    def write() -> None:
        for i in range(40):
            transact(either, i)

    writers = [threading.Thread(target=write) for _ in range(3)]
    stream = Stream(either.store, max_changes_per_batch="11")
    for writer in writers:
        writer.start()
    found = []
    while any(writer.is_alive() for writer in writers):
        found += stream.batch()
    for writer in writers:
        writer.join()
    found += [row for batch in stream.drain() for row in batch]
    assert [order(row) for row in found] == logged(either)
    assert len(found) == 6 + 150 * 5


def test_a_long_log_is_read_in_parts_that_are_in_order(either: Catalog) -> None:
    for i in range(700):
        either.set_property("db", "t0", "i", str(i))
    stream = Stream(either.store, splits="3")
    first, last = stream.reader.initialOffset(), stream.reader.latestOffset()
    assert len(stream.reader.partitions(first, last)) == 3
    assert [order(row) for row in stream.batch()] == logged(either)


@pytest.mark.parametrize("scheme", databases(SHARED))
def test_every_database_gives_the_feed(store_on: StoreOn, tmp_path: Path, scheme: str) -> None:
    catalog = Catalog(tmp_path / "c.db", store=store_on(scheme))
    catalog.namespace("db")
    for name in TABLES:
        catalog.table("db", name)
    for i in range(5):
        transact(catalog, i)
    stream = Stream(catalog.store, max_changes_per_batch="4")
    found = [order(row) for batch in stream.drain() for row in batch]
    transact(catalog, 5)
    stream.start()
    found += [order(row) for batch in stream.drain() for row in batch]
    assert found == logged(catalog)
    catalog.session.close()


def test_history_that_a_sweep_took_is_an_error_though_the_floor_is_not_known_yet(
    busy: Catalog, clock: ManualClock
) -> None:
    """The history of a batch is trimmed and swept after the batch was planned and before it is read."""
    stream = Stream(busy.store)
    first, last = stream.reader.initialOffset(), stream.reader.latestOffset()
    partitions = stream.reader.partitions(first, last)
    clock.advance(40 * 86_400_000)
    transact(busy, 1)
    clock.advance(4 * 86_400_000)
    references = busy.session.catalog.references
    sweep(references, Policy(3 * 86_400_000, 86_400_000), operation=Operation(b"", "ann"))
    process_cache().clear()
    with pytest.raises(
        HistoryTrimmedError,
        match=r"trimmed to commit number \d+ while the stream was reading.*history-retention",
    ):
        [row for partition in partitions for row in stream.reader.read(partition)]


def test_an_object_that_no_sweep_took_is_corruption_to_a_stream(busy: Catalog) -> None:
    stream = Stream(busy.store)
    first, last = stream.reader.initialOffset(), stream.reader.latestOffset()
    partitions = stream.reader.partitions(first, last)
    objects = busy.session.catalog.references.store
    commit = objects.get(busy.head(), Commit)
    objects.backend.delete_objects(objects.realm, [ObjectKey(commit.entries)])
    process_cache().clear()
    with pytest.raises(MissingObjectError, match=f"{commit.entries} is missing"):
        [row for partition in partitions for row in stream.reader.read(partition)]


def test_a_stream_whose_history_is_swept_while_it_plans_is_reported(
    busy: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is deleted after the head was read and before the commit is read."""
    stream = Stream(busy.store, max_changes_per_batch="7")
    stream.batch()
    follow = FeedReader._follow

    def slow(reader: FeedReader) -> Followed:
        followed = follow(reader)
        monkeypatch.undo()
        clock.advance(40 * 86_400_000)
        transact(busy, 1)
        clock.advance(4 * 86_400_000)
        references = busy.session.catalog.references
        sweep(references, Policy(3 * 86_400_000, 86_400_000), operation=Operation(b"", "ann"))
        process_cache().clear()
        return followed

    monkeypatch.setattr(FeedReader, "_follow", slow)
    with pytest.raises(HistoryTrimmedError, match=r"log was trimmed meanwhile .*log-retention"):
        stream.batch()


def test_only_changes_are_a_stream_and_its_options_are_not_for_tables(busy: Catalog) -> None:
    for options, message in (
        ({"view": "tables"}, "view 'tables' cannot be streamed; only 'changes' can"),
        ({"as_of": "5"}, "a stream does not support as-of, from and to"),
        ({"from": "5"}, "a stream does not support as-of, from and to"),
        ({"max_changes_per_batch": "0"}, "'max-changes-per-batch' is '0'"),
        ({"max_changes_per_batch": "9" * 5_000}, "'max-changes-per-batch' is '999.* number from 1 to 9+"),
    ):
        with pytest.raises(InputError, match=message):
            Stream(busy.store, **options)
    both, none = Stream(busy.store, reference=ROOT, catalog="polaris"), Stream(busy.store, reference=ROOT)
    del none.options["reference"]
    none.start()
    for stream in (both, none):
        with pytest.raises(InputError, match=r"give either 'catalog' \(and 'branch'\) or 'reference'"):
            stream.batch()
    with pytest.raises(InputError, match="these options are only for streams: start"):
        rows("changes", store=busy.store, start="latest")
