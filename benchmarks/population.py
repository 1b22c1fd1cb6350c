"""Filling a catalog with very many tables quickly, by the changes that create them, many in one commit.

Rows are those of tables created one by one: namespaces, table objects with schemas, specs and sort orders of their
own, entries of the indexes `names`, `ids` and `locations`, one log entry for each table, default locations that end in
the table's uuid; every name and location is checked as ever. What differs: a commit carries thousands of creations, so
there are fewer commits and shards that were written and replaced on the way, and tables of one namespace are created
one after the other (namespaces come in random order), so the leaves of `names` and `locations` are about as full as a
split leaves them. No metadata files are written.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from polaris_spark.catalog.contents import Stored
from polaris_spark.catalog.entities import CatalogChange, Context, TableName
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.namespaces import CreateNamespace
from polaris_spark.catalog.tables import CreateTable
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
"""No file is written there."""

BATCH = 4_000
"""Tables created by one commit."""

_SEED = 20250301


class CreateTables(CatalogChange[list[Stored[Table]]]):
    """Create many tables, and namespaces before them, in one commit."""

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

    def prepare(self, view: State) -> object:
        return self.context.clock.now_ms(), [table.prepare(view) for table in self._tables]

    def apply(self, state: State, prepared: object) -> list[Stored[Table]]:
        assert isinstance(prepared, tuple)
        now, each = prepared
        for namespace in self._namespaces:
            namespace.apply(state, now)
        return [table.apply(state, one) for table, one in zip(self._tables, each, strict=True)]

    def repeat(self, state: State, entries: list[LogEntry]) -> list[Stored[Table]]:
        raise AssertionError("these creations have no operation id")


def namespaces_for(tables: int) -> int:
    """How many namespaces a catalog of so many tables has here: a hundred tables in each."""
    return max(1, tables // 100)


def name_of(number: int, tables: int, namespaces: int) -> TableName:
    """The name of the table with this number, of `tables` spread evenly over `namespaces`."""
    return TableName((f"namespace_{number * namespaces // tables:05d}",), f"table_{number:07d}")


def names(tables: int, namespaces: int) -> Iterator[TableName]:
    """Every name, those of one namespace together, namespaces in random order."""
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
    """Create `tables` tables in `namespaces` new namespaces; the seconds that it took.

    Args:
        session: of an empty catalog, or one without namespaces of these names; with `metadata_files="never"`, and a
            `commit_timeout` that leaves a busy machine time for `BATCH` tables.
        told: is told the number of tables and the seconds so far, after each commit.
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
    """A batch makes hundreds of thousands of objects without cycles; looking through them doubles its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
