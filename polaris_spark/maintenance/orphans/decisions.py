"""Decision which files are orphans. The functions of this module do no I/O.

A file is an orphan if no table or view of the store names it, it is older than a threshold, and it is in a location in
which this catalog may delete files. Locations are compared in the same way as in Iceberg's `DeleteOrphanFiles`
(https://iceberg.apache.org/docs/latest/spark-procedures/#remove_orphan_files): first by normalized path, then by scheme
and authority. Two spellings that might mean the same file are treated as equal, so that a file is kept if in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from polaris_spark.catalog.files.locations import SAME_SCHEME
from polaris_spark.catalog.files.paths import normal_path, split_location
from polaris_spark.errors import InputError

DAY_MS = 86_400_000
DEFAULT_AGE_MS = 3 * DAY_MS
"""Default minimum age of an orphan file, in milliseconds. The writer of a younger file may not have committed yet."""
LEAST_AGE_MS = DAY_MS
"""Lowest minimum age that a user may choose without `force`, in milliseconds."""

_SAME = tuple(sorted((name, of) for name, of in SAME_SCHEME.items() if name))


class Mismatch(str, Enum):
    """How to treat a listed file whose path tables name, but only with another scheme or authority."""

    ERROR = "error"
    """Fail with an error, and delete no file."""
    IGNORE = "ignore"
    """Keep the file, as if tables named it."""
    DELETE = "delete"
    """Treat the file as an orphan, which may be deleted."""

    @classmethod
    def parse(cls, text: str) -> Mismatch:
        """Return the mode that has a name. Upper and lower case are not distinguished.

        Raises:
            InputError: no mode has this name.
        """
        try:
            return cls(text.strip().lower())
        except ValueError:
            known = ", ".join(mode.value for mode in cls)
            raise InputError(f"prefix_mismatch_mode is {text!r}; it must be one of: {known}") from None


class FileName(NamedTuple):
    """A location, normalized for comparison. Scheme and authority are empty if the location does not contain them."""

    scheme: str
    authority: str
    path: str

    def has_prefix_of(self, known: FileName) -> bool:
        """Whether the scheme and authority of `known` are equal to those of this file, or empty."""
        return known.scheme in ("", self.scheme) and known.authority in ("", self.authority)


class Comparison(NamedTuple):
    """Rules for which schemes and which authorities are treated as equal.

    Each pair is a name and the name by which it is replaced before names are compared.
    """

    schemes: tuple[tuple[str, str], ...] = _SAME
    authorities: tuple[tuple[str, str], ...] = ()

    def of(self, location: str) -> FileName:
        """Return a location, normalized for comparison.

        Schemes and authorities are converted to lower case, then replaced according to the rules. In paths, empty
        segments and `.` segments are removed, `..` removes the segment before it, percent escapes are decoded until
        none is left, and Unicode is composed (NFC).
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
    """Return rules that treat the given schemes and authorities as equal, in addition to the default rules.

    Args:
        schemes: each key has one or more scheme names, separated by commas. They are treated as equal to the value.
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
            raise InputError(
                f"{what}: the value for {names!r} is null; give the name that they are treated as equal to"
            )
    return {
        name.strip().lower(): of.strip().lower() for names, of in given.items() for name in names.split(",")
    }


def folders_of(path: str) -> list[str]:
    """Return all folders that contain a normalized path, the innermost first."""
    found = []
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found


def is_hidden(below: Sequence[str], partitions: Collection[str] = ()) -> bool:
    """Whether Hadoop's tools treat a file as hidden: a segment of its path below a folder begins with `_` or `.`.

    Args:
        below: the path segments below the table's location or the listed folder.
        partitions: prefixes of segments that do not count as hidden: `<name>=` for each partition field whose name
            begins with `_` or `.`.
    """
    return any(part[:1] in ("_", ".") and not part.startswith(tuple(partitions)) for part in below)


def require_old(now_ms: int, before_ms: int, *, force: bool) -> None:
    """Raise an error if the user's threshold `older_than` is less than a day ago and `force` is false.

    Args:
        now_ms: the current time, in milliseconds since 1970.
        before_ms: the threshold, in milliseconds since 1970. Only files last changed before this time are deleted.
    Raises:
        InputError: the threshold is less than a day ago, and `force` is false.
    """
    if now_ms - before_ms < LEAST_AGE_MS and not force:
        raise InputError(
            "older_than is less than 24 hours ago: this might delete files that a running process has written but not "
            "committed yet; if no process is writing, set force => true"
        )


class OwnedLocation(NamedTuple):
    """A location that a table or view claims. `unconfirmed` is True if the claim is not registered as ownership."""

    name: FileName
    owner: str
    """The catalog and name of the table or view, for messages."""
    kept: bool = False
    """Whether all files below the location are kept: `gc.enabled` is false, or the realm was moved to another store."""
    partitions: tuple[str, ...] = ()
    """`<name>=` for each partition field whose name begins with `_` or `.`. Files in these partition folders do not
    count as hidden."""
    unconfirmed: bool = False
    """True if the table or view names the location but does not own it. Files in the location are then kept, and do not
    count as files of this table or view."""


class FileVerdict(NamedTuple):
    """The decision about a file that no table or view names."""

    is_orphan: bool
    """Whether the file is an orphan, which may be deleted."""
    owner: str | None
    """Owner of the innermost location that contains the file; None if no location contains it."""


def judge(
    file: FileName,
    root: str,
    around: Iterable[OwnedLocation],
    broken: Collection[str] = (),
    incomplete: Collection[str] = (),
    *,
    keeps_strays: bool = False,
) -> FileVerdict:
    """Decide whether a file that no table or view names is an orphan, by the locations that contain it.

    If files in a location must be kept, the file is kept even if its scheme or authority differs from the location's.
    But the file only belongs to the location's owner if these match (`has_prefix_of`).

    Args:
        root: normalized path of the folder that was listed.
        around: the locations whose paths contain the file's path, in any order.
        broken: all tables and views of the store that cannot be read.
        incomplete: all tables and views of the store with missing manifest lists or manifests.
        keeps_strays: whether a file that is in no table's or view's location is kept.
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
    return FileVerdict(not kept and not is_hidden(below, partitions), innermost.owner if innermost else None)


def outermost(roots: Iterable[str], name_of: Callable[[str], FileName]) -> list[str]:
    """Return the given folders that are not inside another given folder. If several are equal, return the first of
    them.

    Args:
        name_of: function that normalizes a location for comparison.
    """
    found: dict[FileName, str] = {}
    for root in roots:
        found.setdefault(name_of(root), root)
    return [
        root for at, root in found.items() if not any(at != other and is_below(at, other) for other in found)
    ]


def is_below(name: FileName, folder: FileName) -> bool:
    """Whether `name` is equal to `folder` or lies inside it."""
    return (name.scheme, name.authority) == (folder.scheme, folder.authority) and (
        name.path == folder.path or name.path.startswith(folder.path.rstrip("/") + "/")
    )
