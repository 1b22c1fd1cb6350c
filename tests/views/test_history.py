"""Commits and changes: the log as rows."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from polaris_spark.clock import ManualClock
from polaris_spark.commits.log import commits
from tests.cli.catalogs import run
from tests.views.catalogs import Catalog, reader, rows

ACTIONS = [
    "create-namespace",
    "create-namespace",
    "create-table",
    "create-table",
    "update-table",
    "update-table",
    "update-table",
    "create-view",
]


def test_changes_list_principals_and_operations_in_order(shop: Catalog) -> None:
    found = sorted(shop.read("changes"), key=lambda row: (row["number"], row["position"]))
    assert [row["action"] for row in found] == ACTIONS
    assert {row["principal"] for row in found} == {"ann"}
    assert [row["name"] for row in found[:3]] == ["sales", "2026.q1", "orders"]
    assert [row["kind"] for row in found[1:3]] == ["namespace", "table"]
    assert found[1]["namespace"] == "sales"


def test_changes_of_one_entity_chain_from_content_to_content(shop: Catalog) -> None:
    [table] = [row for row in shop.read("tables") if row["name"] == "orders"]
    mine = [row for row in shop.read("changes") if row["entity_id"] == table["entity_id"]]
    mine.sort(key=lambda row: row["number"])
    assert mine[0]["before_id"] is None
    assert [row["before_id"] for row in mine[1:]] == [row["after_id"] for row in mine[:-1]]
    assert mine[-1]["after_id"] == table["content_id"]


def test_a_rename_names_both_names(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("a")
    catalog.namespace("b")
    catalog.table("a", "t")
    source, target = {"namespace": ["a"], "name": "t"}, {"namespace": ["b"], "name": "u"}
    catalog.request("POST", "v1/tables/rename", {"source": source, "destination": target})
    [row] = [row for row in catalog.read("changes") if row["action"] == "rename-table"]
    assert (row["namespace"], row["name"]) == ("b", "u")
    assert (row["old_namespace"], row["old_name"]) == ("a", "t")
    catalog.session.close()


def test_a_recovery_is_a_change_of_a_reference(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("a")
    first, last = sorted(row["commit_id"] for row in catalog.read("commits") if row["catalog"])
    catalog.namespace("b")
    catalog.session.close()
    assert run("recover", catalog.store, "--branch", "main", "--to", f"{last:x}", "--yes").code == 0
    assert first < last
    found = [row for row in catalog.read("changes") if row["action"] == "recover"]
    assert [(row["kind"], row["number"], row["summary"]["to"]) for row in found] == [("reference", 2, "1")]
    assert found[0]["name"].endswith("/heads/main")


def test_an_operation_id_is_shown_as_the_uuid_that_the_client_gave(tmp_path: Path) -> None:
    clock = ManualClock()
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    made = clock.now_ms()  # the first 48 bits of a UUIDv7
    given = str(UUID(int=made << 80 | 0x7 << 76 | 0x2 << 62 | 1))
    headers = {"Idempotency-Key": given}
    body = '{"namespace": ["a"]}'
    assert catalog.session.request("POST", "v1/namespaces", body=body, headers=headers)[0] == 200
    [row] = catalog.read("changes")
    assert row["operation_id"] == given
    catalog.session.close()


def test_commits_are_those_of_the_log(shop: Catalog) -> None:
    head = shop.session.catalog.head()
    expected = [(id, commit.number) for id, commit in commits(head.store, head.head)]
    found = sorted(shop.read("commits"), key=lambda row: -row["number"])
    assert [(row["commit_id"], row["number"]) for row in found] == expected
    assert [row["parent_id"] for row in found] == [id for id, _ in expected[1:]] + [None]
    assert [row["changes"] for row in found] == [1] * (len(found) - 1) + [0]
    assert found[0]["actions"] == ["create-view"]
    assert {row["catalog"] for row in found} == {"shop"}


def test_without_a_catalog_every_reference_of_the_realm_is_shown(shop: Catalog) -> None:
    found = rows("changes", store=shop.store)
    actions = {row["reference"]: row["action"] for row in found if row["catalog"] is None}
    assert actions == {"root": "create-reference", "catalogs": "create-catalog"}
    assert [row["kind"] for row in found if row["reference"] == "catalogs"] == ["catalog"]
    mine = [row for row in found if row["catalog"] == "shop"]
    assert sorted(row["action"] for row in mine) == sorted(ACTIONS)


def test_a_long_history_is_read_in_parts_and_whole(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "t")
    for i in range(900):
        catalog.set_property("db", "t", "i", str(i))
    options = {"store": catalog.store, "catalog": "polaris", "splits": "4"}
    assert len(reader("commits", **options).partitions()) == 4
    numbers = [row["number"] for row in rows("commits", **options)]
    assert sorted(numbers) == list(range(903))
    changes = [(row["number"], row["position"]) for row in rows("changes", **options)]
    assert sorted(changes) == [(number, 0) for number in range(1, 903)]
    catalog.session.close()
