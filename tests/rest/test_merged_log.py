"""Merges that keep the log of the merged commits (`keep_log`)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.merges import merges
from polaris_spark.catalog.merges.merges import Options, merge_branch
from polaris_spark.catalog.merges.state_merge import MERGED
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import LogEntry
from polaris_spark.errors import BadRequestError, HistoryTrimmedError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, new_key, table
from tests.rest.conftest import OpenBranch

Fork = Callable[..., Client]

DAY = 24 * 3_600_000


@pytest.fixture
def main(open_branch: OpenBranch, clock: ManualClock) -> Client:
    client = open_branch(clock=clock)
    client.namespace("db")
    for name in ("t", "u"):
        appendable(client, name)
    return client


@pytest.fixture
def fork(main: Client, open_branch: OpenBranch, clock: ManualClock) -> Fork:
    def forked(name: str, source: str = "main") -> Client:
        call(main.session, "create_branch", name=name, source=source)
        return open_branch(name, clock=clock)

    return forked


def merge(client: Client, source: str) -> None:
    call(client.session, "merge", source=source, keep_log=True)


def log_of(client: Client) -> list[LogEntry]:
    """Return the log entries of the branch, oldest first."""
    catalog = client.session.catalog
    return [entry for *_, entry in entries(catalog.references.store, catalog.head().head)][::-1]


def kept(client: Client) -> list[LogEntry]:
    """Return the log entries that merges have kept in the branch, oldest first."""
    return [entry for entry in log_of(client) if entry.action == MERGED]


def places(client: Client) -> list[tuple[str, int]]:
    """Return the branch and commit number of each entry that merges have kept in the branch."""
    return [(entry.summary["branch"], int(entry.summary["number"])) for entry in kept(client)]


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


def trim_all(client: Client, clock: ManualClock) -> None:
    """Trim the history of all branches that `client` changes once more."""
    clock.advance(10 * DAY)
    client.set("t", later="1")
    clock.advance(4 * DAY)
    trim(client.session.catalog.references, Policy(DAY, 0, 365 * DAY))
    assert client.session.catalog.head().head.floor_number == number(client)


def test_the_log_of_the_merged_commits_is_kept_if_asked(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    dev.set("t", **{"my.b": "2"})
    dev.ok("DELETE", table("u"))
    theirs = log_of(dev)[-3:]
    assert call(main.session, "merge", source="dev", keep_log=True, dry_run=True)
    operation = Operation(UUID(new_key()).bytes, "ann")
    catalog = main.session.catalog
    merged = merge_branch(catalog, "dev", operation, Options(keep_log=True))
    found = kept(main)
    assert [(entry.principal, entry.time, entry.key) for entry in found] == [
        (entry.principal, entry.time, entry.key) for entry in theirs
    ]
    assert [entry.summary["action"] for entry in found] == ["update-table", "update-table", "drop-table"]
    assert found[0].summary["set my.a"] == "1"
    newest = dev.session.catalog.head().head
    assert places(main) == [("dev", newest.number - n) for n in (2, 1, 0)]
    assert found[-1].summary["commit"] == str(newest.commit)
    # A repetition takes no effect, and a drop that was merged is a drop once.
    again = merge_branch(catalog, "dev", operation, Options(keep_log=True))
    assert sorted(again) == sorted(merged)
    assert len([entry for entry in log_of(main) if entry.before and not entry.after]) == 1


def test_the_next_merge_keeps_only_new_entries_also_those_that_the_other_branch_kept(
    main: Client, fork: Fork
) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    merge(main, "dev")
    onto = fork("onto", "dev")
    onto.set("t", **{"my.b": "2"})
    merge(dev, "onto")
    merge(main, "dev")
    later = [entry.summary for entry in kept(main)][1:]
    assert [(one["branch"], one["action"], one.get("set my.b")) for one in later] == [
        ("dev", "update-table", None),
        ("onto", "update-table", "2"),
    ]


def test_branches_that_merge_each_other_keep_each_entry_once(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    for round in ("1", "2", "3"):
        main.set("t", ours=round)
        dev.set("u", theirs=round)
        merge(dev, "main")
        merge(main, "dev")
    for client, source in ((main, "dev"), (dev, "main")):
        found = places(client)
        assert {branch for branch, _ in found} == {source}
        assert len(set(found)) == len(found)
    assert [entry.summary["set ours"] for entry in kept(dev) if "set ours" in entry.summary] == [
        "1",
        "2",
        "3",
    ]


def test_an_entry_that_comes_by_two_ways_is_kept_once(main: Client, fork: Fork) -> None:
    dev, other = fork("dev"), fork("other")
    dev.set("t", **{"my.a": "1"})
    merge(other, "dev")
    merge(main, "dev")
    dev.set("t", **{"my.b": "1"})
    merge(other, "dev")
    merge(main, "other")
    merge(main, "dev")
    found = [one for one in places(main) if one[0] == "dev"]
    assert found == [("dev", number(dev) - 1), ("dev", number(dev))]


def test_the_log_of_a_branch_of_another_branch_is_kept_from_its_beginning(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    onto = fork("onto", "dev")
    onto.set("t", **{"my.b": "2"})
    dev.set("t", **{"my.c": "3"})
    merge(main, "onto")
    assert [(one.summary.get("set my.a"), one.summary.get("set my.b")) for one in kept(main)] == [
        ("1", None),
        (None, "2"),
    ]
    merge(main, "dev")
    assert [one.summary.get("set my.c") for one in kept(main)] == [None, None, "3"]


def test_the_log_of_a_branch_that_was_moved_back_is_kept_from_its_beginning(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    first = number(dev)
    dev.set("t", **{"my.b": "2"})
    call(main.session, "reassign_branch", name="dev", to=str(first))
    dev.set("t", **{"my.c": "3"})
    merge(main, "dev")
    assert [(one.summary["action"], one.summary.get("set my.c")) for one in kept(main)] == [
        ("update-table", None),
        ("update-table", "3"),
    ]


def test_the_log_of_merged_commits_that_were_trimmed_is_kept(
    main: Client, fork: Fork, clock: ManualClock
) -> None:
    dev = fork("dev")
    for value in range(5):
        dev.set("t", **{"my.a": str(value)})
    trim_all(dev, clock)
    merge(main, "dev")
    assert [entry.summary.get("set my.a") for entry in kept(main)] == ["0", "1", "2", "3", "4", None]


def test_the_log_is_not_kept_in_part_if_the_beginning_of_a_branch_was_trimmed(
    main: Client, fork: Fork, clock: ManualClock
) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    onto = fork("onto", "dev")
    onto.set("t", **{"my.b": "2"})
    trim_all(onto, clock)
    with pytest.raises(HistoryTrimmedError, match="leave out 'keep_log'"):
        merge(main, "onto")
    assert kept(main) == []
    merge(main, "dev")
    merge(main, "onto")
    assert [branch for branch, _ in places(main)] == ["dev", "onto", "onto"]


def test_a_client_cannot_say_where_a_change_was_made(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    made = attempt(dev.load("t")["metadata"], new_append(1))
    made.snapshot["summary"] |= {"branch": "main", "commit": "1", "number": "1", "job": "nightly"}
    write_manifests(made)
    assert send(dev, made).status == 200
    merge(main, "dev")
    [entry] = kept(main)
    assert places(main) == [("dev", number(dev))]
    assert entry.summary["commit"] == str(dev.session.catalog.head().head.commit)
    assert entry.summary["job"] == "nightly"


def test_changes_of_the_branch_itself_are_not_kept(main: Client, fork: Fork) -> None:
    dev = fork("dev")
    dev.set("t", **{"my.a": "1"})
    call(main.session, "protect_branch", name="dev")
    call(main.session, "unprotect_branch", name="dev")
    merge(main, "dev")
    assert [entry.summary["action"] for entry in kept(main)] == ["update-table"]


def test_more_entries_than_a_commit_can_have_are_refused(
    main: Client, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merges, "MOST_KEPT", 2)
    dev = fork("dev")
    for value in range(3):
        dev.set("t", **{"my.a": str(value)})
    before = number(main)
    with pytest.raises(BadRequestError, match="has more than 2 entries to merge"):
        merge(main, "dev")
    assert number(main) == before
    call(main.session, "merge", source="dev")
    assert (kept(main), main.load("t")["metadata"]["properties"]["my.a"]) == ([], "2")


def test_the_log_of_a_staging_area_is_kept_if_asked(main: Client) -> None:
    call(main.session, "stage", name="nightly")
    area = Client(main.session.derive(catalog=catalog_at(main.session.catalog, "+nightly")))
    area.set("t", **{"my.a": "1"})
    call(main.session, "commit_staged", name="nightly")
    assert kept(main) == []
    for value in ("2", "3"):
        area.set("t", **{"my.a": value})
    call(main.session, "commit_staged", name="nightly", keep_log=True)
    assert [(one.summary["branch"], one.summary["set my.a"]) for one in kept(main)] == [
        ("+nightly", "2"),
        ("+nightly", "3"),
    ]
