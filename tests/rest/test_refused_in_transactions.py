"""Requests and jobs that an open transaction refuses."""

from __future__ import annotations

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.registry import call
from tests.rest.appends import attempt, new_append, send, write_manifests
from tests.rest.client import Client, identifier, table
from tests.rest.steps import Tx, write
from tests.rest.test_catalog_transactions import main

__all__ = ["main"]  # a fixture


def test_requests_that_bring_content_of_other_states_are_refused(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    dev = Client(main.session.derive(catalog=catalog_at(main.session.catalog, "dev")))
    write(dev, "t", 4)
    main.ok("DELETE", table("u"))
    tx = Tx(main, "snapshot")
    for procedure, arguments in (
        ("merge", {"source": "dev"}),
        ("cherry_pick", {"commit": "dev#7"}),
        ("undrop", {"table": "db.u"}),
    ):
        with pytest.raises(BadRequestError, match="commit the transaction or roll it back first"):
            call(tx.client.session, procedure, **arguments)
    tx.roll_back()


@pytest.mark.parametrize("job", ["expire", "purge_dropped", "remove_orphans", "sweep", "trim"])
def test_a_job_that_deletes_is_refused_in_a_transaction(main: Client, job: str) -> None:
    with main.session.transaction() as session:
        write(Client(session), "t", 1)
        with pytest.raises(BadRequestError, match=f"{job} cannot be part of a transaction"):
            call(session, job, dry_run=False)
        call(session, job, dry_run=True)
    call(main.session, job, dry_run=False)


def test_snapshots_are_not_removed_in_a_transaction(main: Client) -> None:
    """Clients delete the files of the snapshots before the transaction is committed."""
    for _ in range(2):
        made = attempt(main.load("t")["metadata"], new_append(3))
        write_manifests(made)
        assert send(main, made, "t").status == 200
    first = main.load("t")["metadata"]["snapshots"][0]["snapshot-id"]
    removal = {"action": "remove-snapshots", "snapshot-ids": [first]}
    with main.session.transaction() as session:
        changes = {"requirements": [], "updates": [removal]}
        many = {"table-changes": [{"identifier": identifier("t"), **changes}]}
        for where, body in ((table("t"), changes), ("v1/transactions/commit", many)):
            answer = Client(session).send("POST", where, body)
            assert answer.kind == (400, "BadRequestException")
            assert "cannot be removed in a transaction" in answer.error["message"]
    whole = {"table-changes": [], "requests": [{"method": "POST", "path": table("t"), "body": changes}]}
    main.ok("POST", "v1/transactions/commit", whole)
    assert len(main.load("t")["metadata"]["snapshots"]) == 1
