"""Processes and commands with a wrong clock, together with processes whose clock is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.clock import SystemClock
from polaris_spark.ids import id_time_ms
from tests.cli.catalogs import make_catalog, run

DAY = 86_400_000
YEAR = 365 * DAY

_CHILD = """
import json, pathlib, sys
import polaris_spark
from polaris_spark.clock import SystemClock

store, warehouse, offset = sys.argv[1:]
right = SystemClock.now_ms
SystemClock.now_ms = lambda clock: right(clock) + int(pathlib.Path(offset).read_text())
catalog = polaris_spark.connect(store=store, warehouse=warehouse)
for number, _ in enumerate(sys.stdin):
    name = f"n{__import__('os').getpid()}x{number}"
    status, _, body = catalog.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
    print(json.dumps([status, str(body)]), flush=True)
catalog.close()
"""


class Child:
    """A process that commits on request. A file contains the error of its clock, in milliseconds."""

    def __init__(self, directory: Path, store: str, number: int, off_ms: int) -> None:
        self._offset = directory / f"offset{number}"
        self.is_off_by(off_ms)
        arguments = (store, str(directory / "warehouse"), str(self._offset))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def is_off_by(self, ms: int) -> None:
        """Set the error of its clock."""
        new = self._offset.with_suffix(".new")
        new.write_text(str(ms))
        os.replace(new, self._offset)

    def commit(self) -> tuple[int, str]:
        """Make the process commit. Returns status and text of the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        status, text = json.loads(self.process.stdout.readline())
        return status, text

    def end(self) -> None:
        """End the process. It releases its lease."""
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[[int], Child]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return make_catalog(tmp_path)


@pytest.fixture
def start(tmp_path: Path, store: str) -> Iterator[Start]:
    started: list[Child] = []

    def one(off_ms: int) -> Child:
        started.append(Child(tmp_path, store, len(started), off_ms))
        return started[-1]

    yield one
    for child in started:
        child.kill()


@pytest.fixture
def off_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the error of this process's clock."""
    right = SystemClock.now_ms

    def set_clock(ms: int) -> None:
        monkeypatch.setattr(SystemClock, "now_ms", lambda clock: right(clock) + ms)

    return set_clock


def commits(store: str) -> list[dict[str, Any]]:
    """The commits of the catalog, newest first."""
    found: list[dict[str, Any]] = run("log", store, "--json").json
    return found


def test_a_process_whose_clock_jumps_ahead_is_refused_until_the_clock_is_right_and_others_go_on(
    store: str, start: Start
) -> None:
    jumps, right = start(0), start(0)
    assert (jumps.commit()[0], right.commit()[0]) == (200, 200)
    for ahead in (400 * DAY, 10 * YEAR, 3_600_000):
        jumps.is_off_by(ahead)
        status, told = jumps.commit()
        assert status == 503
        assert "this machine's clock jumped to" in told
        assert "restart this process" in told
        assert right.commit()[0] == 200
        jumps.is_off_by(0)
        assert jumps.commit()[0] == 200
        assert right.commit()[0] == 200
    newest = start(0)
    assert newest.commit()[0] == 200
    assert run("fsck", store).out.strip() == "no problems found"


@pytest.mark.parametrize("ahead", [DAY * 2, 400 * DAY, 10 * YEAR])
def test_a_new_process_whose_clock_is_far_ahead_stops_no_other_and_one_command_repairs_the_store(
    store: str, start: Start, ahead: int
) -> None:
    running = start(0)
    assert running.commit()[0] == 200
    wrong = start(ahead)
    assert wrong.commit()[0] == 200  # nothing tells it from the first commit after a long idle time
    found = run("fsck", store)
    assert found.code == 1
    assert "polaris-spark fsck --repair STORE" in found.out
    later = start(0)
    for _ in range(3):
        assert (later.commit()[0], running.commit()[0]) == (200, 200)
    wrong.kill()  # it does not give its lease back
    repaired = run("fsck", store, "--repair")
    assert (repaired.code, repaired.out.strip()) == (0, "no problems found")
    assert "The store's time is now that of this machine's clock" in repaired.err
    assert run("fsck", store).out.strip() == "no problems found"
    fresh = start(0)
    assert fresh.commit()[0] == 200
    now = SystemClock().now_ms()
    by_right = commits(store)[:7]
    assert all(id_time_ms(int(one["id"], 16)) <= now for one in by_right)
    times = [one["time"] for one in by_right]
    assert times == sorted(times, reverse=True)
    assert run("fsck", store).out.strip() == "no problems found"


def test_a_process_that_stays_far_ahead_after_a_repair_stops_no_other(store: str, start: Start) -> None:
    right, wrong = start(0), start(YEAR)
    assert (right.commit()[0], wrong.commit()[0]) == (200, 200)
    assert run("fsck", store, "--repair").code == 0
    for _ in range(3):
        assert (wrong.commit()[0], right.commit()[0]) == (200, 200)
    wrong.end()
    assert start(0).commit()[0] == 200
    assert run("fsck", store, "--repair").code == 0


def test_a_process_whose_clock_is_behind_is_refused(store: str, start: Start) -> None:
    assert start(0).commit()[0] == 200
    status, told = start(-YEAR).commit()
    assert status == 503
    assert "364 days behind the time that" in told


# Jobs


JOBS = (
    ("sweep",),
    ("trim",),
    ("expire",),
    ("purge-dropped",),
    ("remove-orphans", "--no-dry-run"),
    ("purge-realm", "--name", "gone"),
)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[0])
def test_a_job_with_a_clock_far_ahead_deletes_nothing_and_says_why(
    store: str, off_by: Callable[[int], None], job: tuple[str, ...]
) -> None:
    before = run("info", store, "--json").json
    off_by(40 * DAY)
    for _ in range(2):
        refused = run("maintain", job[0], store, "--no-spark", *job[1:])
        assert refused.code == 2
        assert "days ahead of the newest time that this store trusts" in refused.err
        assert "--clock-is-right" in refused.err
    assert run("info", store, "--json").json["realms"] == before["realms"]


def test_a_dry_run_with_a_clock_far_ahead_works_and_warns(
    store: str, off_by: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    off_by(40 * DAY)
    for job in ("sweep", "trim", "expire", "purge-dropped", "remove-orphans"):
        caplog.clear()
        assert run("maintain", job, store, "--no-spark", "--dry-run").code == 0
        assert "a call that deletes would be refused" in caplog.text


def test_jobs_run_on_a_store_that_was_idle_for_long_after_the_operator_confirms_the_clock(
    store: str, off_by: Callable[[int], None]
) -> None:
    off_by(400 * DAY)
    assert run("maintain", "sweep", store, "--no-spark").code == 2
    assert run("maintain", "sweep", store, "--no-spark", "--clock-is-right").code == 0
    off_by(407 * DAY)
    assert run("maintain", "sweep", store, "--no-spark").code == 0
    assert run("maintain", "expire", store, "--no-spark").code == 0


def test_a_dry_run_does_not_confirm_the_clock(store: str, off_by: Callable[[int], None]) -> None:
    off_by(40 * DAY)
    assert run("maintain", "sweep", store, "--no-spark", "--dry-run", "--clock-is-right").code == 0
    assert run("maintain", "sweep", store, "--no-spark").code == 2
