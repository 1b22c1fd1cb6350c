"""How many requests a catalog sends to its database."""

from __future__ import annotations

from benchmarks.traffic import counted
from polaris_spark.catalog.entities import TableName
from polaris_spark.catalog.states import catalog_at
from polaris_spark.catalog.view_sources import ViewQuery, pin
from polaris_spark.jobs.registry import call
from polaris_spark.store.cache import process_cache
from tests.rest.client import Client
from tests.rest.materialized import refresh
from tests.rest.view_requests import create, how, rows, table


def test_commits_and_loads_ask_the_database_no_more_often_than_they_must(catalog: Client) -> None:
    catalog.create()
    catalog.set("t", round="0")
    with counted(catalog.session.connection.backend) as traffic:
        catalog.set("t", round="1")
        assert traffic.round_trips == 1  # rows and swap in one transaction
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 1  # the head, whether it moved
        process_cache().clear()
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 3  # the head, the table, its pieces
        for number in range(40):  # its log has several pieces now
            catalog.set("t", round=str(number))
        process_cache().clear()
        traffic.clear()
        catalog.load()
        assert traffic.round_trips == 3


def test_a_merge_reads_no_more_after_many_branches_were_merged(catalog: Client) -> None:
    catalog.create()
    session, needed = catalog.session, list[int]()
    with counted(session.connection.backend) as traffic:
        for number in range(30):
            call(session, "create_branch", name=f"b{number}")
            Client(session.derive(catalog=catalog_at(session.catalog, f"b{number}"))).set("t", round="1")
            process_cache().clear()
            traffic.clear()
            call(session, "merge", source=f"b{number}")
            needed.append(traffic.round_trips)
    assert max(needed) <= needed[1] + 1, needed


def test_whether_a_view_of_ten_tables_is_fresh_is_one_read_of_the_head(catalog: Client) -> None:
    names = [f"t{number}" for number in range(10)]
    for name in names:
        table(catalog, name)
    uuid = create(catalog, f"SELECT t0.a FROM {', '.join(names)}")["view-uuid"]
    query = ViewQuery(f"SELECT t0.a FROM {', '.join(names)}", "", ("db",))
    states = pin(catalog.session.catalog.view(), "polaris", query, TableName(("db",), "v")).source_states()
    rows(catalog, refresh(uuid, 100, 1, **{"source-states": states, "session": {"zone": "UTC"}}))
    assert "VERSION AS OF 100" in how(catalog, uuid, zone="UTC")["query"]
    with counted(catalog.session.connection.backend) as traffic:
        assert "VERSION AS OF 100" in how(catalog, uuid, zone="UTC")["query"]
        assert traffic.round_trips == 1
