"""`polaris-spark heads` and `polaris-spark recover`."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.jobs.registry import call
from polaris_spark.store.cache import process_cache
from tests.cli.catalogs import COMMITS, make_catalog, run, send
from tests.rest.client import Client
from tests.views.catalogs import rows as view_rows


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A store whose catalog lost its newest commit."""
    store = make_catalog(tmp_path)
    delete(tmp_path, run("log", store, "--limit", "1", "--json").json[0]["id"])
    return store


def delete(directory: Path, id: str) -> None:
    with sqlite3.connect(directory / "catalog.db") as database:
        assert database.execute("DELETE FROM objects WHERE id = ?", (int(id, 16),)).rowcount == 1
    process_cache().clear()  # a command line is a process of its own


def rows(directory: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(directory / "catalog.db") as database:
        return [*database.execute("SELECT * FROM objects"), *database.execute('SELECT * FROM "references"')]


def test_heads_of_a_store_that_lost_nothing_are_complete(store: str) -> None:
    answer = run("heads", store, "--json")
    assert answer.code == 0
    found = {one["reference"]: one for one in answer.json}
    assert {"root", "catalogs"} < set(found)
    (main,) = [one for name, one in found.items() if name.endswith("/heads/main")]
    assert main["complete"]
    assert (main["heads"][0]["number"], main["history-complete-from"]) == (COMMITS, 0)
    assert all(head["complete"] for head in main["heads"])
    assert "complete back to commit 0" in run("heads", store).out


def test_heads_of_a_single_reference_can_be_shown(store: str) -> None:
    assert [one["reference"] for one in run("heads", store, "--reference", "root", "--json").json] == ["root"]
    (main,) = run("heads", store, "--catalog", "polaris", "--search", "--json").json
    assert main["newer"] == []
    assert run("heads", store, "--branch", "main").code == 0


def test_heads_lists_the_lost_objects(damaged: str) -> None:
    answer = run("heads", damaged, "--catalog", "polaris", "--json")
    assert answer.code == 1
    (main,) = answer.json
    assert [head["complete"] for head in main["heads"][:2]] == [False, True]
    assert main["heads"][0]["lost"]["first"][0]["id"] == main["heads"][0]["id"]
    assert main["newest-complete"]["number"] == COMMITS - 1
    out = run("heads", damaged).out
    assert f"commit {COMMITS} is lost: complete at commit {COMMITS - 1}" in out
    assert re.search(rf"{COMMITS}\s+[0-9a-f]+\s.*no\s+[0-9a-f]+ \(missing; the commit\)", out)


def test_recover_without_yes_changes_nothing(damaged: str, tmp_path: Path) -> None:
    before = rows(tmp_path)
    answer = run("recover", damaged)
    assert answer.code == 1
    assert f"would be set to commit {COMMITS - 1}" in answer.out
    assert "commits lost: 1," in answer.out
    assert "Nothing was changed; add --yes to recover." in answer.out
    assert rows(tmp_path) == before


def test_recovery_continues_from_the_previous_commit_and_is_logged(damaged: str, tmp_path: Path) -> None:
    answer = run("recover", damaged, "--yes", "--json")
    assert answer.code == 0
    assert answer.json["done"]
    (changed,) = [one for one in answer.json["references"] if one["action"] != "keep"]
    assert (changed["action"], changed["lost-commits"], changed["unreadable-commits"]) == ("set", 1, 1)
    assert run("heads", damaged).code == 0
    newest = run("log", damaged, "--json").json[0]
    (change,) = newest["changes"]
    assert (newest["number"], newest["id"]) == (COMMITS, changed["head"]["id"])
    assert (change["action"], change["summary"]["to"]) == ("recover", str(COMMITS - 1))
    assert "recover" in run("log", damaged).out
    with polaris_spark.connect(store=damaged, warehouse=str(tmp_path)) as catalog:
        listed = send(catalog, "GET", "namespaces/db/tables")
        assert [one["name"] for one in listed["identifiers"]] == ["t"]
        send(catalog, "POST", "namespaces", {"namespace": ["after"]})
    assert run("recover", damaged).code == 0


def test_lost_changes_are_reported(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    newest = run("log", store, "--json").json[:3]
    delete(tmp_path, newest[0]["changes"][0]["after"])
    delete(tmp_path, newest[2]["changes"][0]["after"] or newest[2]["changes"][0]["before"])
    answer = run("recover", store, "--json")
    (main,) = [one for one in answer.json["references"] if one["action"] == "set"]
    assert main["lost-changes"][0]["name"] == "db.v"
    assert main["lost-changes"][0]["principal"] == "ada"
    assert main["lost-commits"] == len(main["lost-changes"]) >= 1
    out = run("recover", store).out
    assert re.search(r"ada  create-view  db\.v", out)


def test_running_processes_are_to_be_stopped_first(damaged: str, tmp_path: Path) -> None:
    with polaris_spark.connect(store=damaged, warehouse=f"{tmp_path}-other", catalog="other"):
        assert "Stop these running processes first" in run("recover", damaged).out
        refused = run("recover", damaged, "--yes")
        assert refused.code == 2
        assert "stop them" in refused.err
        forced = run("recover", damaged, "--yes", "--force")
        assert forced.code == 0
        assert "Restart every process that uses this store" in forced.out


def test_a_commit_can_be_asked_for(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    wanted = run("log", store, "--json").json[2]
    answer = run("recover", store, "--catalog", "polaris", "--to", wanted["id"], "--yes")
    assert answer.code == 0
    assert "commits lost: 2," in answer.out
    assert run("log", store, "--json").json[1]["id"] == wanted["id"]


def test_a_merge_does_not_keep_the_recovery_of_the_other_branch(tmp_path: Path) -> None:
    store, options = f"sqlite://{tmp_path / 'store.db'}", {"warehouse": str(tmp_path / "warehouse")}
    with polaris_spark.connect(store=store, **options) as session:
        Client(session).namespace("db")
        call(session, "create_branch", name="dev")
    with polaris_spark.connect(store=store, branch="dev", **options) as session:
        for name in ("one", "two"):
            Client(session).namespace(name)
        before = session.catalog.head().commit.parents[0]
    on_dev = ("--catalog", "polaris", "--branch", "dev")
    assert run("recover", store, *on_dev, "--to", f"{before:x}", "--yes", "--force").code == 0
    with polaris_spark.connect(store=store, **options) as session:
        call(session, "merge", source="dev", keep_log=True)
    kept = [row for row in view_rows("changes", store=store) if row["action"] == "merged"]
    assert [(row["summary"]["action"], row["name"]) for row in kept] == [("create-namespace", "one")]


def test_a_recovery_that_is_not_possible_is_reported_in_one_line(damaged: str) -> None:
    for arguments, message in (
        (("recover", damaged, "--to", "abc"), "--to needs --reference"),
        (
            ("recover", damaged, "--to", "abc", "--reference", "root"),
            "there is no commit with the id abc that can be read",
        ),
        (
            ("heads", damaged, "--reference", "nothing"),
            "there is no reference 'nothing' in this realm; it has: root",
        ),
        (("heads", damaged, "--reference", "root", "--branch", "main"), "--reference cannot be combined"),
    ):
        answer = run(*arguments)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err


def test_a_reference_alone_does_not_go_on_without_the_registry(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    delete(tmp_path, run("log", store, "--reference", "root", "--json").json[0]["id"])
    answer = run("recover", store, "--reference", "catalogs", "--yes")
    assert answer.code == 2
    assert "root, must be recovered first" in answer.err
    assert run("recover", store, "--yes").code == 0
    assert run("heads", store).code == 0
    assert run("tables", store).code == 0


def test_references_of_a_catalog_that_is_lost_are_named(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    assert run("heads", store, "--json").json[-1]["catalog-is-lost"] is False
    delete(tmp_path, run("log", store, "--reference", "catalogs", "--json").json[0]["id"])
    found = {one["reference"]: one["catalog-is-lost"] for one in run("heads", store, "--json").json}
    (lost,) = [name for name, is_lost in found.items() if is_lost]
    assert lost.endswith("/heads/main")
    assert f"{lost} belongs to a lost catalog" in run("recover", store).out
    assert run("heads", store, "--reference", lost).code == 0


def test_a_catalog_that_cannot_be_read_is_named_by_its_reference(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    delete(tmp_path, run("log", store, "--reference", "catalogs", "--json").json[0]["id"])
    answer = run("heads", store, "--catalog", "polaris")
    assert answer.code == 2
    assert "use --reference" in answer.err
