"""The log of a catalog: audit trail, change feed and recovery."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.entities.entities import TableName, namespace_key, table_key
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, TABLE, VIEW, id_bytes
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import LogEntry
from tests.rest.client import (
    Client,
    at_once,
    connect,
    identifier,
    new_key,
    path,
    rename,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)
from tests.rest.icebergs import ROWS, elsewhere, open_table

T = table_key(TableName(("db",), "t"), TABLE)
U = table_key(TableName(("db",), "u"), TABLE)
V = table_key(TableName(("db",), "v"), VIEW)
W = table_key(TableName(("db",), "w"), VIEW)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Client]:
    """A catalog with the namespace `db`."""
    client = connect(f"memory:{uuid.uuid4()}", tmp_path / "warehouse", principal="ada")
    client.namespace("db")
    yield client
    client.session.close()


def logged(catalog: Client) -> list[LogEntry]:
    """The whole log, oldest entry first."""
    head = catalog.session.catalog.head()
    return [entry for _, _, _, entry in entries(head.store, head.head)][::-1]


def one_more(catalog: Client, before: int) -> LogEntry:
    """Return the only entry that was added after the first `before` entries."""
    log = logged(catalog)
    assert len(log) == before + 1
    return log[-1]


def test_each_change_is_one_entry_that_says_what_was_done(catalog: Client) -> None:
    steps = [
        ("create-namespace", namespace_key(("n",)), ("POST", "v1/namespaces", {"namespace": ["n"]})),
        (
            "update-namespace",
            namespace_key(("n",)),
            ("POST", f"{path('n')}/properties", {"updates": {"a": "1"}}),
        ),
        ("drop-namespace", namespace_key(("n",)), ("DELETE", path("n"), None)),
        ("create-table", T, ("POST", tables("db"), table_request("t"))),
        ("update-table", T, ("POST", table("t"), {"requirements": [], "updates": [set_properties(a="1")]})),
        ("rename-table", U, ("POST", "v1/tables/rename", rename("t", "u"))),
        ("drop-table", U, ("DELETE", table("u"), None)),
        ("create-view", V, ("POST", f"{path('db')}/views", view_request("v"))),
        ("rename-view", W, ("POST", "v1/views/rename", rename("v", "w"))),
        ("drop-view", W, ("DELETE", view("w"), None)),
    ]
    content: dict[int, int] = {}
    for action, key, request in steps:
        operation = new_key()
        before = len(logged(catalog))
        assert catalog.send(*request, key=operation).status < 300
        entry = one_more(catalog, before)
        assert (entry.action, entry.key, entry.principal) == (action, key, "ada")
        assert entry.operation == uuid.UUID(operation).bytes
        assert entry.before == content.get(entry.entity, 0)
        assert bool(entry.after) != action.startswith("drop")
        assert bool(entry.old_key) == action.startswith("rename")
        content[entry.entity] = entry.after
    assert len(content) == 3


def test_an_append_says_what_was_added(catalog: Client) -> None:
    catalog.create()
    before = len(logged(catalog))
    open_table(catalog).append(ROWS)
    entry = one_more(catalog, before)
    assert entry.summary["operation"] == "append"
    assert "3" in entry.summary.values()


def test_changes_of_properties_say_which(catalog: Client) -> None:
    before = len(logged(catalog))
    catalog.ok("POST", f"{path('db')}/properties", {"updates": {"owner": "ada", "k": "1"}, "removals": []})
    assert one_more(catalog, before).summary == {"set owner": "ada", "set k": "1"}
    catalog.ok("POST", f"{path('db')}/properties", {"updates": {"k": "1"}, "removals": ["owner"]})
    assert one_more(catalog, before + 1).summary == {"unset": "owner"}
    catalog.create()
    catalog.set("t", comment="tea")
    assert one_more(catalog, before + 3).summary == {"updates": "set-properties", "set comment": "tea"}


def test_a_registration_and_a_purge_are_named(catalog: Client, tmp_path: Path) -> None:
    made = elsewhere(tmp_path / "other", appends=1)
    before = len(logged(catalog))
    catalog.ok("POST", f"{path('db')}/register", {"name": "t", "metadata-location": made.metadata_location})
    assert one_more(catalog, before).action == "register-table"
    catalog.send("DELETE", table("t"), query={"purgeRequested": "true"})
    entry = one_more(catalog, before + 1)
    assert (entry.action, entry.summary) == ("drop-table", {"purge": "true"})


def test_a_transaction_is_an_entry_for_each_table(catalog: Client) -> None:
    for name in "tu":
        catalog.create(name)
    before = len(logged(catalog))
    changes = [
        {"identifier": identifier(name), "requirements": [], "updates": [set_properties(a="1")]}
        for name in "tu"
    ]
    catalog.ok("POST", "v1/transactions/commit", {"table-changes": changes})
    assert [(e.action, e.key) for e in logged(catalog)[before:]] == [("update-table", T), ("update-table", U)]


def test_refused_requests_and_requests_without_effect_are_not_logged(catalog: Client) -> None:
    catalog.create()
    before = logged(catalog)
    catalog.send("POST", tables("db"), table_request("t"))
    catalog.send("DELETE", table("nope"))
    catalog.commit("t")
    catalog.send("POST", "v1/tables/rename", rename("t", "t"))
    catalog.send("POST", f"{path('db')}/properties", {"updates": {}, "removals": ["nope"]})
    catalog.ok("POST", tables("db"), {**table_request("s"), "stage-create": True})
    assert logged(catalog) == before


def replay(log: list[LogEntry]) -> dict[bytes, tuple[int, int]]:
    """Compute the names with their content and entity from the log alone."""
    names: dict[bytes, tuple[int, int]] = {}
    for entry in log:
        if entry.old_key:
            assert names.pop(entry.old_key) == (entry.before, entry.entity)
        elif entry.before and entry.after:
            assert names[entry.key] == (entry.before, entry.entity)
        if entry.after:
            assert entry.old_key or entry.before or entry.key not in names
            names[entry.key] = (entry.after, entry.entity)
        else:
            assert names.pop(entry.key) == (entry.before, entry.entity)
    return names


def undo(log: list[LogEntry], names: dict[bytes, tuple[int, int]]) -> dict[bytes, tuple[int, int]]:
    """Compute the names before the log began from the names after it."""
    for entry in reversed(log):
        if entry.after:
            assert names.pop(entry.key) == (entry.after, entry.entity)
        if entry.before:
            names[entry.old_key or entry.key] = (entry.before, entry.entity)
    return names


def random_request(rng: random.Random) -> tuple[str, str, object]:
    """Return a request that may succeed or fail."""
    namespace = rng.choice([("a",), ("b",), ("a", "x"), ("a", "x", "y")])
    name, other = rng.choice("pqr"), rng.choice("pqr")
    to = rng.choice([("a",), ("b",), ("a", "x")])
    ends = {"source": identifier(name, namespace), "destination": identifier(other, to)}
    update = {"requirements": [], "updates": [set_properties(n=str(rng.random()))]}
    body = rng.choice([{}, {"location": f"file:///nowhere/{rng.choice('ij')}"}])
    return rng.choice(
        [
            ("POST", "v1/namespaces", {"namespace": namespace}),
            ("DELETE", path(*namespace), None),
            ("POST", f"{path(*namespace)}/properties", {"updates": {"n": str(rng.random())}}),
            ("POST", tables(*namespace), table_request(name, **body)),
            ("POST", table(name, namespace), update),
            ("POST", table(name, namespace), update),
            ("DELETE", table(name, namespace), None),
            ("POST", "v1/tables/rename", ends),
            ("POST", f"{path(*namespace)}/views", view_request(name)),
            ("DELETE", view(name, namespace), None),
            ("POST", "v1/views/rename", ends),
            (
                "POST",
                "v1/transactions/commit",
                {"table-changes": [{"identifier": identifier(n, namespace), **update} for n in "pq"]},
            ),
        ]
    )


def check(catalog: Client) -> None:
    """Check that the log gives exactly the names, forwards and backwards, and that the other indexes agree."""
    head = catalog.session.catalog.head()
    names = {key: (e.pointer, int.from_bytes(e.value, "big")) for key, e in head.index(NAMES).range()}
    log = logged(catalog)
    assert replay(log) == names
    assert undo(log, dict(names)) == {}
    ids = {key: entry.value for key, entry in head.index(IDS).range()}
    assert ids == {id_bytes(entity): key for key, (_, entity) in names.items()}
    owners = {entry.value for _, entry in head.index(LOCATIONS).range()}
    assert owners <= set(ids)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threads", [1, 4])
def test_the_log_replays_to_exactly_the_names(tmp_path: Path, seed: int, threads: int) -> None:
    print(f"seed {seed}")
    store = f"memory:{uuid.uuid4()}"
    catalog = connect(store, tmp_path, metadata_files="never")
    rngs = [random.Random(seed * 100 + thread) for thread in range(threads)]

    def work(rng: random.Random) -> int:
        done = 0
        for _ in range(500 // threads):
            status = catalog.send(*random_request(rng)).status
            assert status < 500
            done += status < 300
        return done

    assert sum(at_once([lambda rng=rng: work(rng) for rng in rngs])) > 40
    check(catalog)
    catalog.session.close()
