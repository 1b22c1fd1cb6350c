"""`polaris-spark log`."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

import polaris_spark
from polaris_spark.catalog.branches.archived_log import NO_ARCHIVE, ArchivedLog
from polaris_spark.catalog.branches.change_log import BranchLog, LogPosition, new_changes
from polaris_spark.cli.log import draw, read_commits, told
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import HistoryTrimmedError, StateError
from polaris_spark.testing.waiting import PATIENCE_S
from tests.cli.catalogs import COMMITS, run


def test_commits_come_newest_first_down_to_the_first(store: str) -> None:
    listed = run("log", store, "--json").json
    assert [commit["number"] for commit in listed] == list(range(COMMITS, -1, -1))


def test_every_change_has_its_action_entity_and_principal(store: str) -> None:
    listed = run("log", store, "--json").json
    changes = [
        (c["action"], c["kind"], c["name"], c["principal"]) for k in reversed(listed) for c in k["changes"]
    ]
    assert changes[:5] == [
        ("create-namespace", "namespace", "db", "ada"),
        ("create-namespace", "namespace", "db.inner", "ada"),
        ("create-table", "table", "db.old", "ada"),
        ("rename-table", "table", "db.t", "ada"),
        ("update-table", "table", "db.t", "ada"),
    ]


def test_a_rename_shows_both_names(store: str) -> None:
    assert re.search(r"rename-table\s+db\.old → db\.t", run("log", store).out)


def test_the_log_shows_that_a_drop_was_a_purge(store: str) -> None:
    assert re.search(r"drop-table\s+db\.gone\s+purge", run("log", store).out)


def test_names_cannot_steer_the_terminal(store: str) -> None:
    out = run("log", store).out
    assert "\x1b" not in out
    assert r"db.inner.`[red]\x1b[31mtea`" in out


@pytest.mark.parametrize("limit", ["0", "-1", "9" * 20, "many"])
def test_an_invalid_limit_is_refused(store: str, limit: str) -> None:
    answer = run("log", store, "--limit", limit)
    assert answer.code == 2
    assert "--limit" in answer.err


def test_a_limit_says_how_much_is_left_out(store: str) -> None:
    out = run("log", store, "--limit", "2").out
    assert out.count("●") == 2
    assert f"{COMMITS - 1} older commits" in out


def test_other_references_have_a_history_too(store: str) -> None:
    root = run("log", store, "--reference", "root", "--json").json
    created = [change["name"] for commit in root for change in commit["changes"]]
    assert "catalogs" in created
    (catalog,) = [
        c for k in run("log", store, "--reference", "catalogs", "--json").json for c in k["changes"]
    ]
    assert (catalog["action"], catalog["kind"], catalog["name"]) == ("create-catalog", "catalog", "polaris")


def changes_of(*arguments: str) -> list[tuple[str, str]]:
    """Return (action, name) of each change that the command shows, oldest first."""
    listed = run("log", *arguments, "--json").json
    return [(c["action"], c["name"]) for commit in reversed(listed) for c in commit["changes"]]


def test_the_changes_of_a_table_are_found_under_its_names(store: str) -> None:
    assert changes_of(store, "--table", "db.t") == [("rename-table", "db.t"), ("update-table", "db.t")]
    assert changes_of(store, "--table", "db.old") == [("create-table", "db.old"), ("rename-table", "db.t")]


def test_filters_are_combined(store: str) -> None:
    assert changes_of(store, "--action", "drop-table", "--action", "create-view", "--principal", "ada") == [
        ("drop-table", "db.gone"),
        ("create-view", "db.v"),
    ]
    assert changes_of(store, "--action", "drop-table", "--table", "db.t") == []
    assert run("log", store, "--principal", "nobody").out == "none\n"


def test_a_range_of_commits_is_shown(store: str) -> None:
    numbers = [
        commit["number"] for commit in run("log", store, "--json", "--since", "2", "--until", "4").json
    ]
    assert numbers == [4, 3]
    times = {commit["number"]: commit["id"] for commit in run("log", store, "--json").json}
    assert changes_of(store, "--since", times[2], "--until", times[3]) == [("create-table", "db.old")]
    assert len(run("log", store, "--json", "--since", "2001-01-01T00:00:00Z").json) == COMMITS + 1
    assert run("log", store, "--until", "2001-01-01T00:00:00Z").out == "none\n"
    assert run("log", store, "--since", "4", "--until", "2").out == "none\n"
    assert "--since" in run("log", store, "--since", "yesterday").err


def test_a_limit_counts_the_commits_that_are_shown(store: str) -> None:
    out = run("log", store, "--action", "create-namespace", "--limit", "1").out
    assert "db.inner" in out
    assert "older commits were not searched" in out


def test_following_needs_json_and_no_end(store: str) -> None:
    for arguments in (["--follow"], ["--follow", "--json", "--until", "3"]):
        answer = run("log", store, *arguments)
        assert answer.code == 2
        assert "--follow prints lines of JSON" in answer.err


def test_new_changes_are_followed(tmp_path: Path) -> None:
    with polaris_spark.connect(store=f"sqlite://{tmp_path}/f.db", warehouse=str(tmp_path)) as session:
        names = iter("abc")

        def add() -> None:
            for name in islice(names, 1):
                session.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))

        add()

        def newest() -> BranchLog:
            return BranchLog(session.catalog.references.store, session.catalog.head().head, NO_ARCHIVE)

        found = new_changes(newest, None, wait=add)
        assert [change["name"] for change in islice(found, 2)] == ["b", "c"]
        again = new_changes(newest, LogPosition(1))
        assert [(c["name"], c["commit"]["number"]) for c in islice(again, 2)] == [("b", 2), ("c", 3)]


def test_following_ends_if_history_was_undone_or_trimmed(tmp_path: Path) -> None:
    with polaris_spark.connect(store=f"sqlite://{tmp_path}/f.db", warehouse=str(tmp_path)) as session:
        heads = []
        for name in "abc":
            session.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
            heads.append(session.catalog.head().head)
        store = session.catalog.references.store

        def follow(*seen: Head) -> list[Any]:
            following = iter([BranchLog(store, head, ArchivedLog((), head.floor_number)) for head in seen])
            return list(new_changes(lambda: next(following), None, wait=lambda: None))

        with pytest.raises(StateError, match="to a state before that commit"):
            follow(heads[1], heads[0])
        other = msgspec.structs.replace(heads[1], commit=heads[0].commit)
        with pytest.raises(StateError, match="not in the history any more"):
            follow(other, heads[2])
        trimmed = msgspec.structs.replace(heads[2], floor_number=3)
        with pytest.raises(HistoryTrimmedError, match="commits 2 to 2 were trimmed"):
            follow(heads[0], trimmed)


def test_a_process_that_follows_prints_a_line_for_each_change_and_ends_when_interrupted(store: str) -> None:
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "log", store]
    arguments = ["--follow", "--json", "--since", "0", "--action", "drop-table"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        change = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == ""
    assert (change["action"], change["name"], change["principal"]) == ("drop-table", "db.gone", "ada")


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (
            {"updates": "set-snapshot-ref", "ref main": "13 -> 11", "rollback": "main"},
            "ref main=13 -> 11, rollback=main",
        ),
        (
            {"operation": "append", "added-records": "2", "job": "nightly", "commit.message": "Backfill"},
            "append: +2 records, commit.message=Backfill",
        ),
        ({}, ""),
        ({"purge": "true"}, "purge"),
        ({"action": "add-schema,set-current-schema"}, "add-schema, set-current-schema"),
        (
            {"operation": "append", "added-records": "1500", "added-data-files": "2"},
            "append: +1,500 records, +2 data files",
        ),
        (
            {"operation": "overwrite", "added-records": "1", "deleted-records": "3"},
            "overwrite: +1 -3 records",
        ),
        ({"operation": "replace"}, "replace"),
        ({"operation": "append", "added-records": "abc", "added-data-files": "9" * 5_000}, "append"),
    ],
)
def test_summaries_are_shown_in_a_few_words(summary: dict[str, str], words: str) -> None:
    assert told(summary) == words


def test_merged_commits_are_drawn(tmp_path: Path) -> None:
    text = drawn_merge(tmp_path, known=True)
    assert re.search(r"●─╮ 3 .*\n│ ○ merged [0-9a-f]+, commit 0 of .*\n├─╯", text)


def test_a_merged_commit_that_was_swept_is_named(tmp_path: Path) -> None:
    assert re.search(r"○ merged 4d2, swept since\n├─╯", drawn_merge(tmp_path, known=False))


def test_trimmed_history_is_mentioned() -> None:
    out = io.StringIO()
    draw(
        [
            {
                "number": 7,
                "id": "a",
                "time": "",
                "stored": True,
                "principals": [],
                "merged": [],
                "changes": [],
            }
        ],
        SimpleNamespace(oldest=7),
        Console(file=out),
    )
    assert "before commit 7 was trimmed" in out.getvalue()  # fmt: skip  # one commit


def drawn_merge(tmp_path: Path, *, known: bool) -> str:
    """Return the graph of a history whose newest commit merged a commit of another reference."""
    with polaris_spark.connect(store=f"sqlite://{tmp_path}/m.db", warehouse=str(tmp_path)) as session:
        for name in ("a", "b"):
            session.request("POST", "v1/namespaces", body=f'{{"namespace": ["{name}"]}}')
        head = session.catalog.head()
        objects, ids = session.catalog.references.store, session.connection.ids
        other = session.catalog.references.read("catalogs").commit.parents[0] if known else 1234
        id = ids.next_id()
        merge = msgspec.structs.replace(head.commit, number=3, parents=(head.head.commit,), merged=(other,))
        objects.write([(id, Commit(*(getattr(merge, name) for name in Commit.__struct_fields__)))])
        top = Head(id, 3, merge.time)
        out = io.StringIO()
        log = BranchLog(objects, top, NO_ARCHIVE)
        draw(list(read_commits(log, 0, 3)), log, Console(file=out, width=200, highlight=False))
    return out.getvalue()
