"""Checks of merges while other clients change the branches."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from polaris_spark.catalog.branches.states import reader_at
from polaris_spark.catalog.merges.checked_merge import TRIES, MergedState, ReadDifference, merge_checked
from polaris_spark.catalog.merges.merge_steps import Difference, Merged, Strategy
from polaris_spark.catalog.merges.merges import Options, cherry_pick, compare, merge_branch, revert
from polaris_spark.catalog.merges.state_merge import MergeStates, new_difference
from polaris_spark.commits.state import State
from polaris_spark.errors import CheckFailedError, CommitFailedError, MergeConflictError
from polaris_spark.jobs.registry import call
from tests.rest.checks.evaluators import ME, TRUE, Evaluator, merge, newest, number
from tests.rest.client import Client, at_once, table
from tests.rest.conftest import OpenBranch


def test_a_merge_is_checked_again_if_the_target_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            merge(elsewhere, Evaluator(), "other")
        return ""

    evaluator = Evaluator(evaluate)
    merge(main, evaluator)
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["new", "t"], ["new", "t", "theirs"]]
    assert main.names("db") == ["new", "t", "theirs"]


def test_a_merge_is_checked_again_if_the_source_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    dev = open_branch("dev")

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            dev.create("bad")
        inside = Client(main.session.derive(catalog=merged.catalog))
        return "bad" if "bad" in inside.names("db") else ""

    evaluator = Evaluator(evaluate)
    with pytest.raises(CheckFailedError, match="bad"):
        merge(main, evaluator)
    assert main.names("db") == ["t"]


def test_a_check_that_is_added_meanwhile_is_evaluated(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        call(elsewhere.session, "add_check", branch="main", name="b", sql=TRUE)
        return "b came" if len(merged.checks) == 2 else ""

    with pytest.raises(CheckFailedError, match="checks 'a', 'b' do not hold: b came"):
        merge(main, Evaluator(evaluate))
    assert main.names("db") == ["t"]


def merge_with(client: Client, evaluator: Evaluator, during: Callable[[int], object]) -> list[Merged]:
    """Merge `dev`, which began at commit 3.

    Args:
        during: called with the number of times that the difference of the branches was read, after the branch was.
    """
    catalog, numbers = client.session.catalog, count(1)
    base, theirs = (reader_at(catalog, one) for one in ("dev#3", "dev"))
    changes = {one.entity_id: one for one in compare(catalog, base, theirs)}

    def difference(_: State) -> Difference:
        during(next(numbers))
        return new_difference(catalog, changes)

    def make(read: ReadDifference) -> MergeStates:
        change = MergeStates(catalog.context, ME, read, label="merge dev")
        change.onto_protected = True
        return change

    return merge_checked(catalog, make, difference, "merge dev", evaluator)


def test_a_branch_that_is_protected_during_a_merge_has_its_checks_evaluated(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "unprotect_branch", name="main")
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere, evaluator = open_branch(), Evaluator(lambda _: "no")

    def protect(number: int) -> None:
        if number == 1:
            call(elsewhere.session, "protect_branch", name="main")

    with pytest.raises(CheckFailedError, match="check 'a' does not hold: no"):
        merge_with(main, evaluator, protect)
    assert len(evaluator.seen) == 1
    assert main.names("db") == ["t"]


def test_a_commit_between_the_preparation_of_a_merge_and_its_commit_is_seen(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere, evaluator = open_branch(), Evaluator()

    def change(number: int) -> None:
        if number == 2:  # the first one is for the checks
            merge(elsewhere, Evaluator(), "other")

    merge_with(main, evaluator, change)
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["new", "t"], ["new", "t", "theirs"]]
    assert main.names("db") == ["new", "t", "theirs"]


def test_a_merge_into_a_branch_that_keeps_changing_ends_with_an_error(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    dev = open_branch("dev")

    def evaluate(merged: MergedState) -> str:
        dev.create(f"t{len(evaluator.seen)}")
        return ""

    evaluator = Evaluator(evaluate)
    with pytest.raises(CommitFailedError, match=f"changed {TRIES} times while the checks"):
        merge(main, evaluator)
    assert len(evaluator.seen) == TRIES
    assert main.names("db") == ["t"]


def test_a_revert_is_checked_again_if_the_branch_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "merge", source="dev")
    bad = str(number(main))
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            merge(elsewhere, Evaluator(), "other")
        return ""

    evaluator = Evaluator(evaluate)
    revert(main.session.catalog, bad, bad, ME, Options(evaluator=evaluator))
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["t"], ["t", "theirs"]]
    assert main.names("db") == ["t", "theirs"]


@pytest.mark.parametrize("seed", range(3))
def test_a_check_holds_in_every_state_while_many_merge_revert_and_cherry_pick(
    main: Client, open_branch: OpenBranch, seed: int
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    most, began = 3, number(main)

    def evaluate(merged: MergedState) -> str:
        inside = Client(main.session.derive(catalog=merged.catalog))
        return "" if len(inside.names("db")) <= most else "too many tables"

    def work(id: int) -> None:
        rng, evaluator = random.Random(f"{seed} {id}"), Options(evaluator=Evaluator(evaluate))
        mine, own = open_branch(), open_branch(f"own{id}")
        for step in range(5):
            action = rng.choice(("merge", "merge", "revert", "cherry-pick", "properties"))
            catalog = mine.session.catalog
            try:
                if action == "properties":
                    mine.session.set_catalog_properties(
                        {"polaris.schema-merge": rng.choice(("true", "false"))}
                    )
                elif action == "merge":
                    own.create(f"t{id}{step}")
                    merge_branch(catalog, f"own{id}", ME, evaluator)
                elif action == "revert":
                    commit = str(number(mine) - rng.randrange(2))
                    revert(catalog, commit, commit, ME, evaluator)
                else:
                    cherry_pick(catalog, f"own{id}#{number(own)}", ME, evaluator)
            except (CheckFailedError, CommitFailedError, MergeConflictError):
                continue

    for id in range(4):
        call(main.session, "create_branch", name=f"own{id}")
    at_once([partial(work, id) for id in range(4)])
    states = [open_branch(as_of=str(commit)).names("db") for commit in range(began, number(main) + 1)]
    assert 1 < max(map(len, states)) <= most, seed


def test_commits_that_change_no_content_do_not_make_a_merge_stale(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    elsewhere, other = open_branch(), open_branch("other")

    def evaluate(merged: MergedState) -> str:
        other.create("short")
        other.ok("DELETE", table("short"))
        merge(elsewhere, Evaluator(), "other")
        moved.append(newest(main))
        return ""

    evaluator, moved = Evaluator(evaluate), [newest(main)]
    merge(main, evaluator)
    assert len(evaluator.seen) == 1
    assert moved[0] != moved[1]
    assert main.names("db") == ["new", "t"]


def add_column(client: Client, name: str) -> None:
    schema = client.load()["metadata"]["schemas"][0]
    field = {"id": 3, "name": name, "required": False, "type": "long"}
    more = {**schema, "fields": [*schema["fields"], field]}
    client.commit(
        "t",
        {"action": "add-schema", "schema": more, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
    )


def test_a_merge_is_checked_again_if_the_properties_that_decide_it_change(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "unprotect_branch", name="main")
    add_column(main, "ours")
    add_column(open_branch("dev"), "theirs")
    call(main.session, "protect_branch", name="main")
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere = open_branch()

    def columns(client: Client) -> list[str]:
        metadata = client.load()["metadata"]
        [schema] = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
        return [field["name"] for field in schema["fields"]]

    def evaluate(merged: MergedState) -> str:
        elsewhere.session.set_catalog_properties({"polaris.schema-merge": "true"})
        return ""

    evaluator = Evaluator(evaluate)
    merge(main, evaluator, strategy=Strategy.THEIRS)
    seen = [columns(Client(main.session.derive(catalog=one.catalog))) for one in evaluator.seen]
    assert columns(main) == seen[-1]
    assert len(seen) == 2
