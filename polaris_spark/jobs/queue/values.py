"""Arguments of procedures in the queue: conversion from text, and from and to JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from polaris_spark.clock import iso_time_ms
from polaris_spark.errors import InputError
from polaris_spark.jobs.types import TYPES
from polaris_spark.property_values import flag

if TYPE_CHECKING:
    from polaris_spark.jobs.procedure import Procedure

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def time_of(ms: int) -> datetime:
    """Return a time in milliseconds since 1970 as a value of the type TIMESTAMP."""
    return _EPOCH + timedelta(milliseconds=ms)


def parsed_arguments(procedure: Procedure, texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return checked arguments of a procedure, given as texts: lists are separated by commas, and maps are in JSON.

    Raises:
        InputError: an argument is unknown or missing, or its text is not a value of the parameter's type.
    """
    types = {one.name: one.type for one in procedure.parameters}
    given: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            known = name in types and text is not None
            given[name] = _parsed(types[name], name, text) if known and text is not None else text
        except (ValueError, OverflowError, RecursionError, InputError) as error:
            raise InputError(
                f"{procedure.name}: the argument {name!r} is {str(text)[:200]!r}; it must be "
                f"{TYPES[types[name]].expected} ({types[name]})"
            ) from error
    return procedure.checked_arguments(given)


def _parsed(type: str, name: str, text: str) -> Any:
    if type == "BOOLEAN":
        return flag(name, text)
    if type in ("INT", "BIGINT"):
        return int(text)
    if type == "DOUBLE":
        return float(text)
    if type == "TIMESTAMP":
        return time_of(iso_time_ms(text))
    if type == "ARRAY<STRING>":
        return [one.strip() for one in text.split(",")]
    if type == "MAP<STRING,STRING>":
        return json.loads(text)
    return text


def to_json(procedure: Procedure, arguments: Mapping[str, Any]) -> bytes:
    """Return checked arguments of a procedure as JSON text."""
    types = {one.name: TYPES[one.type] for one in procedure.parameters}
    found = {name: types[name].encode(value) for name, value in arguments.items()}
    return json.dumps(found, ensure_ascii=False).encode(errors="backslashreplace")


def from_json(procedure: Procedure, text: bytes) -> dict[str, Any]:
    """Return the arguments that `to_json` has converted.

    Raises:
        InputError: the procedure has other parameters than those for which the arguments were stored.
    """
    types = {one.name: TYPES[one.type] for one in procedure.parameters}
    given = json.loads(text)
    try:
        return {name: types[name].decode(value) if name in types else value for name, value in given.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{procedure.name}: a stored argument cannot be used: {error}") from error
