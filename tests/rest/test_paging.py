"""Listings in pages."""

from __future__ import annotations

import base64
import random
import uuid

import msgspec
import pytest

from benchmarks.population import CreateTables
from polaris_spark.backends.base import ReferenceRow, Swapped
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.commits.change import Operation
from polaris_spark.commits.publication import encode_head
from tests.rest.client import Client, path, rename, tables, view_request
from tests.rest.conftest import Open


def pages(catalog: Client, where: str, size: int, field: str, **query: str) -> list[list]:
    """Return all pages of a listing."""
    found, token = [], ""
    while token is not None:
        answer = catalog.ok("GET", where, query={"pageSize": str(size), "pageToken": token, **query})
        found.append(answer[field])
        token = answer.get("next-page-token")
    return found


@pytest.fixture
def tokened(catalog: Client) -> str:
    """List five tables, two a page, and return the token of the second page."""
    for name in "abcde":
        catalog.create(name)
    return catalog.ok("GET", tables("db"), query={"pageSize": "2"})["next-page-token"]


def test_without_a_page_size_everything_is_listed_in_order(catalog: Client) -> None:
    for name in ("b", "a", "B", "é", "a a"):
        catalog.create(name)
    assert catalog.names("db") == sorted(["b", "a", "B", "é", "a a"], key=str.encode)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 100])
def test_pages_together_are_the_listing(catalog: Client, size: int) -> None:
    for name in "abcde":
        catalog.create(name)
        catalog.ok("POST", f"{path('db')}/views", view_request(f"v{name}"))
        catalog.namespace("db", name)
    listed = pages(catalog, tables("db"), size, "identifiers")
    assert [one["name"] for page in listed for one in page] == list("abcde")
    assert all(len(page) == size for page in listed[:-1])
    assert listed[-1]
    views = pages(catalog, f"{path('db')}/views", size, "identifiers")
    assert [one["name"] for page in views for one in page] == [f"v{name}" for name in "abcde"]
    namespaces = pages(catalog, "v1/namespaces", size, "namespaces", parent="db")
    assert [one for page in namespaces for one in page] == [["db", name] for name in "abcde"]


def test_a_later_page_sees_the_commit_of_the_first(catalog: Client, tokened: str) -> None:
    catalog.create("bb")
    catalog.create("zz")
    assert catalog.send("DELETE", f"{tables('db')}/d").status == 204
    catalog.ok("POST", "v1/tables/rename", rename("e", "ee"))
    rest = catalog.ok("GET", tables("db"), query={"pageSize": "10", "pageToken": tokened})
    assert [one["name"] for one in rest["identifiers"]] == ["c", "d", "e"]
    assert catalog.names("db") == ["a", "b", "bb", "c", "ee", "zz"]


def test_a_later_page_is_there_even_if_the_namespace_is_dropped(catalog: Client, tokened: str) -> None:
    for name in "abcde":
        catalog.ok("DELETE", f"{tables('db')}/{name}")
    catalog.ok("DELETE", path("db"))
    rest = catalog.ok("GET", tables("db"), query={"pageSize": "10", "pageToken": tokened})
    assert [one["name"] for one in rest["identifiers"]] == ["c", "d", "e"]


def test_pages_go_on_while_nearly_everything_is_dropped(catalog: Client) -> None:
    session = catalog.session
    names = [TableName(("db",), f"t{number:04d}") for number in range(2_000)]
    session.catalog.commit(CreateTables(session.catalog.context, Operation(b"", "test"), names))
    chance, left, found, token = random.Random(1), [name.name for name in names], [], ""
    chance.shuffle(left)
    while token is not None:
        query = {"pageSize": "250", "pageToken": token}
        answer = catalog.ok("GET", tables("db"), query=query)
        found += [one["name"] for one in answer["identifiers"]]
        token = answer.get("next-page-token")
        for name in left[:240]:
            assert catalog.send("DELETE", f"{tables('db')}/{name}").status == 204
        del left[:240]
    assert found == [name.name for name in names]
    assert catalog.names("db") == sorted(left)
    assert 0 < len(left) < 100


def test_a_later_page_may_have_another_size(catalog: Client, tokened: str) -> None:
    page = catalog.ok("GET", tables("db"), query={"pageSize": "1", "pageToken": tokened})
    assert [one["name"] for one in page["identifiers"]] == ["c"]
    assert page["next-page-token"]


def test_a_token_of_another_listing_is_refused(catalog: Client, tokened: str) -> None:
    catalog.namespace("other")
    for where, query in [
        (tables("other"), {}),
        (f"{path('db')}/views", {}),
        ("v1/namespaces", {}),
        ("v1/namespaces", {"parent": "db"}),
    ]:
        answer = catalog.send("GET", where, query={"pageToken": tokened, **query})
        assert answer.kind == (400, "BadRequestException"), where


def test_a_token_of_another_catalog_is_refused(opened: Open, warehouse) -> None:
    store = f"memory:{uuid.uuid4()}"
    one, other = (opened(store, warehouse / name, catalog=name) for name in ("one", "other"))
    for client in (one, other):
        client.namespace("db")
        for name in "abc":
            client.create(name)
    token = one.ok("GET", tables("db"), query={"pageSize": "1"})["next-page-token"]
    answer = other.send("GET", tables("db"), query={"pageToken": token})
    assert answer.kind == (400, "BadRequestException")


def forged(token: str, **changes: object) -> str:
    """Return a token with some of its fields replaced."""
    names = ["reference", "number", "commit", "key"]
    fields = msgspec.msgpack.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    for name, value in changes.items():
        fields[names.index(name)] = value
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(fields)).decode().rstrip("=")


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 1},
        {"number": 10**12},
        {"number": -1},
        {"commit": 1},
        {"commit": 2**63},
        {"commit": "x"},
        {"key": b"\xff\xff"},
        {"key": b""},
        {"reference": "root"},
    ],
)
def test_a_forged_token_is_refused(catalog: Client, tokened: str, changes: dict[str, object]) -> None:
    answer = catalog.send("GET", tables("db"), query={"pageToken": forged(tokened, **changes)})
    assert answer.kind == (400, "BadRequestException")


@pytest.mark.parametrize("token", ["x", "AAAA", "é", "\ud800", "=" * 10, "a" * 100_000, "\0"])
def test_a_value_that_is_not_a_token_is_refused(catalog: Client, token: str) -> None:
    answer = catalog.send("GET", tables("db"), query={"pageToken": token})
    assert answer.kind == (400, "BadRequestException")


@pytest.mark.parametrize("size", ["0", "-1", "x", "1.5", "²", "9" * 5_000, "", " 1"])
def test_a_page_size_that_is_not_a_positive_number_is_refused(catalog: Client, size: str) -> None:
    assert catalog.send("GET", tables("db"), query={"pageSize": size}).kind == (400, "BadRequestException")


def test_a_token_below_the_history_floor_has_expired(catalog: Client, tokened: str) -> None:
    catalog.create("later")
    inner = catalog.session.catalog
    head = inner.head()
    raised = msgspec.structs.replace(head.head, floor_number=head.head.number)
    committer = inner.references.open(inner.reference)
    row = ReferenceRow(uuid.uuid4().bytes, encode_head(raised))
    realm, backend = head.store.realm, head.store.backend
    assert isinstance(backend.swap_reference(realm, committer.name, head.version, row), Swapped)
    answer = catalog.send("GET", tables("db"), query={"pageToken": tokened})
    assert answer.kind == (400, "BadRequestException")
    assert "expired" in answer.error["message"]
    assert len(catalog.names("db")) == 6
