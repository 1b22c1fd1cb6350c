"""`polaris-spark branch` and `polaris-spark tag`: branches and tags of a catalog by command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from tests.cli.catalogs import fill, run, send
from tests.cli.test_commands import process
from tests.server.servers import Server, token_file

TOKEN = "dddddddddddddddd"


@pytest.fixture(params=["store", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The arguments that name a store with the table `db.t`, or a server of this store."""
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse")) as catalog:
        fill(catalog)
    if request.param == "store":
        yield (store,)
        return
    tokens = token_file(tmp_path, {"root": f"{TOKEN} administrator"})
    with Server(store, "--token-file", str(tokens)) as server:
        yield "--server", server.uri


def told(command: str, *arguments: str, group: str = "branch") -> Any:
    """Return the rows of a command, from JSON."""
    answer = run(group, command, *arguments, "--json", POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 0, answer.err
    return answer.json


def test_a_branch_is_created_shown_dropped_and_restored(place: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    [made] = told("create", *place, "--name", "dev")
    assert (made["branch"], made["created"]) == ("dev", True)
    with polaris_spark.connect(store=store, branch="dev") as dev:
        send(dev, "DELETE", "namespaces/db/tables/t")
    shown = {one["branch"]: (one["ahead"], one["behind"]) for one in told("show", *place)}
    assert shown == {"main": (0, 0), "dev": (1, 0)}
    with polaris_spark.connect(store=store) as main:
        send(main, "GET", "namespaces/db/tables/t")
    [again] = told("create", *place, "--name", "dev", "--if-not-exists")
    assert again["created"] is False
    assert told("drop", *place, "--name", "dev") == [{"branch": "dev", "dropped": True}]
    assert told("drop", *place, "--name", "dev", "--if-exists") == [{"branch": "dev", "dropped": False}]
    [restored] = told("undrop", *place, "--name", "dev")
    assert restored["commit-id"] == again["commit-id"]


def test_a_catalog_is_created_renamed_dropped_and_restored(place: tuple[str, ...], tmp_path: Path) -> None:
    if place[0] == "--server":
        refused = run(
            "catalog",
            "create",
            *place,
            "--name",
            "a",
            "--warehouse",
            str(tmp_path / "a"),
            POLARIS_SPARK_TOKEN=TOKEN,
        )
        assert (refused.code, "a location that this server allows" in refused.err) == (2, True)
        with polaris_spark.connect(store=f"sqlite://{tmp_path}/store.db") as session:
            session.catalogs.create("a", {"warehouse": str(tmp_path / "a")})
    else:
        where = str(tmp_path / "a")
        [made] = told("create", *place, "--name", "a", "--warehouse", where, group="catalog")
        assert (made["catalog"], made["created"]) == ("a", True)
    [renamed] = told("rename", *place, "--name", "a", "--to", "b", group="catalog")
    assert [one["catalog"] for one in told("show", *place, group="catalog")] == ["b", "polaris"]
    [dropped] = told("drop", *place, "--name", "b", group="catalog")
    assert dropped == {"catalog": "b", "catalog-id": renamed["catalog-id"], "dropped": True}
    states = {one["catalog"]: one["state"] for one in told("show", *place, "--dropped", group="catalog")}
    assert states == {"polaris": "active", "b": "dropped"}
    refused = run("catalog", "drop", *place, "--name", "polaris", POLARIS_SPARK_TOKEN=TOKEN)
    assert (refused.code, "is not empty" in refused.err) == (2, True)
    [restored] = told("undrop", *place, "--name", "b", "--to", "c", group="catalog")
    assert restored == {"catalog": "c", "catalog-id": renamed["catalog-id"]}
    [described] = told("describe", *place, "--name", "c", group="catalog")
    assert described["warehouse"] == f"file://{tmp_path}/a"


def test_a_branch_is_renamed_reassigned_and_protected(place: tuple[str, ...]) -> None:
    told("create", *place, "--name", "dev")
    [renamed] = told("rename", *place, "--name", "dev", "--to", "trial")
    assert renamed["branch"] == "trial"
    [moved] = told(
        "reassign", *place, "--name", "trial", "--to", "1", "--expected", str(renamed["commit-id"])
    )
    assert moved["branch"] == "trial"
    assert told("protect", *place, "--name", "trial") == [{"branch": "trial", "protected": True}]
    refused = run("branch", "drop", *place, "--name", "trial", POLARIS_SPARK_TOKEN=TOKEN)
    assert (refused.code, "branch 'trial' is protected" in refused.err) == (2, True)
    assert told("unprotect", *place, "--name", "trial") == [{"branch": "trial", "protected": False}]
    [altered] = told("alter", *place, "--name", "trial", "--owner", "ann")
    [described] = told("describe", *place, "--name", "trial")
    assert (altered["owner"], described["owner"]) == ("ann", "ann")


def test_a_tag_is_created_shown_dropped_and_restored(place: tuple[str, ...], tmp_path: Path) -> None:
    [made] = told("create", *place, "--name", "v1", "--at", "1", "--comment", "first", group="tag")
    assert (made["tag"], made["commit-number"], made["created"]) == ("v1", 1, True)
    for command in (("show", *place), ("describe", *place, "--name", "v1")):
        [shown] = told(*command, group="tag")
        assert (shown["tag"], shown["comment"], shown["source"]) == ("v1", "first", "main#1")
    [renamed] = told("rename", *place, "--name", "v1", "--to", "may", group="tag")
    assert (renamed["tag"], renamed["commit-id"]) == ("may", made["commit-id"])
    assert told("drop", *place, "--name", "may", group="tag") == [{"tag": "may", "dropped": True}]
    [restored] = told("undrop", *place, "--name", "may", group="tag")
    assert restored["commit-id"] == made["commit-id"]


def test_a_dropped_table_is_restored(place: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store) as main:
        send(main, "DELETE", "namespaces/db/tables/t")
    arguments = ("undrop", *place, "--table", "db.t", "--to", "db.back")
    answer = run(*arguments, "--json", POLARIS_SPARK_TOKEN=TOKEN)
    assert (answer.code, answer.json) == (0, [{"kind": "table", "name": "db.back"}]), answer.err
    with polaris_spark.connect(store=store) as main:
        send(main, "GET", "namespaces/db/tables/back")
    [commit] = run("log", store, "--action", "undrop-table", "--json").json
    assert [one["name"] for one in commit["changes"]] == ["db.back"]
    again = run(*arguments, POLARIS_SPARK_TOKEN=TOKEN)
    assert again.code != 0
    assert "restored already; its name is db.back" in again.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "--name", "a@b"), "contains '@' or '#'"),
        (("create", "--name", "main"), "already has a branch 'main'"),
        (
            ("create", "--name", "dev", "--source", "nosuch"),
            "has no branch 'nosuch'; its branches are: 'main'",
        ),
        (("create", "--name", "dev", "--at", "999"), "999"),
        (("drop", "--name", "main"), "the branch 'main' of catalog 'polaris' cannot be dropped"),
        (("drop", "--name", "nosuch"), "has no branch 'nosuch'"),
        (("undrop", "--name", "nosuch"), "has no dropped branch 'nosuch'"),
    ],
)
def test_an_error_is_printed_in_one_line(
    place: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    command, *options = arguments
    answer = run("branch", command, *place, *options, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1


def test_staged_changes_are_committed(place: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    [made] = told("create", *place, "--name", "nightly", group="staging")
    assert made["state"] == "+nightly"
    with polaris_spark.connect(store=store, branch="+nightly") as area:
        send(area, "DELETE", "namespaces/db/tables/t")
    [row] = told("commit", *place, "--name", "nightly", group="staging")
    assert (row["kind"], row["name"], row["action"]) == ("table", "db.t", "removed")
    with polaris_spark.connect(store=store) as main:
        assert main.request("GET", "v1/namespaces/db/tables/t")[0] == 404
    [dropped] = told("drop-unused", *place, "--unused-for", "0 s")
    assert (dropped["branch"], dropped["dropped"]) == ("+nightly", True)


def test_checks_are_added_shown_and_dropped_and_refuse_a_merge_without_spark(
    place: tuple[str, ...], tmp_path: Path
) -> None:
    sql = "SELECT count(*) > 0 FROM db.t"
    added = told("add", *place, "--branch", "main", "--name", "it's", "--sql", f"{sql};", group="check")
    assert added == [{"branch": "main", "name": "it's", "sql": sql}]
    shown = told("show", *place, "--branch", "main", group="check")
    assert shown == [{"branch": "main", "name": "it's", "kind": "sql", "definition": sql}]
    told("create", *place, "--name", "dev")
    with polaris_spark.connect(store=f"sqlite://{tmp_path}/store.db", branch="dev") as dev:
        send(dev, "POST", "namespaces", {"namespace": ["new"]})
    told("protect", *place, "--name", "main")
    refused = run("merge", *place, "--source", "dev", POLARIS_SPARK_TOKEN=TOKEN)
    assert refused.code == 2
    assert "Branch 'main' is protected; check \"it's\" cannot be evaluated" in refused.err
    dropped = told("drop", *place, "--branch", "main", "--name", "it's", group="check")
    assert dropped == [{"branch": "main", "name": "it's", "dropped": True}]
    assert run("merge", *place, "--source", "dev", POLARIS_SPARK_TOKEN=TOKEN).code == 0


@pytest.mark.spark
def test_spark_evaluates_the_checks_of_a_merge_by_command(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "warehouse")) as catalog:
        fill(catalog)
    told(
        "add",
        store,
        "--branch",
        "main",
        "--name",
        "it's",
        "--sql",
        "SELECT count(*) > 0 FROM db.t",
        group="check",
    )
    told("create", store, "--name", "dev")
    told("protect", store, "--name", "main")
    with polaris_spark.connect(store=store, branch="dev") as dev:
        send(dev, "DELETE", "namespaces/db/tables/t")
    merge = ("merge", store, "--source", "dev", "--master", "local[1]", "--json")
    refused = process(*merge)
    assert refused.returncode == 2
    said = "polaris-spark: merge dev is refused; nothing was changed. Branch 'main' is protected; check \"it's\" does"
    assert refused.stderr.splitlines()[-1].startswith(said)
    tried = json.loads(process(*merge, "--dry-run", "--strategies", "db.t=ours").stdout)
    assert [(row["kind"], row["action"]) for row in tried] == [("table", "removed"), ("check", "failed")]
    told("drop", store, "--branch", "main", "--name", "it's", group="check")
    told("add", store, "--branch", "main", "--name", "no", "--sql", "SELECT true", group="check")
    assert [row["action"] for row in json.loads(process(*merge).stdout)] == ["removed"]


def rows(*arguments: str, **environment: str) -> Any:
    """Return the rows of a command without a group, from JSON."""
    answer = run(*arguments, "--json", **{"POLARIS_SPARK_TOKEN": TOKEN, **environment})
    assert answer.code == 0, answer.err
    return answer.json


def test_states_are_compared_and_commits_picked_and_reverted(place: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    told("create", *place, "--name", "dev")
    with polaris_spark.connect(store=store, branch="dev") as dev:
        body = {"updates": [{"action": "set-properties", "updates": {"my.a": "1"}}]}
        send(dev, "POST", "namespaces/db/tables/t", body)
        number = dev.catalog.head().head.number
    expected = [
        {
            "kind": "table",
            "name": "db.t",
            "change": "changed",
            "old-name": None,
            "snapshots-added": 0,
            "rows-added": 0,
            "files-added": 0,
            "details": {"set my.a": "1"},
        }
    ]
    assert rows("diff", *place, "--from-state", "main", "--to-state", "dev") == expected
    assert rows("diff", *place, "main", "dev") == expected
    assert rows("diff", "main", "dev", POLARIS_SPARK_STORE=store) == expected
    picked = [{"kind": "table", "name": "db.t", "action": "changed", "detail": ""}]
    assert rows("cherry-pick", *place, "--commit", f"dev#{number}") == picked
    assert rows("diff", *place, "dev", "main") == []
    [commit] = rows("log", store, "--limit", "1")
    assert rows("revert", *place, "--commit", str(commit["number"])) == [{**picked[0], "action": "merged"}]
    [back] = rows("diff", *place, "dev", "main")
    assert back["details"] == {"unset": "my.a"}
    shown = run("diff", *place, "dev", "main", POLARIS_SPARK_TOKEN=TOKEN)
    assert "unset = my.a" in shown.out


@pytest.mark.parametrize(
    "words",
    [(), ("store",), ("store", "--from-state", "main"), ("a", "b", "c", "d"), ("a", "b", "--to-state", "c")],
)
def test_a_comparison_without_two_states_is_refused(words: tuple[str, ...]) -> None:
    answer = run("diff", *words)
    assert answer.code == 2
    assert "diff compares two states: give STORE FROM TO" in answer.err
    assert "STORE is missing" in run("diff", "main", "dev").err
