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
class CatalogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A catalog of a realm."""

    entity_id: int
    name: str
    created: int
    """Milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


@object_type("namespace", revision=1)
class Namespace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A namespace; its name stands in the index only, so that renaming an ancestor would not touch it."""

    entity_id: int
    created: int
    """Milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


@object_type("unloaded", revision=1)
class Unloaded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of a table or view that was imported by its metadata file's location and not read yet."""

    entity_id: int
    metadata_location: str

    @property
    def location(self) -> str:
        """What it is known to own: the folder above that of the metadata file if this is called `metadata`, as nearly
        always, else no more than the file."""
        folder, _, _ = self.metadata_location.rpartition("/")
        above, _, name = folder.rpartition("/")
        return above if name == "metadata" and above.strip("/") else self.metadata_location


def id_bytes(entity_id: int) -> bytes:
    """An entity id as index key or value."""
    return entity_id.to_bytes(8, "big")


def id_from(value: bytes) -> int:
    """The entity id of an index value."""
    return int.from_bytes(value[:8], "big")
