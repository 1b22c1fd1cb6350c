"""`polaris-spark maintain`: every maintenance job on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.backends import open_backend
from polaris_spark.cli import maintain
from polaris_spark.cli.exit_codes import PROBLEMS_FOUND
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError
from polaris_spark.jobs.procedure import Column, Parameter, Procedure
from polaris_spark.jobs.registry import procedures
from polaris_spark.store_uris import StoreURI
from tests.catalog.imports.support import table_metadata, write
from tests.cli.catalogs import make_catalog, run
from tests.rest.client import connect

JOBS = [procedure for procedure in procedures().values() if procedure.maintenance]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job.name))
def test_every_job_is_a_command_with_its_parameters(job: Procedure) -> None:
    shown = run("maintain", job.name.replace("_", "-"), "--help", COLUMNS="200").out
    for parameter in job.parameters:
        assert f"--{parameter.name.replace('_', '-')}" in shown


def test_a_job_by_command_line(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    nothing = run("maintain", "trim", store)
    assert (nothing.code, nothing.out) == (0, "nothing to do\n")
    short = ("--property", "grace=0s", "--property", "idempotency-key-lifetime=0s", "--retention", "0s")
    would = run("maintain", "trim", store, *short, "--dry-run", "--json").json
    done = run("maintain", "trim", store, *short, "--json").json
    assert [one["reference"] for one in done] == [one["reference"] for one in would]
    assert "root" in [one["reference"] for one in done]
    assert datetime.fromisoformat(done[0]["first-commit-time"].replace("Z", "+00:00")).tzinfo is not None
    run(
        "maintain", "trim", store, *short
    )  # the first trim created the archive of the log by a commit to the root
    assert "root" not in run("maintain", "trim", store, *short).out


def test_refusals_are_reported_in_one_line(tmp_path: Path) -> None:
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
    assert "--no-spark runs the job in this process, and --master runs it on Spark" in answer.err


def a_job(*parameters: Parameter, run: Any = lambda call, given: [(str(given),)], **more: Any) -> Procedure:
    return Procedure(
        "a_job", parameters, (Column("given", "STRING"),), run, "Tests.", maintenance=True, **more
    )


def test_options_accept_the_values_of_the_procedures_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert run("maintain", "a-job", make_catalog(tmp_path)).code == PROBLEMS_FOUND


def test_a_parameter_that_every_command_has_is_refused() -> None:
    for name in inspect.signature(maintain._place).parameters.keys() - {"branch"}:
        with pytest.raises(InputError, match="has the name of an option that every job command has"):
            maintain.add(a_job(Parameter(name, "STRING", "a value")))


def test_a_parameter_branch_replaces_the_option_for_the_branch_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain.app, "registered_commands", list(maintain.app.registered_commands))
    maintain.add(a_job(Parameter("branch", "STRING", "name of a branch")))
    answer = run("maintain", "a-job", make_catalog(tmp_path), "--branch", "other", "--json")
    assert answer.json == [{"given": "{'branch': 'other'}"}]


def test_a_realm_is_moved_to_a_store_whose_secret_is_in_the_environment(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    target = ("--target", "postgresql://me@127.0.0.1:1/db", "--target-options")
    answer = run("maintain", "migrate-realm", store, *target, "password=env:HIDDEN", HIDDEN="open-sesame")
    assert "127.0.0.1:1" in answer.err  # where nobody listens: the options were taken
    assert "open-sesame" not in answer.err
    plain = run("maintain", "migrate-realm", store, *target, "password=open-sesame")
    assert "env:NAME" in plain.err
    assert "open-sesame" not in plain.err


class SparkAskedForError(Exception):
    """A job tried to use Spark."""


def asks_for_spark(call: Any, given: Any) -> list[tuple[str]]:
    if call.has_spark:
        raise SparkAskedForError
    return [("here",)]


@pytest.mark.parametrize(
    ("options", "large", "spark"),
    [
        ((), False, False),
        ((), True, True),
        (("--no-spark",), True, False),
        (("--spark",), False, True),
        (("--master", "local[1]"), False, True),
    ],
    ids=str,
)
def test_a_job_runs_on_spark_if_the_store_is_large_or_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], large: bool, spark: bool
) -> None:
    monkeypatch.setattr(maintain.app, "registered_commands", list(maintain.app.registered_commands))
    maintain.add(a_job(run=asks_for_spark))
    store = make_catalog(tmp_path)
    if large:
        monkeypatch.setattr(maintain.is_large, "__defaults__", (10,))
    if spark:
        with pytest.raises(SparkAskedForError):
            run("maintain", "a-job", store, *options)
    else:
        assert run("maintain", "a-job", store, *options, "--json").json == [{"given": "here"}]


def test_a_store_is_large_from_one_row_above_the_limit(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    rows = run("info", store, "--json").json["realms"][0]["objects"]
    backend = open_backend(StoreURI.parse(store), {})
    assert not maintain.is_large(backend, rows)
    assert maintain.is_large(backend, rows - 1)
    backend.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("older_than is 1 h; say so by force => true", "--older-than is 1 h; say so by --force"),
        ("run it with clock_is_right => true (--clock-is-right)", "run it with --clock-is-right"),
        ("expire: the argument 'table' is missing; it is required", "expire: --table is missing; it is required"),
        ("the older_thanness of 'my_older_than'", "the older_thanness of 'my_older_than'"),
        ("table db.t keeps its files", "table db.t keeps its files"),
    ],
)  # fmt: skip  # each text beside what becomes of it
def test_errors_name_options_rather_than_parameters(text: str, told: str) -> None:
    parameters = [
        Parameter(name, "STRING", "") for name in ("older_than", "force", "table", "clock_is_right")
    ]
    assert maintain.in_options(text, parameters) == told


def test_an_error_of_a_job_names_the_option(tmp_path: Path) -> None:
    answer = run("maintain", "remove-orphans", make_catalog(tmp_path), "--older-than", "1 h")
    assert answer.code == 2
    assert "--older-than is less than 24 hours ago" in answer.err
    assert "--force" in answer.err
    assert "=>" not in answer.err


def test_jobs_without_work_say_so_in_the_same_words(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    for job in ("trim", "sweep", "expire", "purge-dropped", "remove-orphans", "purge-realm"):
        assert run("maintain", job, store).out == "nothing to do\n"
    assert run("fsck", store).out == run("maintain", "fsck", store).out == "no problems found\n"


def test_json_has_dashes_in_names_everywhere(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    listings = (
        ("info",), ("log",), ("tables",), ("heads",), ("recover",), ("realm", "list"), ("export",),
        ("maintain", "compact-index"), ("maintain", "sweep"),
    )  # fmt: skip  # a list of words
    for words in listings:
        assert not [key for key in keys(run(*words, store, "--json").json) if "_" in key], words


def keys(value: Any) -> Iterator[str]:
    """The names in a JSON value, but not those in maps whose names are the user's."""
    if isinstance(value, list):
        for one in value:
            yield from keys(one)
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            if key not in ("properties", "summary"):
                yield from keys(one)


def test_tables_of_another_catalog_are_imported(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    write(tmp_path / "lake" / "sales", table_metadata(f"file://{tmp_path}/lake/sales"))
    given = ("--source", "directory", "--location", str(tmp_path / "lake"), "--into", "db")
    would = run("import", store, *given, "--dry-run", "--json").json
    done = run("import", store, *given, "--json").json
    assert [(one["name"], one["status"]) for one in done] == [("db.sales", "imported")]
    assert [one["name"] for one in would] == ["db.sales"]
    assert "db.sales" in [one["name"] for one in run("tables", store, "--json").json]


def test_an_import_of_conflicts_only_creates_nothing_and_fails(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    copy = str(tmp_path / "copy")
    assert (
        run("export", store, "--location", copy).code == 0
    )  # its metadata names the locations of the tables here
    refused = run("import", store, "--source", "directory", "--location", copy, "--into", "fresh.inner")
    assert (refused.code, "nothing was imported" in refused.err) == (2, True)
    assert "conflict" in refused.out
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse"), create=False) as catalog:
        _, _, body = catalog.request("GET", "v1/namespaces")
    assert "fresh" not in body


def test_errors_begin_with_the_name_of_the_command_as_typed(tmp_path: Path) -> None:
    refused = run("maintain", "migrate-realm", make_catalog(tmp_path))
    assert refused.code == 2
    assert "migrate-realm: --target is missing" in refused.err


def test_a_dropped_branch_is_brought_back(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse"), create=False) as catalog:
        name = next(r.name for r in catalog.catalog.references.listed() if r.name.startswith("cat/"))
        catalog.catalog.references.drop(name, Operation(b"", "ann"))
    assert run("tables", store).code == 0
    assert run("undrop-reference", store, name, "--json").json["name"] == name
    assert "live" in run("info", store).out
    again = run("undrop-reference", store, name)
    assert again.code == 2
    assert "no dropped reference" in again.err
    assert "give both STORE and REFERENCE" in run("undrop-reference", store).err


def test_json_output_spells_table_names_the_same_everywhere(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    write(tmp_path / "lake" / "my-sales", table_metadata(f"file://{tmp_path}/lake/my-sales"))
    given = ("--source", "directory", "--location", str(tmp_path / "lake"), "--into", "db")
    listings = (
        run("import", store, *given, "--json"),
        run("tables", store, "--json"),
        run("export", store, "--location", str(tmp_path / "out"), "--json"),
        run("maintain", "expire", store, "--older-than", "0 s", "--dry-run", "--json"),
    )
    for listed in listings[:3]:
        assert "db.`my-sales`" in [one["name"] for one in listed.json]
    assert not [one for listed in listings for one in listed.json if {"table", "namespace"} & one.keys()]


def test_the_only_catalog_is_the_default_and_with_several_one_must_be_given(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/one.db"
    connect(store, tmp_path / "warehouse", catalog="one").session.close()
    assert run("maintain", "sweep", store).code == 0
    connect(store, tmp_path / "other", catalog="other").session.close()
    refused = run("maintain", "sweep", store)
    assert (refused.code, "choose one with --catalog: 'one', 'other'" in refused.err) == (2, True)
    assert run("maintain", "sweep", store, "--catalog", "other").code == 0
