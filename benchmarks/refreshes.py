"""Materialized views: incremental refreshes beside full ones, freshness, and queries.

The view joins sales with customers and products, and sums them up by region, category and day. `python -m
benchmarks.refreshes FOLDER ROWS INSERTS WARM-UPS ROUNDS READS CHANGE...` measures in one Spark session, and prints
seconds as JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import Figure, Sample, compare, growth, limited, median_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPENDED = 5.0
"""Least ratio of the times of a full and an incremental refresh after 1 % of the rows were appended."""
MERGED = 3.0
"""The same after 0.1 % of the rows were changed."""
GREATER = 1.5
"""Greatest ratio of the times of incremental refreshes after equal changes of a table with ten times as many rows."""
FRESH_US = 5_000
"""Most time to decide whether a view over ten tables is fresh, in microseconds."""
READ = 1.1
"""Greatest ratio of the times of a query of a fresh view, and of its storage table."""
_DAYS = 400
_INSERTS = 10
"""Number of statements that insert the rows of the smaller table."""
_QUERY = (
    "SELECT c.region, p.category, s.day, sum(s.amount) AS amount, sum(s.quantity) AS quantity, count(*) AS sales, "
    "avg(s.quantity) AS average FROM sale s JOIN customer c ON s.customer = c.id JOIN product p ON s.product = p.id "
    "GROUP BY c.region, p.category, s.day"
)


def measure(
    folder: Path, *, sizes: Sequence[int], warm_ups: int, rounds: int, calls: int, reads: int
) -> list[Figure]:
    """Measure refreshes of a view over a table with the smallest and with the largest of these numbers of rows. The
    data files of both have about the same size, so the larger table has more of them. One per cent of the smaller table
    is appended to both, and one per cent of the larger to itself.

    Args:
        warm_ups: number of turns that come first and are not counted. The JVM compiles much of the code in the first
            turn.
        reads: number of queries of the view, and of its storage table, in a turn.
    """
    small, large = min(sizes), max(sizes)
    changes = {small: [small // 100], large: [small // 100, large // 100]}
    taken = {
        size: _run(folder / str(size), size, _INSERTS * size // small, warm_ups, rounds, reads, changes[size])
        for size in (small, large)
    }
    fresh = _freshness(f"sqlite://{(folder / str(small) / 'catalog.db').absolute()}", calls)
    for size in (small, large):
        shutil.rmtree(folder / str(size))
    figures: list[Figure] = []
    for what, part, bar in (
        ("append", "1 % appended", APPENDED),
        ("merge", "0.1 % changed by MERGE", MERGED),
    ):
        at = f"{what} {large // 100}"
        full, incremental, query = (taken[large][f"{at} {how}"] for how in ("full", "incremental", "query"))
        about = f"{large:,} rows, {part}"
        figures.append(_faster(f"refresh, {about}, s", incremental, full, "full refresh", bar))
        figures.append(
            _faster(f"the same beside the query itself, {about}, s", incremental, query, "query", None)
        )
        at = f"{what} {small // 100} incremental"
        figures.append(
            growth(
                f"incremental refresh of {large:,} rows, {large // small} times the files "
                f"({what}, {small // 100:,} rows), s",
                taken[large][at],
                taken[small][at],
                f"of {small:,} rows",
                GREATER,
                digits=2,
            )
        )
    usual, thin = (taken[large][f"merge {large // 100} {how}"] for how in ("incremental", "merge-on-read"))
    figures.append(
        compare(
            f"refresh of a storage table with merge-on-read, {large:,} rows, 0.1 % changed by MERGE, s",
            thin,
            usual,
            beside="copy-on-write",
            smaller=True,
            digits=2,
        )
    )
    view, storage = (taken[large][f"read {what}"] for what in ("view", "storage"))
    figures.append(
        growth("query of the fresh view, s", view, storage, "of its storage table", READ, digits=3)
    )
    figures.append(limited("deciding that a view over 10 tables is fresh, us", fresh, FRESH_US, "us"))
    return figures


def _faster(what: str, ours: Sample, other: Sample, beside: str, least: float | None) -> Figure:
    return compare(what, ours, other, least=least, beside=beside, smaller=True, digits=2)


def _run(
    folder: Path, rows: int, inserts: int, warm_ups: int, rounds: int, reads: int, changes: Sequence[int]
) -> dict[str, Sample]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    numbers = [str(one) for one in (rows, inserts, warm_ups, rounds, reads, *changes)]
    command = [sys.executable, "-m", __name__, str(folder), *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"refreshes of {rows} rows failed: {done.stderr[-2_000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: Sample(tuple(seconds)) for name, seconds in found.items()}


def _freshness(store: str, calls: int) -> Sample:
    """Measure deciding that the view `ten` is fresh, from the head, in microseconds."""
    import polaris_spark
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.view_freshness import freshness

    with polaris_spark.connect(store=store, warehouse="/warehouse", catalog="polaris") as session:
        catalog, name = session.catalog, TableName(("bench",), "ten")

        def decide() -> None:
            if not freshness(catalog.view(), name).fresh:
                raise RuntimeError("the view is not fresh")

        catalog.loading(decide, session.principal)
        return Sample(tuple(median_us(calls, decide) for _ in range(3)))


# The program that runs in the separate process.


def measured(
    folder: Path, rows: int, inserts: int, warm_ups: int, rounds: int, reads: int, *changes: int
) -> dict[str, list[float]]:
    """Build the tables and the views, and measure refreshes and queries, in seconds.

    Args:
        inserts: number of statements that insert the rows.
    """
    spark = _session(folder)
    _build(spark, rows, inserts)
    for view in ("total", "thin"):
        spark.sql(f"REFRESH MATERIALIZED VIEW {view}").collect()
    taken: dict[str, list[float]] = {}

    def timed(name: str, run: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = run()
        taken.setdefault(name, []).append(time.perf_counter() - begun)
        return result

    def refresh(name: str, more: str = "", view: str = "total") -> None:
        [row] = timed(name, lambda: spark.sql(f"REFRESH MATERIALIZED VIEW {view}{more}").collect())
        expected = "full" if more else "incremental"
        if row.strategy != expected:
            raise RuntimeError(f"the refresh was {row.strategy}, not {expected}: {row.reason}")

    def query() -> None:
        spark.sql(_QUERY).write.format("noop").mode("overwrite").save()

    end = rows
    for turn in range(warm_ups + rounds):
        for change in changes:
            statements = {
                "append": _insert(end, change, rows),
                "merge": _merge(end, max(1, change // 10)),
            }
            end += change
            for what, statement in statements.items():
                spark.sql(statement)
                refresh(f"{what} {change} incremental")
                refresh(f"{what} {change} merge-on-read", view="thin")
                timed(f"{what} {change} query", query)
                refresh(f"{what} {change} full", " FULL")
        read = [("view", "total"), ("storage", "total.storage")]
        for _ in range(reads):
            for what, table in read:
                text = f"SELECT sum(amount), count(DISTINCT day) FROM polaris.bench.{table}"
                timed(f"read {what}", partial(_collect, spark, text))
            read.reverse()
        if turn < warm_ups:
            taken.clear()
    spark.stop()
    return taken


def _collect(spark: SparkSession, query: str) -> None:
    spark.sql(query).collect()


def _session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from polaris_spark.spark.session import configure

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "4")
    )
    store = f"sqlite://{(folder / 'catalog.db').absolute()}"
    return configure(builder, store=store, warehouse=str(folder / "warehouse")).getOrCreate()


def _build(spark: SparkSession, rows: int, inserts: int) -> None:
    modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
    each = max(1, rows // inserts)
    statements = (
        "CREATE NAMESPACE polaris.bench",
        "USE polaris.bench",
        "CREATE TABLE customer (id BIGINT, region STRING)",
        "CREATE TABLE product (id BIGINT, category STRING)",
        "INSERT INTO customer SELECT id, concat('region', id % 10) FROM range(20000)",
        "INSERT INTO product SELECT id, concat('category', id % 20) FROM range(1000)",
        "CREATE TABLE sale (id BIGINT, customer BIGINT, product BIGINT, day DATE, amount DECIMAL(12,2), quantity INT) "
        f"TBLPROPERTIES ({modes}, 'write.distribution-mode' = 'none')",
        *(_insert(start, min(each, rows - start), rows) for start in range(0, rows, each)),
        "CREATE MATERIALIZED VIEW total TBLPROPERTIES ('refresh-strategy' = 'incremental') AS " + _QUERY,
        f"CREATE MATERIALIZED VIEW thin TBLPROPERTIES ('refresh-strategy' = 'incremental', {modes}) AS {_QUERY}",
    )
    for statement in statements:
        spark.sql(statement)
    for number in range(10):
        spark.sql(f"CREATE TABLE t{number} AS SELECT id FROM range(10)")
    ten = " JOIN ".join(f"t{number} USING (id)" if number else "t0" for number in range(10))
    spark.sql(f"CREATE MATERIALIZED VIEW ten AS SELECT * FROM {ten}")
    spark.sql("REFRESH MATERIALIZED VIEW ten")


def _insert(start: int, count: int, rows: int) -> str:
    """Return the statement that inserts sales. Later sales are of later days, at the same number of sales a day."""
    return (
        "INSERT INTO sale SELECT id, pmod(xxhash64(id), 20000), pmod(xxhash64(id, 1), 1000), "
        f"date_add(DATE '2024-01-01', CAST(id * {_DAYS} DIV {rows} AS INT)), "
        "CAST(pmod(xxhash64(id, 2), 100000) / 100 AS DECIMAL(12,2)), CAST(pmod(xxhash64(id, 3), 10) AS INT) "
        f"FROM range({start}, {start + count})"
    )


def _merge(end: int, count: int) -> str:
    """Return the statement that changes every tenth of the newest sales."""
    return (
        f"MERGE INTO sale t USING (SELECT id FROM range({end - 10 * count}, {end}) WHERE id % 10 = 0) s ON t.id = s.id "
        f"AND t.id >= {end - 10 * count} WHEN MATCHED THEN UPDATE SET amount = amount + 1, quantity = quantity + 1"
    )


if __name__ == "__main__":
    found = measured(Path(sys.argv[1]), *(int(text) for text in sys.argv[2:]))
    sys.stdout.write(json.dumps(found) + "\n")
