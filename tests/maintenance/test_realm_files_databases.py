"""Realm files of every database: exports while processes commit and sweep, and imports that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.errors import TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.realm_file import exporter, layout
from polaris_spark.maintenance.realm_file.exporter import Export
from polaris_spark.maintenance.realm_file.importer import Import
from polaris_spark.maintenance.realm_file.layout import RealmFile
from polaris_spark.system.realms import RealmState
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.cli.catalogs import run
from tests.forking import context, preload
from tests.maintenance.movers import namespaces, opened, write
from tests.maintenance.realm_files import (
    PERIODS,
    connected,
    contents,
    export_and_die,
    exported,
    fill,
    import_and_die,
    imported,
)
from tests.rest.client import Client
from tests.stores import SHARED, StoreOn, databases

preload(__name__)

SOURCES = databases(ordinary=("memory", "sqlite", "file"))


@pytest.mark.parametrize("scheme", SOURCES)
def test_a_realm_goes_through_a_file_into_a_database_and_out_of_it(
    scheme: str, store_on: StoreOn, tmp_path: Path
) -> None:
    source, target = store_on("sqlite"), store_on(scheme)
    first, second = tmp_path / "first.realm", tmp_path / "second.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
        tables = Client(session).names("db")
        metadata = Client(session).load("a")["metadata"]
    exported(source, first)
    other = connected(target)  # kept open: a store in memory ends with its last connection
    try:
        imported(target, first)
        exported(target, second)
        assert contents(second) == contents(first)
        with opened(target, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
            client = Client(session)
            assert client.names("db") == tables
            assert client.load("a")["metadata"] == metadata
            assert namespaces(Client(session.derive(catalog=catalog_at(session.catalog, "dev"))).session) == {
                "db",
                "on_dev",
                *(f"n{number}" for number in range(5)),
            }
            assert {row[0] for row in call(session, "show_tags")} == {"v1"}
            call(session, "undrop_branch", name="gone")
            assert write(session, "later")
            call(session, "sweep")
            assert [row for row in call(session, "fsck") if row[0] != "warning"] == []
    finally:
        other.close()


def test_the_log_of_trimmed_commits_is_imported(store_on: StoreOn, tmp_path: Path) -> None:
    source, target, file = store_on("sqlite"), store_on("sqlite"), tmp_path / "r.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
        call(session, "trim")
        call(session, "sweep")
    exported(source, file)
    imported(target, file)
    logs = [run("log", uri, "--json", "--limit", "1000") for uri in (source, target)]
    assert logs[0].json == logs[1].json
    with RealmFile(file) as read:
        floors = {held.row_name.partition("@")[0]: held.head.floor_number for held in read.heads}
    [floor] = [number for name, number in floors.items() if name.endswith("heads/main")]
    assert 0 < floor < len(logs[0].json["commits"] if isinstance(logs[0].json, dict) else logs[0].json)


# Processes that commit, sweep and die


@pytest.mark.parametrize("scheme", databases(SHARED, ordinary=("sqlite", "file")))
def test_an_export_while_threads_commit_and_sweep(scheme: str, store_on: StoreOn, tmp_path: Path) -> None:
    source, file = store_on(scheme), tmp_path / "r.realm"
    over = threading.Event()
    errors: list[BaseException] = []
    made: list[int] = []
    swept: list[int] = []
    allowed: list[None] = []

    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        call(session, "create_branch", name="dev")
        dev = session.derive(catalog=catalog_at(session.catalog, "dev"))

        def commit() -> None:
            """First to one branch, then to the other one: no instant has more in the second one."""
            try:
                for number in count():
                    if over.is_set():
                        return
                    assert write(session, f"n{number}")
                    assert write(dev, f"n{number}")
                    made.append(number)
                    over.wait(0.02)
            except BaseException as error:
                errors.append(error)

        def sweep() -> None:
            try:
                while not over.wait(0.1):
                    if allowed:  # a few for each export, which gives up after five sweeps
                        allowed.pop()
                        call(session, "sweep")
                        swept.append(1)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for work in (commit, sweep)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(3):
                wait_until(lambda n=3 * turn: errors or len(made) > n, "commits")  # type: ignore[misc]
                before = len(made)
                allowed[:] = [None] * 3
                exported(source, file)
                target = store_on("sqlite")
                imported(target, file)
                with opened(target, warehouse=str(tmp_path / "warehouse"), **PERIODS) as there:
                    main = namespaces(there)
                    on_dev = namespaces(there.derive(catalog=catalog_at(there.catalog, "dev")))
                    assert len(main) - len(on_dev) in (0, 1), (turn, main ^ on_dev)
                    assert len(on_dev) >= before
                    assert [row for row in call(there, "fsck") if row[0] != "warning"] == []
            wait_until(lambda: errors or swept, "a sweep")
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert errors == []
        assert swept


@pytest.mark.parametrize("sweeps", [1, 5])
def test_a_sweep_in_the_middle_of_an_export_makes_it_begin_again(
    sweeps: int, store_on: StoreOn, tmp_path: Path
) -> None:
    source, target, file = store_on("sqlite"), store_on("sqlite"), tmp_path / "r.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
        happened: list[str] = []

        def between(doing: str, done: int, total: int) -> None:
            if doing == "writing objects" and len(happened) < sweeps:
                for number in range(3):
                    assert write(session, f"more{len(happened)}{number}")
                happened.append(doing)
                call(session, "sweep")

        export = Export(session.connection, "default", "test", between)
        if sweeps == 5:
            with pytest.raises(TryAgainError, match=r"5 times .* while no sweep runs"):
                export.write(file)
            assert not file.exists()
        assert export.write(file).attempts == (2 if sweeps == 1 else 1)
    imported(target, file)
    with opened(target, warehouse=str(tmp_path / "warehouse")) as there:
        assert {f"more{turn}{number}" for turn in range(sweeps) for number in range(3)} <= namespaces(there)
        assert [row for row in call(there, "fsck") if row[0] != "warning"] == []


@pytest.mark.parametrize("scheme", databases(SHARED, ordinary=("sqlite",)))
def test_an_import_may_be_killed_before_each_operation_on_the_database(
    scheme: str, store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On each database, every third operation is tried; together, the databases try all of them."""
    monkeypatch.setattr(layout, "_OBJECT_ROWS", 10)
    source, file = store_on("sqlite"), tmp_path / "r.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
    exported(source, file)
    with RealmFile(file) as read:
        assert read.blocks > 4  # more than are written at a time
    seen: set[RealmState | None] = set()
    for number in chain((1,), count(2 + len(scheme) % 3, 3)):
        target, again = store_on(scheme), tmp_path / "again.realm"
        connected(target).close()
        process = context.Process(target=import_and_die, args=(target, file, number))
        process.start()
        process.join(PATIENCE_S)
        connection = connected(target)
        try:
            found = connection.realms.find("default")
            seen.add(None if found is None else found.state)
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            if found is not None and found.state is RealmState.ACTIVE:
                exported(target, again)
                assert contents(again) == contents(file)
            record = imported(target, file)
            assert found is None or record.instance == found.instance
            assert set(record.properties) == {"imported-from"}
        finally:
            connection.close()
        exported(target, again)
        assert contents(again) == contents(file)
    assert number > 10  # the last operation before which the process was killed is not among the first
    assert seen >= {None, RealmState.LOADING, RealmState.ACTIVE}


@pytest.mark.parametrize(("when", "left"), [("marking", 0), ("writing objects", 1)])
def test_an_export_that_is_killed_leaves_no_file_of_the_name(
    when: str, left: int, store_on: StoreOn, tmp_path: Path
) -> None:
    source, folder = store_on("sqlite"), tmp_path / "exports"
    folder.mkdir()
    file = folder / "r.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
    process = context.Process(target=export_and_die, args=(source, file, when))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    assert [one.suffix for one in folder.iterdir()] == [".part"] * left
    assert exported(source, file).attempts == 1
    imported(store_on("sqlite"), file)


def test_an_import_that_died_goes_on_where_it_was(
    store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_OBJECT_ROWS", 5)
    source, target, file = store_on("sqlite"), store_on("sqlite"), tmp_path / "r.realm"
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
    exported(source, file)

    class InterruptedByTestError(Exception):
        pass

    begun: list[int] = []

    def interrupt(doing: str, done: int, total: int) -> None:
        if doing == "writing rows":
            begun.append(done)
            if len(begun) == 3:
                raise InterruptedByTestError

    connection = connected(target)
    try:
        with RealmFile(file) as read:
            with pytest.raises(InterruptedByTestError):
                Import(connection, read, "default", interrupt).run()
            Import(connection, read, "default", interrupt).run()
            assert begun[:4] == [0, 4, 8, 8]
            assert begun[-1] < read.blocks
    finally:
        connection.close()


# Room


def peak(work: Callable[[], object]) -> int:
    """The most memory that Python objects take during some work, bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_realm(
    store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (layout, exporter):
        monkeypatch.setattr(module, "OBJECT_BYTES", 2**18)
    source, file = store_on("sqlite"), tmp_path / "r.realm"
    peaks: list[tuple[int, int, int]] = []
    sizes: list[int] = []
    with opened(source, warehouse=str(tmp_path / "warehouse"), cache_bytes="1 MB") as session:
        client = Client(session)
        client.namespace("db")
        client.create("a")
        for last in (25, 100):
            for number in range(last):
                client.set("a", **{f"p{number % 10}": os.urandom(150_000).hex()})
            target = store_on("sqlite")
            peaks.append(
                (
                    peak(lambda: exported(source, file)),
                    peak(lambda: RealmFile(file).__exit__()),
                    peak(lambda t=target: imported(t, file)),  # type: ignore[misc]
                )
            )
            sizes.append(file.stat().st_size)
    print(f"bytes {sizes}; peaks {peaks}")
    assert sizes[1] > 3 * sizes[0]
    for small, large in zip(*peaks, strict=True):
        assert large < small + 1_000_000


def test_a_full_disk_ends_an_export_and_leaves_no_file(store_on: StoreOn, tmp_path: Path) -> None:
    source, folder = store_on("sqlite"), tmp_path / "full"
    folder.mkdir()
    with opened(source, warehouse=str(tmp_path / "warehouse"), **PERIODS) as session:
        fill(session)
        Client(session).set("a", large=os.urandom(60_000).hex())
    program = (
        "import resource, sys; from polaris_spark.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); main()"
    )
    arguments = ["realm", "export", source, str(folder / "r.realm")]
    # With -B, it writes no compiled modules, which the limit would damage for the other tests.
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []
    assert run("realm", "export", source, str(folder / "r.realm")).code == 0
