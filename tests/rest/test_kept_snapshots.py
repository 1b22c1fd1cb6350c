"""Snapshots of a branch that the other branch lacks: a merge that takes the table of the other branch keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.merges.transactions import at_once
from polaris_spark.clock import ManualClock
from polaris_spark.errors import MergeConflictError
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, Json, table
from tests.rest.conftest import OpenBranch
from tests.rest.kinds import add_schema, column, spec, statistics

DAY = 24 * 3_600_000


class Pair:
    """The branches `main` and `dev` of a catalog with the table `db.t`, which has one snapshot."""

    def __init__(self, open_branch: OpenBranch, clock: ManualClock, version: int = 2) -> None:
        self.clock = clock
        self.main = open_branch(clock=clock)
        self.main.namespace("db")
        appendable(self.main, version=version)
        self.first = self.append(self.main)
        call(self.main.session, "create_branch", name="dev")
        self.dev = open_branch("dev", clock=clock)

    def append(self, client: Client, operation: str = "append") -> int:
        """Commit a snapshot, and return its id."""
        self.clock.advance(1_000)
        made = attempt(client.load()["metadata"], new_append(1), now_ms=self.clock.now_ms())
        write_manifests(made)
        if operation != "append":
            made = made.changed(summary={**made.snapshot["summary"], "operation": operation})
        answer = send(client, made)
        assert answer.status == 200, answer
        return int(answer.body["metadata"]["current-snapshot-id"])

    def merge(self, into: Client, source: str, **options: Any) -> str:
        """Merge, and return the action for the table."""
        rows = call(into.session, "merge", source=source, **options)
        return str({name: action for _, name, action, _ in rows}["db.t"])

    def crossed(self) -> int:
        """Let `dev` append and get a copy of a new snapshot of `main`. Return the id of the original."""
        self.append(self.dev)
        original = self.append(self.main)
        assert self.merge(self.dev, "main") == "merged"
        return original


def loaded(client: Client) -> Json:
    metadata: Json = client.load()["metadata"]
    return metadata


def stored(client: Client) -> list[int]:
    """Return the ids of the stored snapshots, in the order of the metadata."""
    return [one["snapshot-id"] for one in loaded(client)["snapshots"]]


def history(client: Client) -> list[int]:
    """Return the ids of the snapshots of the table's branch `main`, newest first."""
    metadata = loaded(client)
    by_id = {one["snapshot-id"]: one for one in metadata["snapshots"]}
    found, at = [], metadata["current-snapshot-id"]
    while at in by_id:
        found.append(at)
        at = by_id[at].get("parent-snapshot-id")
    return found


def number(client: Client) -> str:
    return str(client.session.catalog.head().head.number)


@pytest.fixture
def pair(open_branch: OpenBranch, clock: ManualClock) -> Pair:
    return Pair(open_branch, clock)


def test_a_snapshot_of_which_the_other_branch_has_a_copy_is_kept(pair: Pair) -> None:
    original = pair.crossed()
    assert pair.merge(pair.main, "dev") == "changed"
    assert original in stored(pair.main)
    assert original not in history(pair.main)
    assert history(pair.main) == history(pair.dev)
    call(pair.main.session, "revert", commit=number(pair.main))
    assert history(pair.main) == [original, pair.first]


def test_a_kept_snapshot_does_not_hinder_later_merges(pair: Pair) -> None:
    """The other branch then makes changes that can be merged only because this branch has not changed the table."""
    original = pair.crossed()
    pair.merge(pair.main, "dev")
    for _ in range(2):
        pair.append(pair.dev, "overwrite")
        call(pair.dev.session, "expire", table="db.t", older_than="0 s", retain_last=1)
        before, kept = history(pair.main), stored(pair.main)
        assert pair.merge(pair.main, "dev") == "changed"
        assert history(pair.main)[0] == history(pair.dev)[0]
        assert set(kept) <= set(stored(pair.main))
        assert original in stored(pair.main)
    call(pair.main.session, "revert", commit=number(pair.main))
    assert history(pair.main) == before


def test_both_branches_get_the_same_content_again(pair: Pair) -> None:
    original = pair.crossed()
    pair.merge(pair.main, "dev")
    assert pair.merge(pair.dev, "main") == "changed"
    assert original in stored(pair.dev)
    assert loaded(pair.main) == loaded(pair.dev)
    assert call(pair.main.session, "diff", from_state="main", to_state="dev") == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_kept_snapshots_do_not_hinder_merges_into_other_branches(
    open_branch: OpenBranch, clock: ManualClock, version: int
) -> None:
    """The numbers of snapshots that a branch keeps are not in the order of those that it took."""
    pair = Pair(open_branch, clock, version)
    call(pair.main.session, "create_branch", name="other")
    other = open_branch("other", clock=clock)
    other.set("t", **{"my.a": "1"})
    pair.crossed()
    pair.merge(pair.main, "dev")
    assert pair.merge(other, "main") == "merged"
    assert history(other) == history(pair.main)
    pair.append(other)


def test_kept_snapshots_expire_like_others(pair: Pair) -> None:
    original = pair.crossed()
    pair.merge(pair.main, "dev")
    pair.clock.advance(DAY)
    call(pair.main.session, "expire", table="db.t", older_than="1 h", retain_last=1)
    assert original not in stored(pair.main)
    assert stored(pair.main) == history(pair.main)


def test_the_strategy_theirs_keeps_the_snapshots_of_this_branch(pair: Pair) -> None:
    pair.append(pair.dev, "overwrite")
    ours = [pair.append(pair.main, "overwrite") for _ in range(3)]
    pair.main.commit("t", statistics(ours[1]), statistics(ours[1], "partition-statistics"))
    sequence = loaded(pair.main)["last-sequence-number"]
    assert pair.merge(pair.main, "dev", strategy="theirs") == "replaced"
    metadata = loaded(pair.main)
    assert history(pair.main) == history(pair.dev)
    assert set(ours) < set(stored(pair.main))
    assert metadata["last-sequence-number"] == sequence
    assert [one["snapshot-id"] for one in metadata["statistics"]] == [ours[1]]
    assert [one["snapshot-id"] for one in metadata["partition-statistics"]] == [ours[1]]
    call(pair.main.session, "revert", commit=number(pair.main))
    assert history(pair.main) == [*ours[::-1], pair.first]
    call(pair.main.session, "revert", commit=number(pair.main))
    assert history(pair.main) == history(pair.dev)


def test_kept_snapshots_have_their_schemas_and_partition_specs(pair: Pair) -> None:
    pair.append(pair.dev, "overwrite")
    columns = [*loaded(pair.main)["schemas"][0]["fields"], column(9)]
    answer = pair.main.commit("t", add_schema(*columns), {"action": "set-current-schema", "schema-id": -1})
    assert answer.status == 200, answer
    pair.main.commit("t", spec(9))
    pair.dev.set("t", **{"my.a": "dev"})
    pair.main.set("t", **{"my.a": "main"})
    ours = pair.append(pair.main)
    assert pair.merge(pair.main, "dev", strategy="theirs") == "replaced"
    metadata = loaded(pair.main)
    kept = next(one for one in metadata["snapshots"] if one["snapshot-id"] == ours)
    schema = next(one for one in metadata["schemas"] if one["schema-id"] == kept["schema-id"])
    assert [one["id"] for one in schema["fields"]] == [one["id"] for one in columns]
    assert metadata["last-column-id"] == 9
    assert [one["spec-id"] for one in metadata["partition-specs"]] == [0, 1]
    assert metadata["current-schema-id"] == metadata["default-spec-id"] == 0


def test_snapshots_whose_partition_spec_would_mean_another_one_are_not_kept(pair: Pair) -> None:
    pair.dev.commit("t", spec(1, "one"))
    pair.main.commit("t", spec(1, "other"))
    pair.append(pair.dev)
    ours = pair.append(pair.main)
    assert pair.merge(pair.main, "dev", strategy="theirs") == "replaced"
    assert ours not in stored(pair.main)
    with pytest.raises(MergeConflictError):
        call(pair.main.session, "revert", commit=number(pair.main))


def test_a_merge_takes_over_that_snapshots_expired(pair: Pair) -> None:
    """The other branch has the newest snapshot of this branch, and removed an older one."""
    pair.append(pair.main)
    assert pair.merge(pair.dev, "main") == "changed"
    call(pair.dev.session, "expire", table="db.t", older_than="0 s", retain_last=1)
    assert pair.first not in stored(pair.dev)
    assert pair.merge(pair.main, "dev") == "changed"
    assert stored(pair.main) == stored(pair.dev)


def test_a_transaction_removes_the_snapshots_that_its_requests_remove(pair: Pair) -> None:
    pair.dev.ok("DELETE", table("t"))
    second = pair.append(pair.main)
    to_first = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": pair.first}
    session, moves = pair.main.session, iter((lambda: pair.main.create("other"),))

    def work(copy: Catalog) -> None:
        inside = Client(session.derive(catalog=copy))
        answer = inside.commit("t", to_first, {"action": "remove-snapshots", "snapshot-ids": [second]})
        assert answer.status == 200, answer
        next(moves)()  # the branch moves, so the transaction is merged

    at_once(session.catalog, session.operation(), work)
    assert stored(pair.main) == [pair.first]
