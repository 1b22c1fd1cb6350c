"""Expiry that is interrupted, or during which other processes commit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table as IcebergTable

from polaris_spark.catalog.engine import LocalEngine, Progress, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.tables.metadata_export import wanted
from polaris_spark.catalog.tables.snapshot_expiry import namespace_levels
from polaris_spark.commits.change import Operation
from polaris_spark.errors import OutcomeUnknownError
from polaris_spark.maintenance.expiry import commits
from polaris_spark.maintenance.expiry.commits import ToExpire, remove_expired
from polaris_spark.maintenance.expiry.leftovers import ExpiryResult
from polaris_spark.maintenance.expiry.retention import ExpiryDecision, ExpiryRequest
from polaris_spark.maintenance.expiry.run import ExpiryRun, Limits
from polaris_spark.pyiceberg import PolarisCatalog
from tests.maintenance.conftest import Open
from tests.maintenance.histories import SCHEMA, expire, ids, make, needed, path, rows, there


class Crash(BaseException):
    """Raised where the simulated process ends."""


class Life:
    """Counts steps, and raises `Crash` at one of them."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_: object) -> None:
        if not self.left:
            raise Crash
        self.left -= 1


class Mortal(LocalEngine):
    """An engine in this process, which may crash after any item."""

    def __init__(self, reach: Reach, progress: Progress, life: Life) -> None:
        super().__init__(reach, progress)
        self._life = life

    def _results(self, function: Any, items: Sequence[Any]) -> Iterator[Any]:
        for item in items:
            yield from super()._results(function, [item])
            self._life.step()


def run(
    catalog: PolarisCatalog, life: Life, before_commits: Callable[[], None] = lambda: None
) -> list[ExpiryResult]:
    """Expire everything, until the run crashes."""
    session = catalog._opened
    store = session.catalog.references.store
    reach = Reach(store, session.catalog.files)

    def progress(what: str, done: int, of: int) -> None:
        if what == "removing snapshots":
            before_commits()
        life.step()

    now = session.connection.clock.now_ms()
    expiry = ExpiryRun(
        session.catalog,
        "test",
        Mortal(reach, progress, life),
        ExpiryRequest(now, older_than=now),
        limits=Limits(),
        grace_ms=0,
        keep_records_ms=3_600_000,
    )
    return expiry.run(wanted(session.catalog.head()), everything=True, dry_run=False)


@pytest.mark.parametrize(("tables", "stride"), [(1, 5), (2, 9), pytest.param(1, 1, marks=pytest.mark.long)])
def test_whatever_step_a_run_ends_at_the_next_one_finishes_it(
    opened: Open, tmp_path: Path, tables: int, stride: int
) -> None:
    # The tables are made once: each run finds a copy of the store, and the files where they were.
    first, files, copy = tmp_path / "made.db", tmp_path / "lake", tmp_path / "copy"
    with opened(store=f"sqlite://{first}") as lake:
        lake.create_namespace("db")
        for n in range(tables):
            make(lake, f"db.t{n}")
    shutil.copytree(files, copy)
    steps = 0
    while True:
        shutil.rmtree(files)
        shutil.copytree(copy, files)
        store = shutil.copyfile(first, tmp_path / f"run{steps}.db")
        lake = opened(store=f"sqlite://{store}")
        made = [lake.load_table(f"db.t{n}") for n in range(tables)]
        assert all(len(table.metadata.snapshots) > 1 for table in made)
        kept = [ids(table) for table in made]
        life = Life(steps)
        try:
            run(lake, life)
        except Crash:
            for table, same in zip(made, kept, strict=True):
                assert ids(table.refresh()) == same
                assert needed(table) <= there(table)
            run(lake, Life(-1))
        for table in made:
            assert there(table) == needed(table.refresh())
            assert len(table.metadata.snapshots) == 1
        assert expire(lake, older_than="0 s") == []
        if life.left:
            break
        steps += stride
    assert steps > 10


def test_a_snapshot_that_a_tag_names_by_now_stays(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    second = table.metadata.snapshots[1].snapshot_id

    def tag() -> None:
        table.manage_snapshots().create_tag(second, "needed").commit()

    [outcome] = run(lake, Life(-1), before_commits=tag)
    assert second not in outcome.removed.snapshots
    assert table.refresh().metadata.snapshots[0].snapshot_id == second
    assert sorted(table.scan(snapshot_id=second).to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert there(table) == needed(table)


def test_a_commit_that_comes_between_is_kept(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    run(lake, Life(-1), before_commits=lambda: table.append(rows(300)))
    assert 300 in ids(table.refresh())
    assert there(table) == needed(table)


def test_a_table_that_is_dropped_and_made_anew_meanwhile_is_left_alone(lake: PolarisCatalog) -> None:
    make(lake, "db.t")
    made = []

    def replace() -> None:
        lake.drop_table("db.t")
        made.append(make(lake, "db.t"))

    assert run(lake, Life(-1), before_commits=replace) == []
    [table] = made
    assert len(table.refresh().metadata.snapshots) > 1


def test_a_rollback_to_an_expired_snapshot_that_comes_between_wins(lake: PolarisCatalog) -> None:
    table = make(lake, "db.t")
    second = table.metadata.snapshots[1].snapshot_id
    run(
        lake,
        Life(-1),
        before_commits=lambda: table.manage_snapshots().rollback_to_snapshot(second).commit(),
    )
    assert ids(table.refresh()) == [0, 1, 2, 3, 4, 5]
    assert there(table) == needed(table)


def test_a_table_that_cannot_be_changed_does_not_stop_expiry_of_other_tables(lake: PolarisCatalog) -> None:
    tables = [make(lake, f"db.t{n}") for n in range(3)]
    session = lake._opened
    catalog = session.catalog
    asked = ExpiryRequest(session.connection.clock.now_ms())
    items = []
    levels = [*namespace_levels(catalog.view(), ("db",)), catalog.effective_properties().retention]
    for one in wanted(catalog.head()):
        if one.name.name.startswith("t"):
            table = tables[int(one.name.name[1:])]
            found = catalog.view()
            entity = found.get(one.content, Table).entity_id
            oldest = () if one.name.name == "t1" else (table.metadata.snapshots[0].snapshot_id,)
            schemas = (table.schema().schema_id,) if one.name.name == "t1" else ()
            decision = ExpiryDecision(oldest, schemas=schemas)
            items.append(ToExpire(one.name, entity, one.content, levels, decision))
    done = remove_expired(catalog, Operation(b"", "test"), items, asked, lambda *_: None)
    assert [bool(one.error) for one in done] == [False, True, False]
    assert "Cannot remove the current schema" in done[1].error
    assert [len(table.refresh().metadata.snapshots) for table in tables] == [8, 9, 8]


def test_a_table_whose_storage_refuses_files_fails_alone(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [make(lake, f"db.t{n}") for n in range(3)]
    refusing(monkeypatch, tables[1])
    found = expire(lake, older_than="0 s")
    assert [row["table"] for row in found if row["snapshots"]] == ["db.t0", "db.t2"]
    [note] = [row["note"] for row in found if row["note"]]
    assert "AWS Error ACCESS_DENIED" in note
    for table, snapshots in zip(tables, (1, 9, 1), strict=True):
        assert len(table.refresh().metadata.snapshots) == snapshots
        assert there(table) == needed(table)


def test_a_table_that_cannot_be_changed_does_not_use_up_the_limit_of_tables(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [make(lake, f"db.t{n}") for n in range(4)]
    refusing(monkeypatch, tables[0])
    for names in (["db.t1", "db.t2"], ["db.t3"], []):
        found = expire(lake, older_than="0 s", max_tables=2)
        assert [row["table"] for row in found if row["snapshots"]] == names
        assert [row["table"] for row in found if row["note"]] == ["db.t0"]
    assert [len(table.refresh().metadata.snapshots) for table in tables] == [9, 1, 1, 1]


def test_where_no_file_can_be_written_few_tables_are_tried(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [small(lake, f"db.t{n:02}") for n in range(16)]
    tried = refusing(monkeypatch, *tables)
    found = expire(lake, older_than="0 s")
    assert [row["table"] for row in found] == [f"db.t{n:02}" for n in range(16)]
    assert all("AWS Error ACCESS_DENIED" in row["note"] for row in found)
    assert sum("not tried" in row["note"] for row in found) == 13
    assert len(tried) < 10
    monkeypatch.undo()
    assert len(expire(lake, older_than="0 s")) == 16


def test_tables_whose_storage_always_refuses_files_do_not_block_other_tables(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [small(lake, f"db.t{n:02}") for n in range(12)]
    refusing(monkeypatch, *tables[:4])
    done: set[str] = set()
    for _ in range(50):  # with bad luck at every run
        done |= {row["table"] for row in expire(lake, older_than="0 s") if row["snapshots"]}
        if len(done) == 8:
            break
    assert done == {f"db.t{n:02}" for n in range(4, 12)}


def test_storage_that_refuses_one_commits_tables_does_not_keep_the_next_from_being_tried(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [small(lake, f"db.t{n}") for n in range(9)]
    monkeypatch.setattr(commits, "TABLES_OF_A_COMMIT", 4)
    tried = refusing(monkeypatch, *tables[4:8])
    found = expire(lake, older_than="0 s")
    assert [row["table"] for row in found if row["snapshots"]] == [f"db.t{n}" for n in (0, 1, 2, 3, 8)]
    notes = [row["note"] for row in found if row["note"]]
    assert sorted("not tried" in note for note in notes) == [False] * 3 + [True]
    assert len(tried) == 6  # all four, two pairs, and three alone


def test_a_run_may_be_stopped_while_tables_are_tried_one_by_one(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [small(lake, f"db.t{n}") for n in range(4)]
    tried = refusing(monkeypatch, *tables)

    def stop() -> None:
        if tried:
            raise Crash

    with pytest.raises(Crash):
        run(lake, Life(-1), before_commits=stop)
    assert len(tried) == 1


@pytest.mark.parametrize("refused", [1, 3, 6])
def test_refused_commits_leave_no_metadata_files(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    random.seed(refused)  # of the order in which tables are tried
    monkeypatch.setattr(commits, "REFUSALS", 1)
    tables = [small(lake, f"db.t{n}") for n in range(6)]
    refusing(monkeypatch, *tables[-refused:])
    found = expire(lake, older_than="0 s")
    assert any("not tried" in (row["note"] or "") for row in found)
    for table in tables:
        assert metadata_files(table) == named_metadata_files(table.refresh())


def test_a_commit_in_doubt_leaves_its_metadata_files(
    lake: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small(lake, "db.t")
    backend = lake._opened.connection.backend
    swap = backend.write_and_swap

    def unheard(*args: Any) -> Any:
        swap(*args)
        raise OutcomeUnknownError("the connection broke")

    committer = lake._opened.catalog.references.open(lake._opened.catalog.reference)
    committer._settings = committer._settings._replace(deadline_ms=100.0)
    with monkeypatch.context() as broken:
        broken.setattr(backend, "write_and_swap", unheard)
        with pytest.raises(OutcomeUnknownError):
            run(lake, Life(-1))
    table.refresh()
    assert len(table.metadata.snapshots) == 1
    assert metadata_files(table) == named_metadata_files(table)


def metadata_files(table: IcebergTable) -> set[str]:
    """The metadata files that lie in a table's location."""
    return {str(file) for file in Path(path(table.location())).rglob("*.metadata.json")}


def named_metadata_files(table: IcebergTable) -> set[str]:
    """Return the current and previous metadata files of a table."""
    before = (entry.metadata_file for entry in table.metadata.metadata_log)
    return {path(location) for location in (table.metadata_location, *before)}


def small(lake: PolarisCatalog, name: str) -> IcebergTable:
    """A table of two snapshots."""
    lake.create_namespace_if_not_exists("db")
    table = lake.create_table(name, SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    return table


def refusing(monkeypatch: pytest.MonkeyPatch, *tables: IcebergTable) -> list[str]:
    """Let nothing be written in tables' locations any more; told as pyarrow tells it, by no number of an error.

    Returns:
        the location of each table that was tried, once for each try.
    """
    places = [path(table.location()) for table in tables]
    tried: list[str] = []

    def write(self: Files, location: str, content: bytes) -> None:
        for place in places:
            if path(location).startswith(place):
                tried.append(place)
                raise OSError("When completing CreateMultipartUpload operation: AWS Error ACCESS_DENIED")
        write_file(self, location, content)

    write_file = Files._write
    monkeypatch.setattr(Files, "_write", write)
    return tried
