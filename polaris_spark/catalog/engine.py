"""Engines. An engine does the work of a job on many items and rows: in this process, or with the same code on Spark
executors.

A job calls a function for each item (`map`), turns parts of a store into rows (`scan`), turns rows into other rows
(`apply`), and combines rows by SQL (`query`, `without`, `closure`). The SQL must mean the same in Spark and in SQLite.
It may use joins, `UNION ALL`, `DISTINCT`, `GROUP BY`, `CASE` and window functions, but no arrays, structs or casts.
"""

from __future__ import annotations

import sqlite3
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import count
from typing import Any, Generic, TypeVar

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commits.retry import retried
from polaris_spark.commits.state import StoredObjects
from polaris_spark.config import Properties
from polaris_spark.store.objects import ObjectStore

I = TypeVar("I")  # noqa: E741  # an item
R = TypeVar("R")
P = TypeVar("P")

Row = tuple[Any, ...]
"""The values of a row, in the order of its columns."""

Progress = Callable[[str, int, int], None]
"""Function that is called with the name of a step, the amount done, and the total (0 if unknown). An exception that it
raises ends the work."""


class Reach:
    """Access to the store and to files, for the functions of a job, in this process or on an executor. Thread-safe."""

    def __init__(self, own: ObjectStore, files: Files, clock: Clock | None = None) -> None:
        """
        Args:
            own: object store of the realm for which the job runs.
            clock: clock for retries; by default the system's.
        """
        self.own = own
        self.files = files
        self.clock = clock or SystemClock()

    @property
    def backend(self) -> Backend:
        """Access to the rows of all realms."""
        return self.own.backend

    def reader(self, realm: str) -> StoredObjects:
        """Return a reader of the objects of a realm, given its instance id. The reader raises an error for objects
        that a newer release wrote (`ObjectStore.for_deleting`)."""
        return StoredObjects(self.own.of_realm(realm).for_deleting())

    def writable(self) -> ObjectStore:
        """Return an object store that can write objects of the job's realm.

        Raises:
            StateError: the realm was dropped and created anew since the job began.
        """
        return self.own


class MapFunction(ABC, Generic[I, R]):
    """A function that computes a result from one item, for `Engine.map`. The function is pickled for executors."""

    item: type[I] | None = None
    """Type of the items, which are encoded as MessagePack for executors. If it is None, they are pickled."""
    result: type[R]
    """Type of the results, which are encoded as MessagePack."""
    few: int = 16
    """Maximum number of items that are processed without a Spark job, because this process is faster for so few
    items."""
    threads: int = 8
    """Number of items that one process works on at a time. Threads help if most of the time is spent on file I/O."""
    tasks_per_core: int = 1
    """Number of Spark tasks for each core. More than one balances the load if items differ much in size."""
    waves: int = 1
    """Number of Spark jobs that the items are divided into. Progress is reported between them."""

    @abstractmethod
    def __call__(self, reach: Reach, item: I) -> R:
        """Return the result for one item. Several threads may call this at a time."""


ScanFunction = Callable[[Reach, P], Iterable[Row]]
"""A function that produces rows from one part of a store.

It can be pickled: it is a module-level function, or a `partial` of a module-level function.
"""

RowFunction = Callable[[Reach, Iterator[Row]], Iterable[Row]]
"""A function that produces rows from rows. It can be pickled, like a `ScanFunction`."""


class Rows(ABC):
    """Rows with named columns, on executors or in a temporary database of this process."""

    @abstractmethod
    def kept(self) -> Rows:
        """Return these rows in a cached form: they are computed at the first read, and kept until `release` is called.

        If an executor is lost, its part of the rows is computed again.
        """

    @abstractmethod
    def fixed(self, *by: str) -> Rows:
        """Compute these rows now, and return them in a form that is never computed again.

        Args:
            by: columns by which the result will be joined.
        """

    @abstractmethod
    def collect(self) -> list[Row]:
        """Return all rows as a list in this process. Their order is defined only for a query with ORDER BY."""

    @abstractmethod
    def release(self) -> None:
        """Free the space of rows that `kept` returned."""


class Engine(ABC):
    """Does the work of a job on many items and rows. Reports progress, and ends the work if `progress` raises an error.

    Schemas of rows have the form of Spark's DDL, such as `id bigint, type string`, with the types `bigint`, `int`,
    `string`, `boolean` and `binary`.
    """

    def __init__(self, reach: Reach, progress: Progress = lambda _step, _done, _total: None) -> None:
        """
        Args:
            reach: the store and files, as this process accesses them.
            progress: called with the progress. Raises an error if the job was cancelled or has lost its lease.
        """
        self.reach = reach
        self.progress = progress

    @property
    def parts(self) -> int:
        """Number of items that is enough to keep all executors busy; 1 if this process does the work."""
        return 1

    def map(self, function: MapFunction[I, R], items: Sequence[I], doing: str = "") -> Iterator[R]:
        """Yield the result of each item, in the order of the items.

        Args:
            doing: the step that is reported as progress; empty if the caller reports progress.
        """
        if doing and items:
            self.progress(doing, 0, len(items))
        for done, result in enumerate(self._results(function, items), start=1):
            if doing:
                self.progress(doing, done, len(items))
            yield result

    @abstractmethod
    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        """Yield the result of each item, in the order of the items."""

    @abstractmethod
    def rows(self, values: Iterable[Row], schema: str) -> Rows:
        """Return rows with the given values and schema."""

    @abstractmethod
    def scan(self, function: ScanFunction[P], parts: Sequence[P], schema: str, doing: str = "") -> Rows:
        """Return the rows that a function produces from the parts of a store, such as splits.

        Args:
            parts: the parts, which must be picklable; an executor works on one part at a time.
            doing: the step that is reported as progress; empty if the caller reports progress.
        """

    @abstractmethod
    def apply(
        self,
        function: RowFunction,
        rows: Rows,
        schema: str,
        *,
        by: Sequence[str] = (),
        tasks_per_core: int = 0,
        doing: str = "",
    ) -> Rows:
        """Return the rows that a function produces from other rows. The function is called once for each partition of
        `rows`.

        Args:
            by: columns by which the rows of each call are sorted. Rows with equal values in these columns are in the
                same call.
            tasks_per_core: see `MapFunction`; 0 to keep the partitions of `rows`.
            doing: the step that is reported as progress; empty if the caller reports progress.
        """

    @abstractmethod
    def query(self, sql: str, **rows: Rows) -> Rows:
        """Return the result of an SQL query. The query refers to its inputs by their names in braces, for example
        `query("SELECT id FROM {found}", found=rows)`."""

    @abstractmethod
    def without(self, rows: Rows, others: Rows, on: Sequence[str], where: str = "true") -> Rows:
        """Return the rows of `rows` that no row of `others` matches (an anti-join).

        Args:
            on: columns that are equal in matching rows.
            where: SQL condition that matching rows must also meet. In it, `mine` is the row of `rows`, and `other` is
                the row of `others`.
        """

    @abstractmethod
    def closure(self, start: Rows, further: Callable[[Rows], Rows], doing: str) -> Rows:
        """Return all ids that can be reached from `start`, including `start`, each id once. The result is computed now.

        Args:
            start: the ids to start from. Rows of ids have one column, `id bigint`.
            further: returns the ids that can be reached from the given ids in one step. The result may repeat ids.
            doing: the step that is reported as progress.
        """

    @abstractmethod
    def opener(self, properties: Properties, backend: Backend) -> Callable[[], Backend]:
        """Return a function that returns the backend of another store. The function can be sent to every process in
        which this engine works, and called there.

        Args:
            properties: properties that contain the URI and options of the store.
            backend: the backend that this process has opened for the store.
        """


class LocalEngine(Engine):
    """An engine that works in this process, on several items at a time. It keeps rows in a temporary SQLite database.

    SQLite writes rows that exceed its cache to a file, so the memory that they take is bounded.
    """

    @cached_property
    def _database(self) -> _Database:
        return _Database()

    def _results(self, function: MapFunction[I, R], items: Sequence[I]) -> Iterator[R]:
        return run_here(function, self.reach, items)

    def rows(self, values: Iterable[Row], schema: str) -> Rows:
        columns = (f"{name} {_AFFINITIES[type]}" for name, type in _columns(schema))
        table = self._database.create(f"({', '.join(columns)})")
        self._database.insert(table, schema, values)
        return _LocalRows(self._database, table)

    def scan(self, function: ScanFunction[P], parts: Sequence[P], schema: str, doing: str = "") -> Rows:
        table = self.rows((), schema)
        for done, part in enumerate(parts):
            if doing:
                self.progress(doing, done, len(parts))
            retried(self.reach.clock, partial(self._read, function, part, table, schema))
        return table

    def _read(self, function: ScanFunction[P], part: P, table: Rows, schema: str) -> None:
        """Add to a table the rows that `function` returns for one part. If this fails, no rows are added."""
        name, database = _source(table), self._database
        [(last,)] = database.execute(f"SELECT coalesce(max(rowid), 0) FROM {name}")
        try:
            database.insert(name, schema, function(self.reach, part))
        except BaseException:
            database.execute(f"DELETE FROM {name} WHERE rowid > {last}")
            raise

    def apply(
        self,
        function: RowFunction,
        rows: Rows,
        schema: str,
        *,
        by: Sequence[str] = (),
        tasks_per_core: int = 0,
        doing: str = "",
    ) -> Rows:
        order = f" ORDER BY {', '.join(by)}" if by else ""
        found = self._database.execute(f"SELECT * FROM {_source(rows)}{order}")
        try:
            return self.rows(function(self.reach, self._watched(found, doing)), schema)
        finally:
            found.close()  # SQLite drops no table that an unfinished query reads

    def _watched(self, rows: Iterable[Row], doing: str) -> Iterator[Row]:
        for done, row in enumerate(rows):
            if doing and done % _ROWS_BETWEEN_REPORTS == 0:
                self.progress(doing, done, 0)
            yield row

    def query(self, sql: str, **rows: Rows) -> Rows:
        text = sql.format(**{name: _source(one) for name, one in rows.items()})
        return _LocalRows(self._database, f"({text})")

    def without(self, rows: Rows, others: Rows, on: Sequence[str], where: str = "true") -> Rows:
        equal = " AND ".join(f"mine.{column} = other.{column}" for column in on)
        return self.query(
            "SELECT mine.* FROM {rows} mine "
            f"WHERE NOT EXISTS (SELECT 1 FROM {{others}} other WHERE {equal} AND ({where}))",
            rows=rows,
            others=others.fixed(*on),
        )

    def closure(self, start: Rows, further: Callable[[Rows], Rows], doing: str) -> Rows:
        reached, level, before = self._database.create("(id INTEGER PRIMARY KEY)"), start, 0
        while True:
            fresh = f"SELECT DISTINCT id FROM {{level}} WHERE id NOT IN {reached}"
            level = self.query(fresh, level=level).fixed()
            self._database.execute(f"INSERT INTO {reached} SELECT id FROM {_source(level)}")
            [(n,)] = self._database.execute(f"SELECT count(*) FROM {reached}")
            if n == before:
                return _LocalRows(self._database, reached)
            before = n
            self.progress(doing, n, 0)
            level = further(level)

    def opener(self, properties: Properties, backend: Backend) -> Callable[[], Backend]:
        return lambda: backend


_CACHE_KIB = 65_536
_ROWS_BETWEEN_REPORTS = 500


class _Database:
    """Temporary SQLite database that holds the rows of one engine."""

    def __init__(self) -> None:
        # An empty name stands for a temporary file that SQLite creates when needed, and deletes at the end.
        database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        weakref.finalize(self, database.close)
        self.execute = database.execute
        self._insert = database.executemany
        self._numbers = count()
        self.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self.execute("PRAGMA journal_mode = OFF")
        self.execute("BEGIN")

    def create(self, what: str) -> str:
        """Create a table, and return its name.

        Args:
            what: the columns in parentheses, or `AS` and a query.
        """
        name = f"rows_{next(self._numbers)}"
        self.execute(f"CREATE TABLE {name} {what}")
        return name

    def insert(self, table: str, schema: str, rows: Iterable[Row]) -> None:
        """Add rows to a table."""
        places = ", ".join("?" * len(_columns(schema)))
        self._insert(f"INSERT INTO {table} VALUES ({places})", rows)


_AFFINITIES = {
    "bigint": "INTEGER",
    "int": "INTEGER",
    "boolean": "INTEGER",
    "string": "TEXT",
    "binary": "BLOB",
}
"""Maps a type of a schema to the type of the column in SQLite. SQLite would use no index to compare a column without a
type with an `INTEGER` column."""


def _columns(schema: str) -> list[tuple[str, str]]:
    """Return the columns of a schema as (name, type)."""
    columns = (column.split(" ") for column in schema.split(", "))
    return [(name, type) for name, type in columns]


class _LocalRows(Rows):
    """Rows of a `LocalEngine`. `source` is the name of a table in its database, or a query in parentheses."""

    def __init__(self, database: _Database, source: str) -> None:
        self._database = database
        self.source = source

    def kept(self) -> _LocalRows:
        if not self.source.startswith("("):
            return self
        return _LocalRows(self._database, self._database.create(f"AS SELECT * FROM {self.source}"))

    def fixed(self, *by: str) -> _LocalRows:
        found = self.kept()
        if by:
            index = f"{found.source}_by_{'_'.join(by)}"
            self._database.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {found.source} ({', '.join(by)})")
        return found

    def collect(self) -> list[Row]:
        return self._database.execute(f"SELECT * FROM {self.source}").fetchall()

    def release(self) -> None:
        self._database.execute(f"DROP TABLE {self.source}")


def _source(rows: Rows) -> str:
    assert isinstance(rows, _LocalRows)
    return rows.source


def run_here(function: MapFunction[I, R], reach: Reach, items: Sequence[I]) -> Iterator[R]:
    """Yield the result of each item, in the order of the items, computed by up to `function.threads` threads."""
    threads = min(function.threads, len(items))
    if threads < 2:
        yield from (function(reach, item) for item in items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda item: function(reach, item), items)
