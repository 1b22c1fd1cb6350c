"""Default values of columns: checks against the column's type, and the normalized form that metadata stores.

The rules are the same as in Iceberg's `SingleValueParser` and `Types.NestedField` (specification:
https://iceberg.apache.org/spec/#json-single-value-serialization).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from polaris_spark.catalog.metadata.texts import invalid
from polaris_spark.errors import BadRequestError

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = r"(\d{4})-(\d{2})-(\d{2})"
_TIME = r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{0,9}))?)?"
_ZONE = r"(?:Z|[+-]00:00)"
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)

_DATES = re.compile(_DATE, re.ASCII)
_TIMES = re.compile(_TIME, re.ASCII)
_TIMESTAMPS = re.compile(f"{_DATE}T{_TIME}", re.ASCII | re.IGNORECASE)
_ZONED = re.compile(f"{_DATE}T{_TIME}{_ZONE}", re.ASCII | re.IGNORECASE)

_LEAP_CYCLE_YEARS = 400
_NANOSECOND_RANGE = ("1677-09-21T00:12:43.145224193", "2262-04-11T23:47:16.854775807")
"""First and last timestamp whose nanoseconds since 1970 fit in 64 bits. In this form, the alphabetical order of
timestamps is their order in time."""


def default_value(kind: str, type: str, value: Any) -> Any:
    """Return the default value of a column in the normalized form that metadata stores.

    Args:
        kind: name of the column's type without parameters, such as `decimal`.
        type: normalized text of the column's type, such as `decimal(9, 2)`.
        value: the default value in a request, as decoded JSON; not null.
    Raises:
        BadRequestError: the value is not a value of the type, or columns of the type cannot have a default value.
    """
    if kind in ("struct", "list", "map"):
        raise invalid(f"Invalid default value for {kind}: {value} (must be null)")
    read = _READERS.get(kind)
    if read is None:
        raise BadRequestError(f"Type: {type} is not supported", type="UnsupportedOperationException")
    found = read(type, value)
    if found is None:
        raise invalid(f"Cannot parse default as a {type} value: {str(value)[:200]}")
    return found


def _boolean(_: str, value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(bits: int) -> Callable[[str, Any], int | None]:
    def read(_: str, value: Any) -> int | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits
        return value if fits else None

    return read


def _double(_: str, value: Any) -> float | None:
    return value if isinstance(value, float) and math.isfinite(value) else None


def _float(_: str, value: Any) -> float | None:
    """Return the 32-bit float that is nearest to a value, in the fewest decimal digits that identify this float.

    Return None if the value is not a float, or is outside the range of 32-bit floats.
    """
    if not isinstance(value, float):
        return None
    try:
        nearest = struct.pack("<f", value)
    except OverflowError:
        return None
    shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((short for short in shortest if struct.pack("<f", short) == nearest), value)


def _text(_: str, value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _uuid(_: str, value: Any) -> str | None:
    return value.lower() if isinstance(value, str) and _UUID.fullmatch(value) else None


def _binary(_: str, value: Any) -> str | None:
    return value.upper() if isinstance(value, str) and _HEX.fullmatch(value) else None


def _fixed(type: str, value: Any) -> str | None:
    length = _DIGITS.search(type)
    assert length is not None
    found = _binary(type, value)
    return found if found is not None and len(found) == 2 * int(length[0]) else None


def _decimal(type: str, value: Any) -> str | None:
    """Return a decimal as text without an exponent.

    Return None if the value is not a decimal with exactly the type's scale and at most the type's precision.
    """
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        return None
    number = Decimal(value)
    precision, scale = (int(digits) for digits in _DIGITS.findall(type))
    digits, exponent = number.as_tuple().digits, number.as_tuple().exponent
    fits = exponent == -scale and len(digits) <= precision
    return format(number, "f") if fits else None


def _date(_: str, value: Any) -> str | None:
    match = _DATES.fullmatch(value) if isinstance(value, str) else None
    return _day(match) if match else None


def _time(_: str, value: Any) -> str | None:
    match = _TIMES.fullmatch(value) if isinstance(value, str) else None
    return _clock(match, 0, digits=6) if match else None


def _timestamp(*, zoned: bool, digits: int) -> Callable[[str, Any], str | None]:
    pattern, zone = (_ZONED, "+00:00") if zoned else (_TIMESTAMPS, "")

    def read(_: str, value: Any) -> str | None:
        match = pattern.fullmatch(value) if isinstance(value, str) else None
        day = _day(match) if match else None
        if match is None or day is None:
            return None
        text = f"{day}T{_clock(match, 3, digits)}"
        if digits == 9 and not _NANOSECOND_RANGE[0] <= text <= _NANOSECOND_RANGE[1]:
            return None
        return text + zone

    return read


def _day(match: re.Match[str]) -> str | None:
    """Return the date in the first three groups of a match as text; None if the calendar does not have this date."""
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    try:
        date(year or _LEAP_CYCLE_YEARS, month, day)
    except ValueError:
        return None
    return f"{year:04d}-{month:02d}-{day:02d}"


def _clock(match: re.Match[str], group: int, digits: int) -> str:
    """Return the time of day as text, from the four groups of a match that follow the first `group` groups.

    The text has seconds. It has a fraction of at most `digits` digits without trailing zeros, unless the fraction is 0.
    """
    hour, minute, second, fraction = match.groups()[group : group + 4]
    fraction = (fraction or "")[:digits].rstrip("0")
    return f"{hour}:{minute}:{second or '00'}" + (f".{fraction}" if fraction else "")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "boolean": _boolean,
    "int": _whole(31),
    "long": _whole(63),
    "float": _float,
    "double": _double,
    "decimal": _decimal,
    "string": _text,
    "uuid": _uuid,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp(zoned=False, digits=6),
    "timestamptz": _timestamp(zoned=True, digits=6),
    "timestamp_ns": _timestamp(zoned=False, digits=9),
    "timestamptz_ns": _timestamp(zoned=True, digits=9),
    "fixed": _fixed,
    "binary": _binary,
}
