"""Catalogs and namespaces as objects, and the indexes that name everything.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `names` | path 0x01 kind name | the entity's content | its stable entity id (8 bytes) |
| `ids` | entity id (8 bytes) | | its key in `names` |
| `locations` | path of URI segments 0x01 `l` entity id | | entity id (8 bytes) |
| `unconfirmed` | as `locations`, of locations that are read and not owned | | entity id (8 bytes) |
| `properties` | `row` | a copy of the catalog's row | object id of that row (8 bytes) |
| `operations` | operation id and principal | log entries | see `commits` |
"""

from __future__ import annotations

import msgspec

from polaris_spark.objects import object_type

NAMES = "names"
IDS = "ids"
LOCATIONS = "locations"
UNCONFIRMED = "unconfirmed"
PROPERTIES = "properties"
"""Index of a branch of a catalog, with the copy of the catalog's row that binds the branch. In the reference
`catalogs`, it has the keys in `names` of the catalogs whose properties were set after their creation. The value there
is the catalog's entity id (8 bytes), then the principal that set them last, in UTF-8."""
ROW = b"row"

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
    """As it was created with them, or as they were set since."""


@object_type("namespace", revision=1)
class Namespace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A namespace; its name stands in the index only, so that renaming an ancestor would not touch it."""

    entity_id: int
    created: int
    """Milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


@object_type("unloaded", revision=2, appended=(("unconfirmed",),))
class Unloaded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of a table or view that was imported by its metadata file's location and not read yet."""

    entity_id: int
    metadata_location: str
    unconfirmed: tuple[str, ...] = ()
    """Its own location, if no table may own that folder (`catalog.ownership`)."""

    @property
    def location(self) -> str:
        """The location that it is known to own."""
        return folder_of(self.metadata_location)


def folder_of(metadata_location: str) -> str:
    """The folder that a metadata file may claim for its table: the parent of its folder `metadata`. If its folder has
    another name, the file itself."""
    folder, _, _ = metadata_location.rpartition("/")
    above, _, name = folder.rpartition("/")
    return above if name == "metadata" and above.strip("/") else metadata_location


def id_bytes(entity_id: int) -> bytes:
    """An entity id as index key or value."""
    return entity_id.to_bytes(8, "big")


def id_from(value: bytes) -> int:
    """The entity id of an index value."""
    return int.from_bytes(value[:8], "big")
