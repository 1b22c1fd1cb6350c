"""All jobs in a loop while processes use a catalog: no acknowledged change is lost, and no garbage is left."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import SystemClock
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.rest.session import Session
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.maintenance.inhabitants import NAMESPACES, SCHEMA, SHORT, TABLES, journal, opened
from tests.sizes import TIMES
from tests.stores import SHARED, StoreOn, databases

ROLES = ("writer", "writer", "mover", "brancher")
LATER_S = 6
"""Longer than anything is kept by `inhabitants.SHORT`."""


class LaterClock(SystemClock):
    """A clock that is ahead of this machine's clock."""

    def __init__(self, seconds: int) -> None:
        self.later_ms = seconds * 1_000

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


@pytest.mark.parametrize("database", databases(SHARED, ordinary=("sqlite",)))
def test_nothing_is_lost_and_no_garbage_is_left(store_on: StoreOn, tmp_path: Path, database: str) -> None:
    uri, folder = store_on(database), str(tmp_path)
    catalog = opened(uri, folder)
    for namespace in NAMESPACES:
        catalog.create_namespace(namespace)
        for number in range(TABLES // 2):
            catalog.create_table((namespace, f"first{number}"), SCHEMA)
    done: dict[str, int] = defaultdict(int)
    with _inhabitants(uri, tmp_path):
        for _ in range(2 * TIMES):
            acknowledged = _rows(tmp_path)
            for job, rows in _maintain(catalog._opened):
                done[job] += rows
            wait_until(lambda before=acknowledged: _rows(tmp_path) > before + 8, "rows are written")  # type: ignore[misc]  # bound at once
        wait_until(lambda: _told(tmp_path, "restores") > 0, "a table is restored")
    told = list(journal(tmp_path))
    assert [facts for _, facts in told if facts[0] == "failed"] == []
    assert sum(facts == ["ended"] for _, facts in told) == len(ROLES)
    _every_row_is_there(catalog, told)
    catalog.close()  # all sessions of this process on one store have the clock of the first
    with _later(uri, folder, LATER_S) as session:
        for job, rows in _maintain(session):
            done[job] += rows
    print(database, dict(done), len(told))
    assert done["sweep"] > 0
    assert done["expire"] > 0
    with _later(uri, folder, 2 * LATER_S) as session:
        call(session, "trim")
        call(session, "sweep")
        assert _swept(call(session, "sweep", dry_run=True)) == 0
        assert call(session, "fsck") == []
    with opened(uri, folder) as catalog:
        _every_row_is_there(catalog, told)


def _later(uri: str, folder: str, seconds: int) -> Session:
    """Open the catalog with a clock that is some seconds ahead."""
    return polaris_spark.connect(
        store=uri, warehouse=f"{folder}/warehouse", clock=LaterClock(seconds), **SHORT
    )


def _maintain(session: Session) -> Iterator[tuple[str, int]]:
    """Run every job once, and return their results."""
    yield "trim", len(call(session, "trim"))
    now = datetime.fromtimestamp(session.connection.clock.now_ms() / 1_000, timezone.utc)
    old = now - timedelta(seconds=3)
    yield "expire", len(call(session, "expire", older_than=old.isoformat(), retain_last=2))
    yield "sweep", _swept(call(session, "sweep"))
    yield "fsck", len(_faults(call(session, "fsck")))


def _swept(rows: list[Any]) -> int:
    """Return the number of deleted objects."""
    return sum(row[2] for row in rows)


def _faults(rows: list[Any]) -> list[Any]:
    assert not rows, "\n".join(map(str, rows[:10]))
    return rows


def _every_row_is_there(catalog: PolarisCatalog, told: list[tuple[str, list[Any]]]) -> None:
    dropped = set()
    for _, facts in told:
        if facts[0] == "drops":
            dropped.add(facts[1])
        elif facts[0] == "restores":
            dropped.discard(facts[1])
    wanted: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for writer, facts in told:
        if facts[0] == "row" and facts[1] not in dropped:
            wanted[facts[1]].add((writer, facts[2]))
    assert wanted
    for namespace in NAMESPACES:
        for name in catalog.list_tables(namespace):
            table = catalog.load_table(name)
            rows = table.scan().to_arrow().to_pylist()
            found = [(row["writer"], row["id"]) for row in rows]
            assert len(found) == len(set(found))
            missing = wanted.pop(str(table.metadata.table_uuid), set()) - set(found)
            assert not missing, (name, sorted(missing)[:5])
    assert not wanted, f"tables are gone: {sorted(wanted)}"


def _rows(folder: Path) -> int:
    return _told(folder, "row")


def _told(folder: Path, what: str) -> int:
    return sum(facts[0] == what for _, facts in journal(folder))


@contextmanager
def _inhabitants(uri: str, folder: Path) -> Iterator[None]:
    """Run processes of all roles during the block."""
    with ExitStack() as stack:
        running = []
        for seed, role in enumerate(ROLES):
            command = [
                sys.executable,
                "-m",
                "tests.maintenance.inhabitants",
                role,
                uri,
                str(folder),
                str(seed),
            ]
            process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
            stack.callback(process.wait)
            stack.callback(process.kill)
            running.append(process)
        wait_until(lambda: _rows(folder) > 3, "rows are written")
        yield
        (folder / "stop").touch()
        for process in running:
            assert process.wait(PATIENCE_S) == 0, [f for _, f in journal(folder) if f[0] == "failed"]
