"""What the README shows exists: commands, options, properties, views, files; and its Python compiles."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from polaris_spark import config
from polaris_spark.catalog.expiring import gc_enabled
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.catalog.properties import GC_ENABLED
from polaris_spark.cli import commands
from polaris_spark.config import Properties
from polaris_spark.errors import StoreURIError
from polaris_spark.spark.options import DESCRIPTIONS
from polaris_spark.spark.procedures.registry import BUILT_IN
from polaris_spark.spark.views import VIEWS
from tests.simulation.mutants import MUTANTS
from tests.simulation.sweep_mutants import SWEEP_MUTANTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS: dict[str, Any] = {name: commands.load(name) for name in commands.COMMANDS}


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str, header: str) -> list[list[str]]:
    """The rows of the table whose header begins so; cells without backquotes."""
    lines = text[text.index(f"| {header} |") :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def options_of(command: str) -> set[str]:
    """The options of a command, without --help."""
    return {
        name
        for one in COMMANDS[command].params
        for name in (*one.opts, *one.secondary_opts)
        if name[:2] == "--"
    }


def shown_commands() -> list[list[str]]:
    """Every line of a shell block that runs polaris-spark, as words."""
    lines = [part for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    words = [shlex.split(line, comments=True) for line in lines if "polaris-spark " in line]
    return [line for line in words if Path(line[0]).name == "polaris-spark"]


def statements() -> list[str]:
    """Every statement of an SQL block, without comments."""
    text = "\n".join(re.sub(r"--.*", "", block) for block in blocks("sql"))
    return [" ".join(one.split()) for one in text.split(";") if one.strip()]


def test_it_begins_with_the_two_commands() -> None:
    demo, test = blocks("sh")[:2]
    assert demo.strip() == (
        "python3 -m venv .venv && .venv/bin/pip install -e '.[demo]' && .venv/bin/polaris-spark demo"
    )
    assert test.strip() == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"


def test_its_first_lines_and_the_package_tell_it_from_the_spark_client_of_apache_polaris() -> None:
    first = README.split("\n\n")[1]
    assert "not the Spark client of Apache Polaris" in first
    assert "not Apache Polaris's Spark client" in (ROOT / "pyproject.toml").read_text().split("readme =")[0]


def test_the_feed_that_it_shows_ends() -> None:
    (feed,) = [text for text in blocks("python") if "readStream" in text]
    assert "trigger(availableNow=True)" in feed
    assert "max-changes-per-batch" not in feed  # one batch then has all changes
    assert feed.rstrip().splitlines()[-1].startswith("audit.toTable")


@pytest.mark.parametrize("line", shown_commands(), ids=" ".join)
def test_commands_that_it_shows_exist(line: list[str]) -> None:
    command, options = line[1], {word for word in line[2:] if word.startswith("--")}
    assert command in COMMANDS
    assert options <= options_of(command)


def test_every_procedure_is_listed_with_its_parameters() -> None:
    listed = {
        row[0]: re.findall(r"[a-z_]+", row[1])
        for row in table(section("Procedures"), "procedure | parameters")
    }
    assert listed == {one.name: [p.name for p in one.parameters] or ["none"] for one in BUILT_IN}


def test_every_command_is_listed_with_its_options() -> None:
    listed = {row[0]: set(re.findall(r"--[a-z-]+", row[1])) for row in table(README, "command | options")}
    assert listed == {name: options_of(name) for name in COMMANDS}


def test_every_property_is_listed_and_every_listed_one_exists() -> None:
    listed = {row[0] for row in table(README, "property | default | meaning")}
    assert listed == {"store", "store.<option>", GC_ENABLED, *config.PROPERTIES}


@pytest.mark.parametrize("row", table(README, "property | default | meaning"), ids=lambda row: row[0])
def test_defaults_of_properties_are_right(row: list[str]) -> None:
    name, default = row[:2]
    if name == "store":
        with pytest.raises(StoreURIError, match="missing"):
            Properties.parse({})
        return
    if name == "store.<option>":
        assert Properties.parse({"store": "memory:"}).store_options == {}
        return
    if name == GC_ENABLED:
        assert gc_enabled([{name: default}]) == gc_enabled([])
        return
    field, plain = name.removeprefix("polaris.").replace("-", "_"), Properties.parse({"store": "memory:"})
    if getattr(plain, field, None) is None:  # `python` is for the JVM alone
        assert " " in default  # said in words
    else:
        assert getattr(Properties.parse({"store": "memory:", name: default}), field) == getattr(plain, field)


def test_every_bound_of_requests_is_listed_with_its_value() -> None:
    assert table(section("Limits"), "what") == [[what, f"{most:,}"] for what, most in BOUNDS.items()]


def test_every_view_is_listed_with_what_it_shows() -> None:
    listed = {row[0]: row[1] for row in table(section("The catalog as tables"), "view | what it shows")}
    assert listed == {name: view.comment for name, view in VIEWS.items()}


def test_every_option_of_the_data_source_is_listed() -> None:
    listed = {row[0]: row[1] for row in table(section("The catalog as tables"), "option | meaning")}
    assert listed == DESCRIPTIONS


def test_spark_accepts_every_statement_that_it_shows(spark: SparkSession) -> None:
    calls, queries = [], []
    for one in statements():
        (calls if one.startswith("CALL") else queries).append(one)
    assert calls
    assert queries
    for one in calls:  # EXPLAIN binds the arguments of a call and does not run it
        (plan,) = spark.sql(f"EXPLAIN {one}").collect()
        assert "Error" not in plan.plan, plan.plan
    spark.sql("CREATE NAMESPACE polaris.shop")
    spark.sql("CREATE TABLE polaris.shop.orders (id BIGINT, email STRING)")
    spark.sql("INSERT INTO polaris.shop.orders VALUES (1, 'a@b.example')")
    found = {one: len(spark.sql(one).collect()) for one in queries}
    assert [one for one, rows in found.items() if rows == 0 and ".tasks" not in one] == []


@pytest.mark.parametrize("snippet", blocks("python"), ids=lambda text: text.strip().splitlines()[-1])
def test_python_compiles(snippet: str) -> None:
    assert compile(snippet, "README.md", "exec")


def test_the_program_without_a_jvm_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [text for text in blocks("python") if "connect(" in text]
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("200 {'namespaces': [['shop']]")


def test_the_program_with_pyiceberg_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [text for text in blocks("python") if "load_catalog(" in text]
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out == "[{'id': 2, 'item': 'coffee'}]\n"


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md"])
def test_files_and_headings_that_a_page_links_to_exist(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", (ROOT / page).read_text())
    assert links
    for file, heading in links:
        target = ROOT / (file or page)
        assert target.exists(), file
        assert not heading or heading in headings(target), f"{file}#{heading}"


def test_security_is_described_where_readers_look_for_it() -> None:
    assert "(SECURITY.md)" in section("Security")
    assert '"/SECURITY.md"' in (ROOT / "pyproject.toml").read_text()


def test_the_number_of_broken_protocols_is_right() -> None:
    assert f"sweeps, {len(MUTANTS) + len(SWEEP_MUTANTS)} of them" in section("Proved by simulation")


def test_modules_that_it_names_can_be_imported() -> None:
    import importlib

    for name in re.findall(r"python -m ([a-z_.]+)", README):
        if name != "venv":
            assert importlib.import_module(name)


def test_the_performance_section_says_how_to_measure() -> None:
    assert "python -m benchmarks" in section("Performance")
