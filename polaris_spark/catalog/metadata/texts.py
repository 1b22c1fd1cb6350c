"""Conversion to and from JSON, and functions that read fields of requests. The error messages are the same as those of
Iceberg's JSON readers.

`get_...` functions read required fields; `find_...` functions return None if the field is absent or null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from polaris_spark.errors import BadRequestError

Json = dict[str, Any]
"""A decoded JSON object."""

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_MAX_INT = 2**31
_MAX_LONG = 2**63
_DIGITS = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 19


def encode(value: Any) -> bytes:
    """Return a value as compact JSON text.

    Raises:
        BadRequestError: a string is not valid Unicode.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise invalid(f"Cannot write text that is not valid Unicode: {error}") from error


def decode(text: bytes | msgspec.Raw) -> Json:
    """Decode the text of a JSON object.

    Raises:
        BadRequestError: the text is not a JSON object.
    """
    try:
        return _decode_object(text)
    except msgspec.MsgspecError as error:
        raise invalid(f"Cannot parse JSON object: {error}") from error


def compact(text: bytes | msgspec.Raw) -> bytes:
    """Return a JSON text without the white space between its tokens."""
    return msgspec.json.format(bytes(text), indent=-1)


def invalid(message: str) -> BadRequestError:
    """Return the error for a request that Iceberg's Java code refuses with `IllegalArgumentException`."""
    return BadRequestError(message, type="IllegalArgumentException")


def refused(message: str) -> BadRequestError:
    """Return the error for a request that Iceberg's Java code refuses with `ValidationException`."""
    return BadRequestError(message, type="ValidationException")


def get_any(data: Mapping[str, Any], name: str, kind: str = "field") -> Any:
    """Return the value of a required field, which may be null. `kind` is the kind of the value, for the error message.

    Raises:
        BadRequestError: the field is missing.
    """
    try:
        return data[name]
    except KeyError:
        raise invalid(f"Cannot parse missing {kind}: {name}") from None


def get_int(data: Mapping[str, Any], name: str) -> int:
    """Return the value of a required field, a 32-bit integer.

    Raises:
        BadRequestError: the field is missing, or is not a 32-bit integer.
    """
    return _whole(data, name, _MAX_INT, "an integer")


def get_long(data: Mapping[str, Any], name: str) -> int:
    """Return the value of a required field, a 64-bit integer.

    Raises:
        BadRequestError: the field is missing, or is not a 64-bit integer.
    """
    return _whole(data, name, _MAX_LONG, "a long")


def find_int(data: Mapping[str, Any], name: str) -> int | None:
    """Return the value of an optional field, a 32-bit integer; None if the field is absent or null."""
    return None if data.get(name) is None else get_int(data, name)


def find_long(data: Mapping[str, Any], name: str) -> int | None:
    """Return the value of an optional field, a 64-bit integer; None if the field is absent or null."""
    return None if data.get(name) is None else get_long(data, name)


def get_text(data: Mapping[str, Any], name: str) -> str:
    """Return the value of a required field, a string.

    Raises:
        BadRequestError: the field is missing, or is not a string.
    """
    value = get_any(data, name, "string")
    if not isinstance(value, str):
        raise invalid(f"Cannot parse to a string value: {name}: {_shown(value)}")
    return value


def find_text(data: Mapping[str, Any], name: str) -> str | None:
    """Return the value of an optional field, a string; None if the field is absent or null."""
    return None if data.get(name) is None else get_text(data, name)


def get_object(data: Mapping[str, Any], name: str) -> Json:
    """Return the value of a required field, a JSON object.

    Raises:
        BadRequestError: the field is missing, or is not an object.
    """
    value = get_any(data, name)
    if not isinstance(value, dict):
        raise invalid(f"Cannot parse {name} from non-object: {_shown(value)}")
    return value


def find_object(data: Mapping[str, Any], name: str) -> Json | None:
    """Return the value of an optional field, a JSON object; None if the field is absent or null."""
    return None if data.get(name) is None else get_object(data, name)


def as_object(value: Any, what: str) -> Json:
    """Return `value`, which must be a JSON object. `what` describes the value in the error message.

    Raises:
        BadRequestError: the value is not an object.
    """
    if not isinstance(value, dict):
        raise invalid(f"Cannot parse {what} from non-object value: {_shown(value)}")
    return value


def get_objects(data: Mapping[str, Any], name: str) -> list[Json]:
    """Return the value of a required field, an array of JSON objects.

    Raises:
        BadRequestError: the field is missing, or is not an array of objects.
    """
    value = get_any(data, name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(f"Cannot parse {name} from non-array of objects: {_shown(value)}")
    return value


def get_longs(data: Mapping[str, Any], name: str) -> list[int]:
    """Return the value of a required field, an array of 64-bit integers.

    Raises:
        BadRequestError: the field is missing, or is not an array of 64-bit integers.
    """
    found = _list(data, name, int, "number")
    for item in found:
        if not -_MAX_LONG <= item < _MAX_LONG:
            raise invalid(f"Cannot parse to a long value in {name}: {item}")
    return found


def get_ints(data: Mapping[str, Any], name: str) -> list[int]:
    """Return the value of a required field, an array of 32-bit integers.

    Raises:
        BadRequestError: the field is missing, or is not an array of 32-bit integers.
    """
    found = get_longs(data, name)
    for item in found:
        check_int(item, name)
    return found


def check_int(number: int, what: str) -> int:
    """Return `number` if it fits into 32 bits, because Iceberg's Java code cannot read larger numbers.

    Args:
        what: description of the number for the error message.
    Raises:
        BadRequestError: the number does not fit.
    """
    if not -_MAX_INT <= number < _MAX_INT:
        raise invalid(f"Invalid {what}: {number} does not fit into 32 bits")
    return number


def check_long(number: int, what: str) -> int:
    """Return `number` if it fits into 64 bits.

    Args:
        what: description of the number for the error message.
    Raises:
        BadRequestError: the number does not fit.
    """
    if not -_MAX_LONG <= number < _MAX_LONG:
        raise invalid(f"Invalid {what}: {number} does not fit into 64 bits")
    return number


def parse_int(text: str) -> int | None:
    """Return the 32-bit integer that a text represents; None if the text does not represent one.

    The text consists of an optional sign and ASCII digits, without spaces.
    """
    if not _DIGITS.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS:  # Python refuses to convert thousands of digits
        return None
    number = -int(digits) if text.startswith("-") else int(digits)
    return number if -_MAX_INT <= number < _MAX_INT else None


def get_texts(data: Mapping[str, Any], name: str) -> list[str]:
    """Return the value of a required field, an array of strings.

    Raises:
        BadRequestError: the field is missing, or is not an array of strings.
    """
    return _list(data, name, str, "string")


def get_text_map(data: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the value of a required field, a JSON object whose values are strings.

    Raises:
        BadRequestError: the field is missing, is not an object, or has a value that is not a string.
    """
    value = get_any(data, name, "map")
    if not isinstance(value, dict):
        raise invalid(f"Cannot parse string map from non-object value: {name}: {_shown(value)}")
    for key, item in value.items():
        if not isinstance(item, str):
            raise invalid(f"Cannot parse to a string value: {key}: {_shown(item)}")
    return value


def _whole(data: Mapping[str, Any], name: str, limit: int, kind: str) -> int:
    value = get_any(data, name, kind.split()[-1])
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise invalid(f"Cannot parse to {kind} value: {name}: {_shown(value)}")
    return value


def _list(data: Mapping[str, Any], name: str, type: type[Any], kind: str) -> list[Any]:
    value = get_any(data, name, "list")
    if not isinstance(value, list):
        raise invalid(f"Cannot parse JSON array from non-array value: {name}: {_shown(value)}")
    for item in value:
        if not isinstance(item, type) or isinstance(item, bool):
            raise invalid(f"Cannot parse {kind} from non-{kind} value in {name}: {_shown(item)}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
