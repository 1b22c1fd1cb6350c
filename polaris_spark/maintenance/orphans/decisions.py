"""Decisions about which files of a storage are orphans, without any I/O.

A file is an orphan if no table or view of the store names it, it is older than a threshold, and it lies where this
catalog may delete files. Names are compared as Iceberg's `DeleteOrphanFiles` does
(https://iceberg.apache.org/docs/latest/spark-procedures/#remove_orphan_files): by path first, then by scheme and
authority. Paths are normalized first. Two spellings that might mean the same file are treated as equal, so that in
doubt a file is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol

from polaris_spark.catalog.locations import SAME_SCHEME
from polaris_spark.catalog.paths import normal_path, split_location
from polaris_spark.errors import InputError

DAY_MS = 86_400_000
DEFAULT_AGE_MS = 3 * DAY_MS
"""Default of the age that a file must have, in milliseconds: writers of younger files may not have committed yet."""
LEAST_AGE_MS = DAY_MS
"""Shortest age that is accepted without `force`, in milliseconds."""

_SAME = tuple(sorted((name, of) for name, of in SAME_SCHEME.items() if name))


class Mismatch(str, Enum):
    """How to treat a file whose path is known only with another scheme or authority."""

    ERROR = "error"
    """The search fails, and nothing is deleted."""
    IGNORE = "ignore"
    """The file is not an orphan."""
    DELETE = "delete"
    """The file is an orphan."""

    @classmethod
    def parse(cls, text: str) -> Mismatch:
        """Return the mode of a name, ignoring case.

        Raises:
            InputError: no mode has this name.
        """
        try:
            return cls(text.strip().lower())
        except ValueError:
            known = ", ".join(mode.value for mode in cls)
            raise InputError(f"prefix_mismatch_mode is {text!r}; it must be one of: {known}") from None


class LocationNames(Protocol):
    """Protocol of an object that normalizes locations for comparison."""

    def of(self, location: str) -> FileName:
        """Return the normalized location."""


class FileName(NamedTuple):
    """A location, normalized for comparison. Scheme and authority are empty if the location does not name them."""

    scheme: str
    authority: str
    path: str

    def has_prefix_of(self, known: FileName) -> bool:
        """Whether a known file's scheme and authority match this file's; empty ones of the known file match any."""
        return known.scheme in ("", self.scheme) and known.authority in ("", self.authority)


class Comparison(NamedTuple):
    """The schemes and authorities that are treated as equal: pairs of a name and the name that it stands for."""

    schemes: tuple[tuple[str, str], ...] = _SAME
    authorities: tuple[tuple[str, str], ...] = ()

    def of(self, location: str) -> FileName:
        """Return a location, normalized for comparison.

        Schemes and authorities are converted to lower case and replaced by the names that they stand for. In paths,
        empty and `.` segments are removed, `..` removes the segment before it, percent escapes are decoded until none
        is left, and Unicode is composed (NFC).
        """
        scheme, authority, path = split_location(location)
        scheme = scheme.lower()
        scheme = _mapped(self.schemes).get(scheme, scheme)
        authority = authority.lower()
        if scheme == "file":
            authority = ""
        elif scheme == "abfs":
            authority = authority.replace(".blob.", ".dfs.")
        return FileName(scheme, _mapped(self.authorities).get(authority, authority), normal_path(path))


@lru_cache
def _mapped(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(pairs)


def comparison(schemes: Mapping[str, str] | None, authorities: Mapping[str, str] | None) -> Comparison:
    """Return a comparison that treats some schemes and authorities as equal.

    Args:
        schemes: keys are scheme names separated by commas, values the names that they stand for.
        authorities: the same for authorities.
    Raises:
        InputError: a value is null.
    """
    return Comparison(
        tuple(sorted((dict(_SAME) | _flat("equal_schemes", schemes or {})).items())),
        tuple(sorted(_flat("equal_authorities", authorities or {}).items())),
    )


def _flat(what: str, given: Mapping[str, str]) -> dict[str, str]:
    for names, of in given.items():
        if of is None:  # SQL allows null values
            raise InputError(f"{what} has a null value for {names!r}; give a name")
    return {
        name.strip().lower(): of.strip().lower() for names, of in given.items() for name in names.split(",")
    }


def folders_of(path: str) -> list[str]:
    """Return the folders that contain a normalized path, the nearest first."""
    found = []
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found


def is_hidden(below: Sequence[str], partitions: Collection[str] = ()) -> bool:
    """Whether a file is hidden in the sense of Hadoop's tools: a segment of its path begins with `_` or `.`.

    Args:
        below: path segments below the table's location.
        partitions: prefixes of segments that do not count as hidden: `<name>=` of partition fields whose names begin
            with `_` or `.`.
    """
    return any(part[:1] in ("_", ".") and not part.startswith(tuple(partitions)) for part in below)


def require_old(now_ms: int, before_ms: int, *, force: bool) -> None:
    """Refuse a threshold for the last change of files that is less than a day ago.

    Args:
        now_ms: the current time, in milliseconds since 1970.
        before_ms: the threshold, in milliseconds since 1970.
    Raises:
        InputError: the threshold is less than a day ago, and `force` is false.
    """
    if now_ms - before_ms < LEAST_AGE_MS and not force:
        raise InputError(
            "older_than is less than 24 hours ago: files that are not committed yet would be deleted; if no "
            "process writes, set force => true"
        )


class OwnedLocation(NamedTuple):
    """A location that a table or view owns, or only names."""

    name: FileName
    owner: str
    """The catalog and name of the table or view, for messages."""
    kept: bool = False
    """Whether all files below the location must stay: `gc.enabled` is false, or the realm moved to another store."""
    partitions: tuple[str, ...] = ()
    """See `is_hidden`."""
    unconfirmed: bool = False
    """Whether the owner only names the location: orphans in it are kept, and its files do not count as the owner's."""


class Judged(NamedTuple):
    """The decision about a file that no table or view names."""

    is_orphan: bool
    """Whether the file is an orphan."""
    owner: str | None
    """Owner of the innermost location that contains the file; None if no location does."""


def judge(
    file: FileName,
    root: str,
    around: Iterable[OwnedLocation],
    broken: Collection[str] = (),
    incomplete: Collection[str] = (),
    *,
    keeps_strays: bool = False,
) -> Judged:
    """Decide whether a file that no table or view names is an orphan, by the locations that contain it.

    A location can keep files below its path in any storage. A file belongs to a location only if both are in the same
    storage (`has_prefix_of`).

    Args:
        root: normalized path of the folder that was listed.
        around: the locations whose paths contain the file's path, in any order.
        broken: owners that could not be read, of these or other locations.
        incomplete: owners with missing manifest lists or manifests, of these or other locations.
        keeps_strays: whether a file that belongs to no location stays.
    """
    around = sorted(around, key=lambda place: len(place.name.path))
    places = [place for place in around if file.has_prefix_of(place.name) and not place.unconfirmed]
    innermost = places[-1] if places else None
    base = innermost.name.path if innermost is not None and len(innermost.name.path) > len(root) else root
    partitions = {name for place in places if place.name.path == base for name in place.partitions}
    below = file.path[len(base) :].strip("/").split("/")
    # A table that cannot be read might name any file outside all tables' locations.
    kept = any(place.kept or place.owner in broken or place.owner in incomplete for place in around) or (
        innermost is None and (keeps_strays or bool(broken))
    )
    depth = 0 if innermost is None else len(innermost.name.path)
    kept = kept or any(place.unconfirmed and len(place.name.path) > depth for place in around)
    return Judged(not kept and not is_hidden(below, partitions), innermost.owner if innermost else None)


def outermost(roots: Iterable[str], name: LocationNames) -> list[str]:
    """Return locations without those that are equal to another one or lie below another one."""
    found: dict[FileName, str] = {}
    for root in roots:
        found.setdefault(name.of(root), root)
    return [
        root for at, root in found.items() if not any(at != other and is_below(at, other) for other in found)
    ]


def is_below(name: FileName, folder: FileName) -> bool:
    """Whether a file or folder is equal to a folder or lies in it."""
    return (name.scheme, name.authority) == (folder.scheme, folder.authority) and (
        name.path == folder.path or name.path.startswith(folder.path.rstrip("/") + "/")
    )
