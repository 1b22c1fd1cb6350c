"""Merges of branches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import fastavro
import pytest

import polaris_spark
from polaris_spark.catalog.branches.branches import branch_of
from polaris_spark.catalog.branches.merge_base import merge_base
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.merges.merge_steps import Merged
from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError, InputError, MergeConflictError, NotFoundError
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable, attempt, new_append, path_of, read_list, send, write_manifests
from tests.rest.client import VIEW_VERSION, Client, table
from tests.rest.merges.steps import (
    DAY,
    Opened,
    append,
    conflict,
    ids,
    make,
    merge,
    number,
    properties,
    rename,
    with_column,
)


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


def test_statistics_of_snapshots_that_both_sides_have_are_merged(
    main: Client, opened: Opened, clock: ManualClock
) -> None:
    first, second = (append(main, "t")["current-snapshot-id"] for _ in range(2))
    third = append(main, "t")["current-snapshot-id"]

    def statistics(snapshot: int, name: str) -> dict[str, Any]:
        path = f"{main.load('t')['metadata']['location']}/metadata/{name}.puffin"
        return {"snapshot-id": snapshot, "statistics-path": path, "file-size-in-bytes": 1}

    def of_columns(snapshot: int, name: str) -> dict[str, Any]:
        more = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
        made = {**statistics(snapshot, name), **more}
        return {"action": "set-statistics", "snapshot-id": snapshot, "statistics": made}

    def of_partitions(snapshot: int, name: str) -> dict[str, Any]:
        made = statistics(snapshot, name)
        return {"action": "set-partition-statistics", "partition-statistics": made}

    def names(client: Client) -> list[str]:
        metadata = client.load("t")["metadata"]
        found = [*metadata["statistics"], *metadata["partition-statistics"]]
        return sorted(Path(one["statistics-path"]).stem for one in found)

    before = [of_columns(first, "c1"), of_partitions(first, "p1"), of_columns(second, "c2")]
    assert main.commit("t", *before).status == 200
    dev = opened("dev")
    gone = {"action": "remove-statistics", "snapshot-id": first}
    assert dev.commit("t", gone, of_columns(second, "c2-new"), of_partitions(third, "p3")).status == 200
    assert main.commit("t", of_columns(third, "c3")).status == 200
    assert merge(main, "dev") == {"db.t": "merged"}
    assert names(main) == ["c2-new", "c3", "p1", "p3"]
    assert dev.commit("t", of_columns(third, "c3-dev")).status == 200
    conflict(main, "dev", f"both sides changed the statistics of snapshot {third}")
    clock.advance(DAY)
    make(dev, "expire", table="db.t", older_than="0 s", retain_last=2)
    assert first not in [one["snapshot-id"] for one in dev.load("t")["metadata"]["snapshots"]]
    assert dev.commit("t", of_columns(third, "c3")).status == 200
    assert merge(main, "dev") == {}
    assert names(main) == ["c2-new", "c3", "p1", "p3"]


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


def test_results_are_rows(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    append(dev, "t")
    [row] = make(main, "merge", source="dev")
    assert row == Merged("table", "db.t", "changed", "")._asdict()


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

    monkeypatch.setattr("polaris_spark.catalog.merges.merges.branch_of", late)
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

    monkeypatch.setattr("polaris_spark.catalog.merges.merges.branch_of", late)
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
