"""Who owns which location: no two entities may own overlapping ones.

A location is compared by whole path segments of its normalised URI. The index `locations` keys it by scheme and
authority, then its segments, so that owners of a location, of anything above it and of anything below it are
contiguous ranges each.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from polaris_spark.catalog.files import absolute
from polaris_spark.catalog.rows import LOCATIONS, id_bytes, id_from
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError, InputError
from polaris_spark.index import Entry
from polaris_spark.index.keys import KeyRange, children, entry_key, subtree

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
"""Schemes to the one that means the same storage."""


_NO_AUTHORITY = ("", "file", "hdfs", "viewfs")
"""Schemes whose URIs may leave out a host or bucket."""

PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties that send files elsewhere; the last two are Iceberg's old names of the first."""

_ABSOLUTE = re.compile(r"/|file:|[A-Za-z][A-Za-z0-9+.-]*://")
"""How a location begins that means the same folder wherever a job runs."""

_OWN = 1 + len(PATHS)
"""How many locations one entity can own: its own, and one for each of these properties."""


def folder(location: str) -> str:
    """A folder that a person names for a job, as an absolute URI: one that is the same wherever the job runs.

    Raises:
        InputError: it is relative, or no location of files.
    """
    if not _ABSOLUTE.match(location):
        raise InputError(f"location {location!r} is neither an absolute path nor a URI such as scheme://...")
    try:
        segments(absolute(location))
    except (BadRequestError, ValueError) as error:
        raise InputError(f"location {location!r} cannot be used: {error}") from error
    return absolute(location)


def segments(location: str) -> tuple[str, ...]:
    """A location as scheme and authority followed by its path segments.

    `s3a` and `s3n` are `s3`, and so on; a location without a scheme is a `file`; empty segments are dropped.

    Raises:
        BadRequestError: not an absolute location, one with `.` or `..` in it, or a file of another host.
    """
    try:
        uri = urlsplit(location, allow_fragments=False)
    except ValueError as error:
        raise BadRequestError(f"location {location!r} is not a URI: {error}") from error
    scheme = uri.scheme.lower()
    path = uri.path + (f"?{uri.query}" if uri.query else "")
    unsound = not location.isprintable() or location != location.strip()
    # `//host/path` is a path to a file system, and names a host to whoever reads it as a URI.
    unsound = unsound or (not scheme and bool(uri.netloc))
    rootless = not uri.netloc and (scheme not in _NO_AUTHORITY or not path.strip("/") or path[0] != "/")
    if unsound or rootless:
        raise BadRequestError(f"location {location!r} is not an absolute path or URI")
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise BadRequestError(f"location {location!r} has '.' or '..' in its path")
    authority = uri.netloc.lower()
    scheme = SAME_SCHEME.get(scheme, scheme)
    if scheme == "file" and authority:
        if authority != "localhost":
            raise BadRequestError(f"location {location!r} names a file of another host")
        authority = ""
    if scheme == "abfs":
        authority = authority.replace(".blob.", ".dfs.")
    return (f"{scheme}://{authority}", *parts)


def owned(location: str, properties: dict[str, str]) -> frozenset[tuple[str, ...]]:
    """The locations that a table or view owns: its own, and its data and metadata paths where they lie elsewhere."""
    base = segments(location)
    mine = {base}
    for name in PATHS:
        if name in properties:
            other = segments(properties[name])
            if other[: len(base)] != base:
                mine.add(other)
    return frozenset(mine)


def is_allowed(allowed: Collection[tuple[str, ...]] | None, location: tuple[str, ...]) -> bool:
    """Whether a location is one of those allowed or lies below one, by whole segments; None allows all."""
    return allowed is None or any(location[: len(place)] == place for place in allowed)


def require_allowed(
    allowed: Collection[tuple[str, ...]] | None, locations: Iterable[tuple[str, ...]]
) -> None:
    """Refuse locations that clients of this catalog may not name.

    Raises:
        ForbiddenError: one of them is not allowed.
    """
    for location in locations:
        if not is_allowed(allowed, location):
            raise ForbiddenError(
                f"location {'/'.join(location)} lies neither below the catalog's warehouse nor below a location "
                "that this server was told to allow"
            )


def move(
    state: State,
    entity_id: int,
    before: Iterable[tuple[str, ...]],
    after: Iterable[tuple[str, ...]],
    *,
    shared: bool = False,
) -> None:
    """Give up the locations `before` and own those `after`.

    Raises:
        ForbiddenError: one of them overlaps with what another entity owns, and `shared` is false.
    """
    old, new = set(before), set(after)
    for location in old - new:
        state.remove(LOCATIONS, _key(location, entity_id))
    for location in sorted(new - old):
        if not shared:
            _refuse_overlap(state, entity_id, location)
        state.put(LOCATIONS, _key(location, entity_id), Entry(value=id_bytes(entity_id)))


def owner_of(state: State, location: tuple[str, ...], *, but: int = 0) -> tuple[tuple[str, ...], int] | None:
    """An entity other than `but` that owns a location overlapping `location`: (its location, entity id)."""
    found = owner_above(state, location[:-1], but=but)
    return found or _first_owner(state, [(location, subtree(location))], but)


def owner_above(
    state: State, location: tuple[str, ...], *, but: int = 0
) -> tuple[tuple[str, ...], int] | None:
    """An entity other than `but` that owns `location` or a location that it lies in: (its location, entity id)."""
    return _first_owner(
        state, [(location[:n], children(location[:n], _KIND)) for n in range(1, len(location) + 1)], but
    )


def overlapping(state: State, location: tuple[str, ...], *, but: int = 0) -> set[int]:
    """All entities other than `but` that own `location`, a location that it lies in, or one that lies in it."""
    above = [children(location[:n], _KIND) for n in range(1, len(location))]
    found = [state.scan(LOCATIONS, *where) for where in (*above, subtree(location))]
    return {id_from(entry.value) for entries in found for _, entry in entries} - {but}


def _first_owner(
    state: State, ranges: list[tuple[tuple[str, ...], KeyRange]], but: int
) -> tuple[tuple[str, ...], int] | None:
    for at, (start, end) in ranges:
        for _, entry in state.scan(LOCATIONS, start, end, limit=_OWN + 1):
            if id_from(entry.value) != but:
                return at, id_from(entry.value)
    return None


def _refuse_overlap(state: State, entity_id: int, location: tuple[str, ...]) -> None:
    other = owner_of(state, location, but=entity_id)
    if other is not None:
        raise ForbiddenError(
            f"location {'/'.join(location)} overlaps with {'/'.join(other[0])}, which belongs to entity {other[1]:x}"
        )


def _key(location: tuple[str, ...], entity_id: int) -> bytes:
    return entry_key(location, _KIND, f"{entity_id:x}")
