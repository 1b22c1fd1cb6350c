"""The feed as a streaming source of Spark: `spark.readStream.format("polaris-objects").option("view", "changes")`.

When Spark 4.1 requests the end offset of a batch from a Python source, it does not pass the start offset or a limit.
The reader therefore stores its position in memory. When a query is restarted, Spark requests the partitions of an empty
range at the last position, and the reader sets its position from this request. The end offset of the first batch also
contains the start of this batch. If the first batch is planned again after a crash, it begins at the stored start, even
if the option `start` (such as `latest`) now means another position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from polaris_spark.commits.log import oldest_first
from polaris_spark.errors import HistoryTrimmedError, InputError, MissingObjectError, StateError
from polaris_spark.index.ranges import grouped
from polaris_spark.spark.feed import (
    COMMITS_PER_PARTITION,
    FeedTask,
    Followed,
    Position,
    advanced,
    follow,
    starting,
    tasks,
    verify,
)
from polaris_spark.spark.logins import Granted, Login
from polaris_spark.spark.missing_rows import with_new_heads
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.realm_reader import ReadStore, RealmReader, open_for_reading
from polaris_spark.spark.task_store import PlannedStore
from polaris_spark.spark.views.changes import ChangeRow, Changes
from polaris_spark.spark.views.columns import batches, chosen
from polaris_spark.spark.views.history import HistoryTask, Logged, commits_of
from polaris_spark.spark.views.reader import ViewPartition
from polaris_spark.spark.views.view import partition_count
from polaris_spark.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa


class Offset(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The offset that Spark stores in a checkpoint: a position in the log of a reference."""

    realm: str
    """Instance id of the realm that contains the reference."""
    reference: str
    commit: int
    number: int
    entries: int | None = None
    start: Offset | None = None
    """Start of the stream's first batch; None except in the end offset of this batch."""

    @property
    def position(self) -> Position:
        return Position(self.commit, self.number, self.entries)


class FeedReader(DataSourceStreamReader):
    """Reads the log of one reference in order. Spark runs the reader on the driver's machine, in a Python process that
    lives as long as the query."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        """
        Raises:
            InputError: the view cannot be streamed, an option is not available for streams, or the schema names a
                column that the view does not have.
        """
        if options.view != "changes":
            raise InputError(f"the view {options.view!r} cannot be streamed; only 'changes' can")
        if options.as_of is not None or options.since is not None:
            raise InputError(
                "a stream does not support as-of, from and to: set 'start' to choose where the stream begins"
            )
        self._options = options.without_credential()
        self._login = Login(options.realm, options.credential)
        self._granted: Granted | None = None
        self._columns = [column.name for column in chosen(Changes.columns, schema, options.view)]
        self._start: Offset | None = None
        self._latest: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._start is None:
            self._start = with_new_heads(lambda: self._starting(self._follow()))
        return _plain(self._start)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _plain(with_new_heads(self._advanced))

    def _advanced(self) -> Offset:
        followed = self._follow()
        objects = self._realm().store
        if self._latest is not None:
            at = self._checked(followed, self._latest)
            verify(objects, followed, at)
        else:
            self._start = self._start or self._starting(followed)
            at = self._checked(followed, self._start)
        end = advanced(objects, followed, at, self._options.stream.max_changes)
        if self._latest is None or end != at:
            # Spark reads up to every returned offset that differs from the last one, so the next batch starts there.
            start = self._start if self._latest is None else None
            self._latest = msgspec.structs.replace(_offset(followed, end), start=start)
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = _parsed(start), _parsed(end)
        self._start, self._latest = last.start or self._start, last
        self._granted = None  # each batch is read with the grants of its time
        found = with_new_heads(lambda: self._tasks(first, last))
        store = PlannedStore(self._options.location.resolved(), self._store().scope)
        weights = [task.commits for task in found]
        n = partition_count(self._options.splits, sum(weights), COMMITS_PER_PARTITION)
        return [ViewPartition(store, tuple([found[i] for i in run])) for run in grouped(weights, n)]

    def _tasks(self, first: Offset, last: Offset) -> list[FeedTask]:
        followed = self._follow()
        between = self._checked(followed, first), self._checked(followed, last)
        return tasks(self._realm().store, followed, *between)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ViewPartition)
        view, by_name = Changes(), {column.name: column for column in Changes.columns}
        store = partition.store.open()
        rows = chain.from_iterable(self._rows(store, task, view) for task in partition.tasks)
        yield from batches([by_name[name] for name in self._columns], rows, view.weigh)

    def _rows(self, store: ReadStore, task: FeedTask, view: Changes) -> Iterator[ChangeRow]:
        history = task.history
        objects = store.objects(history.realm)
        try:
            for logged in _runs(objects, history):
                # The view yields the newest commits first.
                for row in reversed(list(view.of(objects, logged, frozenset()))):
                    is_wanted = task.wants(row.logged.commit.number, row.position)
                    if is_wanted and (store.scope is None or view.sees(store, store.scope, row)):
                        yield row
        except MissingObjectError as error:
            now = follow(store.realm(self._options.realm), self._options)
            if history.low >= (now.archived.oldest if history.parts else now.head.floor_number):
                raise
            what, name = ("log", "log-retention") if history.parts else ("history", "history-retention")
            raise HistoryTrimmedError(
                f"the {what} of {history.reference!r} was trimmed to commit number {now.head.floor_number} while the "
                f"stream was reading from commit number {history.low} on, because reading took longer than the {what} "
                f"is kept ({error}); repeat the query, and keep the {what} for longer ({name})"
            ) from error

    def _realm(self) -> RealmReader:
        return self._store().realm(self._options.realm)

    def _store(self) -> ReadStore:
        store = open_for_reading(self._options.location.resolved())
        if self._granted is None:
            self._granted = self._login.granted(store, Changes.shown)
        return store.within(self._granted.scope)

    def _follow(self) -> Followed:
        return follow(self._realm(), self._options)

    def _starting(self, followed: Followed) -> Offset:
        at = starting(self._realm().store, followed, self._options.stream.start)
        return _offset(followed, at)

    def _checked(self, followed: Followed, offset: Offset) -> Position:
        """Return the position of an offset.

        Raises:
            StateError: the offset belongs to another reference than the stream.
        """
        if (offset.realm, offset.reference) == (followed.realm, followed.row_name):
            return offset.position
        found = f"{offset.reference!r} of realm instance {offset.realm!r}"
        raise StateError(
            f"the checkpoint belongs to reference {found}, but this stream follows {followed.row_name!r} of realm "
            f"instance {followed.realm!r}: either the reference was dropped and created again, or the options name "
            "another reference; begin a new stream, with another checkpoint"
        )


def _runs(store: ObjectStore, history: HistoryTask) -> Iterator[list[Logged]]:
    """Yield the commits of a task in lists, the oldest list first. In each list, the newest commit comes first."""
    if history.parts:
        yield from commits_of(store, history)
        return
    for run in oldest_first(store, history.head, history.low, history.high):
        yield [Logged(history, id, commit) for id, commit in reversed(run)]


def _offset(followed: Followed, at: Position) -> Offset:
    return Offset(followed.realm, followed.row_name, *at)


def _plain(offset: Offset) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(offset)
    return plain


def _parsed(plain: dict[str, Any]) -> Offset:
    try:
        return msgspec.convert(plain, Offset)
    except msgspec.ValidationError as error:
        raise StateError(
            f"the checkpoint contains an offset that this stream did not write ({error}); use another checkpoint"
        ) from error
