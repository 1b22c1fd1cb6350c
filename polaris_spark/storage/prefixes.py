"""The folders of S3 buckets that contain the files of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

from polaris_spark.catalog.files.locations import is_below_any, owned_names, segments
from polaris_spark.errors import UnsupportedOperationError

_SCHEMES: Final = ("s3", "s3a", "s3n")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ROUNDS: Final = 3
"""How many times a key is percent-decoded to find dots and backslashes, in case a gateway decodes more than once."""


class Prefix(NamedTuple):
    """A folder of a bucket."""

    bucket: str
    key: str
    """Keys of the files begin with this text and a slash."""
    location: str
    """The location of the folder, as the table's metadata spells it, without a slash at the end."""

    def contains(self, bucket: str, key: str) -> bool:
        """Whether an object is in the folder. The key of the folder itself, with a slash at its end, counts as such."""
        return bucket == self.bucket and key.startswith(f"{self.key}/") and is_plain(key)


def is_plain(key: str) -> bool:
    """Whether all programs interpret a key of S3 in the same way. The key must have no control characters, and no empty
    part except the last. It must have no backslashes and no part `.` or `..`, even after it was percent-decoded up to
    `_ROUNDS` times. Partition values may contain other encoded characters, such as `%2F` and `%0A`."""
    if not key.isprintable() or not all(key.split("/")[:-1]):
        return False
    for _ in range(_ROUNDS + 1):
        if "\\" in key or any(part in (".", "..") for part in key.split("/")):
            return False
        key = unquote(key)
    return True


def prefix_of(location: str) -> Prefix:
    """Return the prefix of a location.

    Raises:
        UnsupportedOperationError: no credentials can be handed out for the location; the message says why.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        name = scheme if separator else scheme.partition(":")[0]
        shown = name if not name.startswith("/") else "file"
        raise UnsupportedOperationError(
            f"this server hands out credentials only for tables on S3, not for those with the scheme {shown[:40]!r}"
        )
    bucket, _, key = rest.partition("/")
    key = key.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise UnsupportedOperationError(
            f"no credentials are handed out for {location!r}: {bucket!r} is not a valid bucket name"
        )
    if not key or not is_plain(key) or any(one in key for one in "?#"):
        raise UnsupportedOperationError(
            f"no credentials are handed out for {location!r}: the key has empty parts, '.', '..', '?', '#' or control "
            "characters, or is empty"
        )
    return Prefix(bucket, key, location.rstrip("/"))


def prefixes_of(
    location: str, properties: Mapping[str, str], unconfirmed: Iterable[str]
) -> tuple[Prefix, ...]:
    """Return the prefixes that a table owns: those of its location, and of its data and metadata paths. Prefixes within
    other ones are left out.

    Args:
        unconfirmed: locations that the table uses without owning them (`catalog.files.ownership`). They are left out,
            because whoever wrote the metadata file may have named the location of another table.
    Raises:
        UnsupportedOperationError: no credentials can be handed out for one of them, or the table owns none.
        BadRequestError: a location is not absolute.
    """
    owned, _ = owned_names(location, properties, unconfirmed)
    if not owned:
        raise UnsupportedOperationError(
            f"no credentials are handed out for the table at {location!r}: it was imported, and its locations have not "
            "been confirmed as its own; confirm them with the procedure adopt"
        )
    places = {segments(one): one for one in reversed(owned)}
    outermost = [text for place, text in places.items() if not is_below_any(place, places.keys() - {place})]
    return tuple(prefix_of(one) for one in sorted(outermost))


def common_beginning(prefixes: Sequence[Prefix]) -> str:
    """Return a text with which the locations of all files in the prefixes begin."""
    return prefixes[0].location if len(prefixes) == 1 else _SCHEMES[0]
