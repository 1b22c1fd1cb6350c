"""Ownership of locations: no two entities (tables or views) may own overlapping locations.

Locations are compared by whole path segments of their normalized URIs. A key of the index `locations` has the scheme
and authority first, then the path segments, then the entity id. So the owners of one location are a contiguous range of
keys, and the owners of all locations below it are another one. The index `unconfirmed` has keys of the same form for
locations that a table or view uses but does not own (`catalog.files.ownership`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from polaris_spark.catalog.files.files import absolute
from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.rows import IDS, LOCATIONS, TABLE, UNCONFIRMED, id_bytes, id_from
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError, InputError
from polaris_spark.index import Entry
from polaris_spark.index.keys import KeyRange, children_upwards, decode_key, entry_key, subtree

_KIND = b"l"
SAME_SCHEME = {
    "": "file",
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
}
"""Maps a URI scheme to the canonical scheme for the same storage."""


_NO_AUTHORITY = ("", "file", "hdfs", "viewfs")
"""Schemes whose URIs may leave out a host or bucket."""

PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Table properties whose values are folders for files, perhaps outside the table's location. The last two are old names
of the first."""

_ABSOLUTE = re.compile(r"/|file:|[A-Za-z][A-Za-z0-9+.-]*://")
"""Matches the beginning of an absolute location, which does not depend on the working directory of a job."""

_OWN = 1 + len(PATHS)
"""Maximum number of locations that a table or view can own: its location, and one for each property in `PATHS`."""


def folder(location: str) -> str:
    """Return the absolute URI of a folder that a user gave as an argument of a job. Relative locations are refused,
    because they would depend on the job's working directory.

    Raises:
        InputError: the location is relative, or is not a location of files.
    """
    if not _ABSOLUTE.match(location):
        raise InputError(f"location {location!r} is neither an absolute path nor a URI such as scheme://...")
    try:
        segments(absolute(location))
    except (BadRequestError, ValueError) as error:
        raise InputError(f"location {location!r} cannot be used: {error}") from error
    return absolute(location)


def segments(location: str) -> tuple[str, ...]:
    """Return a location as path segments: the scheme and authority in one string, then the segments of its path.

    The scheme is replaced by its canonical form (`SAME_SCHEME`), which is `file` if there is none. Empty segments are
    dropped.

    Raises:
        BadRequestError: the location is not absolute, has `.` or `..` in it, names a file of another host, or is too
            long.
    """
    require_within("characters in a location", len(location))
    try:
        uri = urlsplit(location, allow_fragments=False)
    except ValueError as error:
        raise BadRequestError(f"location {location!r} is not a URI: {error}") from error
    scheme = uri.scheme.lower()
    path = uri.path + (f"?{uri.query}" if uri.query else "")
    unsound = not location.isprintable() or location != location.strip()
    # `//host/path` is ambiguous: a path for a file system, but a host and a path for a URI parser.
    unsound = unsound or (not scheme and bool(uri.netloc))
    rootless = not uri.netloc and (scheme not in _NO_AUTHORITY or not path.strip("/") or path[0] != "/")
    if unsound or rootless:
        raise BadRequestError(f"location {location!r} is not an absolute path or URI")
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise BadRequestError(f"location {location!r} has '.' or '..' in its path; write it without them")
    authority = uri.netloc.lower()
    scheme = SAME_SCHEME.get(scheme, scheme)
    if scheme == "file" and authority:
        if authority != "localhost":
            raise BadRequestError(f"location {location!r} is a file on another host, which cannot be read")
        authority = ""
    if scheme == "abfs":
        authority = authority.replace(".blob.", ".dfs.")
    return (f"{scheme}://{authority}", *parts)


def named(location: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the location of a table or view, and its data and metadata paths, as written and without duplicates."""
    paths = [location, *(properties[name] for name in PATHS if name in properties)]
    return tuple(path for path in dict.fromkeys(paths) if path)


def used(location: str, properties: Mapping[str, str]) -> frozenset[tuple[str, ...]]:
    """Return the locations that a table or view uses, as path segments: its location, and its data and metadata paths
    outside that location.

    Raises:
        BadRequestError: a location is not absolute.
    """
    base = segments(location)
    mine = {base}
    for name in PATHS:
        if name in properties:
            other = segments(properties[name])
            if other[: len(base)] != base:
                mine.add(other)
    return frozenset(mine)


class Holdings(NamedTuple):
    """The locations that a table or view uses."""

    owned: frozenset[tuple[str, ...]] = frozenset()
    """Locations that the table or view owns."""
    unconfirmed: frozenset[tuple[str, ...]] = frozenset()
    """Locations that the table or view uses but does not own, because the procedure `adopt` has not confirmed them."""


def holdings(location: str, properties: Mapping[str, str], unconfirmed: Iterable[str]) -> Holdings:
    """Return the locations that a table or view uses, divided into owned and unconfirmed locations.

    Args:
        unconfirmed: the locations that the row lists as unconfirmed; the table or view owns neither these nor any
            location below them.
    Raises:
        BadRequestError: a location is not absolute.
    """
    away = [segments(one) for one in unconfirmed]
    all_used = used(location, properties)
    mine = frozenset(place for place in all_used if not is_below_any(place, away))
    return Holdings(mine, all_used - mine)


def owned_names(
    location: str, properties: Mapping[str, str], unconfirmed: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the location of a table or view, and its data and metadata paths, as written, in two tuples: first the
    locations that the table or view owns (as defined by `holdings`), then the locations that it does not own.

    Raises:
        BadRequestError: `unconfirmed` is not empty, and a location is not absolute.
    """
    away = [segments(one) for one in unconfirmed]
    names = named(location, properties)
    others = tuple(one for one in names if away and is_below_any(segments(one), away))
    return tuple(one for one in names if one not in others), others


def still_named(
    unconfirmed: tuple[str, ...], location: str, properties: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the unconfirmed locations that a table or view still uses after a change. It uses an unconfirmed location
    if its location, data path or metadata path equals the unconfirmed location or lies inside it."""
    if not unconfirmed:
        return ()
    places = [segments(one) for one in named(location, properties)]
    return tuple(one for one in unconfirmed if any(is_below_any(place, [segments(one)]) for place in places))


def is_below_any(location: tuple[str, ...], folders: Iterable[tuple[str, ...]]) -> bool:
    """Whether a location is one of these folders or lies in one of them."""
    return any(location[: len(folder)] == folder for folder in folders)


def overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two locations are the same, or one of them lies in the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def is_allowed(allowed: Collection[tuple[str, ...]] | None, location: tuple[str, ...]) -> bool:
    """Whether a location is one of the allowed locations or is inside one. If `allowed` is None, all are allowed."""
    return allowed is None or is_below_any(location, allowed)


def require_allowed(
    allowed: Collection[tuple[str, ...]] | None, locations: Iterable[tuple[str, ...]]
) -> None:
    """Check that clients may use the locations (`is_allowed`).

    Raises:
        ForbiddenError: a location is not allowed.
    """
    for location in locations:
        if not is_allowed(allowed, location):
            raise ForbiddenError(
                f"location {'/'.join(location)} is neither below the catalog's warehouse nor below a location "
                "that this server allows (--allow-location)"
            )


def move(state: State, entity_id: int, before: Holdings, after: Holdings) -> None:
    """Record in the indexes `locations` and `unconfirmed` that an entity now has the locations `after`, not `before`.
    Overlaps are not checked.

    Raises:
        InputError, ObjectTooLargeError: a location is too long for a key; nothing was changed.
    """
    changes = [
        (
            index,
            [_key(one, entity_id) for one in old - new],
            [_key(one, entity_id) for one in sorted(new - old)],
        )
        for index, old, new in zip((LOCATIONS, UNCONFIRMED), before, after, strict=True)
    ]
    for index, removed, added in changes:
        for key in removed:
            state.remove(index, key)
        for key in added:
            state.put(index, key, Entry(value=id_bytes(entity_id)))


def owner_of(state: State, location: tuple[str, ...], *, but: int = 0) -> tuple[tuple[str, ...], int] | None:
    """Find an entity other than `but` that owns a location overlapping `location`.

    Returns:
        a location and the id of the entity; None if no entity owns an overlapping location. If the entity owns
        `location` or a location that contains it, the returned location is the owned one. If the entity owns a location
        inside `location`, the returned location is `location`.
    """
    found = owner_above(state, location[:-1], but=but)
    if found is None:
        owner = _first_owner(state, subtree(location), but)
        found = None if owner is None else (location, owner)
    return found


def owner_above(
    state: State, location: tuple[str, ...], *, but: int = 0
) -> tuple[tuple[str, ...], int] | None:
    """Find an entity other than `but` that owns `location` or a location that contains it.

    Returns:
        the owned location and the id of the entity that owns it; None if there is none.
    """
    for length, where in enumerate(children_upwards(location, _KIND), 1):
        owner = _first_owner(state, where, but)
        if owner is not None:
            return location[:length], owner
    return None


def user_above(state: State, location: tuple[str, ...], *, but: int = 0) -> bool:
    """Whether an entity other than `but` owns `location` or a location that contains it, or uses one of these without
    owning it."""
    above = children_upwards(location, _KIND)
    indexes = (LOCATIONS, UNCONFIRMED)
    return any(_first_owner(state, where, but, index) is not None for index in indexes for where in above)


def overlapping(state: State, location: tuple[str, ...]) -> set[int]:
    """Return the ids of all entities that use a location that overlaps `location`, whether they own it or not."""
    ranges = (*children_upwards(location[:-1], _KIND), subtree(location))
    found = [state.scan(index, *where) for index in (LOCATIONS, UNCONFIRMED) for where in ranges]
    return {id_from(entry.value) for entries in found for _, entry in entries}


def _first_owner(state: State, where: KeyRange, but: int, index: str = LOCATIONS) -> int | None:
    """Return the id of the first entity other than `but` in a key range of an index of locations; None if there is
    none."""
    state.check_time()
    for _, entry in state.scan(index, *where, limit=_OWN + 1):
        if id_from(entry.value) != but:
            return id_from(entry.value)
    return None


def refuse_overlap(
    state: State, entity_id: int, location: tuple[str, ...], *, names_owner: bool = True
) -> None:
    """Check that a location does not overlap a location that an entity other than `entity_id` owns.

    Args:
        names_owner: whether the error may name the other entity and its location.
    Raises:
        ForbiddenError: another entity owns an overlapping location.
    """
    other = owner_of(state, location, but=entity_id)
    if other is not None and not names_owner:
        raise ForbiddenError(
            f"location {'/'.join(location)} overlaps the location of another table or view; choose another location"
        )
    if other is not None:
        raise ForbiddenError(
            f"location {'/'.join(location)} overlaps {'/'.join(other[0])}, which belongs to "
            f"{_shown_owner(state, other[1])}; choose another location"
        )


def _shown_owner(state: State, entity_id: int) -> str:
    """Return a description of the table or view with this entity id for messages, such as `table sales.orders`."""
    entry = state.lookup(IDS, id_bytes(entity_id))
    if entry is None:  # a damaged index
        return f"entity {entity_id:x}"
    path, kind, name = decode_key(entry.value)
    return f"{'table' if kind == TABLE else 'view'} {'.'.join((*path, name))}"


def _key(location: tuple[str, ...], entity_id: int) -> bytes:
    return entry_key(location, _KIND, f"{entity_id:x}")
