"""Base class of system views. A view has typed columns, plans small picklable tasks, and yields a task's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from polaris_spark.access import securables
from polaris_spark.access.needs import UNDECLARED, Needs, On
from polaris_spark.access.scopes import Scope
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
    """A request to plan a read of a system view."""

    options: ViewOptions
    store: ReadStore
    conditions: dict[str, Condition] = field(default_factory=dict)
    """Conditions on the requested rows, by column. A read may also yield rows that do not satisfy the conditions."""

    def condition(self, column: str) -> Condition:
        """Return the condition on a column; `ANYTHING` if there is none."""
        return self.conditions.get(column, ANYTHING)

    def refuse_as_of(self, why: str) -> None:
        """Raise an error if the option `as-of` or `to` is set. `why` is the end of the message.

        Raises:
            InputError: the option is set.
        """
        if self.options.as_of is not None:
            raise InputError(
                f"the view {self.options.view!r} does not support the option {self.options.as_of.option}: {why}"
            )

    def refuse_range(self) -> None:
        """Raise an error if the option `from` or `to` is set.

        Raises:
            InputError: one of the options is set.
        """
        for point in (self.options.since, self.options.as_of):
            if point is not None and point.option != "as-of":
                raise InputError(
                    f"the view {self.options.view!r} does not support the option {point.option}: it shows a state, not "
                    "a history; use this option with the views changes and commits"
                )


class Weighted(NamedTuple, Generic[T]):
    """A task and its approximate cost (`weight`): for most views, the number of rows that the task yields."""

    task: T
    weight: int


class SystemView(ABC, Generic[T, R]):
    """A system view. Its partitions are sequences of tasks of type `T`; its rows have the type `R`."""

    comment: ClassVar[str]
    """Description of the rows, for users. It is the view's comment in Spark, and is part of the documentation."""
    columns: tuple[ViewColumn[R], ...]
    rows_per_partition: ClassVar[int] = 500
    """Approximate minimum number of rows in a partition, because starting a Spark task takes time. It is lower for
    views whose rows take longer to read.

    The weights of the tasks (`Weighted`) count as their numbers of rows.
    """
    shown: ClassVar[Needs] = UNDECLARED
    """In a realm with access control, the privileges that show a row, and on what. The principal needs one of them; for
    rows of several kinds, the one for the kind of the row. `CATALOG_READ_LOG` on the catalog or on the realm shows all
    rows, too."""
    has_range: ClassVar[bool] = False
    """Whether the view supports the options `from` and `to`, which select a range of the history."""

    @abstractmethod
    def plan(self, request: ScanRequest) -> list[Weighted[T]]:
        """Read the current heads, and return tasks that together yield every row once.

        A task must be small: it is never divided further, but a partition can contain several tasks.
        """

    @abstractmethod
    def rows(self, store: ReadStore, task: T, needs: frozenset[str]) -> Iterator[R]:
        """Yield the rows of a task. Called on an executor. `needs` contains `ViewColumn.needs` of the requested
        columns."""

    def sees(self, store: ReadStore, scope: Scope, row: R) -> bool:
        """Return whether the principal of a read with a scope may see a row. Called on an executor.

        By default, the principal needs each privilege in `shown` on the realm.
        """
        return all(scope.may(need.privilege, (securables.REALM,)) for need in self.shown)

    def weigh(self, row: R) -> int:
        """Return the approximate size of a row, in bytes. The sum of these sizes limits the rows in an Arrow batch."""
        return 512

    def partitions(self, request: ScanRequest) -> list[tuple[T, ...]]:
        """Plan a read, and return its partitions, each with one or more tasks. Small tasks share a partition.

        Raises:
            InputError: an option is set that the view does not support.
        """
        if not self.has_range:
            request.refuse_range()
        planned = self._planned(request)
        weights = [one.weight for one in planned]
        n = partition_count(request.options.splits, sum(weights), self.rows_per_partition)
        return [tuple([planned[i].task for i in run]) for run in grouped(weights, n)]

    def _planned(self, request: ScanRequest) -> list[Weighted[T]]:
        """Return the tasks of a read. If the view shows the whole realm and the principal may not see it, there are no
        tasks."""
        scope = request.store.scope
        if scope is None or any(need.on is not On.REALM for need in self.shown):
            return self.plan(request)
        is_seen = all(scope.may(need.privilege, (securables.REALM,)) for need in self.shown)
        return self.plan(request) if is_seen else []

    def read(
        self, store: ReadStore, tasks: Sequence[T], columns: Sequence[ViewColumn[R]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns of a partition's rows as Arrow batches. Called on an executor."""
        needs = frozenset(column.needs for column in columns if column.needs)
        rows = (row for task in tasks for row in self.rows(store, task, needs))
        return batches(columns, self.visible(store, rows), self.weigh)

    def visible(self, store: ReadStore, rows: Iterator[R]) -> Iterator[R]:
        """Return the rows that the reading principal may see."""
        scope = store.scope
        return rows if scope is None else (row for row in rows if self.sees(store, scope, row))


def partition_count(splits: int, rows: int, rows_per_partition: int) -> int:
    """Return the number of partitions for about `rows` rows: at most `splits`, but fewer if a partition would have less
    than `rows_per_partition` rows."""
    return max(1, min(splits, -(-rows // rows_per_partition)))


AnyView = SystemView[Any, Any]
