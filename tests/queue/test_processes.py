"""Workers in processes of their own, which are killed and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.clock import SystemClock
from polaris_spark.jobs import registry
from polaris_spark.jobs.registry import call
from polaris_spark.jobs.worker import Worker
from polaris_spark.maintenance.queue.changes import LEASE_MS
from polaris_spark.rest.session import Session
from polaris_spark.system.clocks import BEHIND_MS
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.queue.test_queue import history, rows
from tests.queue.working import add_procedure

Start = Callable[[], "subprocess.Popen[bytes]"]


class Later(SystemClock):
    """A clock after the end of all leases."""

    def now_ms(self) -> int:
        return super().now_ms() + LEASE_MS + BEHIND_MS


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store.db"


@pytest.fixture
def session(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(registry, "procedures", registry.procedures)
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w")) as opened:
        add_procedure(tmp_path)
        yield opened


@pytest.fixture
def start(store: str, tmp_path: Path) -> Iterator[Start]:
    begun: list[subprocess.Popen[bytes]] = []

    def starting() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", "tests.queue.working", store, str(tmp_path)])
        begun.append(process)
        return process

    yield starting
    for process in begun:
        process.kill()
        process.wait()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_three_workers_run_each_task_once(session: Session, start: Start, tmp_path: Path) -> None:
    for n in range(12):
        call(session, "enqueue", procedure="noted", arguments={"n": str(n)})
    workers = [start() for _ in range(3)]
    wait_until(lambda: not call(session, "show_queue"), "all tasks have run", every_s=0.1)
    for worker in workers:
        worker.terminate()
        assert worker.wait(PATIENCE_S) == 0
    assert sorted(int(line.split()[0]) for line in lines(tmp_path / "done")) == list(range(12))
    assert [run.outcome for run in history(session)] == ["succeeded"] * 12


def test_the_task_of_a_worker_that_was_killed_is_taken_over(
    session: Session, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    call(session, "enqueue", procedure="noted")
    worker = start()
    wait_until(lambda: lines(tmp_path / "begun"), "the task runs")
    worker.kill()
    worker.wait()
    (tmp_path / "hold").unlink()
    now, later = Worker(session), Worker(session, clock=Later())
    assert now.run_due() == 0
    assert later.run_due() == 1
    now.stop()
    later.stop()
    assert call(session, "show_queue") == []
    assert [run.outcome for run in history(session)] == ["succeeded", "lost"]


def test_a_worker_that_is_terminated_gives_its_task_to_another_at_once(
    session: Session, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    call(session, "enqueue", procedure="noted")
    worker = start()
    wait_until(lambda: lines(tmp_path / "begun"), "the task runs")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    [task] = rows(session, "show_queue")
    assert (task["state"], task["attempt"]) == ("waiting", 0)
    (tmp_path / "hold").unlink()
    other = Worker(session)
    assert other.run_due() == 1
    other.stop()
    assert [run.outcome for run in history(session)] == ["succeeded"]
