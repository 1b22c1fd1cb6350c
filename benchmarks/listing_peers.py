"""Listing of one large namespace: in pages by polaris_spark, at once by Iceberg's `JdbcCatalog` and by pyiceberg.

The peers store one row per table, and read only these rows when they list. The benchmark therefore creates one table
with the peer, and copies its row in the database. Creating a hundred thousand tables with the peer's own calls would
take minutes and result in the same rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import polaris_spark
from benchmarks import costs
from benchmarks.catalogs import NAMESPACE, PyIceberg
from benchmarks.findings import Durability, Finding
from benchmarks.jvm import JavaPrograms
from benchmarks.measurement import Rate, compare, in_turns, median_us
from benchmarks.population import WAREHOUSE, populate
from polaris_spark.rest.messages import ListTablesResponse

PAGE = 1_000
_decode = msgspec.json.Decoder(ListTablesResponse).decode


def measure(folder: Path, *, tables: int, rounds: int, calls: int) -> list[Finding]:
    """Measure the time of a whole listing, in milliseconds. polaris_spark's pages of 1,000 tables are also decoded."""
    programs = JavaPrograms(folder)
    properties = costs.jdbc_catalog(folder)
    arguments = [f"{name}={value}" for name, value in properties.items()]
    programs.run("ListTables", 0, 0, *arguments)
    _fill(Path(properties["uri"].removeprefix("jdbc:sqlite:")), tables)
    theirs = PyIceberg(folder)
    theirs.create("first")
    _fill(folder / "peer" / "catalog.db", tables)

    def java() -> float:
        return float(programs.run("ListTables", tables, calls, *arguments).split()[-1])

    try:
        with polaris_spark.connect(
            store=f"sqlite://{folder}/ours.db",
            warehouse=WAREHOUSE,
            catalog="bench",
            metadata_files="never",
            commit_timeout="1 h",
        ) as session:
            populate(session, tables=tables, namespaces=1)
            sides: list[Callable[[], float | Rate]] = [
                lambda: median_us(calls, lambda: _paged(session, tables)) / 1_000,
                java,
                lambda: median_us(max(1, calls // 5), lambda: _listed(theirs, tables)) / 1_000,
            ]
            ours, jdbc, pyiceberg = in_turns(rounds, sides)
    finally:
        theirs.close()
    what = f"all {tables:,} tables of a namespace listed, ours in pages of {PAGE:,}, ms"
    return [
        compare(what, ours, jdbc, least=1, beside="JdbcCatalog, SQLite", smaller=True),
        compare(what, ours, pyiceberg, least=15, beside="pyiceberg SqlCatalog, SQLite", smaller=True),
        Durability("JdbcCatalog on SQLite", "rollback journal, synchronous=FULL (the driver's defaults)"),
        PyIceberg.durability(),
    ]


def _fill(database: Path, tables: int) -> None:
    """Copy the row of the only table with other names, until there are `tables` rows."""
    connection = sqlite3.connect(database)
    with connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")]
        values = ["printf('table_%07d', n)" if name == "table_name" else name for name in columns]
        connection.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {tables - 1}) "
            f"INSERT INTO iceberg_tables ({', '.join(columns)}) "
            f"SELECT {', '.join(values)} FROM iceberg_tables, numbers WHERE {tables} > 1"
        )
    connection.close()


def _paged(session: Any, tables: int) -> None:
    found = 0
    token: str | None = ""
    while token is not None:
        query = {"pageSize": str(PAGE), "pageToken": token}
        _, _, answer = session.request("GET", "v1/namespaces/namespace_00000/tables", query=query)
        page = _decode(answer)
        found += len(page.identifiers)
        token = page.next_page_token
    if found != tables:
        raise RuntimeError(f"found {found} tables")


def _listed(theirs: PyIceberg, tables: int) -> None:
    found = len(theirs.catalog.list_tables(NAMESPACE))
    if found != tables:
        raise RuntimeError(f"pyiceberg found {found} tables")
