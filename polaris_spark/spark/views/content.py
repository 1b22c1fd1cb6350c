"""Conversion of stored objects to JSON text that people can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

import polaris_spark.access.rows
import polaris_spark.catalog.catalogs.metrics

# Types must be registered to be shown, in workers as well. Reading views does not otherwise need these modules' types.
import polaris_spark.catalog.tables.snapshot_expiry
import polaris_spark.maintenance.deletion_records
import polaris_spark.maintenance.policies.rows
import polaris_spark.maintenance.queue.rows  # noqa: F401
from polaris_spark.catalog.metadata.rows import LogItems, Piece
from polaris_spark.index import Branch, Leaf

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def content_json(value: msgspec.Struct) -> str:
    """Return an object as JSON text, with fields by name. Bytes become text if they are printable UTF-8; otherwise, 0x
    and hexadecimal digits.

    Raises:
        CorruptionError: the object is an index shard that cannot be decoded.
    """
    return _encode(_plain(value)).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, LogItems):
        return _piece(b"[" + value.text + b"]")
    if isinstance(value, Piece):
        return _piece(value.text)
    if isinstance(value, Leaf):
        return _plain({"keys": value.keys, "pointers": value.pointers, "values": value.values})
    if isinstance(value, Branch):
        return _plain({"separators": value.separators, "children": value.children, "counts": value.counts})
    if isinstance(value, msgspec.Struct):
        hidden = getattr(value, "HIDDEN", ())  # such as hashed secrets
        return {
            field: "***" if field in hidden else _plain(getattr(value, field))
            for field in value.__struct_fields__
        }
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _piece(text: bytes) -> Any:
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return _bytes(text)


def _bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() else "0x" + value.hex()
