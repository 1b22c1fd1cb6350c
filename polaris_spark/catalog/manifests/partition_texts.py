"""Conversion of partition values to readable text, depending on the transform of each partition field.

The texts are the same as in the names of partition folders that Iceberg writes, but without escapes.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from polaris_spark.catalog.manifests.manifest_entries import OpenManifest

_EPOCH = datetime(1970, 1, 1)
_RESULTS = {"year": "year", "month": "month", "day": "date", "hour": "hour", "bucket": "int"}
"""Maps a transform to its result type. Other transforms have the type of the source column."""


class _Field(NamedTuple):
    id: int
    name: str
    type: str


class PartitionTexts:
    """Converts partition tuples of one manifest to text. The spec and schema come from the manifest's metadata."""

    def __init__(self, manifest: OpenManifest) -> None:
        metadata = manifest.metadata
        spec: list[dict[str, Any]] = json.loads(metadata.get("partition-spec") or "[]")
        schema: dict[str, Any] = json.loads(metadata.get("schema") or "{}")
        types = _types(schema)
        by_id = {field.get("field-id"): field for field in spec}
        self._fields = []
        for position, stored in enumerate(manifest.partition_fields):
            # The oldest specs have no field ids, but their fields are in the same order.
            own = by_id.get(stored["field-id"]) or (spec[position] if position < len(spec) else {})
            transform = str(own.get("transform", "identity")).partition("[")[0]
            sources = own.get("source-ids") or [own.get("source-id")]
            type = _RESULTS.get(transform) or types.get(sources[0], "")
            self._fields.append(_Field(stored["field-id"], own.get("name") or stored["name"], type))

    def of(self, partition: Mapping[int, Any]) -> list[tuple[str, str | None]]:
        """Return a (name, text of the value) pair for each field of a partition tuple. The text of a null value is
        None."""
        return [(field.name, text(field.type, partition.get(field.id))) for field in self._fields]


@lru_cache(maxsize=65_536)
def text(type: str, value: Any) -> str | None:
    """Return the text of a value that is stored in a manifest; None for a null value.

    Args:
        type: an Iceberg type, such as `timestamptz` or `decimal(9, 2)`; or `year`, `month` or `hour` if the value is
            the number of years, months or hours since 1970. For other types, the text depends only on the value.
    """
    if value is None:
        return None
    try:
        return _text(type, value)
    except (OverflowError, ValueError):  # beyond the years that Python's types can hold
        return str(value)


def _text(type: str, value: Any) -> str:
    if isinstance(value, bytes):
        if type.startswith("decimal"):
            scale = int(type.rstrip(") ").rpartition(",")[2])
            return format(Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale), "f")
        return str(uuid.UUID(bytes=value)) if type == "uuid" else base64.b64encode(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int):
        return str(value)
    if type == "year":
        return f"{1970 + value:04d}"
    if type == "month":
        return f"{1970 + value // 12:04d}-{1 + value % 12:02d}"
    if type == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if type == "hour":
        return (_EPOCH + timedelta(hours=value)).strftime("%Y-%m-%d-%H")
    if type == "time":
        return _moment(value, 6)[len("1970-01-01T") :]
    if type.startswith("timestamp"):
        zone = "+00:00" if type.startswith("timestamptz") else ""
        return _moment(value, 9 if type.endswith("_ns") else 6) + zone
    return str(value)


def _moment(count: int, digits: int) -> str:
    """Return a time in ISO 8601.

    Args:
        count: number of units since 1970.
        digits: 6 if the unit is a microsecond, 9 if it is a nanosecond.
    """
    seconds, fraction = divmod(count, 10**digits)
    decimals = f"{fraction:0{digits}d}".rstrip("0")
    whole = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    return f"{whole}.{decimals}" if decimals else whole


def _types(schema: Mapping[str, Any]) -> dict[int, str]:
    """Return a dict from field id to primitive type, for all fields of a schema that have one, also nested fields."""
    found: dict[int, str] = {}
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        for field in one.get("fields", ()):
            if isinstance(field["type"], str):
                found[field["id"]] = field["type"]
            else:
                waiting.append(field["type"])
        waiting += [inner for name in ("element", "value", "key") if isinstance(inner := one.get(name), dict)]
    return found
