"""Transactions over the protocol: changes of several tables in one commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rest.client import (
    Client,
    at_once,
    identifier,
    set_properties,
)
from tests.rest.conftest import Open
from tests.rest.staging import CREATE, creation, staged


def change(name: str, *updates: dict, requirements: tuple[dict, ...] = ()) -> dict:
    """A table's part of a transaction."""
    return {"identifier": identifier(name), "requirements": list(requirements), "updates": list(updates)}


def transact(catalog: Client, *changes: dict, **rest: object) -> object:
    """Commit a transaction."""
    return catalog.send("POST", "v1/transactions/commit", {"table-changes": list(changes)}, **rest)


def test_a_transaction_changes_all_its_tables_in_one_commit(catalog: Client) -> None:
    catalog.create("a")
    catalog.create("b")
    number = catalog.session.catalog.head().head.number
    answer = transact(catalog, change("a", set_properties(x="1")), change("b", set_properties(x="2")))
    assert answer.status == 204
    assert [catalog.load(name)["metadata"]["properties"]["x"] for name in "ab"] == ["1", "2"]
    assert catalog.session.catalog.head().head.number == number + 1


def test_a_transaction_may_create_tables(catalog: Client) -> None:
    catalog.create("a")
    metadata = staged(catalog, "b")
    answer = transact(
        catalog, change("a", set_properties(x="1")), change("b", *creation(metadata), requirements=CREATE)
    )
    assert answer.status == 204
    assert catalog.load("b")["metadata"]["table-uuid"] == metadata["table-uuid"]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (change("nope", set_properties(x="1")), (404, "NoSuchTableException")),
        (
            change(
                "b",
                set_properties(x="1"),
                requirements=({"type": "assert-current-schema-id", "current-schema-id": 9},),
            ),
            (409, "CommitFailedException"),
        ),
        (change("b", {"action": "explode"}), (400, "UnsupportedOperationException")),
        (change("b", {"action": "set-location", "location": "/proc/x"}), (400, "BadRequestException")),
        (change("a", set_properties(x="2")), (400, "BadRequestException")),
        ({"requirements": [], "updates": []}, (400, "BadRequestException")),
        (change("b", set_properties(x="1"), requirements=CREATE), (409, "AlreadyExistsException")),
    ],
)
def test_a_transaction_of_which_one_part_fails_changes_nothing(
    catalog: Client, last: dict, kind: tuple[int, str]
) -> None:
    before = [catalog.create(name) for name in "ab"]
    version = catalog.session.catalog.head().version
    answer = transact(catalog, change("a", set_properties(x="1")), last)
    assert answer.kind == kind
    assert [catalog.load(name) for name in "ab"] == before
    assert catalog.session.catalog.head().version == version


def test_a_transaction_of_nothing_is_refused(catalog: Client) -> None:
    assert transact(catalog).kind == (400, "BadRequestException")


def test_transactions_over_the_same_tables_never_see_half_of_one_another(
    opened: Open, store: str, warehouse: Path
) -> None:
    catalog = opened(store, warehouse, metadata_files="never")
    catalog.namespace("db")
    for name in "ab":
        catalog.create(name)

    def work(thread: int) -> None:
        names = "ab" if thread % 2 else "ba"
        for i in range(8):
            changes = [change(name, set_properties(x=f"{thread}-{i}")) for name in names]
            assert transact(catalog, *changes).status == 204
            view_ = catalog.session.catalog.view().base
            assert view_.head.number

    at_once([lambda thread=thread: work(thread) for thread in range(4)])
    a, b = (catalog.load(name)["metadata"]["properties"]["x"] for name in "ab")
    assert a == b
