"""`polaris-spark materialized-view`: materialized views by command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.cli.materialized_views import COMMANDS
from polaris_spark.pyiceberg import PolarisCatalog
from tests.cli.catalogs import fill, run, send
from tests.cli.test_commands import process
from tests.maintenance.lakes import ROWS
from tests.rest.materialized import create_materialized_view
from tests.server.servers import Server, token_file

TOKEN = "dddddddddddddddd"


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, ...]:
    """The argument that names a store with the materialized view `db.mv`."""
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse")) as catalog:
        fill(catalog)
        create_materialized_view(catalog.catalog, "mv", "SELECT n AS a FROM t")
    return (store,)


@pytest.fixture(params=["store", "server"])
def either(
    request: pytest.FixtureRequest, place: tuple[str, ...], tmp_path: Path
) -> Iterator[tuple[str, ...]]:
    """The arguments that name the store, or a server of this store."""
    if request.param == "store":
        yield place
        return
    tokens = token_file(tmp_path, {"root": f"{TOKEN} administrator"})
    with Server(place[0], "--token-file", str(tokens)) as server:
        yield "--server", server.uri


def told(command: str, *arguments: str) -> Any:
    """Return the rows of a command, from JSON."""
    answer = run("materialized-view", command, *arguments, "--json", POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 0, answer.err
    return answer.json


@pytest.mark.parametrize("command", COMMANDS)
def test_every_procedure_is_a_command_with_its_parameters(command: str) -> None:
    procedure = COMMANDS[command]
    shown = run("materialized-view", command, "--help", COLUMNS="200").out
    for parameter in procedure.parameters:
        assert f"--{parameter.name.replace('_', '-')}" in shown
    assert ("--server" in shown) == (not procedure.needs_spark)
    assert ("--master" in shown) == procedure.uses_spark
    assert ("--no-spark" in shown) == (procedure.uses_spark and not procedure.needs_spark)


def test_a_view_is_shown_changed_renamed_and_dropped(either: tuple[str, ...]) -> None:
    [view] = told("show", *either)
    assert (view["namespace"], view["name"], view["fresh"]) == ("db", "mv", False)
    [source] = told("explain", *either, "--view", "db.mv")
    assert (source["strategy"], source["source"]) == ("full", "db.t")
    setting = ("--set-properties", "max-staleness=1h", "--set-properties", "write.merge.mode=merge-on-read")
    assert told("alter", *either, "--view", "db.mv", *setting) == [{"view": "db.mv"}]
    removal = ("--unset-properties", "max-staleness")
    assert told("alter", *either, "--view", "db.mv", *removal) == [{"view": "db.mv"}]
    renamed = told("alter", *either, "--view", "db.mv", "--rename-to", "db.inner.w")
    assert renamed == [{"view": "db.inner.w"}]
    facts = {one["name"]: one["value"] for one in told("describe", *either, "--view", "db.inner.w")}
    assert (facts["query"], facts["storage-table"]) == ("SELECT n AS a FROM t", "db.inner.w.storage")
    assert told("drop", *either, "--view", "db.inner.w", "--purge") == [
        {"view": "db.inner.w", "dropped": True}
    ]
    again = told("drop", *either, "--view", "db.inner.w", "--if-exists")
    assert again == [{"view": "db.inner.w", "dropped": False}]
    shown = run("materialized-view", "show", *either, POLARIS_SPARK_TOKEN=TOKEN)
    assert shown.out == "none\n"


def test_properties_that_are_set_are_in_the_catalog(place: tuple[str, ...]) -> None:
    told(
        "alter",
        *place,
        "--view",
        "db.mv",
        "--set-properties",
        "mine=1",
        "--set-properties",
        "gc.enabled=false",
    )
    with polaris_spark.connect(store=place[0]) as catalog:
        view = send(catalog, "GET", "namespaces/db/views/mv")["metadata"]
        table = send(catalog, "GET", "namespaces/db%1Fmv/tables/storage")["metadata"]
    assert view["properties"]["mine"] == "1"
    assert table["properties"]["gc.enabled"] == "false"
    refused = run("materialized-view", "drop", *place, "--view", "db.mv", "--purge")
    assert (refused.code, "gc.enabled is false" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("alter", "--view", "db.mv"),
            "give either --rename-to, or one or both of --set-properties and --unset-properties",
        ),
        (
            ("alter", "--view", "db.mv", "--rename-to", "db.w", "--set-properties", "a=b"),
            "give either --rename-to, or",
        ),
        (("alter", "--view", "db.v", "--rename-to", "db.w"), "view db.v is not materialized"),
        (("alter", "--view", "db.mv", "--rename-to", "db.t"), "already exists"),
        (("alter", "--view", "db.mv", "--set-properties", "allow-stale-data=perhaps"), "allow-stale-data"),
        (("drop", "--view", "db.v"), "view db.v is not materialized"),
        (("describe", "--view", "db.nosuch"), "View does not exist: db.nosuch"),
        (("show", "--namespace", "nosuch"), "Namespace does not exist: nosuch"),
    ],
)
def test_an_error_is_printed_in_one_line(
    place: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    command, *options = arguments
    answer = run("materialized-view", command, *place, *options)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.spark
def test_a_view_is_created_and_refreshed_with_spark(tmp_path: Path) -> None:
    store, warehouse = f"sqlite://{tmp_path}/store.db", str(tmp_path / "warehouse")
    with PolarisCatalog("lake", store=store, warehouse=warehouse) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.t", ROWS.schema).append(ROWS)
    query = "SELECT id % 2 AS odd, count(*) AS n FROM db.t GROUP BY 1"
    own = (
        "--partitioned-by",
        "odd",
        "--comments",
        "n=how many",
        "--properties",
        "refresh-strategy=incremental",
    )
    create = ("create", store, "--view", "db.mv", "--query", query, *own, "--master", "local[1]", "--json")
    created = process("materialized-view", *create)
    assert json.loads(created.stdout) == [{"view": "db.mv", "created": True}], created.stderr
    refreshed = process("materialized-view", "refresh-stale", store, "--master", "local[1]", "--json")
    [row] = json.loads(refreshed.stdout)
    assert (row["view"], row["strategy"], row["rows-written"], row["error"]) == ("db.mv", "full", 2, None)
    with PolarisCatalog("lake", store=store, warehouse=warehouse) as catalog:
        rows = catalog.load_table("db.mv.storage").scan(selected_fields=("odd", "n")).to_arrow().to_pylist()
        assert catalog.load_view("db.mv").schema().find_field("n").doc == "how many"
    assert sorted(tuple(row.values()) for row in rows) == [(0, 1), (1, 2)]
    assert told("show", store)[0]["fresh"] is True
