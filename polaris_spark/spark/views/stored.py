"""Objects as their rows lie in the database: headers only, sizes, and parts put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, Split
from polaris_spark.errors import PolarisError
from polaris_spark.objects import Header

_NAMED = 10
"""Parts that an error names: a damaged row may claim any number of them."""


class StoredObject(NamedTuple):
    """An object by its first row; `header` is None where that cannot be read, and `error` says why."""

    realm: str
    """Instance id of the realm."""
    id: int
    parts: int
    size: int
    """Of all parts together."""
    header: Header | None
    data: bytes
    """All parts joined if they were asked for, else the first."""
    error: str | None


def stored_objects(backend: Backend, split: Split, *, whole: bool) -> Iterator[StoredObject]:
    """Every object whose first row lies in a split, but for those that are deleted meanwhile.

    Args:
        whole: whether `data` is to hold all parts.
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
    """An object from its first row; None if it was deleted since that was read."""
    name = f"{realm}/{key.id}"
    try:
        parts = objects.part_count(value, name)
        header = objects.decode_header(value, name)
    except PolarisError as error:
        return StoredObject(realm, key.id, 1, len(value), None, value, str(error))
    if parts == 1:
        return StoredObject(realm, key.id, 1, len(value), header, value, None)
    size, pieces, missing = len(value), [value], []
    for part in range(1, parts):  # one at a time: of large objects the sizes alone may be wanted
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
