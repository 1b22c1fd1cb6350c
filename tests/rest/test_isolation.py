"""What concurrent transactions see, and which of them may not commit.

The histories have the names of Adya ("Weak Consistency", 1999) and of Kleppmann's Hermitage. Objects are tables.
"""

from __future__ import annotations

import pytest

from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from tests.rest.appends import attempt, new_append, send, write_manifests
from tests.rest.client import Client, table
from tests.rest.conftest import OpenBranch
from tests.rest.steps import BOTH, Tx, read, two_tables, write


@pytest.fixture
def main(open_branch: OpenBranch, clock: ManualClock) -> Client:
    return two_tables(open_branch(clock=clock))


@BOTH
def test_changes_are_not_visible_before_the_commit_and_take_effect_at_once(
    main: Client, open_branch: OpenBranch, clock: ManualClock, isolation: str
) -> None:
    """G0, G1a, G1b and G1c: no dirty write, aborted read, intermediate read or circular information flow."""
    other = open_branch(clock=clock)
    before = main.session.catalog.head().head.number
    tx = Tx(main, isolation)
    write(tx.client, "t", 1)
    write(tx.client, "t", 2)
    tx.client.create("made")
    tx.client.namespace("new")
    tx.client.ok("DELETE", table("u"))
    assert (read(tx.client, "t"), tx.client.names("db")) == (2, ["made", "t"])
    for client in (main, other):
        assert (read(client, "t"), client.names("db")) == (0, ["t", "u"])
    tx.commit()
    for client in (main, other):
        assert (read(client, "t"), client.names("db")) == (2, ["made", "t"])
    assert main.session.catalog.head().head.number == before + 1
    assert [row[0] for row in call(main.session, "show_branches")] == ["main"]


@BOTH
def test_a_transaction_reads_one_state(main: Client, isolation: str) -> None:
    """OTV, PMP and G-single: no observed transaction vanishes, no phantom, no read skew within the transaction."""
    tx = Tx(main, isolation)
    assert read(tx.client, "t") == 0
    write(main, "t", 1)
    write(main, "u", 1)
    main.create("made")
    assert (read(tx.client, "t"), read(tx.client, "u"), tx.client.names("db")) == (0, 0, ["t", "u"])
    tx.roll_back()


@BOTH
def test_an_update_is_not_lost(main: Client, isolation: str) -> None:
    """P4: of two transactions that change what both have read, the second one fails."""
    one, two = Tx(main, isolation), Tx(main, isolation)
    for tx in (one, two):
        write(tx.client, "t", read(tx.client, "t") + 1)
        write(tx.client, "t", read(tx.client, "t") + 10)
    one.commit()
    two.client.set("t", **{"my.value": "3"})
    two.refused("table db.t")
    assert read(main, "t") == 11


def test_equal_changes_of_a_property_conflict_only_by_serializable(main: Client) -> None:
    for isolation in ("serializable", "snapshot"):
        one, two = Tx(main, isolation), Tx(main, isolation)
        for tx in (one, two):
            write(tx.client, "t", read(tx.client, "t") + 1)
        one.commit()
        if isolation == "serializable":
            two.refused("It read table db.t, which has been changed since the transaction began")
        else:
            two.commit()
    assert read(main, "t") == 2


def test_write_skew_is_forbidden_by_serializable_and_allowed_by_snapshot(main: Client) -> None:
    """G2-item: each transaction reads both tables, and changes a different one."""
    for isolation in ("serializable", "snapshot"):
        one, two = Tx(main, isolation), Tx(main, isolation)
        for tx in (one, two):
            assert read(tx.client, "t") + read(tx.client, "u") >= 0
        write(one.client, "t", 5)
        write(two.client, "u", 5)
        one.commit()
        if isolation == "serializable":
            two.refused("It read table db.t, which has been changed since the transaction began")
            assert read(main, "u") == 0
            write(main, "t", 0)
        else:
            two.commit()
            assert (read(main, "t"), read(main, "u")) == (5, 5)


def test_phantoms_are_forbidden_by_serializable_and_allowed_by_snapshot(main: Client) -> None:
    """G2: each transaction lists the namespace, and adds a table that the other one did not see."""
    for isolation in ("serializable", "snapshot"):
        one, two = Tx(main, isolation), Tx(main, isolation)
        for name, tx in ((f"one_{isolation}", one), (f"two_{isolation}", two)):
            assert name not in tx.client.names("db")
            tx.client.create(name)
        one.commit()
        if isolation == "serializable":
            two.refused("It read the list of namespace db, which has been changed")
        else:
            two.commit()
    assert main.names("db") == ["one_serializable", "one_snapshot", "t", "two_snapshot", "u"]


def test_a_name_that_was_looked_up_in_vain_counts_as_read(main: Client) -> None:
    tx = Tx(main, "serializable")
    assert tx.client.send("HEAD", table("made")).status == 404
    write(tx.client, "u", 1)
    main.create("made")
    tx.refused("It read table db.made, which has been changed")


def test_a_transaction_that_only_reads_has_nothing_to_commit(main: Client) -> None:
    tx = Tx(main, "serializable")
    assert read(tx.client, "t") == 0
    write(main, "t", 1)
    before = main.session.catalog.head().head
    assert read(tx.client, "u") == 0
    tx.commit()
    assert main.session.catalog.head().head == before


def test_tables_that_were_not_read_may_change(main: Client) -> None:
    tx = Tx(main, "serializable")
    write(tx.client, "t", read(tx.client, "t") + 1)
    write(main, "u", 7)
    main.create("made")
    tx.commit()
    assert (read(main, "t"), read(main, "u")) == (1, 7)


def test_appends_of_snapshot_transactions_do_not_conflict(main: Client) -> None:
    one, two = Tx(main, "snapshot"), Tx(main, "snapshot")
    for tx in (one, two):
        made = attempt(tx.client.load("t")["metadata"], new_append(3))
        write_manifests(made)
        assert send(tx.client, made, "t").status == 200
    one.commit()
    two.commit()
    snapshots = main.load("t")["metadata"]["snapshots"]
    assert [one["summary"]["total-records"] for one in snapshots] == ["3", "6"]


def test_tables_in_the_requirements_of_a_change_count_as_read(main: Client) -> None:
    """The tables in the requirements of a request count as read. So does an existing object that makes a creation
    fail."""
    tx = Tx(main, "serializable")
    tx.client.ok(
        "POST",
        table("t"),
        {"requirements": [{"type": "assert-table-uuid", "uuid": main.load("t")["metadata"]["table-uuid"]}]}
        | {"updates": []},
    )
    write(tx.client, "u", 1)
    write(main, "t", 1)
    tx.refused("It read table db.t, which has been changed")
    main.namespace("made")
    tx = Tx(main, "serializable")
    assert tx.client.send("POST", "v1/namespaces", {"namespace": ["made"]}).status == 409
    write(tx.client, "u", 1)
    main.ok("DELETE", "v1/namespaces/made")
    tx.refused("It read namespace made, which has been changed")
