"""Random filters in three forms: as Spark pushes them, in SQL's three-valued logic, and as Spark columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column, functions
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tests.views.catalogs import Row


class Condition(NamedTuple):
    """One filter in three forms. `passes` returns None where SQL's result is NULL."""

    pushed: Filter
    passes: Callable[[Row], bool | None]
    column: Callable[[], Column]


class Filters:
    """Makes conditions on the columns of some rows. Most conditions are true for at least one row."""

    def __init__(self, rows: list[Row], chooser: random.Random) -> None:
        self.rows = rows
        self.random = chooser
        simple = (str, int, datetime, type(None))
        self.columns = [
            name
            for name in rows[0]
            if all(isinstance(row[name], simple) for row in rows)
            and any(row[name] is not None for row in rows)
        ]

    def some(self) -> list[Condition]:
        """Return several conditions, to be combined by AND."""
        return [self.one() for _ in range(self.random.choice([1, 1, 2, 3]))]

    def one(self) -> Condition:
        """Return a condition on a random column."""
        name = self.random.choice(self.columns)
        value = self.value(name)
        kinds = [self._equal, self._null_safe, self._in, self._is_null, self._negated]
        if isinstance(value, str):
            kinds += [self._text] * 3
        if not isinstance(value, bool):
            kinds += [self._compared] * 2
        return self.random.choice(kinds)(name, value)

    def value(self, name: str) -> Any:
        """Return a non-null value of a column, or a value near one, or a very different value."""
        value = self.random.choice([row[name] for row in self.rows if row[name] is not None])
        if isinstance(value, bool) or self.random.random() < 0.8:
            return value
        if isinstance(value, str):
            return self.random.choice(["", ".", "nothing", value + "x", value[:-1], value.upper()])
        if isinstance(value, datetime):
            return value + timedelta(days=self.random.choice([-10_000, 0, 10_000]), microseconds=1)
        return self.random.choice([-1, 0, value - 1, value + 1, 2**31 - 1])

    def _equal(self, name: str, value: Any) -> Condition:
        return Condition(
            EqualTo((name,), value),
            _known(name, lambda x: x == value),
            lambda: functions.col(name) == functions.lit(value),
        )

    def _null_safe(self, name: str, value: Any) -> Condition:
        return Condition(
            EqualNullSafe((name,), value),
            lambda row: row[name] == value,
            lambda: functions.col(name).eqNullSafe(functions.lit(value)),
        )

    def _in(self, name: str, value: Any) -> Condition:
        values = [value, *[self.value(name) for _ in range(self.random.choice([0, 1, 3]))]]
        values += [None] * self.random.choice([0, 0, 1])
        otherwise = None if None in values else False  # an unknown value might have been it

        def passes(row: Row) -> bool | None:
            return None if row[name] is None else row[name] in values or otherwise

        return Condition(In((name,), tuple(values)), passes, lambda: functions.col(name).isin(values))

    def _is_null(self, name: str, value: Any) -> Condition:
        if self.random.random() < 0.5:
            return Condition(
                IsNull((name,)), lambda row: row[name] is None, lambda: functions.col(name).isNull()
            )
        return Condition(
            IsNotNull((name,)), lambda row: row[name] is not None, lambda: functions.col(name).isNotNull()
        )

    def _negated(self, name: str, value: Any) -> Condition:
        inner = self.one()

        def passes(row: Row) -> bool | None:
            said = inner.passes(row)
            return None if said is None else not said

        return Condition(Not(inner.pushed), passes, lambda: ~inner.column())

    def _text(self, name: str, value: str) -> Condition:
        cut = self.random.randint(0, len(value))
        kind, text, method = self.random.choice(
            [
                (StringStartsWith, value[:cut], "startswith"),
                (StringStartsWith, value[:cut], "startswith"),
                (StringEndsWith, value[cut:], "endswith"),
                (StringContains, value[cut:], "contains"),
            ]
        )
        tests: dict[str, Callable[[str], bool]] = {
            "startswith": lambda x: x.startswith(text),
            "endswith": lambda x: x.endswith(text),
            "contains": lambda x: text in x,
        }
        return Condition(
            kind((name,), text),
            _known(name, tests[method]),
            lambda: getattr(functions.col(name), method)(text),
        )

    def _compared(self, name: str, value: Any) -> Condition:
        kind, test, column = self.random.choice(_COMPARISONS)
        return Condition(
            kind((name,), value),
            _known(name, lambda x: test(x, value)),
            lambda: column(functions.col(name), functions.lit(value)),
        )


_COMPARISONS: list[tuple[type[Filter], Callable[[Any, Any], bool], Callable[[Any, Any], Column]]] = [
    (GreaterThan, lambda x, y: x > y, lambda x, y: x > y),
    (GreaterThanOrEqual, lambda x, y: x >= y, lambda x, y: x >= y),
    (LessThan, lambda x, y: x < y, lambda x, y: x < y),
    (LessThanOrEqual, lambda x, y: x <= y, lambda x, y: x <= y),
]


def _known(name: str, test: Callable[[Any], bool]) -> Callable[[Row], bool | None]:
    return lambda row: None if row[name] is None else test(row[name])


def passing(rows: list[Row], conditions: list[Condition]) -> list[Row]:
    """Return the rows for which every condition is true."""
    return [row for row in rows if all(one.passes(row) for one in conditions)]
