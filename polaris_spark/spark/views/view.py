"""What a view is: typed columns, a plan of small picklable tasks, and rows of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from polaris_spark.errors import InputError
from polaris_spark.spark.options import ViewOptions
from polaris_spark.spark.pruning import ANYTHING, Condition
from polaris_spark.spark.reading import ReadStore, grouped
from polaris_spark.spark.views.columns import Column, batches

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What is to be planned."""

    options: ViewOptions
    store: ReadStore
    conditions: dict[str, Condition] = field(default_factory=dict)
    """By column, what the rows asked for have in common; rows besides may be given, too."""

    def condition(self, column: str) -> Condition:
        """What is known of a column."""
        return self.conditions.get(column, ANYTHING)

    def refuse_as_of(self, why: str) -> None:
        """Refuse the option `as-of`.

        Raises:
            InputError: it is given.
        """
        if self.options.as_of is not None:
            raise InputError(f"the view {self.options.view!r} has no {self.options.as_of.option}: {why}")

    def refuse_range(self) -> None:
        """Refuse the options `from` and `to`.

        Raises:
            InputError: one is given.
        """
        for point in (self.options.since, self.options.as_of):
            if point is not None and point.option != "as-of":
                raise InputError(
                    f"the view {self.options.view!r} has no {point.option}: it shows a state, not what happened; "
                    "the views changes and commits have it"
                )


class Weighted(NamedTuple, Generic[T]):
    """A task, and about how many rows it yields."""

    task: T
    weight: int


class View(ABC, Generic[T, R]):
    """A view whose partitions are runs of tasks `T` and whose rows are made of `R`."""

    name: ClassVar[str]
    comment: ClassVar[str]
    columns: tuple[Column[R], ...]
    rows_per_partition: ClassVar[int] = 500
    """A partition of fewer rows is not worth starting a task for."""
    has_range: ClassVar[bool] = False
    """Whether it shows what lies between two points, which the options `from` and `to` choose."""

    @abstractmethod
    def plan(self, request: Request) -> list[Weighted[T]]:
        """Tasks that together yield every row once, from heads read now; at most a few for each partition wanted."""

    @abstractmethod
    def rows(self, store: ReadStore, task: T, needs: frozenset[str]) -> Iterator[R]:
        """The rows of a task, on an executor. `needs` are those of the columns that are wanted."""

    def weigh(self, row: R) -> int:
        """About how many bytes a row takes."""
        return 512

    def partitions(self, request: Request) -> list[tuple[T, ...]]:
        """The plan as about as many partitions as are worth while.

        Raises:
            InputError: an option that the view does not have.
        """
        if not self.has_range:
            request.refuse_range()
        planned = self.plan(request)
        weights = [one.weight for one in planned]
        n = partition_count(request.options.splits, sum(weights), self.rows_per_partition)
        return [tuple([planned[i].task for i in run]) for run in grouped(weights, n)]

    def read(
        self, store: ReadStore, tasks: Sequence[T], columns: Sequence[Column[R]]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow batches."""
        needs = frozenset(column.needs for column in columns if column.needs)
        rows = (row for task in tasks for row in self.rows(store, task, needs))
        return batches(columns, rows, self.weigh)


def partition_count(splits: int, rows: int, rows_per_partition: int) -> int:
    """How many partitions to make for about `rows` rows: at most `splits`, fewer where there is little to read."""
    return max(1, min(splits, -(-rows // rows_per_partition)))


AnyView = View[Any, Any]
