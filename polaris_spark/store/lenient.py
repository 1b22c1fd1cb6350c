"""Reading of objects for damage checks: for an object that cannot be read, the result contains an `Unreadable`, and no
error is raised.

Reads bypass the cache, because the cache may hold rows that the database has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.backends.chunks import chunks
from polaris_spark.errors import CorruptionError, NewerFormatError
from polaris_spark.objects import Header, decode_header, part_count

BATCH = 256
"""Maximum number of rows (objects, or further parts of objects) in one read."""


class Read(NamedTuple):
    """An object whose header can be read."""

    header: Header
    data: bytes
    """The object's bytes; only the bytes of part 0 if `read_each` was called with `whole=False`."""


class Unreadable(NamedTuple):
    """An object that cannot be read."""

    reason: str
    """Description of the problem with the object."""
    part: int = 0
    """Number of the part (row) of the object that is damaged or missing; the first part is 0."""
    missing: bool = False
    """Whether the part `part` is missing from the database; False if it is present but damaged."""
    newer: NewerFormatError | None = None
    """The error, if the object cannot be read because a newer release may have written it; else None."""


def read_each(
    backend: Backend,
    realm: str,
    ids: Collection[int],
    *,
    whole: bool,
    on_read: Callable[[int], None] = lambda _: None,
) -> dict[int, Read | Unreadable]:
    """Return objects by id, in the order of `ids`.

    Args:
        realm: instance id of the realm.
        whole: True reads and joins all parts of an object; False only checks that further parts exist.
        on_read: called after each read of first parts, with the number of objects in this read.
    """
    result: dict[int, Read | Unreadable] = {}
    further: list[ObjectKey] = []
    for some in chunks(list(ids), BATCH):
        rows = backend.read_objects(realm, [ObjectKey(id) for id in some])
        on_read(len(some))
        for id in some:
            result[id] = _first_part(rows.get(ObjectKey(id)), f"{realm}/{id}", further, id)
    for keys in chunks(further, BATCH):
        rows = backend.read_objects(realm, keys)
        for key in keys:
            read = result[key.id]
            if isinstance(read, Unreadable):
                continue
            if key not in rows:
                result[key.id] = Unreadable(f"its part {key.part} is missing", key.part, missing=True)
            elif whole:
                result[key.id] = read._replace(data=read.data + rows[key])
    return result


def _first_part(value: bytes | None, key: str, further: list[ObjectKey], id: int) -> Read | Unreadable:
    if value is None:
        return Unreadable("missing", missing=True)
    try:
        header, parts = decode_header(value, key), part_count(value, key)
    except CorruptionError as error:
        return Unreadable(str(error))
    except NewerFormatError as error:
        return Unreadable(str(error), newer=error)
    further.extend(ObjectKey(id, part) for part in range(1, parts))
    return Read(header, value)
