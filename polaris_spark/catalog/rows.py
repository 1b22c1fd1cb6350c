"""Catalogs and namespaces as objects, and the indexes that name everything.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `names` | path 0x01 kind name | the entity's content | its stable entity id (8 bytes) |
| `ids` | entity id (8 bytes) | | its key in `names` |
| `locations` | path of URI segments 0x01 `l` entity id | | entity id (8 bytes) |
| `operations` | operation id and principal | log entries | see `commits` |
"""

from __future__ import annotations

import msgspec

from polaris_spark.objects import object_type

NAMES = "names"
IDS = "ids"
LOCATIONS = "locations"

NAMESPACE = b"n"
TABLE = b"t"
VIEW = b"v"
CATALOG = b"c"


@object_type("catalog", revision=1)
class CatalogRow(msgspec.Struct, frozen=True, array_like=True):
    """A catalog of a realm."""

    entity_id: int
    name: str
    created: int
    """Milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


@object_type("namespace", revision=1)
class Namespace(msgspec.Struct, frozen=True, array_like=True):
    """A namespace; its name stands in the index only, so that renaming an ancestor would not touch it."""

    entity_id: int
    created: int
    """Milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


def id_bytes(entity_id: int) -> bytes:
    """An entity id as index key or value."""
    return entity_id.to_bytes(8, "big")


def id_from(value: bytes) -> int:
    """The entity id of an index value."""
    return int.from_bytes(value[:8], "big")
