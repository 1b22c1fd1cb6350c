"""Base of system views of the store's own records, such as leases. Each record is the value of one mutable row of an
internal realm, the system realm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import ReferenceRow, Split
from polaris_spark.clock import SystemClock
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted
from polaris_spark.system.stores import SYSTEM_REALM, system_references

S = TypeVar("S", bound=msgspec.Struct)


class RecordTask(NamedTuple):
    """A range of the system realm's mutable rows that one task reads, and the time of planning in milliseconds since
    1970."""

    split: Split
    now_ms: int


class RecordRow(NamedTuple, Generic[S]):
    """A record of the store. `name` is the name of its row without the view's prefix; `now_ms` is the time of planning,
    in milliseconds since 1970."""

    name: str
    record: S
    now_ms: int


class RecordView(SystemView[RecordTask, RecordRow[S]], Generic[S]):
    """A system view of the whole store, with one row for each record of one kind.

    The options `realm`, `catalog` and `branch` have no effect.
    """

    prefix: ClassVar[str]
    """Prefix of the names of the database rows that contain the records."""
    record: ClassVar[type[Any]]
    rows_per_partition = 1_000

    def plan(self, request: ScanRequest) -> list[Weighted[RecordTask]]:
        request.refuse_as_of("it shows records of the store, which keep no history")
        splits = request.store.backend.splits("references", [SYSTEM_REALM], 1)
        now = SystemClock().now_ms()
        return [Weighted(RecordTask(split, now), 1) for split in splits]

    def rows(self, store: ReadStore, task: RecordTask, needs: frozenset[str]) -> Iterator[RecordRow[S]]:
        references = system_references(store.backend)
        for batch in store.backend.scan(task.split):
            columns = (batch.column(name).to_pylist() for name in ("name", "version", "value"))
            for name, version, value in zip(*columns, strict=True):
                if name.startswith(self.prefix):
                    found = references.decode(name, ReferenceRow(version, value), self.record)
                    row: RecordRow[S] = RecordRow(name[len(self.prefix) :], found.value, task.now_ms)
                    if self.shows(row):
                        yield row

    def shows(self, row: RecordRow[S]) -> bool:
        """Return whether the view shows a record. By default, the view shows all records."""
        return True
