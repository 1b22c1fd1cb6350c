"""Merges, commits of transactions and staging areas, and changes of branches, killed before each of their operations on
the database: they take effect wholly or not at all, and can be repeated."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.references import head_name, tag_name
from polaris_spark.errors import NotFoundError
from polaris_spark.jobs.registry import call, procedures
from polaris_spark.rest.session import Session
from polaris_spark.testing.processes import rows
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.checking import check_references
from tests.faults.killing import die_at, killed_before
from tests.forking import context, preload
from tests.rest.appends import Append, appendable, attempt, send, write_manifests
from tests.rest.client import Client, connect, set_properties, table_request, tables
from tests.rest.client import table as table_path
from tests.stores import SHARED, StoreOn, shared_out

preload(__name__)
pytestmark = pytest.mark.usefixtures("brief_glances")

APPENDED, CHANGED, SEEN = "appended", "changed", "seen"
"""Tables: which of the operation appends to, whose property it sets, and which the killed process changes before."""


class KilledStep(NamedTuple):
    """An operation, and a function that tells whether it took effect."""

    prepare: Callable[[Client, int], None]
    """Makes ready what the operation of a number needs."""
    run: Callable[[Client, int], None]
    """The operation. Repeating it has no further effect, unless `is_new` is set."""
    effects: Callable[[Client, int], list[bool]]
    """For each part of the operation, whether it took effect."""
    is_new: bool = False
    """Whether a repetition is another operation. It is then repeated only if it has not taken effect."""
    left: frozenset[str] = frozenset()
    """Problems that `fsck` may report after a kill, until a sweep."""


def at(client: Client, state: str) -> Client:
    return Client(client.session.derive(catalog=catalog_at(client.session.catalog, state)))


def change(client: Client, number: int) -> None:
    """Append a record to one table, and set a property of the other one."""
    made = attempt(client.load(APPENDED)["metadata"], Append(1_000 + number, (1,), "main"))
    write_manifests(made)
    assert send(client, made, APPENDED).status == 200
    client.set(CHANGED, **{f"p{number}": "1"})


def records(client: Client) -> int:
    """The number of records in the table that has snapshots."""
    metadata = client.load(APPENDED)["metadata"]
    current = [one for one in metadata["snapshots"] if one["snapshot-id"] == metadata["current-snapshot-id"]]
    return int(current[0]["summary"]["total-records"]) if current else 0


def changed(client: Client, number: int) -> list[bool]:
    """Whether a client sees one record more than after the last round, and the property of this round."""
    properties = client.load(CHANGED)["metadata"]["properties"]
    more = records(client) - int(client.load(SEEN)["metadata"]["properties"]["records"])
    assert more in (0, 1)
    return [more == 1, f"p{number}" in properties]


def branch(client: Client, number: int) -> None:
    call(client.session, "create_branch", name=f"dev{number}", if_not_exists=True)


def changed_branch(client: Client, number: int) -> None:
    branch(client, number)
    change(at(client, f"dev{number}"), number)


def merge(client: Client, number: int) -> None:
    call(client.session, "merge", source=f"dev{number}")


def transact(client: Client, number: int) -> None:
    with client.session.transaction() as session:
        change(Client(session), number)


def stage(client: Client, number: int) -> None:
    call(client.session, "stage", name="night")
    change(at(client, "+night"), number)


def commit_staged(client: Client, _: int) -> None:
    call(client.session, "commit_staged", name="night")


def has_branch(client: Client, number: int) -> list[bool]:
    """Whether the branch exists. If it does, check that it can be changed and merged."""
    try:
        found = at(client, f"dev{number}")
    except NotFoundError:
        return [False]
    found.set(CHANGED, **{f"b{number}": "1"})
    call(client.session, "merge", source=f"dev{number}")
    return [True, f"b{number}" in client.load(CHANGED)["metadata"]["properties"]]


def set_apart(client: Client, number: int) -> None:
    """Make a commit of several tables, for a revert."""
    transact(client, number)
    head = client.session.catalog.head().head.number
    client.set(SEEN, to_revert=str(head))


def revert(client: Client, _: int) -> None:
    number = client.load(SEEN)["metadata"]["properties"]["to_revert"]
    call(client.session, "revert", commit=number)


def reverted(client: Client, number: int) -> list[bool]:
    return [not one for one in changed(client, number)]


def reset(client: Client, number: int) -> None:
    call(client.session, "reassign_branch", name=f"dev{number}", to="main")


def was_reset(client: Client, number: int) -> list[bool]:
    return [not one for one in changed(at(client, f"dev{number}"), number)]


def nothing(client: Client, number: int) -> None:
    pass


def exists(client: Client, state: str) -> bool:
    """Whether a process that opens a branch or tag now finds it. Processes that have it open find it until its row is
    sealed."""
    catalog = client.session.catalog
    catalog.opened_branches.discard(state)
    for reference in (head_name(catalog.row, state), tag_name(catalog.row, state)):
        catalog.references.forget(reference)
    try:
        at(client, state)
    except NotFoundError:
        return False
    return True


def picked_branch(client: Client, number: int) -> None:
    """Make one commit of several tables in a branch."""
    branch(client, number)
    transact(at(client, f"dev{number}"), number)


def cherry_pick(client: Client, number: int) -> None:
    newest = at(client, f"dev{number}").session.catalog.head().head.number
    call(client.session, "cherry_pick", commit=f"dev{number}#{newest}")


def tag(client: Client, number: int) -> None:
    call(client.session, "create_tag", name=f"v{number}", if_not_exists=True)


def has_tag(client: Client, number: int) -> list[bool]:
    if not exists(client, f"v{number}"):
        return [False]
    return [True, at(client, f"v{number}").names("db") == client.names("db")]


def rename_branch(client: Client, number: int) -> None:
    call(client.session, "rename_branch", name=f"dev{number}", to=f"new{number}")


def renamed(client: Client, old: str, new: str) -> list[bool]:
    """Whether a branch or tag has its new name, and no longer has the old one."""
    return [exists(client, new), not exists(client, old)]


def renamed_branch(client: Client, number: int) -> list[bool]:
    return renamed(client, f"dev{number}", f"new{number}")


def rename_tag(client: Client, number: int) -> None:
    call(client.session, "rename_tag", name=f"v{number}", to=f"w{number}")


def renamed_tag(client: Client, number: int) -> list[bool]:
    return renamed(client, f"v{number}", f"w{number}")


def drop_branch(client: Client, number: int) -> None:
    call(client.session, "drop_branch", name=f"dev{number}", if_exists=True)


def dropped_branch(client: Client, number: int) -> list[bool]:
    """Whether the branch is gone: no state has its name, and it is not listed."""
    listed = {row[0] for row in call(client.session, "show_branches")}
    return [not exists(client, f"dev{number}"), f"dev{number}" not in listed]


def without_branch(client: Client, number: int) -> None:
    branch(client, number)
    drop_branch(client, number)


def undrop_branch(client: Client, number: int) -> None:
    call(client.session, "undrop_branch", name=f"dev{number}")


def protect_branch(client: Client, number: int) -> None:
    call(client.session, "protect_branch", name=f"dev{number}")


def protected(client: Client, number: int) -> list[bool]:
    """Whether a client that opens the branch cannot change it, and whether the branch is shown as protected."""
    answer = at(client, f"dev{number}").commit(SEEN, set_properties(p="1"))
    [shown] = call(client.session, "describe_branch", name=f"dev{number}")
    names = [column.name for column in procedures()["describe_branch"].columns]
    return [answer.status == 403, bool(shown[names.index("protected")])]


def area(client: Client, number: int) -> None:
    call(client.session, "stage", name=f"area{number}")


def has_area(client: Client, number: int) -> list[bool]:
    """Whether the staging area exists. If it does, check that changes can be staged and committed."""
    if not exists(client, f"+area{number}"):
        return [False]
    at(client, f"+area{number}").set(CHANGED, **{f"a{number}": "1"})
    call(client.session, "commit_staged", name=f"area{number}")
    return [True, f"a{number}" in client.load(CHANGED)["metadata"]["properties"]]


def without_table(client: Client, number: int) -> None:
    appendable(client, f"t{number}")
    client.ok("DELETE", table_path(f"t{number}"))


def undrop(client: Client, number: int) -> None:
    call(client.session, "undrop", table=f"db.t{number}")


def has_table(client: Client, number: int) -> list[bool]:
    return [f"t{number}" in client.names("db"), client.send("GET", table_path(f"t{number}")).status == 200]


def request(client: Client, number: int) -> None:
    """Change a table, create one and drop one, by one request."""
    changes = [
        {
            "identifier": {"namespace": ["db"], "name": CHANGED},
            "requirements": [],
            "updates": [set_properties(**{f"p{number}": "1"})],
        }
    ]
    requests = [
        {"method": "POST", "path": tables("db"), "body": table_request(f"made{number}")},
        {"method": "DELETE", "path": table_path(f"t{number}")},
    ]
    client.ok("POST", "v1/transactions/commit", {"table-changes": changes, "requests": requests})


def requested(client: Client, number: int) -> list[bool]:
    names = client.names("db")
    properties = client.load(CHANGED)["metadata"]["properties"]
    return [f"p{number}" in properties, f"made{number}" in names, f"t{number}" not in names]


def more_tables(client: Client, number: int) -> None:
    appendable(client, f"t{number}")


OPERATIONS = {
    "merge": KilledStep(changed_branch, merge, changed),
    "transaction": KilledStep(nothing, transact, changed, is_new=True),
    "commit_staged": KilledStep(stage, commit_staged, changed),
    "create_branch": KilledStep(nothing, branch, has_branch),
    "revert": KilledStep(set_apart, revert, reverted),
    "reset": KilledStep(changed_branch, reset, was_reset),
}

UNSEALED = frozenset({"wrong-seal"})

MORE_OPERATIONS = {
    "cherry_pick": KilledStep(picked_branch, cherry_pick, changed),
    "create_tag": KilledStep(nothing, tag, has_tag),
    "rename_branch": KilledStep(branch, rename_branch, renamed_branch, is_new=True, left=UNSEALED),
    "rename_tag": KilledStep(tag, rename_tag, renamed_tag, is_new=True, left=UNSEALED),
    "drop_branch": KilledStep(branch, drop_branch, dropped_branch, left=UNSEALED),
    "undrop_branch": KilledStep(without_branch, undrop_branch, has_branch, is_new=True),
    "protect_branch": KilledStep(branch, protect_branch, protected),
    "stage": KilledStep(nothing, area, has_area),
    "undrop": KilledStep(without_table, undrop, has_table, is_new=True),
    "requests": KilledStep(more_tables, request, requested, is_new=True),
}
"""Operations that are killed on SQLite in the ordinary run."""


def opened(uri: str, folder: Path) -> Session:
    return connect(uri, folder / "warehouse", metadata_files="every-commit", grace="0s").session


def die(uri: str, folder: Path, name: str, number: int) -> None:
    """Run an operation, and be killed before an operation on the database. Called in another process.

    Args:
        number: of the operation on the database.
    """
    session = opened(uri, folder)
    client = Client(session)
    client.set(SEEN, acknowledged=str(number))
    die_at(number, [session.connection.backend])
    (OPERATIONS | MORE_OPERATIONS)[name].run(client, number)


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        *shared_out(list(OPERATIONS), SHARED, ordinary=("sqlite", "file")),
        *(pytest.param("sqlite", name) for name in MORE_OPERATIONS),
        *(
            pytest.param(scheme, name, marks=(pytest.mark.databases, pytest.mark.exhaustive))
            for scheme in SHARED
            for name in MORE_OPERATIONS
            if scheme != "sqlite"
        ),
    ],
)
def test_a_process_may_be_killed_before_each_operation_on_the_database(
    scheme: str, name: str, store_on: StoreOn, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    uri, asked = store_on(scheme), (OPERATIONS | MORE_OPERATIONS)[name]
    with opened(uri, tmp_path) as session:
        client = Client(session)
        client.namespace("db")
        for table in (APPENDED, CHANGED, SEEN):
            appendable(client, table)
        took_effect = []
        for number in killed_before(scheme, pytestconfig):
            client.set(SEEN, records=str(records(client)))
            asked.prepare(client, number)
            process = context.Process(target=die, args=(uri, tmp_path, name, number))
            process.start()
            process.join(PATIENCE_S)
            effects = asked.effects(client, number)
            assert len(set(effects)) == 1, f"killed before operation {number}: {effects}"
            took_effect.append(effects[0])
            assert client.load(SEEN)["metadata"]["properties"]["acknowledged"] == str(number)
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            assert {row[1] for row in call(session, "fsck")} <= asked.left
            if not (asked.is_new and effects[0]):
                asked.run(client, number)
            assert set(asked.effects(client, number)) == {True}
        print(f"{name}: killed {len(took_effect) - 1} times; took effect {took_effect}")
        assert took_effect[-1]
        assert not took_effect[0]
        call(session, "sweep")
        assert call(session, "fsck") == []
        store = session.catalog.references.store
        stored = {row[1] for row in rows(store.backend, store.backend.splits("objects", [store.realm], 1))}
        assert len(stored) == check_references(store.backend, store.realm)
