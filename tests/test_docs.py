"""The commands, options, statements, links and programs in the README and the documentation exist and run."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import polaris_spark
from benchmarks.parts import PARTS
from conftest import resolving
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.cli import commands
from polaris_spark.config import PROPERTIES, Properties
from polaris_spark.databases import BUILT_IN as DATABASES
from polaris_spark.errors import OutcomeUnknownError, StoreURIError
from polaris_spark.jobs.registry import BUILT_IN
from polaris_spark.objects import BUILT_IN as OBJECT_TYPES
from polaris_spark.spark.views import VIEWS
from tests.backends.conftest import SLOW_SERVERS
from tests.server.realms import CREDENTIALS, new_realm, token_of
from tests.server.servers import client
from tests.servers import SERVERS
from tests.simulation.test_mutants import ALL

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*(ROOT / name for name in DOCUMENTS), *sorted((ROOT / "docs").rglob("*.md")))
}
"""The text of each document, by its path in the repository."""
CODE = ("benchmarks", "examples", "jvm-shim/src", "polaris_spark", "tests")
"""Folders with source files."""
README = PAGES["README.md"]
WITHOUT_ROWS = (
    "SELECT kind, holder, doing, done, total, outcome FROM polaris.system.tasks",
    "SELECT committed_at, principal, action, namespace, name FROM polaris.system.changes "
    "WHERE NOT state_stored ORDER BY committed_at DESC LIMIT 10",
    "SELECT procedure, name, outcome, statistics FROM polaris.system.runs ORDER BY ended_at DESC",
)
"""SQL examples that show nothing in a new catalog with one table."""
WITHOUT_RESULT = ("CREATE NAMESPACE ", "CREATE TABLE ", "INSERT ")
"""Beginnings of statements that return no rows."""
NAMES_OF_DATABASES = {
    "bigtable": "Bigtable",
    "cassandra": "Cassandra",
    "dynamodb": "DynamoDB",
    "mariadb": "MariaDB",
    "memory": "memory",
    "mongodb": "MongoDB",
    "objectstore": "object store|S3",
    "postgresql": "PostgreSQL",
    "rocksdb": "RocksDB",
    "sqlite": "SQLite",
}
"""How documents name each database of this package, by its module, as a regular expression."""
COMMANDS: dict[str, Any] = {name: commands.load(name) for name in commands.COMMANDS}


def blocks(language: str) -> list[str]:
    """Return the code blocks of all documents in a language, without duplicates."""
    found = (re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for text in PAGES.values())
    return list(dict.fromkeys(textwrap.dedent(block) for each in found for block in each))


def options_of(command: Any) -> set[str]:
    """Return the options of a command."""
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name[:2] == "--"}


def shown_commands() -> list[list[str]]:
    """Return every line of a shell block that runs polaris-spark, as words."""
    lines = [part for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    words = [shlex.split(line, comments=True) for line in lines if "polaris-spark " in line]
    return [line for line in words if Path(line[0]).name == "polaris-spark"]


def statements() -> list[str]:
    """Return every statement of an SQL block, without comments."""
    text = "\n".join(re.sub(r"--.*", "", block) for block in blocks("sql"))
    return [" ".join(one.split()) for one in text.split(";") if one.strip()]


@pytest.fixture(scope="module")
def generated() -> Any:
    """Import the module that generates pages of the site."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "hooks" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_the_two_commands() -> None:
    demo, test = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[:2]
    assert demo.strip() == (
        "python3 -m venv .venv && .venv/bin/pip install -e '.[demo]' && .venv/bin/polaris-spark demo"
    )
    assert test.strip() == (
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest -n 2"
    )


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 150


def test_the_first_lines_and_the_package_differ_from_the_spark_client_of_apache_polaris() -> None:
    first = " ".join(README.split("\n\n")[1].split())
    assert "not the Spark client of Apache Polaris" in first
    assert "not Apache Polaris's Spark client" in (ROOT / "pyproject.toml").read_text().split("readme =")[0]


def test_the_feed_that_is_shown_ends() -> None:
    (feed,) = [text for text in blocks("python") if "readStream" in text]
    assert "trigger(availableNow=True)" in feed
    assert "max-changes-per-batch" not in feed  # one batch then has all changes
    assert feed.rstrip().splitlines()[-1].startswith("audit.toTable")


@pytest.mark.parametrize("line", shown_commands(), ids=" ".join)
def test_commands_that_are_shown_exist(line: list[str]) -> None:
    assert line[1] in COMMANDS
    command = COMMANDS[line[1]]
    if hasattr(command, "list_commands"):
        command = command.get_command(command.make_context(line[1], [], resilient_parsing=True), line[2])
    assert {word for word in line[2:] if word.startswith("--")} <= options_of(command)


def test_each_command_that_needs_a_store_is_named_with_the_reason() -> None:
    def parts(command: Any) -> list[Any]:
        return [command, *getattr(command, "commands", {}).values()]

    without_server = {
        name
        for name, command in COMMANDS.items()
        if not any("--server" in options_of(part) for part in parts(command))
    }
    section = (
        PAGES["docs/guides/command-line.md"].split("The other commands need a store:")[1].split("\n\n")[1]
    )
    named = [re.split(r" (?:read|opens?|are) ", item)[0] for item in section.split("\n- ")]
    assert {name for item in named for name in re.findall(r"`([a-z-]+)`", item)} == without_server


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_default_of_a_property_is_the_one_that_is_documented(name: str) -> None:
    default, plain = PROPERTIES[name].default, Properties.parse({"store": "memory:"})
    field = name.removeprefix("polaris.").replace("-", "_")
    if getattr(plain, field, None) is None:
        assert " " in default  # described in words
    else:
        assert getattr(Properties.parse({"store": "memory:", name: default}), field) == getattr(plain, field)


def test_the_guide_lists_every_view(generated: Any) -> None:
    listed = generated.table(["view", "rows"], [[f"`{name}`", view.comment] for name, view in VIEWS.items()])
    assert listed in PAGES["docs/guides/system-views.md"]


def test_the_reference_describes_every_procedure_view_and_command(generated: Any) -> None:
    pages = generated.reference()
    for page, names in {
        "procedures": [one.name for one in BUILT_IN],
        "views": VIEWS,
        "commands": COMMANDS,
    }.items():
        text = pages[f"reference/{page}.md"]
        assert set(re.findall(r"^## ([a-z_-]+)$", text, re.MULTILINE)) >= set(names)
        described = re.findall(r"^\| `.*\|$", text, re.MULTILINE)
        assert described
        assert [row for row in described if row.endswith("|  |")] == []
    types = re.findall(r"^\| `(.*?)` \| (.*?) \| \d", pages["reference/object-types.md"], re.MULTILINE)
    assert {name for name, meaning in types if len(meaning) > len("A row.")} >= set(OBJECT_TYPES)


@pytest.mark.spark
def test_spark_accepts_every_statement_that_is_shown(spark: SparkSession) -> None:
    calls: list[str] = []
    queries: list[str] = []
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
    spark.sql("ALTER TABLE polaris.shop.orders CREATE TAG audited")
    for statement in (
        "CALL polaris.system.begin()",
        "ALTER TABLE polaris.shop.orders ADD COLUMN note STRING",
    ):
        spark.sql(statement)
    spark.sql("CALL polaris.system.commit()")
    spark.sql("CALL polaris.system.create_branch('rework')")
    spark.sql("ALTER TABLE polaris.shop.`orders@rework` SET TBLPROPERTIES ('team' = 'sales')")
    spark.sql("CALL polaris.system.merge(source => 'rework', keep_log => true)")
    found = {one: len(spark.sql(one).collect()) for one in queries}
    without = (*WITHOUT_ROWS, *(one for one in queries if one.startswith(WITHOUT_RESULT)))
    assert [one for one, rows in found.items() if rows == 0 and one not in without] == []


@pytest.mark.parametrize("snippet", blocks("python"), ids=lambda text: text.strip().splitlines()[-1])
def test_python_compiles(snippet: str) -> None:
    assert compile(snippet, "documentation", "exec")


def test_the_program_without_a_jvm_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [text for text in blocks("python") if "catalog.request(" in text]
    exec(compile(snippet, "documentation", "exec"), {})
    assert capsys.readouterr().out.startswith("200 {'namespaces': [['shop']]")


def test_the_program_with_pyiceberg_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program('load_catalog("polaris", **properties)'), "documentation", "exec"), {})
    assert capsys.readouterr().out == "[{'id': 2, 'item': 'coffee'}]\n"


def test_the_program_with_pyiceberg_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_realm(tmp_path).server() as server:
        client(server, token_of(server, "bob")).namespace("shop")
        monkeypatch.setenv("SHOP_CREDENTIAL", CREDENTIALS["ann"].text())
        snippet = program('credential=os.environ["SHOP_CREDENTIAL"]').replace(
            "http://127.0.0.1:8181", server.uri
        )
        exec(compile(snippet, "documentation", "exec"), {})
    assert capsys.readouterr().out == "[('shop',)]\n"


def program(text: str, folder: Path | None = None) -> str:
    """Return the only Python block that contains a text, with a folder in place of /tmp."""
    (found,) = [block for block in blocks("python") if text in block]
    return found if folder is None else found.replace("/tmp", str(folder))


@pytest.mark.spark
def test_the_program_with_spark_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", program("SparkSession.builder.master", tmp_path)]
    with resolving():
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ran.stdout.splitlines()]
    assert ["1", "tea"] in rows
    assert ["2", "coffee"] in rows
    changes = sorted(row[2:] for row in rows if len(row) == 4 and row[0] != "committed_at")
    assert changes == [["create-namespace", "shop"], ["create-table", "orders"], ["update-table", "orders"]]


def test_the_program_that_reads_changes_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program("polaris-spark/v1/changes"), "documentation", "exec"), {})
    assert capsys.readouterr().out == "['shop']\n"


def test_the_program_with_branches_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snippet = program('name="experiment"', tmp_path)
    polaris_spark.connect(store=f"sqlite://{tmp_path}/shop.db", warehouse=str(tmp_path)).close()
    exec(compile(snippet, "documentation", "exec"), {})
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "('experiment'",
        "('main'",
    ]


def test_the_program_with_faults_runs() -> None:
    """Some writes fail, and those that are acknowledged can be read."""
    found: dict[str, Any] = {}
    exec(compile(program("FaultyBackend"), "documentation", "exec"), found)
    backend, acknowledged, failed = found["backend"], 0, 0
    for id in range(1, 101):
        try:
            backend.write_objects("realm", [ObjectRow(id, 0, b"value")])
            acknowledged += len(backend.read_objects("realm", [ObjectKey(id)]))
        except OutcomeUnknownError:
            failed += 1
    assert acknowledged > 50
    assert failed > 0


@pytest.mark.parametrize("page", DOCUMENTS)
def test_files_that_a_document_of_the_root_links_to_exist(page: str) -> None:
    for file in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", PAGES[page]):
        assert (ROOT / file).exists(), file


def test_links_between_the_pages_of_the_site_lead_somewhere(generated: Any) -> None:
    made = {f"docs/{path}" for path in (*generated.reference(), *generated.root_documents())}
    for page, text in PAGES.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL) if page.startswith("docs/") else ""
        for file in re.findall(r"\]\((?!http)([^)#\s]+)(?:#[^)]*)?\)", prose):
            target = (ROOT / page).parent.joinpath(file).resolve()
            assert target.exists() or str(target.relative_to(ROOT)) in made, f"{page}: {file}"


def test_each_scheme_of_a_store_is_described() -> None:
    text = PAGES["docs/operate/databases.md"]
    assert [scheme for scheme in DATABASES if f"`{scheme}:" not in text] == []


def test_the_options_of_each_database_are_described() -> None:
    described: dict[str, set[str]] = {}
    accepted: dict[str, set[str]] = {}
    places = {"host": "://host/database", "path": ":///path", "name": ":name"}
    for scheme, database in DATABASES.items():
        with pytest.raises(StoreURIError) as refused:
            open_backend(scheme + places[database.address], {"?": ""})
        known = str(refused.value).split("its options are: ")[1]
        (section,) = (
            text
            for text in PAGES["docs/operate/databases.md"].split("\n## ")[1:]
            if f"`{scheme}:" in text.split("\n\n")[1]
        )
        title = section.split("\n")[0]
        _, _, table = section.partition("| option | default | |\n")
        rows = re.findall(r"^\| (`.*?) \|", table.split("\n\n")[0], re.MULTILINE)
        described[title] = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
        # All databases with users have the option `password`, which the head of the page describes.
        accepted.setdefault(title, set()).update(set(known.split(", ")) - {"none", "password"})
    assert described == accepted


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", "docs/concepts/ids.md", "docs/operate/recovery.md"]
)
def test_each_database_is_named(page: str) -> None:
    modules = {database.module.rpartition(".")[2] for database in DATABASES.values()}
    assert [name for name in modules if not re.search(NAMES_OF_DATABASES[name], PAGES[page])] == []


def test_each_database_that_is_measured_is_among_the_figures() -> None:
    performance, capacity = PAGES["docs/performance.md"], PAGES["docs/operate/capacity.md"]
    for scheme in ("sqlite", "rocksdb", *SERVERS):
        name = NAMES_OF_DATABASES[DATABASES[scheme].module.rpartition(".")[2]]
        assert performance.count(f"| {scheme} |") == 2, scheme
        assert re.search(rf"^\| ({name})", capacity, re.MULTILINE), scheme


def test_each_part_of_the_benchmark_is_described() -> None:
    listed = re.findall(
        r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", PAGES["docs/performance.md"].split("\n\n")[2], re.MULTILINE
    )
    assert sorted(name for row in listed for name in re.findall(r"`([a-z-]+)`", row)) == sorted(PARTS)


def test_each_driver_has_its_reason() -> None:
    text = PAGES["docs/develop/libraries.md"]
    extras = {database.extra for database in DATABASES.values() if database.extra}
    assert [extra for extra in extras if f"extra `{extra}`" not in text] == []


def test_each_database_that_is_tested_when_asked_for_is_listed() -> None:
    (listed,) = re.findall(r"^\| `databases` \|.*$", PAGES["CONTRIBUTING.md"], re.MULTILINE)
    assert [folder for folder in SLOW_SERVERS if folder not in listed.lower()] == []


def test_the_number_of_broken_protocols_is_right() -> None:
    assert f"There are {len(ALL)}" in PAGES["docs/concepts/simulation.md"]


def test_modules_that_are_named_can_be_imported() -> None:
    for name in {name for text in PAGES.values() for name in re.findall(r"python -m ([a-z_.]+[a-z_])", text)}:
        if name not in ("build", "venv"):
            assert importlib.util.find_spec(name), name


@pytest.mark.parametrize("page", PAGES)
def test_source_files_that_are_named_exist(page: str) -> None:
    """The end of its path names a module; `NAME` stands for the module that a recipe adds."""
    paths = [f"/{path.relative_to(ROOT)}" for folder in CODE for path in (ROOT / folder).rglob("*.*")]
    named = set(re.findall(r"`([\w./-]+\.(?:py|java))`", PAGES[page]))
    assert [
        name for name in named if "NAME" not in name and not any(p.endswith(f"/{name}") for p in paths)
    ] == []
