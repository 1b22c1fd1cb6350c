"""The system view `lineage`, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.lineage import LARGEST, document_of_lineage
from polaris_spark.catalog.materialized.view_sources import PinnedQuery, TableSource
from polaris_spark.catalog.metadata.texts import encode
from tests.rest.materialized import SCHEMA, create_materialized_view, refresh
from tests.rest.materialized import snapshot_commit as snapshot
from tests.views.catalogs import Catalog, rows

Dependences = list[tuple[Any, ...]]
SOURCE = {"type": "table", "namespace": ["db"], "name": "t", "uuid": "u", "columns": ["a", "b"]}
LINEAGE = {"sources": [SOURCE], "edges": {"AGGREGATION": [[0, 0, 1]], "FILTER": [[None, 0, 0]]}}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with the namespace `db` and the table `t`."""
    made = Catalog(tmp_path / "c.db")
    made.request("POST", "v1/namespaces", {"namespace": ["db"]})
    made.request("POST", "v1/namespaces/db/tables", {"name": "t", "schema": SCHEMA})
    return made


def dependences(catalog: Catalog, view: str) -> Dependences:
    """Return, for each row of a view: view column, source type, name and column, dependence and transformation."""
    names = ("view_column", "source_type", "source_name", "source_column", "dependence", "transformation")
    found = rows("lineage", EqualTo(("name",), view), store=catalog.store, prune="true")
    assert {row["name"] for row in found} <= {view}
    return [tuple(row[name] for name in names) for row in found]


def refreshed(catalog: Catalog, view: str, id: int, number: int, **also: Any) -> None:
    """Commit a refresh of a view."""
    uuid = catalog.request("GET", f"v1/namespaces/db/views/{view}")["metadata"]["view-uuid"]
    catalog.request("POST", f"v1/namespaces/db%1F{view}/tables/storage", refresh(uuid, id, number, **also))


def test_of_views_without_recorded_lineage_the_sources_that_exist_are_shown(catalog: Catalog) -> None:
    opened = catalog.session.catalog
    catalog.view("db", "plain", "SELECT a FROM t")
    create_materialized_view(opened, "v")
    create_materialized_view(opened, "w", "SELECT * FROM v JOIN plain JOIN gone JOIN polaris.db.t")
    create_materialized_view(opened, "x", "SELECT (")
    of_v: Dependences = [(None, "table", "t", None, None, None)]
    assert dependences(catalog, "v") == of_v
    refreshed(catalog, "v", 100, 1)
    assert dependences(catalog, "v") == of_v
    assert dependences(catalog, "w") == [
        *of_v,
        (None, "materialized view", "v", None, None, None),
        (None, "view", "plain", None, None, None),
    ]
    assert dependences(catalog, "x") == []
    listed = rows("lineage", store=catalog.store)
    assert {(row["name"], row["source_catalog"], row["source_namespace"]) for row in listed} == {
        ("v", "polaris", "db"),
        ("w", "polaris", "db"),
    }


def test_the_record_of_the_refresh_counts_then_that_of_the_version(catalog: Catalog) -> None:
    foreign = {"type": "table", "catalog": "hive", "namespace": ["x", "y.z"], "name": "o"}
    outside = {"type": "table", "catalog": "", "namespace": [], "name": "s3://b/p", "columns": ["c"]}
    of_version = {"sources": [foreign, outside], "edges": {"IDENTITY": [[0, 1, 0]]}}
    create_materialized_view(
        catalog.session.catalog, "v", summary={"polaris.lineage": json.dumps(of_version)}
    )
    created: Dependences = [
        ("a", "table", "s3://b/p", "c", "DIRECT", "IDENTITY"),
        (None, "table", "o", None, None, None),
    ]
    assert dependences(catalog, "v") == created
    assert [
        (row["source_catalog"], row["source_namespace"]) for row in rows("lineage", store=catalog.store)
    ] == [(None, ""), ("hive", "x.`y.z`")]
    refreshed(catalog, "v", 100, 1, lineage=LINEAGE)
    assert dependences(catalog, "v") == [
        ("a", "table", "t", "b", "DIRECT", "AGGREGATION"),
        (None, "table", "t", "a", "INDIRECT", "FILTER"),
    ]
    refreshed(catalog, "v", 101, 2, replaces=100)
    assert dependences(catalog, "v") == created
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 100}
    storage = "v1/namespaces/db%1Fv/tables/storage"
    catalog.request("POST", storage, {"requirements": [], "updates": [back]})
    assert dependences(catalog, "v")[0][4:] == ("DIRECT", "AGGREGATION")


@pytest.mark.parametrize(
    "malformed",
    ["text", 7, {}, {"sources": [SOURCE], "edges": {"FILTER": [[None, 5, 0]]}}, {"sources": [{}]}],
)
def test_a_malformed_record_of_another_writer_is_ignored(catalog: Catalog, malformed: Any) -> None:
    create_materialized_view(catalog.session.catalog, "v", summary={"polaris.lineage": "{"})
    refreshed(catalog, "v", 100, 1, lineage=malformed)
    assert dependences(catalog, "v") == [(None, "table", "t", None, None, None)]


def test_lineage_can_be_read_as_of_an_earlier_commit(catalog: Catalog) -> None:
    create_materialized_view(catalog.session.catalog, "v")
    at = catalog.session.catalog.head().commit.number
    refreshed(catalog, "v", 100, 1, lineage=LINEAGE)
    catalog.request("POST", "v1/namespaces/db/tables/t", snapshot(1, 1, operation="append"))
    assert len(rows("lineage", store=catalog.store)) == 2
    assert len(rows("lineage", store=catalog.store, catalog="polaris", as_of=str(at))) == 1


@pytest.mark.parametrize(("columns", "fits"), [(1_000, True), (3_000, False)])
def test_the_lineage_of_a_very_wide_view_has_no_columns(columns: int, fits: bool) -> None:
    names = [f"column_{number}" for number in range(columns)]
    source = {"catalog": "c", "name": ["db", "t"], "uuid": "u", "columns": names}
    found = {"sources": [source], "edges": {"IDENTITY": [[n, 0, n] for n in range(columns)]}}
    table = TableSource("t", TableName(("db",), "t"), "u", "main", 1, 0, False, 0, 0, 0)
    document = document_of_lineage(found, PinnedQuery("", (table,), ()), "c")
    assert len(encode(document)) <= LARGEST
    assert ("edges" in document) == fits
    assert document["sources"] == [
        {"type": "table", "namespace": ["db"], "name": "t", "uuid": "u"}
        | ({"columns": names} if fits else {})
    ]


def test_sources_outside_the_catalog_are_those_that_the_query_names() -> None:
    read = TableSource("x", TableName(("db",), "t"), "u1", "main", 1, 0, False, 0, 0, 0)
    query = PinnedQuery(
        "",
        (
            read._replace(catalog="hive"),
            read._replace(name=TableName(("iceberg",), "/a"), uuid="u2", type="iceberg-filesystem"),
            read._replace(name=TableName(("delta",), "/b"), uuid="u3", type="deltalake-filesystem"),
            read._replace(name=TableName(("db",), "below"), uuid="u4", read=False),
        ),
        (),
    )
    named = [("hive", ["db", "t"], "u1"), ("c", ["", "a"], "u2"), ("", ["file:/b"], ""), ("o", ["n"], "")]
    found = {
        "sources": [{"catalog": at, "name": name, "uuid": uuid, "columns": ["x"]} for at, name, uuid in named]
    }
    assert document_of_lineage({**found, "edges": {}}, query, "c")["sources"] == [
        {"type": "table", "catalog": at, "namespace": space, "name": name, **uuid, "columns": ["x"]}
        for at, space, name, uuid in (
            ("hive", ["db"], "t", {"uuid": "u1"}),
            ("", ["iceberg"], "/a", {"uuid": "u2"}),
            ("", ["delta"], "/b", {"uuid": "u3"}),
            ("o", [], "n", {}),
        )
    ]
