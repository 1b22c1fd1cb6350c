"""`polaris-spark maintain`: every job by command line."""

from __future__ import annotations

import inspect
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.cli import maintain
from polaris_spark.errors import InputError
from polaris_spark.spark.procedures.procedure import Column, Parameter, Procedure
from polaris_spark.spark.procedures.registry import procedures
from tests.cli.catalogs import make_catalog, run

JOBS = [procedure for procedure in procedures().values() if procedure.maintenance]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.name))
def test_every_job_is_a_command_with_its_parameters(job: Procedure) -> None:
    shown = run("maintain", job.name.replace("_", "-"), "--help", COLUMNS="200").out
    for parameter in job.parameters:
        assert f"--{parameter.name.replace('_', '-')}" in shown


def test_a_job_by_command_line(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    nothing = run("maintain", "trim", store)
    assert (nothing.code, nothing.out) == (0, "nothing\n")
    short = ("--property", "grace=0s", "--property", "idempotency-key-lifetime=0s", "--retention", "0s")
    would = run("maintain", "trim", store, *short, "--dry-run", "--json").json
    done = run("maintain", "trim", store, *short, "--json").json
    assert [one["reference"] for one in done] == [one["reference"] for one in would]
    assert "root" in [one["reference"] for one in done]
    assert datetime.fromisoformat(done[0]["first_commit_time"].replace("Z", "+00:00")).tzinfo is not None
    assert "root" not in run("maintain", "trim", store, *short).out


def test_what_it_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    answer = run("maintain", "trim", store, "--retention", "1 min")
    assert answer.code == 2
    assert answer.err.startswith("polaris-spark: history cannot be trimmed")
    assert run("maintain", "trim", store, "--realm", "nosuch").code == 2
    assert run("maintain", "trim", "memory:here").code == 2
    assert run("maintain", "trim", f"sqlite://{tmp_path}/nosuch.db").code == 2
    assert not (tmp_path / "nosuch.db").exists()


def test_a_job_with_and_without_spark_at_once_is_refused(tmp_path: Path) -> None:
    answer = run("maintain", "trim", make_catalog(tmp_path), "--no-spark", "--master", "local[1]")
    assert answer.code == 2
    assert "--no-spark runs the job in this process, --master on Spark" in answer.err


def a_job(*parameters: Parameter, run: Any = lambda call, given: [(str(given),)], **more: Any) -> Procedure:
    return Procedure(
        "a_job", parameters, (Column("given", "STRING"),), run, "Tests.", maintenance=True, **more
    )


def test_options_hold_what_parameters_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain.app, "registered_commands", list(maintain.app.registered_commands))
    types = (
        "STRING",
        "BOOLEAN",
        "INT",
        "BIGINT",
        "DOUBLE",
        "TIMESTAMP",
        "ARRAY<STRING>",
        "MAP<STRING,STRING>",
    )
    names = ("text", "flag", "number", "big", "double", "at", "some_texts", "pairs")
    maintain.add(a_job(*(Parameter(name, type, "a value") for name, type in zip(names, types, strict=True))))
    store = make_catalog(tmp_path)
    given = "--text t --no-flag --number 1 --big 5000000000 --double 1.5 --at 2026-01-02T03:04:05"
    texts = "--some-texts a --some-texts b --pairs c=d"
    answer = run("maintain", "a-job", store, *given.split(), *texts.split(), "--json").json
    assert answer[0]["given"] == str(
        {
            "text": "t",
            "flag": False,
            "number": 1,
            "big": 5_000_000_000,
            "double": 1.5,
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            "some_texts": ["a", "b"],
            "pairs": {"c": "d"},
        }
    )
    assert run("maintain", "a-job", store, "--json").json == [{"given": "{}"}]


def test_found_faults_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain.app, "registered_commands", list(maintain.app.registered_commands))
    maintain.add(a_job(finds_faults=True))
    assert run("maintain", "a-job", make_catalog(tmp_path)).code == maintain.FAULTS_FOUND


def test_a_parameter_that_every_command_has_is_refused() -> None:
    for name in inspect.signature(maintain._place).parameters:
        with pytest.raises(InputError, match="which every command has"):
            maintain.add(a_job(Parameter(name, "STRING", "a value")))


def test_a_realm_is_moved_to_a_store_whose_secret_is_in_the_environment(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    target = ("--target", "postgresql://me@127.0.0.1:1/db", "--target-options")
    answer = run("maintain", "migrate-realm", store, *target, "password=env:HIDDEN", HIDDEN="open-sesame")
    assert "127.0.0.1:1" in answer.err  # where nobody listens: the options were taken
    assert "open-sesame" not in answer.err
    plain = run("maintain", "migrate-realm", store, *target, "password=open-sesame")
    assert "env:NAME" in plain.err
    assert "open-sesame" not in plain.err
