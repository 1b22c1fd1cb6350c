"""Spark queries on the system views of the catalog: the number of tables, and scans of all objects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.findings import Finding
from benchmarks.measurement import Sample, compare, limited
from benchmarks.population import WAREHOUSE, namespaces_for, populate
from benchmarks.postgresql import durability, new_database
from benchmarks.spark_queries import answered
from polaris_spark.rest.opening import connect
from tests.servers.postgresql import PostgreSQL

COUNT = "SELECT count(*) FROM polaris.system.tables"
SCANS = {
    "sizes": "SELECT count(*), sum(bytes) FROM polaris.system.objects",
    "types and sizes": "SELECT count(DISTINCT type), sum(bytes) FROM polaris.system.objects",
    "pointers and sizes": "SELECT sum(size(strong_ids)), sum(bytes) FROM polaris.system.objects",
}
"""Queries on all objects: by lengths, by types, and by headers. No query needs the contents after the headers."""
OBJECTS_PER_TABLE = 4
"""Approximate number of objects per table: the table, its schema, partition spec and sort order."""


def count_tables(folder: Path, *, tables: int, rounds: int) -> Sequence[Finding]:
    """Measure counting tables on two processors: the first query of a session, and later queries."""
    server = PostgreSQL()
    try:
        findings: list[Finding] = [durability(server)]
        for name, store in (
            ("SQLite", f"sqlite://{folder.absolute()}/tables.db"),
            ("PostgreSQL", new_database(server).uri),
        ):
            fill(store, tables)
            sessions = [answered("local[2]", store, COUNT, 4) for _ in range(rounds)]
            for row, _ in sessions:
                if row != [tables]:
                    raise RuntimeError(f"{COUNT} answers {row}, and {tables} were created")
            first = Sample(tuple(one.seconds[0] for one in sessions))
            later = Sample(tuple(second for one in sessions for second in one.seconds[1:]))
            what = f"count of {tables:,} tables on {name}, two processors"
            findings += [
                limited(f"{what}, first query of a session", first, 3, "s", digits=2),
                limited(f"{what}, later ones", later, 3, "s", digits=2),
            ]
        return findings
    finally:
        server.close()


def scan_objects(*, objects: int, rounds: int, queries: int) -> Sequence[Finding]:
    """Measure the first `queries` of `SCANS`, compared with psycopg, which reads the same rows with their values in a
    loop."""
    server = PostgreSQL()
    try:
        store = new_database(server).uri
        fill(store, objects // OBJECTS_PER_TABLE)
        plain = [_plain_loop(store) for _ in range(rounds + 1)][1:]
        rows, total = plain[0][:2]
        alone = Sample(tuple(rows / second for _, _, second in plain))
        findings: list[Finding] = [durability(server)]
        for columns, query in list(SCANS.items())[:queries]:
            one, two = (_rates(cores, store, query, rounds, rows, total) for cores in (1, 2))
            what = f"objects scanned per second, {columns} of {rows:,} rows"
            findings += [
                compare(f"{what}, one processor", one, alone, least=0.7, beside="psycopg"),
                compare(f"{what}, two processors", two, one, least=1.6, beside="one processor"),
            ]
        return findings
    finally:
        server.close()


def _rates(cores: int, store: str, query: str, rounds: int, rows: int, total: int) -> Sample:
    """Return the rows per second of a session's queries, without its first query."""
    row, seconds = answered(f"local[{cores}]", store, query, rounds + 1)
    if row[1] != total:
        raise RuntimeError(f"{query} answers {row}, and the rows have {total} bytes")
    return Sample(tuple(rows / second for second in seconds[1:]))


def fill(store: str, tables: int) -> None:
    """Create a catalog `polaris` with `tables` tables in a store."""
    session = connect(
        store=store, warehouse=WAREHOUSE, catalog="polaris", metadata_files="never", commit_timeout="1 h"
    )
    populate(session, tables=tables, namespaces=namespaces_for(tables))
    session.close()


def _plain_loop(store: str) -> tuple[int, int, float]:
    """Read all rows in a loop; return the number of rows, the bytes of their values, and the time in seconds."""
    import psycopg

    rows = size = 0
    realm = "(SELECT realm FROM polaris_spark.objects GROUP BY realm ORDER BY count(*) DESC LIMIT 1)"
    with psycopg.connect(store) as connection, connection.cursor("plain", binary=True) as cursor:
        cursor.itersize = 2_000
        begun = time.perf_counter()
        cursor.execute(f"SELECT id, part, value FROM polaris_spark.objects WHERE realm = {realm}")
        for _, _, value in cursor:
            rows += 1
            size += len(value)
        return rows, size, time.perf_counter() - begun
