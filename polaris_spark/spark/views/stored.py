"""Reads of objects from database rows: header, total size, and the bytes of all rows of an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.errors import PolarisError
from polaris_spark.objects import Header

_NAMED = 10
"""Maximum number of missing parts that an error message lists. A damaged row may claim any number of parts."""


class StoredObject(NamedTuple):
    """An object as it is stored in database rows. If its first row cannot be decoded, `header` is None. `error` is the
    reason why the object cannot be read; None if it can."""

    realm: str
    """Instance id of the realm that contains the object."""
    id: int
    parts: int
    size: int
    """Total size of the object's rows (parts), in bytes."""
    header: Header | None
    data: bytes
    """The bytes of all rows (parts) of the object if requested; otherwise, of the first row."""
    error: str | None


def stored_objects(backend: Backend, split: Split, *, whole: bool) -> Iterator[StoredObject]:
    """Yield every object whose first row is in a split. Skip objects that are deleted during the read.

    Args:
        whole: whether `StoredObject.data` contains the bytes of all rows of the object, or only of the first row.
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
    """Return the object whose first row has the given key and value. Read its other rows, if any.

    Return None if the object was deleted after the first row was read. `whole` is as in `stored_objects`.
    """
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
