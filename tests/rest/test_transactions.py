"""Transactions over the protocol: changes of several tables in one commit."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from polaris_spark.commits.log import entries
from polaris_spark.jobs.registry import call
from tests.rest.client import (
    Client,
    at_once,
    identifier,
    new_key,
    set_properties,
    table,
    table_request,
    view_request,
)
from tests.rest.conftest import Open
from tests.rest.staging import CREATE, creation, staged


def change(name: str, *updates: dict, requirements: tuple[dict, ...] = ()) -> dict:
    """Return one table's part of a transaction."""
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


def requests(*parts: dict, changes: tuple[dict, ...] = ()) -> dict:
    """The body of a transaction that has requests."""
    return {"table-changes": list(changes), "requests": list(parts)}


def part(method: str, path: str, body: object = None, **query: str) -> dict:
    """A request of a transaction."""
    return {"method": method, "path": path, "query": query} | ({} if body is None else {"body": body})


def test_a_transaction_creates_renames_and_drops_in_one_commit(catalog: Client) -> None:
    for name in ("a", "b", "c"):
        catalog.create(name)
    number = catalog.session.catalog.head().head.number
    body = requests(
        part("POST", "v1/namespaces", {"namespace": ["new"]}),
        part("POST", "v1/namespaces/new/tables", table_request("made")),
        part("POST", "v1/namespaces/new/views", view_request("seen")),
        part("POST", "v1/tables/rename", {"source": identifier("b"), "destination": identifier("moved")}),
        part("DELETE", table("c")),
        part("POST", "v1/namespaces/db/properties", {"updates": {"k": "v"}}),
        part("POST", table("a"), {"requirements": [], "updates": [set_properties(y="2")]}),
        changes=(change("a", set_properties(x="1")),),
    )
    key = new_key()
    for _ in range(2):
        answer = catalog.send("POST", "v1/transactions/commit", body, key=key)
        assert answer.status == 204, answer
        assert catalog.session.catalog.head().head.number == number + 1
    assert catalog.names("db") == ["a", "moved"]
    assert catalog.names("new") == ["made"]
    assert catalog.send("GET", "v1/namespaces/new/views/seen").status == 200
    assert catalog.stored_properties("db")["k"] == "v"
    properties = catalog.load("a")["metadata"]["properties"]
    assert (properties["x"], properties["y"]) == ("1", "2")
    assert Path(catalog.load("made", ("new",))["metadata-location"].removeprefix("file://")).exists()


@pytest.mark.parametrize(
    ("bad", "status", "message"),
    [
        (
            part("DELETE", table("none")),
            404,
            r"request 2 of the transaction (DELETE v1/namespaces/db/tables/none)",
        ),
        (part("POST", "v1/namespaces", {"namespace": ["db"]}), 409, "request 2 of the transaction"),
        (part("POST", "v1/namespaces", {}), 400, "request 2 of the transaction"),
        (part("POST", "v1/transactions/commit", {"table-changes": []}), 404, "request 2 of"),
        (part("POST", "polaris-spark/v1/procedures/sweep", {}), 404, "no such path"),
        (
            part("DELETE", "v1/other/namespaces/db/tables/a"),
            400,
            "tables/a): the path of the request has a prefix",
        ),
        (part("POST", "v1/namespaces", {"name": "a@b", "to": 10**400}), 400, "request 2 of the transaction"),
        (part("DELETE", table("a@dev")), 404, "request 2 of the transaction"),
        (part("GET", table("a")), 400, "cannot parse the request"),
    ],
)
def test_a_transaction_with_a_bad_request_changes_nothing(
    catalog: Client, bad: dict, status: int, message: str
) -> None:
    catalog.create("a")
    before = catalog.session.catalog.head().head
    body = requests(part("POST", "v1/namespaces", {"namespace": ["new"]}), bad)
    answer = catalog.send("POST", "v1/transactions/commit", body)
    assert answer.status == status, answer
    assert message in answer.error["message"]
    assert catalog.session.catalog.head().head == before


def test_a_request_of_a_transaction_names_no_other_state(catalog: Client) -> None:
    catalog.create("a")
    call(catalog.session, "create_branch", name="dev")
    for bad in (
        part("POST", "v1/namespaces/db/tables", table_request("made@dev")),
        part("POST", "v1/namespaces/db/views", view_request("made@dev")),
        part("POST", "v1/tables/rename", {"source": identifier("a"), "destination": identifier("b@dev")}),
    ):
        answer = catalog.send("POST", "v1/transactions/commit", requests(bad))
        assert answer.kind == (400, "BadRequestException")
        assert "refers to the state 'dev'" in answer.error["message"]
    catalog.ok(
        "POST",
        "v1/transactions/commit",
        requests(part("POST", "v1/namespaces/db/tables", table_request("made@none"))),
    )
    assert catalog.names("db") == ["a", "made@none"]


def test_racing_transactions_of_requests_are_as_if_one_came_after_the_other(
    opened: Open, tmp_path: Path
) -> None:
    """Each transaction creates a namespace, unless it exists, and increments a property of a table. Only one of them
    may succeed."""
    clients = [opened(f"sqlite://{tmp_path / 's.db'}", tmp_path / "w") for _ in range(4)]
    catalog = clients[0]
    catalog.namespace("db")
    catalog.create("a")

    def run(client: Client, number: int) -> int:
        body = requests(
            part("POST", "v1/namespaces", {"namespace": ["won"], "properties": {"by": str(number)}}),
            part("POST", table("a"), {"requirements": [], "updates": [set_properties(by=str(number))]}),
        )
        return client.send("POST", "v1/transactions/commit", body).status

    answers = at_once([partial(run, client, number) for number, client in enumerate(clients)])
    assert sorted(answers) == [204, 409, 409, 409]
    winner = catalog.stored_properties("won")["by"]
    assert answers[int(winner)] == 204
    assert catalog.load("a")["metadata"]["properties"]["by"] == winner


def test_a_transaction_exchanges_names_again_and_again(catalog: Client) -> None:
    for name in "ab":
        catalog.create(name, properties={"was": name})
    for name in "sv":
        catalog.ok("POST", "v1/namespaces/db/views", view_request(name))

    def moves(kind: str, first: str, second: str) -> list[dict]:
        names = ((first, "aside"), (second, first), ("aside", second))
        return [
            part("POST", f"v1/{kind}/rename", {"source": identifier(one), "destination": identifier(other)})
            for one, other in names
        ]

    number = catalog.session.catalog.head().head.number
    for count in (1, 2, 3):
        body = requests(*moves("tables", "a", "b"), *moves("views", "s", "v"))
        catalog.ok("POST", "v1/transactions/commit", body)
        assert catalog.session.catalog.head().head.number == number + count
        assert catalog.names("db") == ["a", "b"]
        was = [catalog.load(name)["metadata"]["properties"]["was"] for name in "ab"]
        assert was == (["b", "a"] if count % 2 else ["a", "b"])
    assert call(catalog.session, "fsck") == []


def test_a_transaction_of_requests_is_refused_within_another_one_and_on_a_protected_branch(
    catalog: Client,
) -> None:
    body = requests(part("POST", "v1/namespaces", {"namespace": ["new"]}))
    with catalog.session.transaction() as session:
        answer = Client(session).send("POST", "v1/transactions/commit", body)
        assert answer.kind == (400, "BadRequestException")
        assert "a transaction is open in this session" in answer.error["message"]
    call(catalog.session, "protect_branch", name="main")
    answer = catalog.send("POST", "v1/transactions/commit", body)
    assert answer.kind == (403, "ForbiddenException")
    assert answer.error["message"] == (
        "branch 'main' is protected: only merges, reverts and cherry-picks may change it; make the change on another "
        "branch and merge it, or call unprotect_branch first"
    )


def test_the_log_tells_transactions_apart_with_and_without_keys(catalog: Client) -> None:
    for name in "ab":
        catalog.create(name)
    number, key = catalog.session.catalog.head().head.number, new_key()
    made = part("POST", "v1/namespaces", {"namespace": ["new"]})
    for value, more in (("1", ()), ("2", (made,)), ("3", ())):
        body = requests(*more, changes=tuple(change(name, set_properties(x=value)) for name in "ab"))
        assert catalog.send("POST", "v1/transactions/commit", body).status == 204
    assert transact(catalog, change("a", set_properties(y="1")), key=key).status == 204
    head = catalog.session.catalog.head()
    found = [entry for _, commit, _, entry in entries(head.store, head.head) if commit.number > number]
    assert {entry.summary["from"] for entry in found} == {"transaction"}
    by_operation = Counter(str(UUID(bytes=entry.operation)) for entry in found)
    assert sorted(by_operation.values()) == [1, 2, 2, 3]
    assert by_operation[key] == 1
