"""Staging areas: several sessions stage changes, and one commit applies them to the branch."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.merges import staging
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    MergeConflictError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, table
from tests.rest.conftest import OpenBranch
from tests.rest.steps import read, two_tables, write


@pytest.fixture
def main(open_branch: OpenBranch) -> Client:
    return two_tables(open_branch())


def staged(client: Client, name: str = "nightly") -> Client:
    [(state, _)] = call(client.session, "stage", name=name)
    assert state == f"+{name}"
    return at(client, state)


def at(client: Client, state: str) -> Client:
    return Client(client.session.derive(catalog=catalog_at(client.session.catalog, state)))


def commit(client: Client, name: str = "nightly", **arguments: object) -> dict[str, str]:
    return {row[1]: row[2] for row in call(client.session, "commit_staged", name=name, **arguments)}


def append(client: Client, name: str, snapshot: int) -> None:
    made = attempt(client.load(name)["metadata"], new_append(snapshot))
    write_manifests(made)
    assert send(client, made, name).status == 200


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


def test_one_commit_brings_what_several_sessions_have_staged(main: Client, open_branch: OpenBranch) -> None:
    one, two = staged(main), staged(open_branch())
    write(one, "t", 1)
    two.create("made")
    write(two, "u", 2)
    assert (read(two, "t"), read(one, "u")) == (1, 2)
    assert (read(main, "t"), read(main, "u"), main.names("db")) == (0, 0, ["t", "u"])
    before = number(main)
    assert commit(main) == {"db.made": "added", "db.t": "changed", "db.u": "changed"}
    assert number(main) == before + 1
    assert (read(main, "t"), read(main, "u"), main.names("db")) == (1, 2, ["made", "t", "u"])
    assert commit(main) == {}
    assert number(main) == before + 1


def test_changes_staged_after_a_commit_belong_to_the_next_one(main: Client) -> None:
    area = staged(main)
    append(area, "t", 3)
    commit(main)
    append(area, "t", 4)
    write(main, "u", 7)
    assert len(main.load("t")["metadata"]["snapshots"]) == 1
    commit(main)
    assert len(main.load("t")["metadata"]["snapshots"]) == 2
    assert read(area, "u") == 7


def test_an_area_in_which_nothing_is_staged_gets_the_newest_state_of_its_branch(main: Client) -> None:
    area = staged(main)
    write(main, "u", 9)
    assert (read(area, "u"), read(staged(main), "u")) == (0, 9)
    before = number(area)
    staged(main)
    assert number(area) == before
    write(area, "t", 1)
    write(main, "u", 10)
    assert (read(staged(main), "u"), read(staged(main), "t")) == (9, 1)
    commit(main)
    assert (read(area, "u"), read(area, "t")) == (10, 1)


def test_a_commit_that_fails_loses_nothing(main: Client, open_branch: OpenBranch) -> None:
    area = staged(main)
    write(area, "t", 1)
    write(area, "u", 1)
    write(main, "t", 5)
    with pytest.raises(MergeConflictError, match=r"table db\.t"):
        commit(open_branch())
    assert (read(area, "t"), read(area, "u"), read(main, "u")) == (1, 1, 0)
    assert staged(main).names("db") == ["t", "u"]  # the conflict does not keep the area from being used
    area.create("later")
    assert commit(main, dry_run=True)["db.t"] == "conflict"
    assert commit(main, strategies={"db.t": "theirs"})["db.later"] == "added"
    assert (read(main, "t"), read(main, "u"), read(area, "t")) == (1, 1, 1)


def test_the_second_of_two_concurrent_commits_brings_only_changes_staged_since_the_first(
    main: Client, open_branch: OpenBranch
) -> None:
    area, chance = staged(main), random.Random(4)
    clients = [open_branch() for _ in range(4)]
    for turn in range(10):
        write(area, "t", turn)
        append(area, "u", 100 + turn)
        threads = [threading.Thread(target=commit, args=(client,)) for client in clients]
        before = number(main)
        for thread in threads:
            thread.start()
        if chance.random() < 0.5:
            append(area, "u", 200 + turn)
        for thread in threads:
            thread.join()
        assert number(main) - before in (1, 2)
        commit(main)
        assert read(main, "t") == turn


def test_nothing_that_many_sessions_stage_is_lost_or_doubled(main: Client, open_branch: OpenBranch) -> None:
    """Sessions stage appends to one table, while others commit and change other tables of the branch."""
    for writer in range(3):
        appendable(main, f"t{writer}")
    staged(main)
    failed: list[BaseException] = []

    def run(action: Callable[[Client], None]) -> None:
        try:
            action(open_branch())
        except BaseException as error:  # the test shows it
            failed.append(error)

    def stage(writer: int, client: Client) -> None:
        for turn in range(12):
            append(staged(client), f"t{writer}", 1_000 * (writer + 1) + turn)

    def commit_often(client: Client) -> None:
        for _ in range(8):
            commit(client)
            write(client, "u", random.randrange(1_000))

    actions: list[Callable[[Client], None]] = [
        lambda client, writer=writer: stage(writer, client)  # type: ignore[misc]
        for writer in range(3)
    ]
    threads = [threading.Thread(target=run, args=(one,)) for one in (*actions, commit_often, commit_often)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    commit(main)
    for writer in range(3):
        snapshots = main.load(f"t{writer}")["metadata"]["snapshots"]
        records = [int(one["summary"]["total-records"]) for one in snapshots]
        expected = [one["summary"]["added-records"] for one in snapshots]
        assert len(records) == 12
        assert records[-1] == sum(map(int, expected))


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_process_that_ends_after_its_commit_leaves_an_area_that_works(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = staged(main)
    append(area, "t", 3)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "_renew", killed)
        with pytest.raises(KeyboardInterrupt):
            commit(main)
    write(main, "u", 3)
    append(area, "t", 4)
    assert commit(main) == {"db.t": "changed"}
    assert len(main.load("t")["metadata"]["snapshots"]) == 2
    assert read(area, "u") == 3


def test_mistakes_are_refused(main: Client) -> None:
    with pytest.raises(NotFoundError, match="no staging area 'none'"):
        commit(main, "none")
    for name in ("a@b", "a#b", "", "..", "+a"):
        with pytest.raises(BadRequestError):
            call(main.session, "stage", name=name)
    with pytest.raises(BadRequestError, match="as the names of staging areas do"):
        call(main.session, "create_branch", name="+a")
    call(main.session, "create_branch", name="dev")
    staged(main)
    dev = at(main, "dev")
    with pytest.raises(AlreadyExistsError, match="is for branch 'main'"):
        call(dev.session, "stage", name="nightly")
    with main.session.transaction() as tx, pytest.raises(BadRequestError, match="a transaction is open"):
        call(tx, "stage", name="nightly")


def test_a_staging_area_can_belong_to_another_branch(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    dev = at(main, "dev")
    area = staged(dev, "a")
    write(area, "t", 4)
    again = staged(area, "a")
    assert read(again, "t") == 4
    commit(main, "a")
    assert (read(dev, "t"), read(main, "t")) == (4, 0)


def test_an_area_can_be_committed_to_a_protected_branch_and_dropped(main: Client) -> None:
    area = staged(main)
    call(main.session, "protect_branch", name="main")
    write(area, "t", 1)
    commit(main)
    assert read(main, "t") == 1
    write(area, "t", 2)
    call(main.session, "drop_branch", name="+nightly")
    assert area.send("GET", table("t")).status >= 400
    with pytest.raises(NotFoundError, match="no staging area"):
        commit(main)
    assert (read(staged(main), "t"), read(main, "t")) == (1, 1)
    assert [row[0] for row in call(main.session, "show_branches")] == ["+nightly", "main"]


def test_an_area_cannot_be_protected(main: Client) -> None:
    area = staged(main)
    with pytest.raises(BadRequestError, match="is a staging area, which cannot be protected"):
        call(main.session, "protect_branch", name="+nightly")
    call(main.session, "unprotect_branch", name="+nightly")
    write(area, "t", 1)
    commit(main)
    assert read(main, "t") == 1


def test_what_was_staged_for_a_branch_that_was_renamed_can_be_merged(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    write(staged(at(main, "dev")), "t", 5)
    call(main.session, "rename_branch", name="dev", to="new")
    with pytest.raises(NotFoundError, match="is for branch 'dev', which was dropped or renamed"):
        commit(main)
    call(at(main, "new").session, "merge", source="+nightly")
    assert (read(main, "t"), read(at(main, "new"), "t")) == (0, 5)


@pytest.mark.parametrize("change", ["rename_branch", "drop_branch", "reassign_branch"])
def test_what_was_staged_for_a_branch_does_not_go_to_another_one_of_its_name(
    main: Client, change: str
) -> None:
    call(main.session, "create_branch", name="dev")
    write(staged(at(main, "dev")), "t", 5)
    if change == "reassign_branch":
        write(at(main, "dev"), "u", 1)
        call(main.session, change, name="dev", to="main")
    else:
        call(main.session, change, name="dev", **({"to": "new"} if change == "rename_branch" else {}))
        call(main.session, "create_branch", name="dev")
    for dry_run in (True, False):
        with pytest.raises(
            NotFoundError, match=r"not for the present branch 'dev'.*; merge '\+nightly' into"
        ):
            commit(main, dry_run=dry_run)
    assert read(at(main, "dev"), "t") == 0
    call(at(main, "dev").session, "merge", source="+nightly")
    assert read(at(main, "dev"), "t") == 5
    assert commit(main) == {}


def test_an_empty_area_stays_usable_after_its_branch_was_moved(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    dev = at(main, "dev")
    staged(dev)
    call(main.session, "reassign_branch", name="dev", to="main")  # a state with the same content
    write(staged(dev), "t", 5)
    assert commit(main) == {"db.t": "changed"}
    assert read(dev, "t") == 5


def test_what_was_staged_for_a_branch_that_was_restored_is_committed(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    write(staged(at(main, "dev")), "t", 5)
    for change, arguments in (
        ("drop_branch", {"name": "dev"}),
        ("undrop_branch", {"name": "dev"}),
        ("rename_branch", {"name": "dev", "to": "new"}),
        ("rename_branch", {"name": "new", "to": "dev"}),
    ):
        call(main.session, change, **arguments)
    assert commit(main) == {"db.t": "changed"}


def test_an_area_and_its_branch_create_the_same_namespace(main: Client) -> None:
    area = staged(main)
    for client in (area, main):
        client.namespace("n")
    area.create("x", namespace=("n",))
    assert commit(main) == {"n.x": "added"}
    main.create("y", namespace=("n",))
    assert staged(main).names("n") == ["x", "y"]
    area.create("z", namespace=("n",))
    assert commit(main) == {"n.z": "added"}
    assert main.names("n") == ["x", "y", "z"]


def test_a_commit_succeeds_though_the_area_does_not_get_the_newest_state(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CommitFailedError("the area was changed")

    area = staged(main)
    write(area, "t", 1)
    write(main, "u", 2)
    with monkeypatch.context() as patched:
        patched.setattr(staging, "_renew", fail)
        assert commit(main) == {"db.t": "changed"}
    assert (read(main, "t"), read(area, "u")) == (1, 0)
    assert read(staged(main), "u") == 2
