"""`polaris-spark log`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import polaris_spark
from polaris_spark.cli.log import draw, read_commits, told
from polaris_spark.commits.rows import Commit, Head
from tests.cli.catalogs import COMMITS, run


def test_commits_come_newest_first_down_to_the_first(store: str) -> None:
    listed = run("log", store, "--json").json
    assert [commit["number"] for commit in listed] == list(range(COMMITS, -1, -1))


def test_every_change_says_what_was_done_to_what_by_whom(store: str) -> None:
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


def test_a_purge_shows(store: str) -> None:
    assert re.search(r"drop-table\s+db\.gone\s+purge", run("log", store).out)


def test_names_cannot_steer_the_terminal(store: str) -> None:
    out = run("log", store).out
    assert "\x1b" not in out
    assert r"db.inner.`[red]\x1b[31mtea`" in out


@pytest.mark.parametrize("limit", ["0", "-1", "9" * 20, "many"])
def test_a_limit_that_is_none_is_refused(store: str, limit: str) -> None:
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


@pytest.mark.parametrize(
    ("summary", "words"),
    [
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
def test_summaries_are_told_in_a_few_words(summary: dict[str, str], words: str) -> None:
    assert told(summary) == words


def test_merged_commits_are_drawn(tmp_path: Path) -> None:
    text = drawn_merge(tmp_path, known=True)
    assert re.search(r"●─╮ 3 .*\n│ ○ merged [0-9a-f]+, commit 0 of .*\n├─╯", text)


def test_a_merged_commit_that_was_swept_is_named(tmp_path: Path) -> None:
    assert re.search(r"○ merged 4d2, swept since\n├─╯", drawn_merge(tmp_path, known=False))


def test_trimmed_history_is_mentioned() -> None:
    out = io.StringIO()
    draw(
        [{"number": 7, "id": "a", "time": "", "principals": [], "merged": [], "changes": []}],
        Head(1, 7, 0, 7),
        Console(file=out),
    )
    assert "before commit 7 was trimmed" in out.getvalue()  # fmt: skip  # one commit


def drawn_merge(tmp_path: Path, *, known: bool) -> str:
    """The graph of a history whose newest commit merged another reference's."""
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
        draw(list(read_commits(objects, top)), top, Console(file=out, width=200, highlight=False))
    return out.getvalue()
