"""pyiceberg's own client of the REST protocol."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.types import DoubleType

from tests.rest.client import Client, connect, path, view_request
from tests.server.conftest import TOKENS
from tests.server.servers import Server, client, options

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "item": ["tea", "coffee", "cocoa"]})


def open_catalog(server: Server, **properties: str) -> RestCatalog:
    """A catalog of pyiceberg, which asks for the configuration first."""
    catalog = load_catalog("shop", type="rest", uri=server.uri, **{"token": TOKENS["bob"], **properties})
    assert isinstance(catalog, RestCatalog)
    return catalog


@pytest.fixture
def shop(server: Server) -> RestCatalog:
    """A catalog of pyiceberg on the shared server."""
    return open_catalog(server)


def test_tables_are_created_written_read_and_renamed(shop: RestCatalog, namespace: str) -> None:
    table = shop.create_table((namespace, "orders"), ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert shop.load_table((namespace, "orders")).scan().to_arrow().num_rows == 6
    table.delete("id = 2")
    assert sorted(shop.load_table((namespace, "orders")).scan().to_arrow()["id"].to_pylist()) == [1, 1, 3, 3]
    with table.update_schema() as update:
        update.add_column("price", DoubleType())
    with table.transaction() as transaction:
        transaction.set_properties(owner="bob")
    shop.rename_table((namespace, "orders"), (namespace, "sales"))
    assert shop.list_tables(namespace) == [(namespace, "sales")]
    loaded = shop.load_table((namespace, "sales"))
    assert loaded.properties["owner"] == "bob"
    assert loaded.schema().column_names == ["id", "item", "price"]
    shop.purge_table((namespace, "sales"))
    assert not shop.table_exists((namespace, "sales"))


def test_a_table_is_registered_where_it_was_dropped(shop: RestCatalog, namespace: str) -> None:
    made = shop.create_table((namespace, "t"), ROWS.schema)
    made.append(ROWS)
    shop.drop_table((namespace, "t"))
    again = shop.register_table((namespace, "again"), made.metadata_location)
    assert again.scan().to_arrow().num_rows == 3


def test_two_writers_see_each_other(shop: RestCatalog, server: Server, namespace: str) -> None:
    one = shop.create_table((namespace, "t"), ROWS.schema)
    two = open_catalog(server).load_table((namespace, "t"))
    one.append(ROWS)
    two.append(ROWS)  # refused first, as the table has moved; pyiceberg then looks again
    assert shop.load_table((namespace, "t")).scan().to_arrow().num_rows == 6


def test_namespaces_with_odd_names(shop: RestCatalog) -> None:
    for name in ("a b", "a/b", "a%2Fb", "é", "日本", "a+b"):
        shop.create_namespace((name,), {"of": name})
        shop.create_namespace((name, "below"))
        shop.create_namespace((name, "below", "that"))
        assert shop.load_namespace_properties((name,))["of"] == name
        assert shop.list_namespaces((name,)) == [(name, "below")]
        assert shop.list_namespaces((name, "below")) == [(name, "below", "that")]
        shop.update_namespace_properties((name,), updates={"more": "1"})
        shop.drop_namespace((name, "below", "that"))
        shop.drop_namespace((name, "below"))
        shop.drop_namespace((name,))
    with pytest.raises(NamespaceAlreadyExistsError):
        [shop.create_namespace("twice") for _ in range(2)]


def test_views_are_listed_and_dropped(shop: RestCatalog, ann: Client, namespace: str) -> None:
    ann.ok("POST", f"{path(namespace)}/views", view_request("v"))
    assert shop.list_views(namespace) == [(namespace, "v")]
    assert shop.view_exists((namespace, "v"))
    shop.drop_view((namespace, "v"))
    assert shop.list_views(namespace) == []


def test_errors_are_those_of_pyiceberg(shop: RestCatalog, server: Server, namespace: str) -> None:
    with pytest.raises(NoSuchTableError):
        shop.load_table((namespace, "none"))
    with pytest.raises(ForbiddenError):
        shop.create_table((namespace, "t"), ROWS.schema, location="/etc/t")
    with pytest.raises(UnauthorizedError):
        open_catalog(server, token="wrong")


def test_a_client_chooses_a_catalog_by_its_warehouse(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    with connect(store, tmp_path / "w2", catalog="two/2").session:
        pass
    with Server(store, *options(tmp_path / "w1")) as server:
        two = load_catalog("two", type="rest", uri=server.uri, warehouse="two/2")
        two.create_namespace("of_two")
        made = two.create_table("of_two.t", ROWS.schema)
        made.append(ROWS)
        assert made.location().startswith(f"file://{tmp_path}/w2/")
        assert client(server).ok("GET", "v1/namespaces")["namespaces"] == []
