"""A simulated Spark session, by which the product's own procedure `refresh` runs in the simulation.

It reads snapshots of tables and writes snapshots of storage tables over the protocol, as Iceberg does in Spark.
`simulated_spark` puts it in the place of the functions that need a JVM.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from polaris_spark.catalog.entities.materialized_views import HIDDEN
from polaris_spark.jobs.materialized_views import incremental, query_engine, write
from polaris_spark.jobs.materialized_views.incremental import Changed, HiddenColumn
from tests.rest.client import table
from tests.simulation.refreshes.lake import NOTHING, REFRESH, Json, Rows, marks, total
from tests.simulation.refreshes.requests import Requests
from tests.simulation.refreshes.rules import Attempt, Refresh

_READ = re.compile(r"`polaris`\.((?:`\w+`\.)+)`(\w+)` VERSION AS OF (\d+)")
_ALTER = re.compile(r"ALTER TABLE (\S+) (ADD|DROP) COLUMNS \(`(\w+)`.*\)")
_TRIES = 4
"""Number of times that Iceberg tries to commit."""
_LIMIT_HIT = 0.1
"""Probability that a change is larger than the limit of an incremental refresh."""


class SparkError(Exception):
    """An error that Spark reports."""


class SimulatedSpark:
    """A Spark session of one refresh."""

    def __init__(self, requests: Requests, refresh: Refresh, settings: Mapping[str, str]) -> None:
        """
        Args:
            settings: settings of the session.
        """
        self.requests = requests
        self.refresh = refresh
        self.conf = self
        self._jsparkSession = self
        self._jvm = None
        self._settings = settings

    def get(self, setting: str, default: str = "") -> str:
        """Return a setting of the session."""
        return self._settings.get(setting, default)

    def sessionState(self) -> SimulatedSpark:  # noqa: N802  # a method of Spark
        return self

    def catalogManager(self) -> SimulatedSpark:  # noqa: N802  # a method of Spark
        return self

    def isCatalogRegistered(self, name: str) -> bool:  # noqa: N802  # a method of Spark
        return name == "polaris"

    def sql(self, text: str) -> SimulatedRows:
        """Return the result of a query, which is computed when it is written; or add or drop a column."""
        change = _ALTER.fullmatch(text)
        if change is not None:
            self._alter(_path(change[1]), change[2], change[3])
        return SimulatedRows(self, text)

    def work(self) -> None:
        """Let some time pass. The process may die meanwhile."""
        process, rng, rates = self.requests.process, self.requests.rng, self.requests.world.plan.rates
        process.clock.sleep_ms(rng.random() * 200.0)
        if not self.requests.world.calm:
            if rng.random() < rates.stall:
                process.clock.sleep_ms(rng.uniform(*rates.stall_ms))
            if rng.random() < 2 * rates.death:
                process.backend.die()

    def rows(self, sql: str) -> Rows:
        """Return the result of a pinned query."""
        self.work()
        parts: list[Rows] = [Counter(-mark for mark in marks(sql))]
        for where, id in reads(sql):
            parts.append(self.at(self.loaded(where), id))
            self.work()
        return total(iter(parts))

    def at(self, metadata: Json, id: int) -> Rows:
        """Return the rows of a snapshot."""
        if id == -1:
            return NOTHING
        found = [one for one in metadata["snapshots"] if one["snapshot-id"] == id]
        if not found:
            raise SparkError(f"Cannot find snapshot with ID {id}")
        if found[0]["manifest-list"] not in self.requests.observer.files:
            raise SparkError(f"File does not exist: {found[0]['manifest-list']}")
        return self.requests.observer.rows_of[id]

    def loaded(self, where: str) -> Json:
        """Return the metadata of a table."""
        metadata = self.requests.load(where)
        if metadata is None:
            raise SparkError(f"there is no table {where}")
        return metadata

    def commit(self, where: str, before: Json, rows: Rows, summary: Mapping[str, str], *, tries: int) -> None:
        """Write the rows of a storage table, as Iceberg commits them.

        Args:
            before: metadata of the table when Spark planned the write.
            tries: number of times that the commit is tried on the newest version of the table.
        """
        attempt = Attempt(msgspec.json.decode(summary[REFRESH])["refresh-id"])
        self.refresh.attempts.append(attempt)
        self.requests.observer.invoked[attempt.id] = self.refresh.invoked
        uuid = before["table-uuid"]
        for _ in range(tries):
            self.work()
            outcome = self.requests.write(where, before, rows, "overwrite", summary)
            attempt.outcome = outcome
            if outcome == "done":
                return
            if outcome == "unknown":
                raise SparkError("the state of the commit is unknown")
            before = self.loaded(where)
            if before["table-uuid"] != uuid:
                raise SparkError("Table UUID does not match")
        raise SparkError("the commit failed")

    def _alter(self, where: str, action: str, column: str) -> None:
        self.work()
        metadata = self.loaded(where)
        change = self.requests.add_column if action == "ADD" else self.requests.drop_column
        if change(where, metadata, column) != "done":
            raise SparkError("the columns were not changed")


def reads(sql: str) -> list[tuple[str, int]]:
    """Return the path and the snapshot of each table that a pinned query reads."""
    return [
        (table(name, tuple(namespace.replace("`", "").rstrip(".").split("."))), int(id))
        for namespace, name, id in _READ.findall(sql)
    ]


def _path(name: str) -> str:
    *namespace, last = name.replace("`", "").split(".")[1:]
    return table(last, tuple(namespace))


class SimulatedRows:
    """A DataFrame: the result of a query."""

    def __init__(self, spark: SimulatedSpark, sql: str) -> None:
        self.spark = spark
        self.text = sql
        self.columns = ["a"]
        self.dtypes = [("a", "bigint")]
        self._jdf = self
        self.summary: dict[str, str] = {}

    def queryExecution(self) -> SimulatedRows:  # noqa: N802  # a method of Spark
        return self

    def analyzed(self) -> None:
        """There is no plan, and so no lineage."""

    def toDF(self, *names: str) -> SimulatedRows:  # noqa: N802  # a method of Spark
        return self

    def select(self, *names: str) -> SimulatedRows:
        return self

    def writeTo(self, table: str) -> SimulatedRows:  # noqa: N802  # a method of Spark
        self.where = _path(table)
        return self

    def option(self, name: str, value: str) -> SimulatedRows:
        self.summary[name.removeprefix("snapshot-property.")] = value
        return self

    def overwrite(self, condition: object) -> None:
        """Compute the rows, and replace those of a table. Iceberg's commit does not check that the table is
        unchanged."""
        before = self.spark.loaded(self.where)
        rows = self.spark.rows(self.text)
        self.spark.commit(self.where, before, rows, self.summary, tries=_TRIES)


class SimulatedIncrementalQuery:
    """Computes the change of the rows of a view, as the class `IncrementalQuery` does by the JVM."""

    def __init__(self, spark: SimulatedSpark, sql: str, columns: Sequence[str]) -> None:
        self.spark = spark
        self.sql = sql
        self.hindrance = ""
        self.analyzed = None

    def __enter__(self) -> SimulatedIncrementalQuery:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def hidden(self) -> list[HiddenColumn]:
        """Queries with an even mark need a hidden column."""
        even = marks(self.sql)[0] % 2 == 0
        return [HiddenColumn(f"{HIDDEN}0", "bigint", "count(1)")] if even else []

    def rows(self) -> SimulatedRows:
        return SimulatedRows(self.spark, self.sql)

    def estimate(self, since: Mapping[Any, int], stored: str, limit: float) -> str:
        self.since, self.stored = since, stored
        return "it is too large" if self.spark.requests.rng.random() < _LIMIT_HIT else ""

    def changed(self) -> Changed:
        return Changed(0, 0, 0)

    def compute(self, limit: float) -> str:
        """Compute what has changed in the tables since the last refresh."""
        spark = self.spark
        self.change: Counter[int] = Counter()
        for where, id in reads(self.sql):
            metadata = spark.loaded(where)
            since = self.since.get((metadata["table-uuid"], id))
            if since is not None:
                self.change.update(spark.at(metadata, id))
                self.change.subtract(spark.at(metadata, since))
            spark.work()
        for where, id in reads(self.stored):
            spark.at(spark.loaded(where), id)
        return ""

    def write(self, table: str, summary: Mapping[str, str]) -> None:
        """Add the change to the rows that the table has now, as MERGE does."""
        where = _path(table)
        before = self.spark.loaded(where)
        current = before.get("current-snapshot-id", -1)
        rows = Counter(self.spark.at(before, current))
        rows.update(self.change)
        if any(count < 0 for count in rows.values()):
            raise SparkError("a row to delete is not there")
        found = {row: count for row, count in rows.items() if count}
        self.spark.commit(where, before, found, summary, tries=1)


@contextlib.contextmanager
def simulated_spark(seed: int) -> Iterator[None]:
    """Let refreshes use `SimulatedSpark`, and make random ids depend on the seed only."""
    rng = Random(f"{seed} ids")
    with contextlib.ExitStack() as stack:
        for place in (
            patch.object(incremental, "IncrementalQuery", SimulatedIncrementalQuery),
            patch.object(write, "_record_lineage", lambda *_: None),
            patch.object(write, "_check_query", lambda *_: None),
            patch.object(query_engine, "session_settings", lambda spark: dict(spark._settings)),
            patch("pyspark.sql.functions.expr", lambda text: text),
            patch.object(secrets, "randbits", rng.getrandbits),
            patch.object(logging.getLogger("polaris_spark"), "disabled", True),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)),
        ):
            stack.enter_context(place)
        yield
