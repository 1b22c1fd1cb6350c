"""Loading snapshots on demand: answers without them, and requests for the rest of a version."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.tables.table_changes import CommitTable, TableCommit
from polaris_spark.commits.change import Operation
from tests.rest.client import Client, Json, identifier, rename, set_properties, table, table_request, tables
from tests.rest.conftest import Open

REFS = {"snapshots": "refs"}


def add(id: int) -> Json:
    """Add a snapshot to which no branch refers."""
    snapshot = {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": 1_700_000_000_000 + id,
        "manifest-list": f"/nowhere/{id}.avro",
        "summary": {"operation": "append", "added-records": "1"},
    }
    return {"action": "add-snapshot", "snapshot": snapshot}


def append(id: int, ref: str = "main") -> list[Json]:
    return [add(id), {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": id}]


def remove(*ids: int) -> Json:
    return {"action": "remove-snapshots", "snapshot-ids": list(ids)}


class Pin(NamedTuple):
    """The reference to the omitted snapshots in an answer."""

    table: str
    version: str
    set: str
    uuid: str

    @property
    def path(self) -> str:
        return f"v1/tables/{self.table}/versions/{self.version}/snapshots"


def pin(catalog: Client, name: str = "t") -> Pin:
    return Pin(*catalog.send("GET", table(name), query=REFS).headers["Polaris-Snapshots"].split("-", 3))


def ask(catalog: Client, pinned: Pin, since: Pin | None = None) -> Any:
    query = {"uuid": pinned.uuid, "since": since.version} if since else {"uuid": pinned.uuid}
    return catalog.ok("GET", pinned.path, query=query)


def ids(snapshots: list[Json]) -> list[int]:
    return [snapshot["snapshot-id"] for snapshot in snapshots]


def commit(catalog: Client, *updates: Json, name: str = "t") -> Pin:
    """Commit, and return the pin of the new version from the answer."""
    answer = catalog.commit(name, *updates, query=REFS)
    assert answer.status == 200, answer
    return Pin(*answer.headers["Polaris-Snapshots"].split("-", 3))


@pytest.fixture
def long(catalog: Client) -> Client:
    """A catalog whose table `t` has snapshots 1 to 5. Branches refer to the last ones."""
    catalog.create()
    for id in range(1, 6):
        assert catalog.commit("t", *append(id)).status == 200
    return catalog


def test_all_snapshots_of_a_version_are_as_a_full_load_has_them(long: Client) -> None:
    loaded = long.load()["metadata"]["snapshots"]
    assert ask(long, pin(long)) == {"removed": [], "snapshots": loaded}
    assert ids(loaded) == [1, 2, 3, 4, 5]


def test_since_a_known_version_only_what_changed_is_sent(long: Client) -> None:
    known = pin(long)
    commit(long, remove(2, 3))
    now = commit(long, *append(6))
    changes = ask(long, now, known)
    assert (changes["since"], sorted(changes["removed"]), ids(changes["snapshots"])) == (
        known.version,
        [2, 3],
        [6],
    )
    assert ask(long, now, now) == {"since": now.version, "removed": [], "snapshots": []}


def test_a_version_does_not_change_by_later_commits(long: Client) -> None:
    pinned = pin(long)
    before = ask(long, pinned)
    commit(long, remove(1, 2, 3))
    newer = commit(long, *append(6))
    assert ask(long, pinned) == before
    # The newer version does not have what was removed since, so all are sent.
    assert ask(long, pinned, newer) == before


def test_an_older_version_is_reached_from_a_newer_one_that_only_added(long: Client) -> None:
    pinned = pin(long)
    newer = commit(long, *append(6))
    assert ask(long, pinned, newer) == {"since": newer.version, "removed": [6], "snapshots": []}


def test_an_id_with_the_sign_of_a_state_is_refused(long: Client) -> None:
    assert long.send("GET", "v1/tables/t%40main/versions/0/snapshots").status == 400


def test_changes_that_keep_the_snapshots_keep_their_fingerprint(long: Client) -> None:
    before = pin(long)
    after = commit(long, set_properties(a="1"))
    assert (after.table, after.set) == (before.table, before.set)
    assert after.version != before.version
    assert commit(long, *append(6)).set != before.set


def test_answers_to_commits_hold_what_refs_name_only_if_asked(long: Client) -> None:
    asked = long.commit("t", *append(6), query=REFS)
    assert ids(asked.body["metadata"]["snapshots"]) == [6]
    assert asked.headers["ETag"].endswith('-refs"')
    others = long.commit("t", *append(7))
    assert ids(others.body["metadata"]["snapshots"]) == [1, 2, 3, 4, 5, 6, 7]
    assert "Polaris-Snapshots" not in others.headers
    assert long.commit("t", set_properties(a="1"), query={"snapshots": "some"}).status == 400


def test_a_refused_parameter_commits_nothing(long: Client) -> None:
    for method, path, body in (
        ("POST", table("t"), {"requirements": [], "updates": [set_properties(a="1")]}),
        ("POST", tables("db"), table_request("new")),
    ):
        assert long.send(method, path, body, query={"snapshots": "some"}).kind == (400, "BadRequestException")
    assert "a" not in long.load()["metadata"].get("properties", {})
    assert long.names("db") == ["t"]


def test_answers_do_not_grow_with_the_number_of_snapshots(long: Client) -> None:
    def size(id: int) -> int:
        answer = long.commit("t", remove(*range(1, 5)) if id == 6 else set_properties(a="1"), query=REFS)
        assert answer.status == 200
        return len(json.dumps([answer.body["metadata"]["snapshots"], answer.headers]))

    small = size(6)
    for start in range(10, 1000, 99):
        assert long.commit("t", *map(add, range(start, start + 99))).status == 200
    assert len(long.load()["metadata"]["snapshots"]) > 900
    assert size(1) < small + 200


def test_where_refs_name_every_snapshot_there_is_nothing_to_ask_for(catalog: Client) -> None:
    assert (
        "Polaris-Snapshots" not in catalog.send("POST", tables("db"), table_request("t"), query=REFS).headers
    )
    for updates in ([], append(1), append(2, "other")):
        assert "Polaris-Snapshots" not in catalog.commit("t", *updates, query=REFS).headers
    commit(catalog, add(3))
    answer = catalog.commit("t", remove(3), query=REFS)
    assert "Polaris-Snapshots" not in answer.headers


def test_staged_snapshots_are_there_though_nothing_leads_to_them(long: Client) -> None:
    known = pin(long)
    staged = commit(long, add(6))
    assert ids(ask(long, staged)["snapshots"]) == [1, 2, 3, 4, 5, 6]
    assert ids(ask(long, staged, known)["snapshots"]) == [6]


def test_a_version_is_found_under_the_tables_new_name(long: Client) -> None:
    pinned = pin(long)
    before = ask(long, pinned)
    long.ok("POST", "v1/tables/rename", rename("t", "renamed"))
    assert ask(long, pinned) == before
    assert pin(long, "renamed") == pinned


def test_a_table_with_the_name_of_a_dropped_table_is_a_different_table(
    long: Client,
) -> None:
    pinned = pin(long)
    before = ask(long, pinned)
    long.ok("DELETE", table("t"))
    assert ask(long, pinned) == before
    for uuid in ({}, {"uuid": ""}, {"uuid": pinned.uuid[:-1]}):
        assert long.send("GET", pinned.path, query=uuid).kind == (404, "NoSuchTableException")
    long.create()
    for id in (1, 2):
        assert long.commit("t", *append(id)).status == 200
    again = pin(long)
    assert again.table != pinned.table
    assert long.send("GET", again._replace(version=pinned.version).path).kind == (404, "NotFoundException")
    assert ask(long, again, pinned) == {"removed": [], "snapshots": long.load()["metadata"]["snapshots"]}
    assert ask(long, pinned) == before


@pytest.mark.parametrize("uuid", ["a\r\nSet-Cookie: b=c", "\u65e5\u672c", "a/../b", "x" * 100_000])
def test_a_table_whose_uuid_is_any_text_puts_none_of_it_into_a_header(long: Client, uuid: str) -> None:
    assert long.commit("t", {"action": "assign-uuid", "uuid": uuid}).status == 200
    pinned = pin(long)
    assert len(pinned.uuid) == 32
    assert pinned.uuid.isascii()
    assert pinned.uuid.isalnum()
    before = ask(long, pinned)
    long.ok("DELETE", table("t"))
    assert ask(long, pinned) == before
    assert long.send("GET", pinned.path, query={"uuid": ""}).kind == (404, "NoSuchTableException")


def test_versions_of_other_tables_are_neither_shown_nor_compared_with(long: Client) -> None:
    long.create("other")
    for id in (11, 12):
        assert long.commit("other", *append(id)).status == 200
    mine, other = pin(long), pin(long, "other")
    assert long.send("GET", mine._replace(version=other.version).path).kind == (404, "NotFoundException")
    assert "since" not in ask(long, mine, other)
    assert ids(ask(long, mine, other)["snapshots"]) == [1, 2, 3, 4, 5]


def test_tables_of_another_catalog_are_not_there(long: Client, opened: Open, warehouse: Path) -> None:
    other = opened(str(long.session.properties.store), warehouse.with_name("other"), catalog="other")
    assert other.send("GET", pin(long).path).kind == (404, "NoSuchTableException")


def test_ids_of_other_rows_are_not_accepted_as_versions(long: Client) -> None:
    head = long.session.catalog.head().head
    pinned = pin(long)
    for number in (f"{head.commit:x}", pinned.table, "1", "7fffffffffffffff", "0"):
        assert long.send("GET", pinned._replace(version=number).path).kind == (404, "NotFoundException")
    for number in ("8000000000000000", "x", "-1", "1" * 17, "A", "0x1", "١"):
        assert long.send("GET", pinned._replace(version=number).path).status == 400
        assert long.send("GET", pinned._replace(table=number).path).status == 400
        assert long.send("GET", pinned.path, query={"since": number}).status == 400
    namespace = long.session.catalog.view().scan("ids", b"", None)[0][0]
    assert long.send("GET", pinned._replace(table=namespace.hex().lstrip("0")).path).status == 404


def test_branches_that_went_apart_are_not_confused(long: Client, opened: Open) -> None:
    inner = long.session.catalog
    branch = inner.reference.replace("/main", "/dev")
    inner.references.create(branch, Operation(b"", "me"), source=inner.head())
    dev = opened(str(long.session.properties.store), None, branch="dev")
    change = TableCommit(TableName(("db",), "t"), [], [remove(1)])  # as a job does: a client may not
    inner.commit(CommitTable(inner.context, Operation(b"", "me"), change))
    on_main, on_dev = commit(long, *append(7)), commit(dev, *append(6))
    assert on_main.table == on_dev.table
    assert ids(ask(long, on_main, on_dev)["snapshots"]) == [2, 3, 4, 5, 7]
    assert ids(ask(dev, on_dev, on_main)["snapshots"]) == [1, 2, 3, 4, 5, 6]


def test_a_transaction_and_a_registration_leave_versions_that_can_be_asked_for(long: Client) -> None:
    known = pin(long)
    change = {"identifier": identifier("t"), "requirements": [], "updates": append(6)}
    long.ok("POST", "v1/transactions/commit", {"table-changes": [change]})
    assert ids(ask(long, pin(long), known)["snapshots"]) == [6]
    place = long.load()["metadata-location"]
    long.ok("DELETE", table("t"))
    body = {"name": "t", "metadata-location": place}
    answer = long.send("POST", "v1/namespaces/db/register", body, query=REFS)
    assert ids(answer.body["metadata"]["snapshots"]) == [6]
    registered = Pin(*answer.headers["Polaris-Snapshots"].split("-", 3))
    assert ids(ask(long, registered)["snapshots"]) == [1, 2, 3, 4, 5, 6]


def test_any_two_versions_lead_to_the_same_snapshots_with_and_without_each_other(catalog: Client) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    catalog.create()
    assert catalog.commit("t", *append(1)).status == 200
    assert catalog.commit("t", *append(2)).status == 200
    versions = {pin(catalog): [1, 2]}
    current, newest = [1, 2], 2
    for _ in range(40):
        updates: list[Json] = []
        for _ in range(chance.choice((0, 1, 3, 60))):
            newest += 1
            updates += [add(newest)]
            current = [*current, newest]
        gone = [id for id in current if id > 2 and chance.random() < chance.choice((0, 0, 0.1, 0.9))]
        updates += [remove(*gone)] if gone else [set_properties(x=str(newest))]
        current = [id for id in current if id not in gone]
        versions[commit(catalog, *updates)] = current
    for _ in range(200):
        (since, before), (pinned, expected) = chance.sample(sorted(versions.items()), 2)
        changes = ask(catalog, pinned, since)
        kept = [id for id in before if id not in changes["removed"]] if "since" in changes else []
        assert kept + ids(changes["snapshots"]) == expected
        assert (since.set == pinned.set) <= (before == expected)
