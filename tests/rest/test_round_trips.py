"""How many requests a catalog sends to its database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.traffic import counted
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.metrics import REPORTS, metrics_reference, report_count
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.query_pinning import pin
from polaris_spark.catalog.materialized.view_sources import ViewQuery
from polaris_spark.commits.retry import Turns
from polaris_spark.jobs.registry import call
from polaris_spark.store.cache import process_cache
from polaris_spark.system.stores import SYSTEM_REALM
from tests.rest.client import Client, connect, path
from tests.rest.materialized import refresh
from tests.rest.test_metrics import SCAN, send
from tests.rest.view_requests import create, how, rows, table


def test_commits_and_loads_ask_the_database_no_more_often_than_they_must(catalog: Client) -> None:
    catalog.create()
    catalog.set("t", round="0")
    with counted(catalog.session.connection.backend) as traffic:
        catalog.set("t", round="1")
        assert traffic.round_trips == 1  # rows and swap in one transaction
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 1  # the head, whether it moved
        process_cache().clear()
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 3  # the head, the table, its pieces
        for number in range(40):  # its log has several pieces now
            catalog.set("t", round=str(number))
        process_cache().clear()
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 3


def test_a_realm_without_access_control_looks_once_whether_it_was_turned_on(catalog: Client) -> None:
    catalog.session.access.refresh()
    with counted(catalog.session.connection.backend) as traffic:
        assert not catalog.session.access.is_on
    assert traffic.round_trips == 1


@pytest.fixture
def store_of_two(tmp_path: Path) -> Iterator[tuple[Client, Callable[[str], None]]]:
    """A catalog with two tables, and a function by which another process changes a table, or commits a
    report ("report")."""
    uri = f"sqlite://{tmp_path}/store.db"
    mine = connect(uri, tmp_path / "warehouse", metadata_files="never")
    mine.namespace("db")
    for name in ("mine", "theirs"):
        mine.create(name)
    command = [sys.executable, "-c", _OTHER_PROCESS, uri]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout

        def change(name: str) -> None:
            print(name, file=other.stdin, flush=True)
            assert other.stdout
            assert other.stdout.readline() == "done\n"

        yield mine, change
        other.stdin.close()
    mine.session.close()


_OTHER_PROCESS = """
import sys, uuid
from tests.rest.client import connect
from tests.rest.test_metrics import SCAN, send
client = connect(sys.argv[1], None, create=False)
for line in sys.stdin:
    if line.strip() == "report":
        send(client, SCAN, "v1/namespaces/db/tables/theirs/metrics")
        client.session.catalog.metrics.flush()
    else:
        client.set(line.strip(), round=uuid.uuid4().hex)
    print("done", flush=True)
client.session.close()
"""


def test_a_process_that_another_one_overtakes_now_and_then_hands_nothing_over(
    store_of_two: tuple[Client, Callable[[str], None]],
) -> None:
    mine, change_elsewhere = store_of_two
    with counted(mine.session.connection.backend) as traffic:
        for round in range(12):
            change_elsewhere("theirs")
            traffic.clear()
            mine.set("mine", round=str(round))
            assert traffic.object_reads <= 2  # the other one's commit, and what it changed
            assert traffic.round_trips <= 4  # also a lost swap, or a look at the row; and the swap
    assert not mine.session.catalog.head().head.slots


def test_a_process_learns_the_new_head_from_the_answer_of_its_lost_swap(
    store_of_two: tuple[Client, Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, change_elsewhere = store_of_two
    backend = mine.session.connection.backend
    read = backend.read_reference

    def refuse(realm: str, name: str) -> ReferenceRow | None:
        if realm == SYSTEM_REALM:  # a request reads at most once a second whether the realm is active
            return read(realm, name)
        raise AssertionError(f"the row of reference {name} was read")

    for round in range(3):
        monkeypatch.setattr(Turns, "_rivalry_ms", 0.0)  # as if the last overtaking was long ago
        change_elsewhere("theirs")
        with monkeypatch.context() as patched:
            patched.setattr(backend, "read_reference", refuse)
            mine.set("mine", round=str(round))


@pytest.mark.parametrize(("changed", "reads"), [("theirs", 2), ("mine", 3)])
def test_an_overtaken_commit_reads_no_more_though_others_made_many_commits(
    store_of_two: tuple[Client, Callable[[str], None]], changed: str, reads: int
) -> None:
    mine, change_elsewhere = store_of_two
    with counted(mine.session.connection.backend) as traffic:
        for round, commits in enumerate([1, 20, 40]):
            for _ in range(commits):
                change_elsewhere(changed)
            traffic.clear()
            mine.set("mine", round=str(round))
            assert traffic.object_reads <= reads  # the newest commit, the table, and the table's pieces
            assert traffic.round_trips <= reads + 2


def test_reports_that_processes_commit_at_the_same_time_cost_changes_nothing(
    store_of_two: tuple[Client, Callable[[str], None]],
) -> None:
    mine, change_elsewhere = store_of_two
    with counted(mine.session.connection.backend) as traffic:
        for round in range(5):
            change_elsewhere("report")
            send(mine, SCAN, f"{path('db')}/tables/mine/metrics")
            mine.session.catalog.metrics.flush()
            traffic.clear()
            mine.set("mine", round=str(round))
            assert traffic.round_trips == 1
        head = mine.session.catalog.references.read(metrics_reference(mine.session.catalog.row))
        assert sum(report_count(entry) for _, entry in head.index(REPORTS).range()) == 10


def test_a_merge_reads_no_more_after_many_branches_were_merged(catalog: Client) -> None:
    catalog.create()
    session, needed = catalog.session, list[int]()
    with counted(session.connection.backend) as traffic:
        for number in range(30):
            call(session, "create_branch", name=f"b{number}")
            Client(session.derive(catalog=catalog_at(session.catalog, f"b{number}"))).set("t", round="1")
            process_cache().clear()
            traffic.clear()
            call(session, "merge", source=f"b{number}")
            needed.append(traffic.round_trips)
    assert max(needed) <= needed[1] + 1, needed


def test_whether_a_view_of_ten_tables_is_fresh_is_one_read_of_the_head(catalog: Client) -> None:
    names = [f"t{number}" for number in range(10)]
    for name in names:
        table(catalog, name)
    uuid = create(catalog, f"SELECT t0.a FROM {', '.join(names)}")["view-uuid"]
    query = ViewQuery(f"SELECT t0.a FROM {', '.join(names)}", "", ("db",))
    states = pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v")).source_states()
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states, "session": {"zone": "UTC"}}))
    assert "VERSION AS OF 100" in how(catalog, uuid, zone="UTC")["query"]
    with counted(catalog.session.connection.backend) as traffic:
        assert "VERSION AS OF 100" in how(catalog, uuid, zone="UTC")["query"]
        assert traffic.round_trips == 1
