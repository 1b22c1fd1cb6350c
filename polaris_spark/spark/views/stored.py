"""Objects as they are stored in database rows: their headers, sizes and joined parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.errors import PolarisError
from polaris_spark.objects import Header

_NAMED = 10
"""Maximum number of missing parts that an error lists: a damaged row may contain any number of parts."""


class StoredObject(NamedTuple):
    """An object, read from its first row. If the row cannot be read, `header` is None and `error` is the reason."""

    realm: str
    """Instance id of the realm."""
    id: int
    parts: int
    size: int
    """Total size of all parts, in bytes."""
    header: Header | None
    data: bytes
    """All parts joined if they were requested, otherwise the first part."""
    error: str | None


def stored_objects(backend: Backend, split: Split, *, whole: bool) -> Iterator[StoredObject]:
    """Yield every object whose first row is in a split, except objects that are deleted meanwhile.

    Args:
        whole: whether `data` contains all parts.
    """
    for batch in backend.scan(split):
        columns = (batch.column(name).to_pylist() for name in ("realm", "id", "part", "value"))
        for realm, id, part, value in zip(*columns, strict=True):
            if part == 0:
                stored = stored_object(backend, realm, ObjectKey(id), value, whole=whole)
                if stored is not None:
                    yield stored


def stored_object(
    backend: Backend, realm: str, key: ObjectKey, value: bytes, *, whole: bool
) -> StoredObject | None:
    """Return an object from its first row; None if the object was deleted after the row was read."""
    name = f"{realm}/{key.id}"
    try:
        parts = objects.part_count(value, name)
        header = objects.decode_header(value, name)
    except PolarisError as error:
        return StoredObject(realm, key.id, 1, len(value), None, value, str(error))
    if parts == 1:
        return StoredObject(realm, key.id, 1, len(value), header, value, None)
    size, pieces, missing = len(value), [value], []
    for part in range(1, parts):  # one part at a time, because only the sizes of large objects may be needed
        further = ObjectKey(key.id, part)
        found = backend.read_objects(realm, [further]).get(further)
        if found is None:
            missing.append(part)
        else:
            size += len(found)
            if whole:
                pieces.append(found)
    if missing and not backend.read_objects(realm, [key]):
        return None
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    why = f"parts {missing[:_NAMED]}{more} of object {name} are missing" if missing else None
    return StoredObject(realm, key.id, parts, size, header, b"".join(pieces), why)
