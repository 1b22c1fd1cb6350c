"""Types of a procedure's parameters and columns: their SQL names and their Python values."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class SqlType(NamedTuple):
    """The SQL type of a parameter or column, with the conversion of its values between Python and JSON."""

    accepts: Callable[[Any], bool]
    """A function that returns whether a Python value other than None is of this type."""
    expected: str
    """Description of the Python values of this type, for error messages."""
    encode: Callable[[Any], Any] = lambda value: value
    """A function that converts a Python value to a JSON value."""
    decode: Callable[[Any], Any] = lambda value: value
    """A function that converts a JSON value to a Python value."""


def _whole(bits: int) -> Callable[[Any], bool]:
    limit = 1 << (bits - 1)
    return lambda value: type(value) is int and -limit <= value < limit


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _finite_or_text(number: float) -> float | str:
    """Return a finite number unchanged, and any other number as text, because JSON has finite numbers only.

    Java and Python can both parse this text as a number.
    """
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


TYPES: dict[str, SqlType] = {
    "STRING": SqlType(_is_text, "text"),
    "BOOLEAN": SqlType(lambda value: isinstance(value, bool), "true or false"),
    "INT": SqlType(_whole(32), "a whole number of 32 bits"),
    "BIGINT": SqlType(_whole(64), "a whole number of 64 bits"),
    "DOUBLE": SqlType(
        lambda value: type(value) in (int, float),
        "a number",
        _finite_or_text,
        float,
    ),
    "TIMESTAMP": SqlType(
        lambda value: isinstance(value, datetime) and value.tzinfo is not None,
        "a time with a time zone",
        _micros,
        lambda value: _EPOCH + timedelta(microseconds=value),
    ),
    "ARRAY<STRING>": SqlType(
        lambda value: isinstance(value, (list, tuple)) and all(one is None or _is_text(one) for one in value),
        "a list of texts",
    ),
    "MAP<STRING,STRING>": SqlType(
        lambda value: (
            isinstance(value, dict)
            and all(_is_text(k) and (v is None or _is_text(v)) for k, v in value.items())
        ),
        "a map from text to text",
    ),
}
"""All types of parameters and columns, by SQL name."""
