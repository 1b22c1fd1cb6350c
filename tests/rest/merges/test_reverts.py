"""Reverts and cherry-picks of commits."""

from __future__ import annotations

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import State
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import BadRequestError, HistoryTrimmedError, InputError, MergeConflictError
from tests.rest.client import Client, table
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
    revert,
)


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
    with pytest.raises(
        BadRequestError, match=f"commit {last} comes after commit {first}; give the older one first"
    ):
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
        "only the strategy 'ours' can resolve this: choose it, or change the branch first"
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


def test_the_name_of_a_branch_or_tag_alone_is_not_a_commit_to_pick(main: Client, opened: Opened) -> None:
    """The parent of the commit would be taken from the wrong branch, so tables of this branch would be dropped."""
    dev = opened("dev")
    for name in ("a", "b", "c"):
        main.create(name)
    for name in ("my.a", "my.b", "my.c"):
        dev.set("t", **{name: "1"})
    make(main, "create_tag", name="v1", source="dev")
    make(main, "create_tag", name="4", source="dev")
    before, tables = number(main), main.names("db")
    for name, kind in (("dev", "branch"), ("main", "branch"), ("v1", "tag"), ("4", "tag")):
        for dry_run in (True, False):
            with pytest.raises(
                InputError, match=f"'{name}', the name of a {kind}; .*<branch>#<commit or time>"
            ):
                make(main, "cherry_pick", commit=name, dry_run=dry_run)
    assert (number(main), main.names("db")) == (before, tables)
    make(main, "cherry_pick", commit=f"dev#{number(dev)}")
    assert main.names("db") == tables


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
