"""Merges of tables whose snapshots have expired: a merge neither loses nor doubles rows. It conflicts if it cannot know
which rows a branch has, or if it cannot append rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.errors import MergeConflictError
from polaris_spark.jobs.registry import call
from tests.rest.appends import (
    appendable,
    attempt,
    data_files,
    merge_manifests,
    new_append,
    read_list,
    send,
    snapshot_of,
    write_manifests,
)
from tests.rest.client import Client
from tests.rest.conftest import OpenBranch

STEPS = 40


class Branch:
    """The table `db.t` in a branch."""

    def __init__(self, client: Client, clock: ManualClock) -> None:
        self.client = client
        self._clock = clock

    @property
    def number(self) -> int:
        """Number of the newest commit."""
        return self.client.session.catalog.head().head.number

    def append(self, *, merges_manifests: bool = False) -> None:
        """Append a data file, as an Iceberg client does."""
        self._clock.advance(1_000)
        made = attempt(self.client.load()["metadata"], new_append(1), now_ms=self._clock.now_ms())
        write_manifests(made)
        if merges_manifests:
            merge_manifests(made)
        assert send(self.client, made).status == 200

    def expire(self, retained: int) -> None:
        """Expire all snapshots except the newest ones."""
        self._clock.advance(1_000)
        call(self.client.session, "expire", table="db.t", older_than="0 s", retain_last=retained)

    def files(self) -> set[str]:
        """Return the data files, after checking that none is in the table twice."""
        metadata = self.client.load()["metadata"]
        newest = snapshot_of(metadata, metadata["current-snapshot-id"])
        manifests = [one["manifest_path"] for one in read_list(newest["manifest-list"]).manifests]
        found = Counter(one["data_file"]["file_path"] for path in manifests for one in data_files(path))
        assert max(found.values()) == 1, found
        assert newest["summary"]["total-records"] == str(len(found))
        return set(found)

    def merge(self, source: str) -> None:
        call(self.client.session, "merge", source=source)

    def pick(self, source: str, number: int) -> None:
        call(self.client.session, "cherry_pick", commit=f"{source}#{number}")


class Lake:
    """The branches of a catalog."""

    def __init__(self, open_branch: OpenBranch, clock: ManualClock) -> None:
        self._open = open_branch
        self._clock = clock
        client = open_branch(clock=clock)
        client.namespace("db")
        appendable(client)
        self.branches = {"main": Branch(client, clock)}
        self.branches["main"].append()

    def fork(self, name: str, source: str = "main") -> Branch:
        """Create a branch."""
        call(self.branches[source].client.session, "create_branch", name=name)
        self.branches[name] = Branch(self._open(name, clock=self._clock), self._clock)
        return self.branches[name]


@pytest.fixture
def lake(open_branch: OpenBranch, clock: ManualClock) -> Iterator[Lake]:
    return Lake(open_branch, clock)


@pytest.fixture
def main(lake: Lake) -> Branch:
    return lake.branches["main"]


def test_rows_whose_snapshots_have_expired_are_not_lost(main: Branch, lake: Lake) -> None:
    """The other branch appended, got a copy of a later append of this branch, and expired its own snapshot."""
    dev = lake.fork("dev")
    dev.append()
    main.append()
    dev.merge("main")
    dev.expire(1)
    main.append()
    before = main.files()
    with pytest.raises(MergeConflictError, match="snapshots of the other side have expired"):
        main.merge("dev")
    assert main.files() == before


def test_one_snapshot_that_both_sides_store_is_enough(main: Branch, lake: Lake) -> None:
    main.append()
    dev = lake.fork("dev")
    dev.append()
    dev.expire(2)
    main.append()
    expected = main.files() | dev.files()
    main.merge("dev")
    assert main.files() == expected


def test_a_branch_that_is_merged_again_and_again_can_expire_snapshots_on_both_sides(
    main: Branch, lake: Lake
) -> None:
    dev = lake.fork("dev")
    for _ in range(4):
        main.append()
        dev.append()
        expected = main.files() | dev.files()
        main.merge("dev")
        assert main.files() == expected
        main.expire(2)
        dev.expire(2)


def test_rows_are_not_doubled_if_their_snapshots_have_expired_and_their_manifests_were_merged(
    main: Branch, lake: Lake
) -> None:
    main.append()
    main.append(merges_manifests=True)
    dev = lake.fork("dev")
    main.append()
    main.expire(2)
    dev.append()
    dev.merge("main")
    main.expire(1)
    main.append()
    expected = main.files() | dev.files()
    main.merge("dev")
    assert main.files() == expected


@pytest.mark.parametrize("merges_manifests", [False, True])
def test_a_picked_row_is_not_doubled_if_its_snapshot_has_expired(
    main: Branch, lake: Lake, merges_manifests: bool
) -> None:
    dev = lake.fork("dev")
    main.append()
    picked = main.number
    dev.append()
    main.merge("dev")
    dev.pick("main", picked)
    main.append(merges_manifests=merges_manifests)
    main.expire(2)
    expected = main.files() | dev.files()
    main.merge("dev")
    assert main.files() == expected


def test_merged_manifests_do_not_tell_which_rows_a_branch_has(main: Branch, lake: Lake) -> None:
    dev = lake.fork("dev")
    main.append()
    picked = main.number
    main.append(merges_manifests=True)
    dev.append()
    main.merge("dev")
    dev.pick("main", picked)
    main.expire(2)
    before = main.files()
    with pytest.raises(MergeConflictError, match="not known which rows it already has"):
        main.merge("dev")
    assert main.files() == before


def test_a_conflict_says_that_the_newest_common_snapshot_is_gone(main: Branch, lake: Lake) -> None:
    dev = lake.fork("dev")
    dev.append()
    main.append()
    main.merge("dev")
    dev.append()
    main.append()
    main.expire(1)
    with pytest.raises(MergeConflictError, match="no longer stores the newest snapshot that both"):
        main.merge("dev")


def run(lake: Lake, seed: int) -> Counter[str]:
    """Run a random history, and return how often each outcome of a merge occurred."""
    rng, outcomes = random.Random(seed), Counter[str]()
    merged, picks = rng.choice([0, 0.1, 0.3]), rng.choice([0, 2])
    names, picked = ["main"], [("main", lake.branches["main"].number)]
    for _ in range(STEPS):
        name = rng.choice(names)
        branch, others = lake.branches[name], [one for one in names if one != name]
        before = branch.files()
        action = rng.choices(["append", "merge", "pick", "expire", "fork"], [8, 6, picks, 3, 1])[0]
        if action == "append":
            branch.append(merges_manifests=rng.random() < merged)
            picked.append((name, branch.number))
            assert branch.files() > before
        elif action == "merge" and others:
            source = rng.choice(others)
            try:
                branch.merge(source)
            except MergeConflictError:
                outcomes["conflict"] += 1
                assert branch.files() == before, seed
            else:
                outcomes["merged"] += 1
                assert branch.files() == before | lake.branches[source].files(), seed
        elif action == "pick":
            source, number = rng.choice(picked)
            try:
                branch.pick(source, number)
            except MergeConflictError:
                assert branch.files() == before, seed
            else:
                assert branch.files() >= before, seed
        elif action == "expire":
            branch.expire(rng.choice([1, 2, 2, 3, 4]))
            assert branch.files() == before, seed
        elif action == "fork" and len(names) < 4:
            names.append(f"b{len(names)}")
            assert lake.fork(names[-1], name).files() == before
    return outcomes


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_lose_and_double_nothing(lake: Lake, seed: int) -> None:
    outcomes = run(lake, seed)
    assert outcomes["merged"], outcomes


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_histories_lose_and_double_nothing(lake: Lake, seed: int) -> None:
    run(lake, seed)
