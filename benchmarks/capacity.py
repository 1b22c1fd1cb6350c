"""A small model of the amounts that a store writes, keeps and cleans: pure functions of measured constants.

`python -m benchmarks capacity` compares the model with measurements. `docs/operate/capacity.md` explains its use, and
contains the output of `table()`. A core in the model is as fast as a core of the machine on which the constants were
measured. Times are microseconds, rates are per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Constants of the product: rows of property commits at 1,000 to 1,000,000 tables, on two cores.

CHANGE_BYTES = 1_460
"""Bytes of the new table object, with a metadata log of a dozen versions, and of its log entry."""
COMMIT_BYTES = 2_240
"""Bytes of the commit object, with the embedded parts of its indexes, and of the reference's row; once per batch."""
CHANGE_ROWS, COMMIT_ROWS = 1, 3
LEAF_BYTES, LEAF_ENTRIES = 4_050, 169
BRANCH_CHILDREN, CHILD_BYTES = 154, 29
PENDING, SPILLED = 38, 20
"""Number of embedded changes of the index `names` when it spills, and number of these that move into the tree."""
TABLE_ROWS, TABLE_BYTES = 4.05, 1_500
"""Rows and bytes of a table without snapshots, with its share of three indexes."""
TABLE_MEMORY_BYTES, OBJECTS_OF_COMMIT = 5_500, 4.8
"""Bytes of a table and its pieces in the cache, and objects read by a commit to a table that is not in the cache."""
COMMIT_US, SHARD_US, READ_US = 490, 300, 40
"""Processor time, in microseconds, of a commit of one change, of each shard written, and of each object read.

The time of a commit does not include the work of the database.
"""
BATCHED_US = 250
"""Processor time of each further change in the same commit, in microseconds."""
SCAN_ROWS, MARK_ROWS = 450_000, 300_000
"""Rows per second that one core reads in a scan, and rows per second that it marks by their headers."""

ASSUMED_WRITE_BYTES = 50_000_000
"""Bytes per second that a database can write: assumed, not measured."""


class Kind(NamedTuple):
    """A kind of database, with its swaps per second, measured by `python -m benchmarks databases`."""

    name: str
    alone: float
    """Swaps per second of one client."""
    apart: float
    """Swaps per second of eight clients that each swap a different row."""
    contended: float
    """Swaps per second of eight clients that swap the same row."""
    transactions: bool
    """Whether writing rows and swapping take one round trip."""
    note: str = ""
    processes: int = 1_000_000
    """Maximum number of processes that can write at the same time."""


_CITED = "cited; contention assumed"

KINDS = (
    Kind("SQLite, FULL", 6_200, 5_400, 6_600, transactions=True, note="measured"),
    Kind("PostgreSQL, default durability", 2_500, 8_300, 754, transactions=True, note="measured"),
    Kind("S3 (versitygw)", 550, 550, 165, transactions=False, note="measured; contention assumed"),
    Kind("MariaDB", 20_000, 19_000, 6_000, transactions=True, note=_CITED),
    Kind("RocksDB, synced", 5_600, 5_600, 5_600, transactions=True, note=_CITED, processes=1),
    Kind("Cassandra", 310, 1_075, 93, transactions=False, note=_CITED),
    Kind("Bigtable (emulator)", 1_230, 1_920, 369, transactions=False, note=_CITED),
    Kind("DynamoDB (Local)", 345, 575, 104, transactions=False, note=_CITED),
    Kind("MongoDB (java server)", 990, 1_190, 297, transactions=False, note=_CITED),
)
"""Known kinds of databases.

If contention on one row was not measured, it is assumed to reduce the rate to three tenths, as on PostgreSQL.
"""


class Workload(NamedTuple):
    """Numbers of tables, realms, processes and commits."""

    tables: int = 10_000_000
    realms: int = 10_000
    """Number of realms. Each realm has one catalog, and all have the same number of tables."""
    processes: int = 100
    threads: int = 16
    """Number of changes that wait in one process for the same catalog."""
    commits_per_table: float = 10.0
    """Commits to each table per day."""
    history_days: float = 3.0
    cache_bytes: int = 128 * 2**20

    @property
    def demand(self) -> float:
        """Average demand, in commits per second."""
        return self.tables * self.commits_per_table / 86_400


class Shards(NamedTuple):
    """Average rows and bytes of index shards that a commit writes."""

    rows: float
    bytes: float


def shards(tables: float) -> Shards:
    """Return the average rows and bytes that spills of the index `names` write per commit to a random table."""
    below = max(1.0, tables / LEAF_ENTRIES)
    levels = [below]
    while levels[-1] > 1:
        levels.append(max(1.0, levels[-1] / BRANCH_CHILDREN) if levels[-1] > BRANCH_CHILDREN else 1.0)
    branches = levels[1:]
    lowest = branches[0] if branches else 1.0
    chosen = crowded(PENDING, lowest, SPILLED)
    leaves = crowded(PENDING, below, SPILLED) if lowest <= 1 else _distinct(SPILLED, below * chosen / lowest)
    count, size = leaves, leaves * LEAF_BYTES
    for level, width in enumerate(branches):
        written = chosen if level == 0 else _distinct(chosen, width)
        count += written
        size += written * CHILD_BYTES * levels[level] / width
    return Shards(count / SPILLED, size / SPILLED)


def crowded(keys: float, bins: float, wanted: float) -> float:
    """Return how many bins contain `wanted` keys if `keys` keys are distributed to `bins` bins at random.

    The fullest bins are counted first.
    """
    if bins <= 1:
        return 1.0
    mean, taken, left = keys / bins, 0.0, wanted
    for k in range(math.ceil(keys), 0, -1):
        holding = bins * math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
        if holding * k >= left:
            return max(1.0, taken + left / k)
        taken, left = taken + holding, left - holding * k
    return max(1.0, taken)


def _distinct(keys: float, bins: float) -> float:
    """Return the expected number of different bins that `keys` random keys occupy."""
    return 1.0 if bins <= 1 else bins * (1 - (1 - 1 / bins) ** keys)


class Cost(NamedTuple):
    """The cost of one change: rows and bytes written, objects read, and processor time in microseconds."""

    rows: float
    bytes: float
    reads: float
    """Number of objects that are read because they are not in the cache."""
    cpu_us: float


def cost(tables: float, *, batch: float = 1, cache_bytes: float = Workload().cache_bytes) -> Cost:
    """Return the cost of a property change to a random table of a catalog, with `batch` changes in each commit."""
    spilled = shards(tables)
    reads = OBJECTS_OF_COMMIT * (1 - min(1.0, cache_bytes / (tables * TABLE_MEMORY_BYTES)))
    work = (COMMIT_US + (batch - 1) * BATCHED_US) / batch
    return Cost(
        CHANGE_ROWS + COMMIT_ROWS / batch + spilled.rows,
        CHANGE_BYTES + COMMIT_BYTES / batch + spilled.bytes,
        reads,
        work + spilled.rows * SHARD_US + reads * READ_US,
    )


def commit_us(tables: float, kind: Kind) -> float:
    """Return the time that one thread needs for a commit, in microseconds."""
    return cost(tables).cpu_us + _latency_us(kind)


def _latency_us(kind: Kind) -> float:
    return 1e6 / kind.alone * (1 if kind.transactions else 2)


class Prediction(NamedTuple):
    """The predictions for a kind of database under a workload."""

    apart: float
    """Maximum commits per second if every process commits to different realms."""
    together: float
    """Maximum commits per second if all processes commit to one catalog that contains all tables."""
    rows: float
    """Rows written per second at the demand, if every process commits to different realms."""
    bytes: float
    """Bytes written per second at the demand, if every process commits to different realms."""
    bytes_per_day: float
    """Growth of the store per day, in bytes, before cleaning."""
    bytes_kept: float
    """Bytes of live tables and the history."""
    cleaning_core_hours: float
    """Core hours to scan all rows and to mark all rows that history needs. Spark divides the work among its cores."""


def predict(kind: Kind, load: Workload) -> Prediction:
    """Return the model's predictions for a kind of database and a workload."""
    each = load.tables / load.realms
    cache_of_realm = load.cache_bytes * load.processes / load.realms
    apart, together = cost(each, cache_bytes=cache_of_realm), cost(load.tables, batch=load.threads)
    writers, latency = min(load.processes, kind.processes), _latency_us(kind)
    one = min(load.threads * 1e6 / (apart.cpu_us + latency), 1e6 / apart.cpu_us)
    all_apart = min(writers * one, kind.apart, ASSUMED_WRITE_BYTES / apart.bytes)
    grouped = load.threads * 1e6 / (load.threads * together.cpu_us + latency)
    swaps = kind.contended if writers > 1 else kind.alone
    all_together = min(writers * grouped, swaps * load.threads, ASSUMED_WRITE_BYTES / together.bytes)
    per_day = load.demand * 86_400 * apart.bytes
    rows = load.tables * TABLE_ROWS + load.demand * 86_400 * load.history_days * apart.rows
    return Prediction(
        all_apart,
        all_together,
        load.demand * apart.rows,
        load.demand * apart.bytes,
        per_day,
        load.tables * TABLE_BYTES + load.history_days * per_day,
        (rows / SCAN_ROWS + rows / MARK_ROWS) / 3_600,
    )


def table(load: Workload | None = None, kinds: Sequence[Kind] = KINDS) -> str:
    """Return the predictions as a Markdown table. A rate below the demand is marked."""
    load = load or Workload()
    lines = [
        "| database | realms apart, commits/s | one catalog, commits/s | at this demand: rows/s | MB/s | "
        "growth/day, GB | kept, GB | cleaning, core hours | constants |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in kinds:
        found = predict(kind, load)
        short = "" if found.apart >= load.demand else " (less than the demand)"
        lines.append(
            f"| {kind.name} | {found.apart:,.0f}{short} | {found.together:,.0f} | {found.rows:,.0f} "
            f"| {found.bytes / 1e6:,.1f} | {found.bytes_per_day / 1e9:,.0f} | {found.bytes_kept / 1e9:,.0f} "
            f"| {found.cleaning_core_hours:,.1f} | {kind.note} |"
        )
    return "\n".join(lines)
