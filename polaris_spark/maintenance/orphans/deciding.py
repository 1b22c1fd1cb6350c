"""Which files of a storage are orphans: decisions, without reading anything.

A file is an orphan if nothing in the store names it, it is older than a threshold, and it lies where this catalog may
delete. Names are compared as Iceberg's `DeleteOrphanFiles` does
(https://iceberg.apache.org/docs/latest/spark-procedures/#remove_orphan_files): by path first, then by scheme and
authority. Paths are brought into one form before; where two spellings might mean the same file, they are the same, so
that doubt always keeps a file.
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
"""How old a file must be: writers of younger ones may not have committed yet."""
LEAST_AGE_MS = DAY_MS
"""A shorter age is refused unless it is forced."""

_SAME = tuple(sorted((name, of) for name, of in SAME_SCHEME.items() if name))


class Mismatch(str, Enum):
    """What a file is whose path is known under another scheme or authority only."""

    ERROR = "error"
    """Nobody can say: nothing is deleted."""
    IGNORE = "ignore"
    """No orphan."""
    DELETE = "delete"
    """An orphan."""

    @classmethod
    def parse(cls, text: str) -> Mismatch:
        """The mode of that name, in any case.

        Raises:
            InputError: there is none.
        """
        try:
            return cls(text.strip().lower())
        except ValueError:
            known = ", ".join(mode.value for mode in cls)
            raise InputError(f"prefix_mismatch_mode is {text!r}; it is one of: {known}") from None


class Named(Protocol):
    """Gives locations the form in which they are compared."""

    def of(self, location: str) -> FileName:
        """A location in that form."""


class FileName(NamedTuple):
    """A location in the form in which files are compared; scheme and authority are empty where it names none."""

    scheme: str
    authority: str
    path: str

    def has_prefix_of(self, known: FileName) -> bool:
        """Whether a known file's scheme and authority do not tell it from this one."""
        return known.scheme in ("", self.scheme) and known.authority in ("", self.authority)


class Comparison(NamedTuple):
    """Which schemes and authorities are the same."""

    schemes: tuple[tuple[str, str], ...] = _SAME
    authorities: tuple[tuple[str, str], ...] = ()

    def of(self, location: str) -> FileName:
        """A location in the form in which files are compared.

        Schemes and authorities are in lower case and replaced by their equals. Paths lose empty and `.` segments,
        `..` takes the one before away, percent escapes are decoded until none is left, and Unicode is composed (NFC).
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
    """A comparison by what is the same: keys are names separated by commas, values the names that they stand for.

    Raises:
        InputError: a name stands for none.
    """
    return Comparison(
        tuple(sorted((dict(_SAME) | _flat("equal_schemes", schemes or {})).items())),
        tuple(sorted(_flat("equal_authorities", authorities or {}).items())),
    )


def _flat(what: str, given: Mapping[str, str]) -> dict[str, str]:
    for names, of in given.items():
        if of is None:  # as SQL allows
            raise InputError(f"{what} says of {names!r} that it is null; it has to name what that is")
    return {
        name.strip().lower(): of.strip().lower() for names, of in given.items() for name in names.split(",")
    }


def folders_of(path: str) -> list[str]:
    """The folders that a normal path lies in, the nearest first."""
    found = []
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        found.append(path)
    return found


def is_hidden(below: Sequence[str], partitions: Collection[str] = ()) -> bool:
    """Whether a file is hidden as Hadoop's tools see it: a segment begins with `_` or `.`.

    Args:
        below: path segments below the table's location.
        partitions: beginnings of segments that are no hidden ones: `<name>=` of partition fields that begin so.
    """
    return any(part[:1] in ("_", ".") and not part.startswith(tuple(partitions)) for part in below)


def require_old(now_ms: int, before_ms: int, *, force: bool) -> None:
    """Refuse a time, before which files must have been changed last, that is less than a day ago.

    Raises:
        InputError: it is, and `force` is false.
    """
    if now_ms - before_ms < LEAST_AGE_MS and not force:
        raise InputError(
            "older_than is less than 24 hours ago: files that somebody is about to commit would be deleted; if nobody "
            "writes, say so by force => true"
        )


class Place(NamedTuple):
    """A location that a table or view owns."""

    name: FileName
    owner: str
    """Whose, for messages: catalog and name."""
    kept: bool = False
    """Nothing below it may be deleted: `gc.enabled` is false."""
    partitions: tuple[str, ...] = ()
    """See `is_hidden`."""
    unconfirmed: bool = False
    """Whether the owner only names the location: orphans in it are kept, and its files do not count as the owner's."""


class Judged(NamedTuple):
    """What the places around a file say of it."""

    is_orphan: bool
    """Whether nothing speaks against it."""
    owner: str | None
    """Of the innermost place, if any."""


def judge(
    file: FileName,
    root: str,
    around: Iterable[Place],
    broken: Collection[str] = (),
    incomplete: Collection[str] = (),
    *,
    keeps_strays: bool = False,
) -> Judged:
    """What places say of a file that nothing names.

    A place keeps what has its path, in whatever storage; only to one of its own storage does a file
    belong, by `has_prefix_of`.

    Args:
        root: the folder that was listed, in normal form.
        around: the places whose paths the file's lies below, in any order.
        broken: owners that could not be read, here or elsewhere.
        incomplete: owners with missing manifest lists or manifests, here or elsewhere.
        keeps_strays: whether what lies in no place stays.
    """
    around = sorted(around, key=lambda place: len(place.name.path))
    places = [place for place in around if file.has_prefix_of(place.name) and not place.unconfirmed]
    innermost = places[-1] if places else None
    base = innermost.name.path if innermost is not None and len(innermost.name.path) > len(root) else root
    partitions = {name for place in places if place.name.path == base for name in place.partitions}
    below = file.path[len(base) :].strip("/").split("/")
    # What cannot be read might name any file that lies in no table's location.
    kept = any(place.kept or place.owner in broken or place.owner in incomplete for place in around) or (
        innermost is None and (keeps_strays or bool(broken))
    )
    depth = 0 if innermost is None else len(innermost.name.path)
    kept = kept or any(place.unconfirmed and len(place.name.path) > depth for place in around)
    return Judged(not kept and not is_hidden(below, partitions), innermost.owner if innermost else None)


def outermost(roots: Iterable[str], name: Named) -> list[str]:
    """Locations without those that lie below others, or are the same."""
    found: dict[FileName, str] = {}
    for root in roots:
        found.setdefault(name.of(root), root)
    return [
        root for at, root in found.items() if not any(at != other and is_below(at, other) for other in found)
    ]


def is_below(name: FileName, folder: FileName) -> bool:
    """Whether a file or folder is another one or lies in it."""
    return (name.scheme, name.authority) == (folder.scheme, folder.authority) and (
        name.path == folder.path or name.path.startswith(folder.path.rstrip("/") + "/")
    )
