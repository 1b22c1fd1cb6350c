"""Commands that fail, and must not change the store."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.cli import app
from tests.cli.catalogs import make_catalog, run


@pytest.mark.parametrize("command", ["info", "log", "tables", "cat"])
def test_looking_changes_nothing(tmp_path: Path, command: str) -> None:
    store = make_catalog(tmp_path)
    before = rows(tmp_path)
    (newest,) = run("log", store, "--limit", "1", "--json").json
    assert run(command, store, *([newest["id"]] if command == "cat" else [])).code == 0
    assert rows(tmp_path) == before


@pytest.mark.parametrize("command", ["info", "log", "tables"])
def test_a_store_that_does_not_exist_is_not_created(tmp_path: Path, command: str) -> None:
    answer = run(command, f"sqlite://{tmp_path}/none.db")
    assert answer.code == 2
    assert "does not exist" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "/path/of.db"), "must begin with a scheme"),
        (("info", "memory:"), "exists only in the process"),
        (("info", "nosuch://host/db"), "no backend for 'nosuch'"),
        (("log", "STORE", "--realm", "other"), "no realm 'other' in this store; it has: 'default'"),
        (("log", "STORE", "--catalog", "other"), "no catalog 'other'; it has: 'polaris'"),
        (("log", "STORE", "--branch", "dev"), "catalog 'polaris' has no branch 'dev'; it has: 'main'"),
        (("log", "STORE", "--reference", "nothing"), "no reference 'nothing'; it has: root"),
        (("tables", "STORE", "--realm", "::system::"), "reserved"),
        (("cat", "STORE", "nonsense"), "not an object id"),
        (("cat", "STORE", "abc"), "no object abc in any realm"),
        (("cat", "STORE", "abc", "--realm", "default"), "no object abc in realm 'default'"),
    ],
)
def test_errors_are_printed_in_one_line(store: str, arguments: tuple[str, ...], message: str) -> None:
    answer = run(*(store if argument == "STORE" else argument for argument in arguments))
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("polaris-spark: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err


def test_names_between_colons_stay_as_they_are(tmp_path: Path) -> None:
    store = make_catalog(tmp_path, catalog="a:x:b")
    assert run("log", store, "--catalog", "c:x:d").err.endswith("it has: 'a:x:b'\n")
    assert run("tables", store).out.startswith("a:x:b (main)\n")


def test_one_of_several_catalogs_must_be_chosen(tmp_path: Path) -> None:
    store = make_catalog(tmp_path, catalog="one")
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "two"), catalog="two"):
        pass
    assert "choose one with --catalog: 'one', 'two'" in run("tables", store).err
    assert run("tables", store, "--catalog", "two", "--json").json == []


def test_a_password_itself_is_refused_and_not_repeated(store: str) -> None:
    answer = run("info", store, "--password", "hunter2")
    assert answer.code == 2
    assert "env:NAME" in answer.err
    assert "hunter2" not in answer.err


def test_a_password_in_a_uri_is_not_repeated() -> None:
    answer = run("info", "nosuch://ada:hunter2@host/db")
    assert answer.code == 2
    assert "hunter2" not in answer.err


def test_a_variable_that_is_not_set_is_named(store: str) -> None:
    assert "'POLARIS_NOT_SET'" in run("info", store, "--password", "env:POLARIS_NOT_SET").err


def test_the_variable_of_passwords_does_not_disturb_stores_without_one(store: str) -> None:
    assert run("info", store, POLARIS_SPARK_STORE_PASSWORD="hunter2").code == 0


def test_a_process_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from polaris_spark.cli import main; main()"]
    done = subprocess.run(
        [*program, "info", f"sqlite://{tmp_path}/none.db"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("when", ["polaris_spark.cli.app", "polaris_spark.cli.realm"])
def test_a_process_that_is_interrupted_while_it_starts_says_so_in_one_line(when: str) -> None:
    program = f"""
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {when!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from polaris_spark.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "realm", "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "polaris-spark: interrupted; run it again\n"


def test_a_command_that_is_interrupted_says_so_in_one_line(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.app, "registered_commands", list(app.app.registered_commands))

    @app.app.command("wait")
    def wait() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        answer = run("wait")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "polaris-spark: interrupted; run it again\n"


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    database = sqlite3.connect(tmp_path / "catalog.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    answer = run("info", store)
    assert answer.code == 2
    assert "format 99" in answer.err


def rows(directory: Path) -> list[tuple[object, ...]]:
    """Return all rows in the database of `make_catalog`."""
    database = sqlite3.connect(directory / "catalog.db")
    found = [
        row
        for table in ("objects", '"references"')
        for row in database.execute(f"SELECT * FROM {table} ORDER BY 1, 2")
    ]
    database.close()
    return found
