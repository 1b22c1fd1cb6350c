"""Base class of views: typed columns, a plan of small picklable tasks, and the rows of each task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from polaris_spark.errors import InputError
from polaris_spark.index.ranges import grouped
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.pruning import ANYTHING, Condition
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import ViewColumn, batches

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class ScanRequest:
    """A request to plan a read of a view."""

    options: ViewOptions
    store: ReadStore
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Conditions that all requested rows satisfy, by column. The plan may also return other rows."""

    def condition(self, column: str) -> Condition:
        """Return the condition on a column."""
        return self.conditions.get(column, ANYTHING)

    def refuse_as_of(self, why: str) -> None:
        """Refuse the option `as-of`.

        Raises:
            InputError: the option is set.
        """
        if self.options.as_of is not None:
            raise InputError(f"the view {self.options.view!r} has no {self.options.as_of.option}: {why}")

    def refuse_range(self) -> None:
        """Refuse the options `from` and `to`.

        Raises:
            InputError: one of the options is set.
        """
        for point in (self.options.since, self.options.as_of):
            if point is not None and point.option != "as-of":
                raise InputError(
                    f"the view {self.options.view!r} has no {point.option}: it shows a state, not a history; use "
                    "it with the views changes and commits"
                )


class Weighted(NamedTuple, Generic[T]):
    """A task, and the approximate number of rows that it yields."""

    task: T
    weight: int


class SystemView(ABC, Generic[T, R]):
    """A view whose partitions are sequences of tasks `T`, and whose rows are `R` values."""

    comment: ClassVar[str]
    """What the rows are, for users: the view's comment in Spark and its description in the documentation."""
    columns: tuple[ViewColumn[R], ...]
    rows_per_partition: ClassVar[int] = 500
    """Number of rows below which a partition is not worth starting a Spark task; lower for rows that cost more to read.

    It is compared with the sum of the weights that `plan` returns.
    """
    has_range: ClassVar[bool] = False
    """Whether the view supports the options `from` and `to`, which limit it to a range of history."""

    @abstractmethod
    def plan(self, request: ScanRequest) -> list[Weighted[T]]:
        """Return tasks that together yield every row once, from heads that are read now.

        The number of tasks is at most a few for each wanted partition.
        """

    @abstractmethod
    def rows(self, store: ReadStore, task: T, needs: frozenset[str]) -> Iterator[R]:
        """Yield the rows of a task, on an executor. `needs` contains `ViewColumn.needs` of the requested columns."""

    def weigh(self, row: R) -> int:
        """Return the approximate size of a row, in bytes. Arrow batches are bounded by the sum of these sizes."""
        return 512

    def partitions(self, request: ScanRequest) -> list[tuple[T, ...]]:
        """Return the plan, grouped into an efficient number of partitions.

        Raises:
            InputError: an option is set that the view does not support.
        """
        if not self.has_range:
            request.refuse_range()
        planned = self.plan(request)
        weights = [one.weight for one in planned]
        n = partition_count(request.options.splits, sum(weights), self.rows_per_partition)
        return [tuple([planned[i].task for i in run]) for run in grouped(weights, n)]

    def read(
        self, store: ReadStore, tasks: Sequence[T], columns: Sequence[ViewColumn[R]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition as Arrow batches."""
        needs = frozenset(column.needs for column in columns if column.needs)
        rows = (row for task in tasks for row in self.rows(store, task, needs))
        return batches(columns, rows, self.weigh)


def partition_count(splits: int, rows: int, rows_per_partition: int) -> int:
    """Return the number of partitions for about `rows` rows: at most `splits`, and fewer if there are few rows."""
    return max(1, min(splits, -(-rows // rows_per_partition)))


AnyView = SystemView[Any, Any]
