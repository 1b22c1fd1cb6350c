"""Merges of branches, reverts of commits, cherry-picks and comparisons of states."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

import polaris_spark
from polaris_spark.catalog.branches import branch_of
from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.entity_merge import Merged
from polaris_spark.catalog.merge_base import merge_base
from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    BadRequestError,
    HistoryTrimmedError,
    InputError,
    MergeConflictError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call, procedures
from polaris_spark.rest.session import Session
from tests.rest.appends import appendable, attempt, new_append, path_of, read_list, send, write_manifests
from tests.rest.client import VIEW_VERSION, Client, Json, table, view, view_request
from tests.rest.materialized import create_materialized_view, refresh

Opened = Callable[..., Client]


DAY = 24 * 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Any:
    """Open a branch of a catalog, `main` by default; the branch is created if it does not exist."""
    sessions: dict[str, Session] = {}
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")

    def open_(branch: str = "main", source: str = "main") -> Client:
        if branch not in sessions:
            if branch != "main":
                make(open_(source), "create_branch", name=branch, if_not_exists=True)
            sessions[branch] = polaris_spark.connect(
                store=store, warehouse=warehouse, branch=branch, clock=clock
            )
        return Client(sessions[branch])

    yield open_
    problems = make(open_(), "fsck")
    for session in sessions.values():
        session.close()
    assert problems == []


def make(client: Client, procedure: str, **arguments: Any) -> list[dict[str, Any]]:
    """Call a procedure, and return its rows as dicts."""
    names = [column.name for column in procedures()[procedure].columns]
    return [dict(zip(names, row, strict=True)) for row in call(client.session, procedure, **arguments)]


def merge(client: Client, source: str, **options: Any) -> dict[str, str]:
    """Merge, and return the action for each name."""
    return {row["name"]: row["action"] for row in make(client, "merge", source=source, **options)}


def conflict(client: Client, source: str, *parts: str, procedure: str = "merge", **options: Any) -> str:
    """Check that a merge conflicts and changes nothing, and return the message."""
    before = client.session.catalog.head().head
    arguments = {"source": source} if procedure == "merge" else {"commit": source}
    with pytest.raises(MergeConflictError) as raised:
        call(client.session, procedure, **arguments, **options)
    assert client.session.catalog.head().head == before
    for part in parts:
        assert part in str(raised.value)
    return str(raised.value)


def rename(client: Client, old: str, new: str) -> None:
    names = [{"namespace": ["db"], "name": one} for one in (old, new)]
    client.ok("POST", "v1/tables/rename", {"source": names[0], "destination": names[1]})


def append(client: Client, name: str, *rows: int) -> Json:
    """Append to a table as Iceberg does, and return its metadata."""
    metadata = client.load(name)["metadata"]
    made = attempt(metadata, new_append(*(rows or (1,))))
    write_manifests(made)
    answer = send(client, made, name)
    assert answer.status == 200, answer
    return dict(answer.body["metadata"])


def ids(client: Client, name: str) -> list[int]:
    """Return the snapshots of a table's branch main, oldest first. For a copied snapshot, return the id of the
    original."""
    metadata = client.load(name)["metadata"]
    by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    found, at = [], metadata.get("current-snapshot-id")
    while at in by_id:
        found.append(int(by_id[at]["summary"].get("source-snapshot-id", at)))
        at = by_id[at].get("parent-snapshot-id")
    return found[::-1]


def properties(client: Client, name: str) -> dict[str, str]:
    return {
        key: value
        for key, value in client.load(name)["metadata"]["properties"].items()
        if key.startswith("my.")
    }


def with_column(loaded: Json, name: str, type: str) -> Json:
    """Return the first schema of a loaded table with one more column."""
    schema = loaded["metadata"]["schemas"][0]
    id = loaded["metadata"]["last-column-id"] + 1
    field = {"id": id, "name": name, "required": False, "type": type}
    return {**schema, "fields": [*schema["fields"], field]}


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


@pytest.fixture
def main(opened: Opened) -> Client:
    client = opened()
    client.namespace("db")
    for name in ("t", "u", "w"):
        appendable(client, name)
    return client


# What is merged


def test_entities_that_only_the_branch_changed_are_taken_from_it(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t", 5)
    dev.namespace("new")
    dev.create("made", namespace=("new",))
    dev.ok("DELETE", table("u"))
    rename(dev, "w", "renamed")
    main.create("own")
    expected = {
        "db.renamed": "renamed",
        "db.t": "changed",
        "db.u": "removed",
        "new": "added",
        "new.made": "added",
    }
    assert merge(main, "dev", dry_run=True) == expected
    assert main.names("db") == ["own", "t", "u", "w"]
    assert merge(main, "dev") == expected
    assert main.names("db") == ["own", "renamed", "t"]
    assert main.names("new") == ["made"]
    assert main.load("t")["metadata"] == dev.load("t")["metadata"]
    merged = main.session.catalog.head().commit.merged
    assert merged == (dev.session.catalog.head().head.commit,)


def test_a_merge_is_idempotent_and_both_branches_can_go_on(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for step in range(3):
        append(dev, "t")
        main.set("u", **{f"my.{step}": "x"})
        assert merge(main, "dev") == {"db.t": "changed"}
        before = number(main)
        assert merge(main, "dev") == {}
        assert number(main) == before
        assert merge(dev, "main") == {"db.u": "changed"}
    [row] = [one for one in make(main, "show_branches") if one["branch"] == "dev"]
    assert (row["ahead"], row["behind"]) == (1, 0)
    assert merge(main, "dev") == {}
    assert make(main, "diff", from_state="main", to_state="dev") == []


def test_the_base_is_found_through_other_branches_when_history_is_trimmed(
    main: Client, opened: Opened, clock: ManualClock
) -> None:
    a, b = opened("a"), opened("b")
    append(a, "t", 1)
    assert merge(b, "a") == {"db.t": "changed"}
    append(b, "t", 2)
    assert merge(main, "a") == {"db.t": "changed"}
    base = a.session.catalog.head().head
    clock.advance(9 * DAY)
    for client in (main, a, b):
        append(client, "w")
    clock.advance(9 * DAY)
    call(main.session, "sweep")
    heads = [client.session.catalog.head() for client in (main, a, b)]
    assert [head.head.floor_number for head in heads] == [head.head.number for head in heads]
    assert merge_base(heads[0].store, heads[0], heads[2]) == (base.number, base.commit)
    assert merge(main, "b") == {"db.t": "changed", "db.w": "merged"}
    assert ids(main, "t") == ids(b, "t")
    assert len(ids(main, "w")) == 2


def test_properties_and_refs_of_one_table_are_merged_one_by_one(main: Client, opened: Opened) -> None:
    main.set("t", **{"my.a": "1", "my.b": "1", "my.c": "1"})
    first = append(main, "t")["current-snapshot-id"]
    dev = opened("dev")
    dev.set("t", **{"my.a": "2", "my.new": "n"})
    dev.commit("t", {"action": "remove-properties", "removals": ["my.b"]})
    tag = {"action": "set-snapshot-ref", "ref-name": "release", "type": "tag", "snapshot-id": first}
    dev.commit("t", tag)
    main.set("t", **{"my.c": "3"})
    append(main, "t")
    assert merge(main, "dev") == {"db.t": "merged"}
    assert properties(main, "t") == {"my.a": "2", "my.c": "3", "my.new": "n"}
    assert main.load("t")["metadata"]["refs"]["release"]["snapshot-id"] == first
    assert len(ids(main, "t")) == 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_appends_of_both_sides_are_rebased(opened: Opened, version: int) -> None:
    main = opened()
    main.namespace("db")
    appendable(main, "t", version=version)
    append(main, "t", 1)
    dev = opened("dev")
    theirs = [append(dev, "t", rows)["current-snapshot-id"] for rows in (10, 20, 30)]
    ours = [append(main, "t", rows)["current-snapshot-id"] for rows in (2, 3)]
    before = ids(main, "t")
    assert merge(main, "dev") == {"db.t": "merged"}
    assert ids(main, "t") == [*before[:1], *ours, *theirs]
    metadata = main.load("t")["metadata"]
    newest = metadata["snapshots"][-1]
    assert newest["snapshot-id"] not in theirs
    assert newest["summary"]["source-snapshot-id"] == str(theirs[-1])
    for manifest in read_list(newest["manifest-list"]).manifests[:3]:
        with path_of(manifest["manifest_path"]).open("rb") as file:
            entries = list(fastavro.reader(file))
        assert {entry["snapshot_id"] for entry in entries} == {manifest["added_snapshot_id"]}
        assert len(entries) == manifest["added_files_count"]
        assert path_of(manifest["manifest_path"]).stat().st_size == manifest["manifest_length"]
    added = [one["snapshot-id"] for one in metadata["snapshots"][-3:]]
    assert [m["added_snapshot_id"] for m in read_list(newest["manifest-list"]).manifests[2::-1]] == added
    assert newest["summary"]["total-records"] == str(1 + 2 + 3 + 10 + 20 + 30)
    if version > 1:
        numbers = [one["sequence-number"] for one in metadata["snapshots"]]
        assert numbers == sorted(set(numbers))
        assert metadata["last-sequence-number"] == numbers[-1]
    assert merge(dev, "main") == {"db.t": "changed"}
    assert ids(dev, "t") == ids(main, "t")


def test_columns_of_one_side_and_appends_of_the_other_are_merged(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    schema = main.load("t")["metadata"]["schemas"][0]
    more = {
        **schema,
        "fields": [*schema["fields"], {"id": 3, "name": "c", "required": False, "type": "long"}],
    }
    dev.commit(
        "t",
        {"action": "add-schema", "schema": more, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
    )
    append(dev, "t")
    append(main, "t")
    assert merge(main, "dev") == {"db.t": "merged"}
    metadata = main.load("t")["metadata"]
    assert [field["name"] for field in metadata["schemas"][-1]["fields"]] == ["a", "b", "c"]
    assert metadata["current-schema-id"] == 1
    assert len(ids(main, "t")) == 2


def test_namespaces_that_both_sides_created_become_one(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.namespace("n", properties={"a": "1"})
    dev.create("x", namespace=("n",))
    main.namespace("n", properties={"b": "2"})
    main.create("y", namespace=("n",))
    assert merge(main, "dev") == {"n": "merged", "n.x": "added"}
    assert main.names("n") == ["x", "y"]
    assert main.stored_properties("n").items() >= {"a": "1", "b": "2"}.items()


# Conflicts


def test_each_conflict_is_named_and_nothing_is_changed(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.set("t", **{"my.a": "1"})
    main.set("t", **{"my.a": "2"})
    dev.ok("DELETE", table("u"))
    main.set("u", **{"my.a": "2"})
    dev.create("same")
    dev.commit(
        "same",
        {"action": "add-schema", "schema": with_column(dev.load("same"), "c", "int")},
        {"action": "set-current-schema", "schema-id": -1},
    )
    main.create("same")
    rename(dev, "w", "one")
    rename(main, "w", "two")
    conflict(
        main,
        "dev",
        "4 conflicts",
        "table db.t: both sides changed the property 'my.a': it is '2' in this branch and '1' in the other state "
        "(this branch: set my.a: 2; the other state: set my.a: 1)",
        "table db.u: the other state removed it, and this branch changed it (this branch: set my.a: 2)",
        "table db.same: the branch has another table of this name (the new one differs from it by: add-column c: int)",
        "table db.two: the other state renamed it to db.one, and this branch to db.two",
    )
    dry = merge(main, "dev", dry_run=True)
    assert dry == dict.fromkeys(["db.t", "db.u", "db.same", "db.two"], "conflict")
    choices = {"db.t": "theirs", "db.u": "theirs", "db.same": "ours"}
    assert merge(main, "dev", strategy="ours", strategies=choices) == {
        "db.t": "replaced",
        "db.u": "removed",
        "db.same": "kept",
        "db.two": "kept",
    }
    assert main.names("db") == ["same", "t", "two"]
    assert properties(main, "t") == {"my.a": "1"}
    assert merge(main, "dev") == {}


def test_the_strategy_theirs_takes_the_other_state(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t", 7)
    dev.create("same")
    uuid = dev.load("same")["metadata"]["table-uuid"]
    main.ok("DELETE", table("t"))
    main.create("same")
    conflict(main, "dev", "table db.t: the other state changed it, and this branch removed it")
    assert merge(main, "dev", strategy="theirs") == {"db.t": "replaced", "db.same": "added"}
    assert main.load("same")["metadata"]["table-uuid"] == uuid
    assert ids(main, "t") == ids(dev, "t")


def test_a_table_needs_its_namespace_and_a_dropped_namespace_must_be_empty(
    main: Client, opened: Opened
) -> None:
    main.namespace("gone")
    main.namespace("kept")
    dev = opened("dev")
    dev.create("x", namespace=("gone",))
    main.ok("DELETE", "v1/namespaces/gone")
    conflict(main, "dev", "table gone.x: namespace gone does not exist in the branch")
    dev.ok("DELETE", table("x", ("gone",)))
    dev.ok("DELETE", "v1/namespaces/kept")
    main.create("y", namespace=("kept",))
    conflict(
        main, "dev", "namespace kept: the other state removed it, but this branch has table kept.y in it"
    )


def test_overwrites_of_both_sides_are_a_conflict(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    metadata = dev.load("t")["metadata"]
    made = attempt(metadata, new_append(3))
    snapshot = next(one for one in made.updates if one["action"] == "add-snapshot")["snapshot"]
    snapshot["summary"]["operation"] = "overwrite"
    assert send(dev, made, "t").status == 200
    append(main, "t")
    conflict(
        main,
        "dev",
        "both sides changed the branch 'main' of the table",
        "is not an append",
        "(this branch: 1 new snapshot, 1 new row, 1 new file, ref main: none -> ",
        "; the other state: 1 new snapshot, 3 new rows, 3 new files, ref main: none -> ",
    )


def test_views_that_both_sides_changed_are_a_conflict(main: Client, opened: Opened) -> None:
    body = {
        "name": "v",
        "schema": {"type": "struct", "fields": []},
        "view-version": VIEW_VERSION,
        "properties": {},
    }
    main.ok("POST", "v1/namespaces/db/views", body)
    dev = opened("dev")
    for client, value in ((dev, "1"), (main, "2")):
        update = {"action": "set-properties", "updates": {"my.a": value}}
        client.ok("POST", "v1/namespaces/db/views/v", {"updates": [update]})
    conflict(
        main,
        "dev",
        "view db.v: both sides changed the view (this branch: set my.a: 2; the other state: set my.a: 1)",
    )
    for client, value in ((dev, "1"), (main, "2")):
        client.ok("POST", "v1/namespaces/db/properties", {"updates": {"p": value}})
    conflict(
        main,
        "dev",
        "namespace db: both sides changed the property 'p': it is '2' in this branch and '1' in the other state",
        strategies={"db.v": "ours"},
    )


def test_bad_requests_are_refused(main: Client, opened: Opened) -> None:
    with pytest.raises(BadRequestError, match="into itself"):
        merge(main, "main")
    with pytest.raises(NotFoundError, match="no branch 'none'"):
        merge(main, "none")
    opened("dev")
    with pytest.raises(InputError, match="'fail', 'ours' or 'theirs'"):
        merge(main, "dev", strategy="both")
    with pytest.raises(
        NotFoundError, match="neither a tag nor a commit nor a time, and catalog 'polaris' has no branch"
    ):
        make(main, "diff", from_state="main", to_state="nothing")


# Reverts and cherry-picks


def revert(client: Client, commit: int, **options: Any) -> dict[str, str]:
    return {row["name"]: row["action"] for row in make(client, "revert", commit=str(commit), **options)}


def test_a_revert_restores_what_a_commit_changed_and_keeps_what_came_later(main: Client) -> None:
    before = append(main, "t")["current-snapshot-id"]
    main.set("t", **{"my.a": "1"})
    changed = number(main) + 1
    append(main, "t")
    appended = number(main)
    main.ok("DELETE", table("u"))
    dropped = number(main)
    main.create("other")
    assert changed == appended
    assert revert(main, appended) == {"db.t": "merged"}
    assert ids(main, "t") == [before]
    assert properties(main, "t") == {"my.a": "1"}
    assert len(main.load("t")["metadata"]["snapshots"]) == 2
    assert revert(main, dropped) == {"db.u": "added"}
    assert main.names("db") == ["other", "t", "u", "w"]
    assert revert(main, dropped) == {}
    after = append(main, "t")
    assert after["last-sequence-number"] == 3


def test_the_revert_of_a_merge_restores_the_branch(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t")
    dev.create("new")
    dev.ok("DELETE", table("w"))
    names, at = main.names("db"), ids(main, "t")
    merge(main, "dev")
    revert(main, number(main))
    assert (main.names("db"), ids(main, "t")) == (names, at)


def test_a_revert_conflicts_with_later_changes_and_with_purges(main: Client) -> None:
    main.set("t", **{"my.a": "1"})
    first = number(main)
    main.set("t", **{"my.a": "2"})
    conflict(main, str(first), "both sides changed the property 'my.a'", procedure="revert")
    main.ok("DELETE", table("u"), query={"purgeRequested": "true"})
    conflict(main, str(number(main)), "its files may be deleted already", procedure="revert")
    assert revert(main, number(main), strategy="ours") == {"db.u": "kept"}


def test_a_revert_of_a_range_undoes_its_commits_and_no_others(main: Client) -> None:
    main.set("t", **{"my.before": "1"})
    main.set("t", **{"my.a": "1"})
    first = number(main)
    main.ok("DELETE", table("u"))
    main.create("made")
    rename(main, "w", "renamed")
    main.set("t", **{"my.a": "2", "my.b": "1"})
    last = number(main)
    main.set("t", **{"my.after": "1"})
    main.create("later")
    assert revert(main, first, to=str(last)) == {
        "db.made": "removed",
        "db.t": "merged",
        "db.u": "added",
        "db.w": "renamed",
    }
    assert main.names("db") == ["later", "t", "u", "w"]
    assert properties(main, "t") == {"my.before": "1", "my.after": "1"}
    assert revert(main, number(main)) == {
        "db.made": "added",
        "db.t": "merged",
        "db.u": "removed",
        "db.renamed": "renamed",
    }
    with pytest.raises(BadRequestError, match=f"commit {last} is not before commit {first}"):
        revert(main, last, to=str(first))


def snapshots(client: Client, name: str) -> list[int]:
    return [one["snapshot-id"] for one in client.load(name)["metadata"]["snapshots"]]


def test_a_revert_of_a_table_that_was_renamed_since_keeps_its_snapshots(main: Client) -> None:
    before = append(main, "t")["current-snapshot-id"]
    after = append(main, "t")["current-snapshot-id"]
    appended = number(main)
    rename(main, "t", "renamed")
    assert revert(main, appended) == {"db.renamed": "merged"}
    assert (ids(main, "renamed"), snapshots(main, "renamed")) == ([before], [before, after])


def test_a_revert_does_not_bring_expired_snapshots_back(main: Client, clock: ManualClock) -> None:
    append(main, "t")
    append(main, "t")
    appended = number(main)
    kept = snapshots(main, "t")[-1:]
    clock.advance(DAY)
    make(main, "expire", table="db.t", older_than="0 s", retain_last=1)
    conflict(main, str(appended), "no longer exists", procedure="revert")
    with pytest.raises(MergeConflictError, match="its files may be deleted already") as raised:
        revert(main, appended, strategy="theirs")
    assert str(raised.value).endswith(
        "the strategy 'theirs' cannot resolve this: choose 'ours', or change the branch first"
    )
    assert revert(main, appended, strategy="ours") == {"db.t": "kept"}
    assert snapshots(main, "t") == kept
    main.ok("DELETE", table("t"))
    with pytest.raises(MergeConflictError, match="its files may be deleted already"):
        revert(main, appended, strategy="theirs")
    assert "t" not in main.names("db")


def test_a_table_that_was_dropped_since_is_restored_by_the_strategy_theirs(main: Client) -> None:
    before = append(main, "t")["current-snapshot-id"]
    append(main, "t")
    appended = number(main)
    main.ok("DELETE", table("t"))
    conflict(main, str(appended), "this branch removed it", procedure="revert")
    assert revert(main, appended, strategy="theirs") == {"db.t": "replaced"}
    assert ids(main, "t") == [before]


def test_a_revert_is_prepared_again_if_history_is_trimmed_meanwhile(main: Client) -> None:
    main.ok("DELETE", table("u"))
    dropped = main.session.catalog.head().head
    main.create("other")
    catalog = main.session.catalog
    state = State(catalog.head(), catalog.references.ids.next_id)
    state.require_kept(dropped.number - 1)
    reads = state.reads
    assert State(catalog.head(), catalog.references.ids.next_id).holds(reads)
    committer = catalog.references.open(catalog.reference)
    committer.amend(lambda head: raise_floor(head, state.get(head.commit, Commit)))
    assert not State(catalog.head(), catalog.references.ids.next_id).holds(reads)
    with pytest.raises(HistoryTrimmedError):
        revert(main, dropped.number)


def test_one_commit_of_another_branch_can_be_picked(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t")
    picked = number(dev)
    append(dev, "u")
    append(dev, "t")
    rows = make(main, "cherry_pick", commit=f"dev#{picked}")
    assert [(row["name"], row["action"]) for row in rows] == [("db.t", "changed")]
    assert ids(main, "t") == ids(dev, "t")[:1]
    assert ids(main, "u") == []
    assert merge(main, "dev") == {"db.t": "merged", "db.u": "changed"}
    assert ids(main, "t") == ids(dev, "t")


# Comparisons


def test_a_comparison_lists_the_differences(main: Client, opened: Opened) -> None:
    start = number(main)
    dev = opened("dev")
    append(dev, "t", 5, 6)
    append(dev, "t", 7)
    rename(dev, "w", "x")
    dev.ok("DELETE", table("u"))
    dev.namespace("n")
    rows = make(main, "diff", from_state="main", to_state="dev")
    details = {row["name"]: row.pop("details") for row in rows}
    moved = f"none -> {dev.load('t')['metadata']['current-snapshot-id']}"
    assert details == {"db.t": {"ref main": moved}, "db.u": {}, "db.x": {}, "n": {}}
    found = {row.pop("name"): tuple(row.values()) for row in rows}
    assert found == {
        "db.t": ("table", "changed", None, 2, 18, 18),
        "db.u": ("table", "removed", None, 0, 0, 0),
        "db.x": ("table", "renamed", "db.w", 0, 0, 0),
        "n": ("namespace", "added", None, None, None, None),
    }
    assert make(main, "diff", from_state="dev", to_state="dev") == []
    assert len(make(main, "diff", from_state=str(start), to_state="dev")) == 4
    back = make(main, "diff", from_state="dev", to_state=f"main#{start}")
    assert {row["change"] for row in back} == {"changed", "added", "renamed", "removed"}


def test_a_comparison_tells_what_changed_in_an_entity(main: Client, opened: Opened) -> None:
    main.ok("POST", "v1/namespaces/db/views", view_request("v"))
    main.set("t", **{"my.gone": "1", "my.same": "1", "my.new": "1"})
    dev = opened("dev")
    updates: list[Json] = [
        {"action": "add-schema", "schema": with_column(main.load("t"), "c", "int")},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "remove-properties", "removals": ["my.gone"]},
        {"action": "set-properties", "updates": {"my.new": "2"}},
        {
            "action": "add-spec",
            "spec": {
                "spec-id": 1,
                "fields": [{"name": "a", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}],
            },
        },
        {"action": "set-default-spec", "spec-id": -1},
    ]
    assert dev.commit("t", *updates).status == 200
    changed = {
        **VIEW_VERSION,
        "version-id": 2,
        "representations": [{"type": "sql", "sql": "select 2", "dialect": "spark"}],
    }
    updates = [
        {"action": "add-view-version", "view-version": changed},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-properties", "updates": {"x": "1"}},
    ]
    dev.ok("POST", view("v"), {"requirements": [], "updates": updates})
    dev.ok("POST", "v1/namespaces/db/properties", {"removals": [], "updates": {"p": "1"}})
    found = {
        row["name"]: (row["change"], row["details"])
        for row in make(main, "diff", from_state="main", to_state="dev")
    }
    assert found == {
        "db": ("changed", {"set p": "1"}),
        "db.t": (
            "changed",
            {
                "add-column c": "int",
                "set my.new": "2",
                "unset": "my.gone",
                "partition-spec": "bucket[4](a)",
            },
        ),
        "db.v": ("changed", {"query spark": "select 2", "set x": "1"}),
    }
    back = make(main, "diff", from_state="dev", to_state="main")
    assert {row["name"]: row["details"] for row in back} == {
        "db": {"unset": "p"},
        "db.t": {
            "drop-column c": "int",
            "set my.gone": "1",
            "set my.new": "1",
            "partition-spec": "none",
        },
        "db.v": {"query spark": "select 1", "unset": "x"},
    }


def test_a_comparison_tells_that_a_table_was_rolled_back(main: Client, opened: Opened) -> None:
    append(main, "t")
    dev = opened("dev")
    first = dev.load("t")["metadata"]["current-snapshot-id"]
    last = append(dev, "t")["current-snapshot-id"]
    [row] = make(main, "diff", from_state="dev", to_state="main")
    assert row["details"] == {"ref main": f"{last} -> {first}", "rollback": "main"}


def test_branches_that_added_different_columns_differ_by_these(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    for client, type in ((main, "int"), (dev, "string")):
        answer = client.commit(
            "t",
            {"action": "add-schema", "schema": with_column(client.load("t"), "c", type)},
            {"action": "set-current-schema", "schema-id": -1},
        )
        assert answer.status == 200
    [row] = make(main, "diff", from_state="main", to_state="dev")
    assert row["details"] == {"retype-column c": "int -> string"}


def test_results_are_rows(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t")
    [row] = make(main, "merge", source="dev")
    assert row == Merged("table", "db.t", "changed", "")._asdict()


# Materialized views


def refreshed(client: Client, id: int, number: int, replaces: int | None = None) -> None:
    """Refresh the view `db.mv`."""
    body = client.ok("GET", view("mv"))["metadata"]
    commit = refresh(body["view-uuid"], id, number, replaces=replaces)
    answer = client.send("POST", table("storage", ("db", "mv")), commit)
    assert answer.status == 200, answer


def test_a_materialized_view_and_its_rows_are_merged_as_one(main: Client, opened: Opened) -> None:
    create_materialized_view(main.session.catalog, "mv")
    dev = opened("dev")
    refreshed(dev, 1, 1)
    [row] = make(main, "diff", from_state="main", to_state="dev")
    assert (row["kind"], row["name"], row["change"]) == ("materialized view", "db.mv", "changed")
    assert merge(main, "dev") == {"db.mv": "changed"}
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == 1
    refreshed(dev, 2, 2, 1)
    refreshed(main, 3, 2, 1)
    conflict(main, "dev", "view db.mv: both sides changed or refreshed the materialized view")
    assert merge(main, "dev", strategies={"db.mv": "theirs"}) == {"db.mv": "replaced"}
    assert main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"] == 2
    dev.ok("DELETE", view("mv"))
    assert merge(main, "dev") == {"db.mv": "removed"}


def test_the_refresh_of_a_materialized_view_is_reverted_only_if_its_rows_exist(
    main: Client, clock: ManualClock
) -> None:
    def stored() -> int:
        return int(main.load("storage", ("db", "mv"))["metadata"]["current-snapshot-id"])

    create_materialized_view(main.session.catalog, "mv")
    refreshed(main, 1, 1)
    for id, replaces in ((2, 1), (3, 2)):
        refreshed(main, id, id, replaces)
    second = number(main) - 1
    conflict(main, str(second), "view db.mv: both sides", procedure="revert")
    assert revert(main, second, strategy="theirs") == {"db.mv": "replaced"}
    assert stored() == 1
    refreshed(main, 4, 2, 1)
    fourth = number(main)
    clock.advance(DAY)
    make(main, "expire", older_than="0 s", retain_last=1)
    said = conflict(main, str(fourth), "view db.mv: ", procedure="revert", strategy="theirs")
    assert "its files may be deleted already" in said
    assert stored() == 4


def test_a_namespace_and_a_materialized_view_do_not_get_the_same_name(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    create_materialized_view(main.session.catalog, "mv")
    dev.namespace("db", "mv")
    conflict(main, "dev", "namespace db.mv: Materialized view already exists: db.mv")
    conflict(dev, "main", "view db.mv: Namespace already exists: db.mv")


def test_a_materialized_view_does_not_make_room_for_another_view(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.ok("POST", "v1/namespaces/db/views", view_request("same"))
    create_materialized_view(main.session.catalog, "same")
    conflict(main, "dev", "view db.same: the branch has another view of this name", strategy="theirs")


def test_a_new_branch_of_a_table_is_merged_beside_appends_to_another_one(
    main: Client, opened: Opened
) -> None:
    first = append(main, "t", 1)["current-snapshot-id"]
    dev = opened("dev")
    dev.commit(
        "t", {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": first}
    )
    for _ in range(2):
        made = attempt(dev.load("t")["metadata"], new_append(5, branch="audit"))
        write_manifests(made)
        assert send(dev, made, "t").status == 200
    append(main, "t", 7)
    assert merge(main, "dev") == {"db.t": "merged"}
    metadata = main.load("t")["metadata"]
    by_id = {one["snapshot-id"]: one for one in metadata["snapshots"]}
    assert len(by_id) == 4
    newest = by_id[metadata["refs"]["audit"]["snapshot-id"]]
    assert newest["summary"]["total-records"] == "11"
    assert by_id[newest["parent-snapshot-id"]]["parent-snapshot-id"] == first
    assert by_id[metadata["refs"]["main"]["snapshot-id"]]["summary"]["total-records"] == "8"


def test_a_merge_that_began_before_the_branch_got_a_newer_state_takes_that_as_its_base(
    main: Client, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev, begun = opened("dev"), []
    dev.namespace("made")

    def late(catalog: Catalog, name: str) -> CommitReader:
        if catalog.branch == "main" and not begun:
            begun.append(name)
            with polaris_spark.connect(store=f"sqlite://{tmp_path / 'store.db'}") as session:
                other = Client(session)
                other.set("t", **{"my.one": "1"})
                assert set(merge(dev, "main")) == {"db.t"}
                other.set("t", **{"my.one": "2"})
        return branch_of(catalog, name)

    monkeypatch.setattr("polaris_spark.catalog.merges.branch_of", late)
    assert merge(main, "dev") == {"made": "added"}
    assert begun
    assert properties(main, "t") == {"my.one": "2"}


@pytest.mark.parametrize("procedure", ["merge", "cherry_pick"])
def test_a_merge_does_not_bring_snapshots_that_expire_meanwhile(
    main: Client, opened: Opened, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, procedure: str
) -> None:
    dev, begun, expired = opened("dev"), [], list[dict[str, Any]]()
    for count in (3, 4):
        made = attempt(dev.load("t")["metadata"], new_append(count))
        write_manifests(made)
        assert send(dev, made, "t").status == 200
    commit = f"dev#{number(dev)}"

    def late(catalog: Catalog, name: str) -> CommitReader:
        found = branch_of(catalog, name)
        if not begun:
            begun.append(name)
            clock.advance(1_000)
            expired.extend(make(dev, "expire", table="db.t", older_than="0 s", retain_last=1))
        return found

    monkeypatch.setattr("polaris_spark.catalog.merges.branch_of", late)
    if procedure == "merge":
        assert merge(main, "dev") == {"db.t": "changed"}
    else:
        with pytest.raises(MergeConflictError, match="may be deleted"):
            make(main, "cherry_pick", commit=commit)
    assert [one["manifest_lists"] for one in expired] == [1]
    lists = [one["manifest-list"] for one in main.load("t")["metadata"]["snapshots"]]
    assert len(lists) == (1 if procedure == "merge" else 0)
    assert all(path_of(one).exists() for one in lists)


def test_the_log_says_from_where_a_merged_table_has_its_changes(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.set("t", theirs="1")
    main.set("t", ours="1")
    assert merge(main, "dev") == {"db.t": "merged"}
    head = main.session.catalog.head()
    newest = next(entry for *_, entry in entries(head.store, head.head))
    assert newest.summary["from"] == "merge dev"


def test_a_table_is_merged_though_the_clock_of_its_other_writer_is_ahead(tmp_path: Path) -> None:
    store, warehouse = f"sqlite://{tmp_path / 'clocks.db'}", str(tmp_path / "warehouse")
    now = int(time.time() * 1_000)
    with polaris_spark.connect(store=store, warehouse=warehouse, clock=ManualClock(now)) as session:
        client = Client(session)
        client.namespace("db")
        appendable(client, "t")
        call(session, "create_branch", name="dev")
        append(client, "t", 1)
    with polaris_spark.connect(store=store, branch="dev", clock=ManualClock(now + 600_000)) as session:
        client = Client(session)
        made = attempt(client.load("t")["metadata"], new_append(2), now_ms=now + 600_000)
        write_manifests(made)
        assert send(client, made, "t").status == 200
    with polaris_spark.connect(store=store, clock=ManualClock(now + 1_000)) as session:
        client = Client(session)
        assert merge(client, "dev") == {"db.t": "merged"}
        assert len(ids(client, "t")) == 2
        client.set("t", ours="2")


@pytest.mark.parametrize("is_copy", [False, True])
def test_rows_whose_snapshot_has_expired_are_not_picked_again(
    main: Client, opened: Opened, clock: ManualClock, is_copy: bool
) -> None:
    """The table was empty when the second branch was created, so its versions have no common snapshot."""
    dev, first = opened("dev"), opened("first")
    append(first if is_copy else main, "t", 1)
    if is_copy:
        append(main, "t", 1)
        make(main, "cherry_pick", commit=f"first#{number(first)}")
    source = "first" if is_copy else "main"
    assert merge(dev, source) == {"db.t": "changed"}
    append(main, "t", 2)
    clock.advance(1_000)
    make(main, "expire", table="db.t", older_than="0 s", retain_last=1)
    before = main.load("t")["metadata"]["snapshots"][-1]["summary"]["total-records"]
    if is_copy:
        conflict(main, f"dev#{number(dev)}", "have expired", procedure="cherry_pick")
    else:
        make(main, "cherry_pick", commit=f"dev#{number(dev)}")
    assert main.load("t")["metadata"]["snapshots"][-1]["summary"]["total-records"] == before
