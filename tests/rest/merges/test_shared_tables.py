"""Requests after which a client deletes files of a table: refused if another branch or tag of the catalog has the
table."""

from __future__ import annotations

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, Json, identifier, table
from tests.rest.merges.steps import Opened, append, make, rename

QUESTION = f"polaris-spark/{table('t')}/allow-orphan-removal"


@pytest.fixture
def removal(main: Client) -> Json:
    """The change that removes the first of two snapshots of the table `t`."""
    first = append(main, "t")["current-snapshot-id"]
    append(main, "t")
    return {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [first]}]}


def snapshots(client: Client, name: str = "t") -> int:
    return len(client.load(name)["metadata"]["snapshots"])


def requests(removal: Json) -> list[tuple[str, Json]]:
    """The requests that remove snapshots."""
    part = {"method": "POST", "path": table("t"), "body": removal}
    return [
        (table("t"), removal),
        ("v1/transactions/commit", {"table-changes": [{"identifier": identifier("t"), **removal}]}),
        ("v1/transactions/commit", {"table-changes": [], "requests": [part]}),
    ]


@pytest.mark.parametrize("way", range(3))
@pytest.mark.parametrize(
    ("procedure", "holder"), [("create_branch", "the branch 'dev'"), ("create_tag", "the tag 'dev'")]
)
def test_snapshots_that_another_state_may_need_are_not_removed(
    main: Client, removal: Json, procedure: str, holder: str, way: int
) -> None:
    where, body = requests(removal)[way]
    call(main.session, procedure, name="dev")
    answer = main.send("POST", where, body)
    assert answer.kind == (400, "BadRequestException")
    assert f"because {holder} of the catalog also has the table" in answer.error["message"]
    assert "CALL system.expire(table => 'db.t')" in answer.error["message"]
    assert snapshots(main) == 2


@pytest.mark.parametrize("way", range(3))
def test_snapshots_of_a_table_that_no_other_state_has_are_removed(
    main: Client, opened: Opened, removal: Json, way: int
) -> None:
    dev = opened("dev")
    dev.ok("DELETE", table("t"))
    where, body = requests(removal)[way]
    main.ok("POST", where, body)
    assert snapshots(main) == 1


def test_a_table_is_known_by_its_identity_in_other_branches(
    main: Client, opened: Opened, removal: Json
) -> None:
    dev = opened("dev")
    rename(dev, "t", "renamed")
    assert main.send("POST", table("t"), removal).status == 400
    assert dev.send("POST", table("renamed"), removal).status == 400
    assert main.send("POST", QUESTION).status == 400


def test_a_dropped_branch_counts_until_it_cannot_be_restored(
    main: Client, removal: Json, clock: ManualClock
) -> None:
    call(main.session, "create_branch", name="dev")
    call(main.session, "drop_branch", name="dev")
    assert main.send("POST", table("t"), removal).status == 400
    clock.advance(8 * 24 * 3_600_000)
    make(main, "sweep", dry_run=False)
    main.ok("POST", table("t"), removal)
    assert snapshots(main) == 1


def test_other_updates_of_a_shared_table_are_allowed(main: Client, removal: Json) -> None:
    call(main.session, "create_branch", name="dev")
    append(main, "t")
    update = {"action": "set-properties", "updates": {"my.key": "1"}}
    main.ok("POST", table("t"), {"requirements": [], "updates": [update]})


def test_orphans_of_a_shared_table_are_left_to_the_catalog(main: Client, removal: Json) -> None:
    assert main.send("POST", QUESTION).status == 204
    call(main.session, "create_tag", name="v1")
    answer = main.send("POST", QUESTION)
    assert answer.kind == (400, "BadRequestException")
    assert "because the tag 'v1' of the catalog also has the table" in answer.error["message"]
    assert "CALL system.remove_orphans(table => 'db.t')" in answer.error["message"]
    missing = QUESTION.replace("/t/", "/missing/")
    assert main.send("POST", missing).status == 204


def test_a_name_with_a_state_is_resolved(main: Client, opened: Opened, removal: Json) -> None:
    append(opened("dev"), "u")
    other = QUESTION.replace("/t/", "/{}@dev/")
    assert main.send("POST", other.format("u")).status == 400
    main.ok("DELETE", table("u"))
    assert main.send("POST", other.format("u")).status == 204
