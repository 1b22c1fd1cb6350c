"""A catalog on every database: a fixed sequence of requests, thousands of names, and random changes."""

from __future__ import annotations

import random

import pytest

from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index.check import check as check_index
from polaris_spark.store.cache import process_cache
from tests.catalog.branches.test_log import check as check_log
from tests.catalog.branches.test_log import random_request
from tests.databases.conftest import Open
from tests.rest.client import Client, at_once, new_key, path, rename, set_properties, table, tables
from tests.stores import StoreOn, databases


@pytest.mark.parametrize("database", databases())
def test_the_next_session_sees_creations_changes_renames_and_drops(
    store_on: StoreOn, open_catalog: Open, database: str
) -> None:
    store = store_on(database)
    one = open_catalog(store)
    one.namespace("db")
    one.create("t")
    one.create("gone")
    request, key = {"requirements": [], "updates": [set_properties(colour="blue")]}, new_key()
    first = one.send("POST", table("t"), request, key=key)
    assert one.send("POST", table("t"), request, key=key) == first
    one.ok("POST", "v1/tables/rename", rename("t", "renamed"))
    one.ok("DELETE", table("gone"))
    two = open_catalog(store)
    assert two.names("db") == ["renamed"]
    found = two.load("renamed")["metadata"]
    assert found["properties"]["colour"] == "blue"
    at_once([lambda n=n: one.set("renamed", **{f"p{n}": "1"}) for n in range(12)])  # type: ignore[misc]  # bound at once
    assert sum(name.startswith("p") for name in two.load("renamed")["metadata"]["properties"]) == 12
    assert two.send("POST", tables("db"), {"name": "renamed", "schema": found["schemas"][0]}).status == 409
    check_log(two)


def test_a_thousand_names_are_listed_by_pages_and_half_of_them_go(store: str, open_catalog: Open) -> None:
    catalog = open_catalog(store)
    catalog.namespace("db")
    names = [f"name-{number:04}-{'x' * 60}" for number in range(1_000)]

    def create(first: int) -> None:
        for name in names[first::16]:
            catalog.namespace("db", name)

    def drop(first: int) -> None:
        for name in names[first::32]:
            catalog.ok("DELETE", path("db", name))

    at_once([lambda n=n: create(n) for n in range(16)])  # type: ignore[misc]  # bound at once
    assert listed(open_catalog(store), 137) == names
    at_once([lambda n=n: drop(n) for n in range(0, 32, 2)])  # type: ignore[misc]  # bound at once
    process_cache().clear()
    again = open_catalog(store)
    assert listed(again, 1_000) == names[1::2]
    head = again.session.catalog.head()
    assert head.commit.index_roots[head.commit.index_names.index(NAMES)].shard
    for name, root in zip(head.commit.index_names, head.commit.index_roots, strict=True):
        assert list(check_index(root, StoredObjects(head.store).read_shards)) == [], name


def listed(catalog: Client, size: int) -> list[str]:
    """Return the names of the namespaces in `db`, listed in pages."""
    found: list[str] = []
    token = ""
    while True:
        answer = catalog.ok(
            "GET", "v1/namespaces", query={"parent": "db", "pageSize": str(size), "pageToken": token}
        )
        found += [levels[-1] for levels in answer["namespaces"]]
        token = answer.get("next-page-token")
        if not token:
            return found


def test_the_log_of_random_changes_replays_to_the_state(store: str, open_catalog: Open) -> None:
    print("seed 7")
    one, two = open_catalog(store), open_catalog(store)

    def work(number: int) -> int:
        rng, catalog = random.Random(7 + number), (one, two)[number % 2]
        statuses = [catalog.send(*random_request(rng)).status for _ in range(60)]
        assert max(statuses) < 500
        return sum(status < 300 for status in statuses)

    assert sum(at_once([lambda n=n: work(n) for n in range(4)])) > 5  # type: ignore[misc]  # bound at once
    process_cache().clear()
    check_log(open_catalog(store))
    assert {NAMES, IDS, LOCATIONS} <= set(one.session.catalog.head().commit.index_names)
