"""The commands `work`, `schedule`, `queue`, `runs` and `policy`, and `serve --work`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import polaris_spark
from polaris_spark.cli.app import main
from polaris_spark.cli.work import ServingWorker
from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import wait_until
from tests.queue.conftest import Counted


@pytest.fixture
def store(tmp_path: Path) -> str:
    found = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=found, warehouse=str(tmp_path / "w")) as session:
        session.request("POST", "v1/namespaces", None, '{"namespace": ["db"]}')
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command, and return the exit code and what it printed."""
    with pytest.raises(SystemExit) as ended, patch.object(sys, "argv", ["polaris-spark", *words]):
        main()
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out + printed.err


def test_schedules_tasks_and_runs_by_commands(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--procedure", "expire", "--arguments", "retain_last=3")
    assert run(capsys, "schedule", "add", store, "--name", "a", "--every", "1 d", *given)[0] == 0
    code, text = run(capsys, "queue", "add", store, *given, "--json")
    (task,) = json.loads(text)
    assert (code, task["procedure"], task["state"]) == (0, "expire", "waiting")
    assert run(capsys, "work", store, "--once") == (0, "1 runs\n")
    (ended,) = json.loads(run(capsys, "runs", store, "--json")[1])
    assert (ended["origin"], ended["name"], ended["outcome"]) == ("task", task["id"], "succeeded")
    (schedule,) = json.loads(run(capsys, "schedule", "show", store, "--json")[1])
    assert (schedule["name"], schedule["due"]) == ("a", "every 1 d")
    assert run(capsys, "schedule", "drop", store, "--name", "a")[0] == 0
    code, text = run(capsys, "schedule", "add", store, "--name", "a", "--every", "often", *given)
    assert (code, "--every is 'often'" in text) == (2, True)


def test_policies_by_commands(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--name", "db.p", "--type", "system.snapshot-expiry", "--content", '{"enable": true}')
    assert run(capsys, "policy", "create", store, *given)[0] == 0
    assert run(capsys, "policy", "attach", store, "--name", "db.p", "--namespace", "db")[0] == 0
    (found,) = json.loads(run(capsys, "policy", "applicable", store, "--namespace", "db", "--json")[1])
    assert (found["name"], found["inherited"]) == ("db.p", False)


def test_a_worker_of_a_server_runs_tasks(store: str, counted: Counted) -> None:
    with polaris_spark.connect(store=store, create=False) as session:
        call(session, "enqueue", procedure="counted")
        with ServingWorker(session.properties, 2, []):
            wait_until(lambda: not call(session, "show_queue"), "the task has run", every_s=0.05)
    assert len(counted.calls) == 1


def test_a_worker_needs_a_store_and_a_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "work", f"sqlite://{tmp_path}/none.db", "--once")
    assert (code, "does not contain a store" in text) == (2, True)
    code, text = run(capsys, "work", f"sqlite://{tmp_path}/none.db", "--poll", "0 s")
    assert (code, "--poll is '0 s'; it must be more than 0" in text) == (2, True)
