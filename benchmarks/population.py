"""Fast creation of very many tables in a catalog, with many creations in one commit.

The rows are the same as for tables that are created one by one: namespaces, table objects with their own schemas, specs
and sort orders, entries in the indexes `names`, `ids` and `locations`, one log entry for each table, and default
locations that end with the table's UUID. Every name and location is checked as usual.

There are two differences. A commit contains thousands of creations, so there are fewer commits, and fewer shards that
were written and later replaced. The tables of one namespace are created one after another (namespaces are in random
order), so the leaves of `names` and `locations` are about as full as a split leaves them.

No metadata files are written.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from polaris_spark.catalog.entities.entities import CatalogChange, Context, TableName
from polaris_spark.catalog.entities.namespace_changes import CreateNamespace
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.tables.contents import Prepared, StoredContent
from polaris_spark.catalog.tables.table_changes import CreateTable
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.rest.session import Session

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "carrier", "required": False, "type": "string"},
        {"id": 3, "name": "time_hour", "required": False, "type": "timestamptz"},
    ],
}

WAREHOUSE = "/warehouse"
"""Warehouse of the catalog. No file is written there."""

BATCH = 4_000
"""Number of tables that one commit creates."""

_SEED = 20250301


class CreateTables(CatalogChange[tuple[int, list[Prepared]], list[StoredContent[Table]]]):
    """Create namespaces, and then many tables, in one commit."""

    action = "create-table"

    def __init__(
        self,
        context: Context,
        operation: Operation,
        names: Sequence[TableName],
        namespaces: Sequence[tuple[str, ...]] = (),
    ) -> None:
        super().__init__(context, operation)
        self._namespaces = [CreateNamespace(context, operation, name, {}) for name in namespaces]
        self._tables = [
            CreateTable(context, operation, name, {"name": name.name, "schema": SCHEMA}) for name in names
        ]

    def prepare(self, view: State) -> tuple[int, list[Prepared]]:
        return self.context.clock.now_ms(), [table.prepare(view) for table in self._tables]

    def apply(self, state: State, prepared: tuple[int, list[Prepared]]) -> list[StoredContent[Table]]:
        now, each = prepared
        for namespace in self._namespaces:
            namespace.apply(state, now)
        return [table.apply(state, one) for table, one in zip(self._tables, each, strict=True)]

    def repeat(self, state: State, entries: list[LogEntry]) -> list[StoredContent[Table]]:
        raise AssertionError("these creations have no operation id")


def namespaces_for(tables: int) -> int:
    """Return the number of namespaces for a catalog with `tables` tables: a hundred tables in each namespace."""
    return max(1, tables // 100)


def name_of(number: int, tables: int, namespaces: int) -> TableName:
    """Return the name of table `number`, if `tables` tables are distributed evenly over `namespaces` namespaces."""
    return TableName((f"namespace_{number * namespaces // tables:05d}",), f"table_{number:07d}")


def names(tables: int, namespaces: int) -> Iterator[TableName]:
    """Yield every table name. Names of one namespace are together, and namespaces are in random order."""
    order = list(range(namespaces))
    random.Random(_SEED).shuffle(order)
    for namespace in order:
        first, end = (-(-part * tables // namespaces) for part in (namespace, namespace + 1))
        for number in range(first, end):
            yield name_of(number, tables, namespaces)


def populate(
    session: Session,
    *,
    tables: int,
    namespaces: int,
    told: Callable[[int, float], None] | None = None,
) -> float:
    """Create `tables` tables in `namespaces` new namespaces; return the time in seconds.

    Args:
        session: a session of a catalog that lacks these namespaces, with `metadata_files="never"`, and with a
            `commit_timeout` that is long enough to create `BATCH` tables on a busy machine.
        told: called after each commit with the number of tables and the seconds so far.
    """
    catalog, operation = session.catalog, Operation(b"", session.principal)
    waiting, made = names(tables, namespaces), set[tuple[str, ...]]()
    begun, done = time.perf_counter(), 0
    with _without_garbage_collection():
        while batch := list(islice(waiting, BATCH)):
            new = list(dict.fromkeys(name.namespace for name in batch if name.namespace not in made))
            made.update(new)
            catalog.commit(CreateTables(catalog.context, operation, batch, new))
            done += len(batch)
            if told is not None:
                told(done, time.perf_counter() - begun)
    return time.perf_counter() - begun


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while the block runs.

    A batch creates hundreds of thousands of objects without cycles. Scanning them would double the time of the batch.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
