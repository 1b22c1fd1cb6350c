"""The table of commands: which packages each command imports, and the options that all commands have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polaris_spark import __version__
from polaris_spark.cli import commands
from tests.cli.catalogs import COMMITS, run

HEAVY = (
    "cachetools",
    "fastavro",
    "matplotlib",
    "numpy",
    "pandas",
    "py4j",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "requests",
    "sqlalchemy",
    "starlette",
    "uvicorn",
)
"""Packages that take long to import, and that a light command must not import."""

SPARKLESS = ("pyiceberg", "pyspark")
"""Packages that a job in this process does not need."""


def process(*arguments: str, program: str = "main()", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    start = f"import sys; sys.argv[0] = 'polaris-spark'; from polaris_spark.cli import main; {program}"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def imported(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    done = process(
        *arguments,
        program="import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()",
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


PACKAGES = ("polaris_spark.access", "polaris_spark.spark")
"""Packages that import nothing themselves."""

OWN_OF_HELP = (
    "polaris_spark.access.needs",
    "polaris_spark.cli",
    "polaris_spark.clock",
    "polaris_spark.errors",
    "polaris_spark.names",
    "polaris_spark.property_values",
    "polaris_spark.secret_options",
    "polaris_spark.jobs",
)
"""Modules of this package, each with those below it, that help may import."""


@pytest.mark.parametrize("command", ["--help", "--version", "log", "tables", "properties"])
def test_a_light_command_imports_nothing_heavy(store: str, command: str) -> None:
    needs_store = not command.startswith("-")
    assert not imported(command, *([store] if needs_store else [])) & set(HEAVY)


@pytest.mark.parametrize("command", [*commands.COMMANDS, "maintain sweep", "maintain remove-orphans"])
def test_help_of_a_command_imports_only_what_it_declares(command: str) -> None:
    found = imported(*command.split(), "--help")
    own = {name for name in found if name.startswith("polaris_spark.") and name not in PACKAGES}
    assert not found & set(HEAVY)
    assert not {name for name in own if not any(f"{name}.".startswith(f"{one}.") for one in OWN_OF_HELP)}
    assert not own & {"polaris_spark.cli.stores", "polaris_spark.cli.survey"}


@pytest.mark.parametrize("command", ["report", "demo", "serve", "import", "maintain sweep"])
def test_help_of_a_command_needs_neither_spark_nor_pyiceberg(command: str) -> None:
    without = "".join(f"sys.modules[{name!r}] = None; " for name in SPARKLESS)
    done = process(*command.split(), "-h", program=f"{without}main()")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("job", ["trim", "sweep"])
def test_a_job_in_this_process_imports_neither_spark_nor_pyiceberg(store: str, job: str) -> None:
    assert not imported("maintain", job, store, "--no-spark", "--dry-run") & set(SPARKLESS)


def test_help_imports_no_command() -> None:
    targets = {entry.target.partition(":")[0] for entry in commands.COMMANDS.values()}
    assert not imported("--help") & targets


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_the_list_of_commands_and_each_commands_own_help_agree(name: str) -> None:
    own = (commands.load(name).help or "").split("\n\n")[0]
    assert commands.COMMANDS[name].help == " ".join(own.split())


def test_the_version_is_printed() -> None:
    answer = run("--version")
    assert (answer.code, answer.out) == (0, f"polaris-spark {__version__}\n")


def test_the_error_for_a_mistyped_command_suggests_a_similar_one() -> None:
    answer = run("tabels", COLUMNS="200")
    assert answer.code == 2
    assert "Did you mean 'tables'?" in answer.err


@pytest.mark.parametrize("arguments", [[], ["log"], ["maintain"], ["maintain", "sweep"]], ids=" ".join)
def test_h_is_short_for_help(arguments: list[str]) -> None:
    short, long = run(*arguments, "-h"), run(*arguments, "--help")
    assert short.code == 0
    assert short.out == long.out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("tab", {"tables"}), ("tables --cat", {"--catalog"}), ("maintain swe", {"sweep", "sweep-realms"})],
)
def test_a_shell_completes_commands_and_options(words: str, wanted: set[str]) -> None:
    typed = ["polaris-spark", *words.split()]
    done = process(
        _POLARIS_SPARK_COMPLETE="complete_bash", COMP_WORDS=" ".join(typed), COMP_CWORD=str(len(typed) - 1)
    )
    assert set(done.stdout.split()) == wanted


def test_completion_can_be_installed() -> None:
    shown = run("--help", COLUMNS="200").out
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_the_store_may_be_named_by_the_environment(store: str) -> None:
    assert len(json.loads(run("log", "--json", POLARIS_SPARK_STORE=store).out)) == COMMITS + 1
    assert run("log", "--json", f"sqlite://{Path('/nowhere')}/x.db", POLARIS_SPARK_STORE=store).code == 2
    assert run("maintain", "trim", POLARIS_SPARK_STORE=store).code == 0


@pytest.mark.parametrize("command", ["log", "tables", "export"])
def test_the_error_for_a_missing_branch_lists_the_existing_ones(store: str, command: str) -> None:
    answer = run(command, store, "--branch", "nope")
    assert answer.code == 2
    assert "has no branch 'nope'; it has: 'main'" in answer.err


def test_an_object_is_printed_from_the_store_that_the_environment_names(store: str) -> None:
    (newest,) = run("log", store, "--limit", "1", "--json").json
    assert run("cat", newest["id"], POLARIS_SPARK_STORE=store).json["id"] == newest["id"]
    assert (
        run("cat", store, newest["id"], POLARIS_SPARK_STORE="sqlite:///nowhere.db").json["id"] == newest["id"]
    )


def test_the_error_for_a_missing_store_names_the_environment_variable() -> None:
    answer = run("log", COLUMNS="200")
    assert answer.code == 2
    assert "STORE" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--max-open-realms", "256"), "--max-open-realms has no effect without --realms"),
        (("serve", "--realm-domain", "x.test"), "--realm-domain has no effect without --realms"),
        (("serve", "--concurrency", "2"), "--concurrency has no effect without --work"),
        (("serve", "--token-lifetime", "1 h"), "--token-lifetime has no effect without --token-key"),
        (("serve", "--insecure", "--login-log", "x"), "--login-log has no effect with --insecure"),
        (
            ("serve", "--insecure", "--max-failures-per-address", "60"),
            "--max-failures-per-address has no effect with --insecure",
        ),
        (("work", "--once", "--poll", "5 s"), "--poll has no effect with --once"),
        (("log", "--reference", "root", "--branch", "main"), "--branch has no effect with --reference"),
        (("log", "--follow", "--json", "--limit", "3"), "--limit has no effect with --follow"),
        (("recover", "--force"), "--force has no effect without --yes"),
    ],
    ids=str,
)
def test_an_option_without_effect_is_refused(store: str, arguments: tuple[str, ...], message: str) -> None:
    command, *options = arguments
    answer = run(command, store, *options)
    assert (answer.code, message in answer.err) == (2, True), answer
