"""Rows of catalogs and namespaces, and the indexes that point to all entities.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `names` | path 0x01 kind name | the entity's content | entity id (8 bytes), which never changes |
| `ids` | entity id (8 bytes) | | the entity's key in `names` |
| `locations` | path of URI segments 0x01 `l` entity id | | entity id (8 bytes) |
| `unconfirmed` | as in `locations`, for locations that are used but not owned | | entity id (8 bytes) |
| `owners` | entity id (8 bytes) | | name of the principal that owns the entity |
| `properties` | `row` | a copy of the catalog's row | object id of that row (8 bytes) |
| `operations` | operation id and principal | log entries | `_Mark` in `commits/applier.py` |
| `dropped` | entity id of a dropped catalog (8 bytes) | the catalog's row | `DroppedMark` |
| `merges` | see `catalog/branches/merge_base.py` | | |
| `protection` | `protected` | | 1 or 0 (1 byte), id of the change (8 bytes; `catalog/branches/branch_changes.py`) |
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from polaris_spark.errors import NewerFormatError
from polaris_spark.index.keys import decode_key
from polaris_spark.objects import object_type

NAMES = "names"
IDS = "ids"
LOCATIONS = "locations"
UNCONFIRMED = "unconfirmed"
PROPERTIES = "properties"
"""Name of an index with two uses. In a branch of a catalog, it holds a copy of the catalog's row, whose properties
apply to the branch. In the reference `catalogs`, it has an entry for each catalog whose properties were changed after
its creation. The key is the catalog's key in `names`. The value is the catalog's entity id (8 bytes), then the
principal that last changed the properties, in UTF-8."""
ROW = b"row"

DROPPED = "dropped"
"""Name of an index of the reference `catalogs`. It has the catalogs that were dropped and can be restored, and those
whose grace period has ended but whose files were not deleted yet."""

OWNERS = "owners"
"""Name of an index of branches: the owners of namespaces, tables and views that were created in a realm with access
control. The key is the entity id (8 bytes), the value the principal's name in UTF-8. The reference `access` has an
index of this name, too, for the owners of catalogs and branches (`access.rows`)."""

NAMESPACE = b"n"
TABLE = b"t"
VIEW = b"v"
CATALOG = b"c"


def known_kind(key: bytes) -> bytes:
    """Return the kind of an entity, given its key in the index `names`.

    Raises:
        NewerFormatError: this release does not know the kind, so it does not know to which files the entity refers.
    """
    decoded = decode_key(key)
    if decoded.kind not in (NAMESPACE, TABLE, VIEW, CATALOG):
        raise NewerFormatError(
            f"{'.'.join((*decoded.path, decoded.name))} is of a kind {decoded.kind!r} that this release does not know; "
            "nothing was changed: install the release that created it, or a later one"
        )
    return decoded.kind


@object_type("catalog", revision=1)
class CatalogRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A catalog of a realm."""

    entity_id: int
    name: str
    created: int
    """Time of the creation, in milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}
    """The catalog's current properties."""


class DroppedMark(NamedTuple):
    """Value of a catalog's entry in the index `DROPPED`."""

    time: int
    """Time of the drop, in milliseconds since 1970."""
    principal: str
    """The principal that dropped the catalog."""
    ended: bool = False
    """Whether the grace period has ended. The catalog can then no longer be restored."""

    def encode(self) -> bytes:
        """Return the value as bytes."""
        return bytes([self.ended]) + id_bytes(self.time) + self.principal.encode()

    @classmethod
    def decode(cls, value: bytes) -> DroppedMark:
        """Decode bytes that `encode` returned."""
        return cls(id_from(value[1:]), value[9:].decode(), bool(value[0]))


@object_type("namespace", revision=1)
class Namespace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A namespace. Its name is only in the index `names`, so that renaming one of its parents would not change the
    row."""

    entity_id: int
    created: int
    """Time of the creation, in milliseconds since 1970."""
    owner: str
    properties: dict[str, str] = {}


@object_type("unloaded", revision=2, appended=(("unconfirmed",),))
class Unloaded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of a lazily imported table or view: only the location of the metadata file, which is not read yet."""

    entity_id: int
    metadata_location: str
    unconfirmed: tuple[str, ...] = ()
    """The location of the table or view, if no table can own this location (`catalog.files.ownership`). Otherwise
    empty."""

    @property
    def location(self) -> str:
        """Location of the table or view, derived from the path of its metadata file by `folder_of`."""
        return folder_of(self.metadata_location)


def folder_of(metadata_location: str) -> str:
    """Return the location that an imported table can own, derived from the location of its metadata file. If the file
    is in a folder named `metadata`, this is the parent of that folder. Otherwise, it is the location of the file."""
    folder, _, _ = metadata_location.rpartition("/")
    above, _, name = folder.rpartition("/")
    return above if name == "metadata" and above.strip("/") else metadata_location


def id_bytes(entity_id: int) -> bytes:
    """Return an entity id as an index key or value (8 bytes)."""
    return entity_id.to_bytes(8, "big")


def id_from(value: bytes) -> int:
    """Return the entity id at the beginning of an index value."""
    return int.from_bytes(value[:8], "big")
