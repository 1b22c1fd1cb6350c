"""A small model of what a store writes, keeps and cleans: pure functions of measured constants.

`python -m benchmarks capacity` compares it with measurements. `docs/operate/capacity.md` says how to use it and has the
table that `table()` gives. One core of the machine that the constants were measured on has the speed of one here; times
are microseconds, rates are per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Constants of the product: rows of property commits at 1,000 to 1,000,000 tables, on two cores.

CHANGE_BYTES = 1_460
"""The new table object, with a metadata log of a dozen versions, and its log entry."""
COMMIT_BYTES = 2_240
"""The commit object, with what it embeds of its indexes, and the reference's row: once for a batch."""
CHANGE_ROWS, COMMIT_ROWS = 1, 3
LEAF_BYTES, LEAF_ENTRIES = 4_050, 169
BRANCH_CHILDREN, CHILD_BYTES = 154, 29
PENDING, SPILLED = 38, 20
"""Changes of the index `names` that are embedded when it spills, and how many of them go into the tree."""
TABLE_ROWS, TABLE_BYTES = 4.05, 1_500
"""What a table without snapshots takes, with its share of three indexes."""
TABLE_MEMORY_BYTES, OBJECTS_OF_COMMIT = 5_500, 4.8
"""A table and its pieces in the cache; objects that a commit to a table reads that is not there."""
COMMIT_US, SHARD_US, READ_US = 490, 300, 40
"""Work of a commit of one change without the database's, of a shard that it writes, of an object that it reads."""
BATCHED_US = 250
"""Work of a further change in the same commit."""
SCAN_ROWS, MARK_ROWS = 450_000, 300_000
"""Rows that one core reads in a scan, and that it marks through their headers."""

ASSUMED_WRITE_BYTES = 50_000_000
"""Bytes a database takes per second: assumed, not measured."""


class Kind(NamedTuple):
    """A kind of database: swaps of one row per second, as `Measured facts` of the project has them."""

    name: str
    alone: float
    """One client."""
    apart: float
    """Eight clients, a row each."""
    contended: float
    """Eight clients on one row."""
    transactions: bool
    """Whether rows and swap are one round trip."""
    note: str = ""
    processes: int = 1_000_000
    """How many can write at once."""


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
"""Where contention on one row was not measured it is taken to leave three tenths, as it does on PostgreSQL."""


class Workload(NamedTuple):
    """Who commits what."""

    tables: int = 10_000_000
    realms: int = 10_000
    """Each with one catalog, and as many tables as the others."""
    processes: int = 100
    threads: int = 16
    """Changes that wait in one process for the same catalog."""
    commits_per_table: float = 10.0
    """In a day."""
    history_days: float = 3.0
    cache_bytes: int = 128 * 2**20

    @property
    def demand(self) -> float:
        """Commits per second that are asked for, on average."""
        return self.tables * self.commits_per_table / 86_400


class Shards(NamedTuple):
    """Shards of an index that a commit writes, on average."""

    rows: float
    bytes: float


def shards(tables: float) -> Shards:
    """What spills of the index `names` write per commit to a random table."""
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
    """How many of `bins`, among which `keys` fell at random, hold `wanted` of them, the fullest taken first."""
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
    """How many different bins `keys` fall into."""
    return 1.0 if bins <= 1 else bins * (1 - (1 - 1 / bins) ** keys)


class Cost(NamedTuple):
    """What one change costs."""

    rows: float
    bytes: float
    reads: float
    """Objects that are not in the cache."""
    cpu_us: float


def cost(tables: float, *, batch: float = 1, cache_bytes: float = Workload().cache_bytes) -> Cost:
    """A property change of a random table of a catalog, `batch` changes in one commit."""
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
    """How long one thread takes for a commit."""
    return cost(tables).cpu_us + _latency_us(kind)


def _latency_us(kind: Kind) -> float:
    return 1e6 / kind.alone * (1 if kind.transactions else 2)


class Prediction(NamedTuple):
    """A kind of database under a workload."""

    apart: float
    """Most commits per second where every process commits to realms of its own."""
    together: float
    """The same where all commit to one catalog that holds all tables."""
    rows: float
    """Rows written per second at the demand, realms apart."""
    bytes: float
    """The same in bytes."""
    bytes_per_day: float
    """What the store grows by, before anything is cleaned."""
    bytes_kept: float
    """Live tables and the history."""
    cleaning_core_hours: float
    """Scan of all rows and mark of all that history reaches, on one core; Spark divides it by its cores."""


def predict(kind: Kind, load: Workload) -> Prediction:
    """What the model says."""
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
    """Predictions as a table in Markdown; the demand is marked where it is more than can be had."""
    load = load or Workload()
    lines = [
        "| database | realms apart, commits/s | one catalog, commits/s | at the demand: rows/s | MB/s | "
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
