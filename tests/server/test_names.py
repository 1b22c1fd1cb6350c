"""Every kind of client can address every name that this or an earlier release accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.names import unchecked_names
from tests.rest.client import (
    Client,
    connect,
    identifier,
    path,
    set_properties,
    table,
    table_request,
    tables,
    view,
    view_request,
)
from tests.server.servers import Remote, Server, client, options
from tests.server.test_pyiceberg import open_catalog

NAMES = [
    "a/b",
    "/",
    "//a//",
    "a%b",
    "%2F",
    "%00",
    "%25",
    "%0A",
    "%2E%2E",
    "+",
    "a + b",
    " a ",
    ".a",
    "a.b",
    "...",
    "../a",
    "..\\a",
    "'",
    '"',
    "`",
    "?a=b",
    "#a",
    "&;=",
    "~*()!$,:@",
    "[a]{b}",
    "A",
    "表",
    "e\u0301",
    "\u200d",
    "🧊",
    "\ufffe",
    "namespaces",
    "tables",
    "metrics",
    "x" * 1_000,
    "表" * 300,
]
OLD = ["a\nb", "\n", "a\n", "\r\n", "\t", "\0", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e"]
"""Names that earlier releases accepted."""

COMMIT = {"requirements": [], "updates": [set_properties(a="1")]}


def short(name: str) -> str:
    """Return a name as the id of a test."""
    return ascii(name)[1:20]


def move(source: str, target: str, namespace: tuple[str, ...]) -> dict[str, object]:
    """A request that renames within a namespace."""
    return {"source": identifier(source, namespace), "destination": identifier(target, namespace)}


def use_everything(catalog: Client, namespace: tuple[str, ...], name: str) -> None:
    """Use the namespace, its table and its view by every route."""
    assert catalog.send("HEAD", path(*namespace)).status == 204
    assert catalog.ok("GET", path(*namespace))["namespace"] == [*namespace]
    above = {"parent": "\x1f".join(namespace[:-1])} if namespace[1:] else {}
    assert [*namespace] in catalog.ok("GET", "v1/namespaces", query=above)["namespaces"]
    catalog.ok("POST", f"{path(*namespace)}/properties", {"updates": {"a": "1"}})
    assert catalog.names(*namespace) == [name]
    assert catalog.send("HEAD", table(name, namespace)).status == 204
    loaded = catalog.load(name, namespace)["metadata"]
    catalog.ok("POST", table(name, namespace), {**COMMIT, "identifier": identifier(name, namespace)})
    changes = {"table-changes": [{**COMMIT, "identifier": identifier(name, namespace)}]}
    assert catalog.send("POST", "v1/transactions/commit", changes).status == 204
    assert catalog.load(name, namespace)["metadata"]["table-uuid"] == loaded["table-uuid"]
    parts = loaded["location"].removeprefix("file://").split("/")
    assert not {".", ".."}.intersection(parts)
    assert max(len(part.encode()) for part in parts) <= 255
    assert catalog.send("POST", "v1/tables/rename", move(name, "other", namespace)).status == 204
    assert catalog.names(*namespace) == ["other"]


@pytest.mark.parametrize("name", NAMES, ids=short)
def test_every_created_name_can_be_addressed_by_every_route(ann: Client, namespace: str, name: str) -> None:
    inner = (namespace, name)
    ann.namespace(*inner)
    ann.create(name, inner)
    use_everything(ann, inner, name)
    ann.ok("POST", f"{path(*inner)}/views", view_request(name))
    assert ann.names(*inner, kind="views") == [name]
    assert ann.send("HEAD", view(name, inner)).status == 204
    ann.ok("POST", view(name, inner), {"updates": [set_properties(a="1")]})
    assert ann.send("POST", "v1/views/rename", move(name, "v", inner)).status == 204
    assert ann.send("POST", "v1/views/rename", move("v", name, inner)).status == 204
    assert ann.send("DELETE", view(name, inner)).status == 204
    assert ann.send("POST", "v1/tables/rename", move("other", name, inner)).status == 204
    assert ann.send("DELETE", table(name, inner)).status == 204
    assert ann.send("DELETE", path(*inner)).status == 204


@pytest.mark.parametrize("name", NAMES, ids=short)
def test_pyiceberg_addresses_what_it_creates(server: Server, namespace: str, name: str) -> None:
    shop = open_catalog(server)
    shop.create_namespace((namespace, name))
    assert (namespace, name) in shop.list_namespaces(namespace)
    schema = Schema(NestedField(1, "n", LongType(), required=False))
    shop.create_table((namespace, name, name), schema)
    assert shop.list_tables((namespace, name)) == [(namespace, name, name)]
    with shop.load_table((namespace, name, name)).transaction() as transaction:
        transaction.set_properties(a="1")
    shop.rename_table((namespace, name, name), (namespace, name, "t"))
    shop.rename_table((namespace, name, "t"), (namespace, name, name))
    shop.drop_table((namespace, name, name))
    shop.drop_namespace((namespace, name))


@pytest.mark.parametrize("name", [*OLD, ".", "..", "x" * 5_000], ids=short)
def test_a_name_that_could_not_be_addressed_is_refused(ann: Client, namespace: str, name: str) -> None:
    for answer in (
        ann.send("POST", "v1/namespaces", {"namespace": [name]}),
        ann.send("POST", "v1/namespaces", {"namespace": [namespace, name]}),
        ann.send("POST", tables(namespace), table_request(name)),
        ann.send("POST", tables(namespace), table_request(name, stage_create=True)),
        ann.send("POST", f"{path(namespace)}/views", view_request(name)),
    ):
        assert answer.kind == (400, "BadRequestException")
        assert answer.error["message"].isprintable()
    assert ann.names(namespace) == []


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of a store with a top-level namespace of each old name, with a table of the same name in it."""
    folder = tmp_path_factory.mktemp("old")
    store, warehouse = f"sqlite://{folder / 'store.db'}", folder / "warehouse"
    made = connect(store, warehouse)
    with unchecked_names():
        for name in (*OLD, "."):
            made.namespace(name)
            made.create(name, (name,))
    made.session.close()
    with Server(store, *options(warehouse)) as server:
        yield client(server)


@pytest.mark.parametrize("name", [*OLD, "."], ids=short)
def test_a_name_that_an_earlier_release_accepted_can_be_used_renamed_and_dropped(
    old: Client, name: str
) -> None:
    use_everything(old, (name,), name)
    old.create("new", (name,))
    assert old.send("POST", "v1/tables/rename", move("new", name, (name,))).status == 400
    for left in ("new", "other"):
        assert old.send("DELETE", table(left, (name,))).status == 204
    assert old.send("DELETE", path(name)).status == 204
    assert old.send("POST", "v1/namespaces", {"namespace": [name]}).status == 400


@pytest.mark.parametrize("target", ["/v1/namespaces/a%0Ab", "/a%0Ab", "/v1/namespaces/%0A/tables/%0A"])
def test_a_path_with_a_line_break_needs_a_token_like_any_other(server: Server, target: str) -> None:
    assert Remote(server.uri).raw("GET", target)[0] == 401


def test_a_path_similar_to_the_health_check_is_a_request_of_the_protocol(server: Server) -> None:
    assert [Remote(server.uri).raw("GET", where)[0] for where in ("/healthz", "/healthz/", "/metrics/")] == [
        200,
        401,
        401,
    ]


def test_a_deep_namespace_has_a_location_that_file_systems_accept(ann: Client, namespace: str) -> None:
    levels = (namespace, *["n" * 60] * 50)
    for depth in range(2, len(levels) + 1):
        ann.namespace(*levels[:depth])
    ann.create("t" * 500, levels)
    location = ann.load("t" * 500, levels)["metadata"]["location"].removeprefix("file://")
    assert Path(location, "metadata").is_dir()
    assert len(location.encode()) < 2_048


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a store with a catalog of each name."""
    folder = tmp_path_factory.mktemp("catalogs")
    store = f"sqlite://{folder / 'store.db'}"
    for number, name in enumerate(CATALOGS):
        made = connect(store, folder / str(number), catalog=name)
        made.namespace("here")
        made.session.close()
    with Server(store, *options(folder / "main"), "--catalog", "main") as server:
        yield server


CATALOGS = ["a/b", "%2F", "a + b", " a ", "a.b", "表", "#?", "x" * 500]


@pytest.mark.parametrize("name", CATALOGS, ids=short)
def test_a_catalog_is_addressed_by_its_prefix(shelves: Server, name: str) -> None:
    one = client(shelves)
    prefix = one.ok("GET", "v1/config", query={"warehouse": name})["overrides"]["prefix"]
    assert one.ok("GET", f"v1/{prefix}/namespaces") == {"namespaces": [["here"]]}
    shop = open_catalog(shelves, warehouse=name, token="")
    shop.create_namespace("there")
    assert shop.list_namespaces() == [("here",), ("there",)]
