"""Conditions on columns, derived from the filters that Spark pushes down. Reads use them to skip index shards, key
ranges and rows.

A condition may allow more rows than its filter, but never fewer, because Spark evaluates every filter again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

if TYPE_CHECKING:
    import pyarrow as pa


class Condition(NamedTuple):
    """A condition on the values of a column: allowed values, prefix and bounds (included). None means no limit."""

    values: frozenset[Any] | None = None
    prefix: str | None = None
    low: Any = None
    high: Any = None

    def allows(self, value: Any) -> bool:
        """Return whether a row with this value may meet the condition; True if the value is None (unknown)."""
        if value is None:
            return True
        return bool(
            (self.values is None or value in self.values)
            and (self.prefix is None or value.startswith(self.prefix))
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )

    def overlaps(self, low: Any, high: Any) -> bool:
        """Return whether a value between two bounds (included) may meet the condition."""
        return bool(
            (self.values is None or any(low <= value <= high for value in self.values))
            and (self.low is None or high >= self.low)
            and (self.high is None or low <= self.high)
        )


ANYTHING = Condition()

Conditions = Mapping[str, Condition]
"""Conditions by column name. A column that is missing here can have any value. Times are microseconds since 1970."""


def allowed(condition: Condition, values: pa.Array) -> pa.BooleanArray:
    """Return the result of `Condition.allows` for each value. The result for a null (unknown) is true."""
    import pyarrow as pa
    import pyarrow.compute as pc

    said = []
    if condition.values is not None:
        said.append(pc.is_in(values, pa.array([*condition.values], values.type)))
    if condition.prefix is not None:
        said.append(pc.starts_with(values, condition.prefix))
    if condition.low is not None:
        said.append(pc.greater_equal(values, condition.low))
    if condition.high is not None:
        said.append(pc.less_equal(values, condition.high))
    every = pa.repeat(value=True, size=len(values))
    for one in said:
        every = pc.and_(every, one)
    return pc.or_kleene(every, values.is_null())


def conditions(filters: Iterable[Filter]) -> dict[str, Condition]:
    """Return the conditions that all filters together imply, by column.

    Filters that cannot be expressed as a `Condition` are ignored.
    """
    found: dict[str, Condition] = {}
    for pushed in filters:
        attribute: tuple[str, ...] = getattr(pushed, "attribute", ())  # the filter Not has no attribute
        said = _said(pushed)
        if said is not None and len(attribute) == 1:
            found[attribute[0]] = _both(found.get(attribute[0], ANYTHING), said)
    return found


def _said(pushed: Filter) -> Condition | None:
    if isinstance(pushed, In):
        values = [_plain(value) for value in getattr(pushed, "value", ()) if value is not None]
        return Condition(values=frozenset(values)) if all(_is_scalar(value) for value in values) else None
    value = _plain(getattr(pushed, "value", None))
    if not _is_scalar(value):
        return None
    if isinstance(pushed, EqualTo | EqualNullSafe):
        return Condition(values=frozenset([value]))
    if isinstance(pushed, StringStartsWith):
        return Condition(prefix=str(value))
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return Condition(low=value)
    if isinstance(pushed, LessThan | LessThanOrEqual):
        return Condition(high=value)
    return None


def _both(one: Condition, other: Condition) -> Condition:
    """Return a condition that allows at least the values that both conditions allow. It contains only the longer
    prefix.

    Usually the longer prefix implies the shorter one. Otherwise, Spark's own filters remove all rows.
    """
    if one.values is not None and other.values is not None:
        values: frozenset[Any] | None = one.values & other.values
    else:
        values = other.values if one.values is None else one.values
    prefixes = [prefix for prefix in (one.prefix, other.prefix) if prefix is not None]
    lows = [low for low in (one.low, other.low) if low is not None]
    highs = [high for high in (one.high, other.high) if high is not None]
    return Condition(
        values,
        max(prefixes, key=len, default=None),
        max(lows, default=None),
        min(highs, default=None),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return (moment - _ZERO) // _MICROSECOND
    return value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | bytes)


_ZERO = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
