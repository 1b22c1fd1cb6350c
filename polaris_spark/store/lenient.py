"""Objects read one by one from the database, for whoever looks for damage: what cannot be read is told, not raised.

The cache is not asked: it may hold rows that the database lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.errors import CorruptionError, NewerFormatError
from polaris_spark.objects import Header, decode_header, part_count

BATCH = 256
"""Objects, or further parts of them, that are read together."""


class Read(NamedTuple):
    """An object that can be read as far as its header goes."""

    header: Header
    data: bytes
    """The object's bytes; of part 0 only where further ones were only to be there."""


class Unreadable(NamedTuple):
    """An object that cannot be read."""

    reason: str
    """What is wrong with it, in words."""
    part: int = 0
    """The part that is wrong."""
    missing: bool = False
    """Whether that part is not there."""
    newer: NewerFormatError | None = None
    """Set where a newer release may have written it."""


def read_each(
    backend: Backend,
    realm: str,
    ids: Collection[int],
    *,
    whole: bool,
    on_read: Callable[[int], None] = lambda _: None,
) -> dict[int, Read | Unreadable]:
    """Objects by id, in the order of `ids`.

    Args:
        realm: instance id of the realm.
        whole: whether further parts are put together; else they are only to be there.
        on_read: told how many objects were read, each time.
    """
    listed = list(ids)
    result: dict[int, Read | Unreadable] = {}
    further: list[ObjectKey] = []
    for start in range(0, len(listed), BATCH):
        some = listed[start : start + BATCH]
        rows = backend.read_objects(realm, [ObjectKey(id) for id in some])
        on_read(len(some))
        for id in some:
            result[id] = _first_part(rows.get(ObjectKey(id)), f"{realm}/{id}", further, id)
    for start in range(0, len(further), BATCH):
        keys = further[start : start + BATCH]
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
