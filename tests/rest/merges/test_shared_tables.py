"""Requests after which a client deletes files of a table: refused if another branch or tag of the catalog may need
them."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, Json, identifier, set_properties, table
from tests.rest.merges.steps import DAY, Opened, append, make, rename

QUESTION = f"polaris-spark/{table('t')}/check-deletion"
WAYS = ("one table", "several tables", "requests", "tables and requests")
"""Kinds of requests that can remove snapshots."""


@pytest.fixture
def removal(main: Client) -> Json:
    """The change that removes the first of two snapshots of the table `t`."""
    first = append(main, "t")["current-snapshot-id"]
    append(main, "t")
    return {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [first]}]}


def snapshots(client: Client, name: str = "t") -> int:
    return len(client.load(name)["metadata"]["snapshots"])


def request(removal: Json, way: str) -> tuple[str, Json]:
    """Return path and body of a request that removes snapshots."""
    part = {"method": "POST", "path": table("t"), "body": removal}
    other = {**part, "path": table("u"), "body": {"requirements": [], "updates": [set_properties(a="b")]}}
    change = {"identifier": identifier("t"), **removal}
    if way == "one table":
        return table("t"), removal
    bodies = {
        "several tables": {"table-changes": [change]},
        "requests": {"table-changes": [], "requests": [part]},
        "tables and requests": {"table-changes": [change], "requests": [other]},
    }
    return "v1/transactions/commit", bodies[way]


def refused(client: Client, where: str, body: Json | None, *holders: str) -> None:
    answer = client.send("POST", where, body)
    assert answer.kind == (400, "BadRequestException")
    assert any(f"because {one} may need them" in answer.error["message"] for one in holders), answer
    assert "call the procedures expire and remove_orphans" in answer.error["message"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_snapshots_that_another_state_may_need_are_not_removed(
    main: Client, removal: Json, kind: str, way: str
) -> None:
    call(main.session, f"create_{kind}", name="dev")
    refused(main, *request(removal, way), f"the {kind} 'dev'")
    assert snapshots(main) == 2


@pytest.mark.parametrize("way", WAYS)
def test_snapshots_of_a_table_that_no_other_state_has_are_removed(
    main: Client, opened: Opened, removal: Json, way: str
) -> None:
    dev = opened("dev")
    dev.ok("DELETE", table("t"))
    main.ok("POST", *request(removal, way))
    assert snapshots(main) == 1


def test_a_table_is_known_by_its_identity_in_other_branches(
    main: Client, opened: Opened, removal: Json
) -> None:
    dev = opened("dev")
    rename(dev, "t", "renamed")
    dev.commit("renamed", {"action": "set-location", "location": "file:///elsewhere"})
    for client, name, holder in ((main, "t", "dev"), (dev, "renamed", "main")):
        refused(client, table(name), removal, f"the branch {holder!r}")
    refused(main, QUESTION, None, "the branch 'dev'")


def test_a_table_is_known_by_its_location_in_other_branches(
    main: Client, opened: Opened, removal: Json
) -> None:
    loaded = main.load("t")
    dev = opened("dev")
    dev.ok("DELETE", table("t"))
    dev.ok("POST", "v1/namespaces/db/register", {"name": "again", "metadata-location": file_of(main, loaded)})
    for client, name, holder in ((main, "t", "dev"), (dev, "again", "main")):
        refused(client, table(name), removal, f"the branch {holder!r}")
    refused(main, QUESTION, None, "the branch 'dev'")


def file_of(client: Client, loaded: Json) -> str:
    """Write the metadata file of a loaded table if it is missing, and return its location."""
    call(client.session, "export_metadata")
    return str(loaded["metadata-location"])


def test_a_dropped_branch_counts_until_it_cannot_be_restored(
    main: Client, removal: Json, clock: ManualClock
) -> None:
    call(main.session, "create_branch", name="dev")
    call(main.session, "drop_branch", name="dev")
    holder = "the dropped branch 'dev', which can be restored until a sweep ends it,"
    refused(main, table("t"), removal, holder)
    clock.advance(8 * DAY)
    refused(main, table("t"), removal, holder)
    make(main, "sweep", dry_run=False)
    main.ok("POST", table("t"), removal)
    assert snapshots(main) == 1


def test_a_staging_area_counts(main: Client, removal: Json) -> None:
    call(main.session, "stage", name="nightly")
    refused(main, table("t"), removal, "the staging area 'nightly'")


def test_a_branch_whose_row_was_lost_is_not_overlooked(main: Client, removal: Json, opened: Opened) -> None:
    dev = opened("dev")
    dev.ok("DELETE", table("t"))
    for _ in range(4):
        append(dev, "u")
    references = main.session.catalog.references
    backend, realm = references.store.backend, references.store.realm
    [lost] = [one.row_name for one in references.listed() if one.name.endswith("/dev")]
    row = backend.read_reference(realm, lost)
    assert row is not None
    backend.delete_reference(realm, lost, row.version)
    answer = main.send("POST", table("t"), removal)
    backend.insert_reference(realm, lost, row)
    assert answer.status == 500
    assert "was lost" in answer.error["message"]


def test_other_updates_of_a_shared_table_are_allowed(main: Client, removal: Json) -> None:
    call(main.session, "create_branch", name="dev")
    append(main, "t")
    main.ok("POST", table("t"), {"requirements": [], "updates": [set_properties(a="b")]})


def test_deletion_is_checked_before_a_client_searches_for_orphans(main: Client, removal: Json) -> None:
    assert main.send("POST", QUESTION).status == 204
    call(main.session, "create_tag", name="v1")
    refused(main, QUESTION, None, "the tag 'v1'")
    assert main.send("POST", QUESTION.replace("/t/", "/missing/")).status == 404


def test_nothing_is_deleted_by_the_files_of_an_earlier_state(main: Client, removal: Json) -> None:
    number = main.session.catalog.head().head.number
    append(main, "t")
    answer = main.send("POST", QUESTION.replace("/t/", f"/t@{number}/"))
    assert answer.status == 403, answer
    past = Client(main.session.derive(catalog=catalog_at(main.session.catalog, str(number))))
    assert past.send("POST", QUESTION).status == 403


def test_nothing_is_deleted_while_a_transaction_is_open(main: Client, removal: Json) -> None:
    with main.session.transaction() as session:
        answer = Client(session).send("POST", QUESTION)
        assert answer.kind == (400, "BadRequestException")
        assert "a transaction is open in this session" in answer.error["message"]


def test_a_name_with_a_state_is_resolved(main: Client, opened: Opened, removal: Json) -> None:
    append(opened("dev"), "u")
    other = QUESTION.replace("/t/", "/u@dev/")
    refused(main, other, None, "the branch 'main'")
    main.ok("DELETE", table("u"))
    assert main.send("POST", other).status == 204
