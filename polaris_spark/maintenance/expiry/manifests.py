"""Search for content files that only manifests of expired snapshots list. Each function works on some manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.manifests.manifest_entries import (
    CONTENT,
    DATA,
    EQUALITY_DELETES,
    FILE_PATH,
    FILE_SIZE,
    POSITION_DELETES,
    ListedManifest,
    manifest_entries,
)
from polaris_spark.errors import MissingFileError, UnreadableFileError
from polaris_spark.maintenance.expiry.files import File, Kind
from polaris_spark.maintenance.expiry.names import NamingFunction, digests

MANIFESTS_OF_AN_ITEM = 20
"""Maximum number of manifests that one call of a function reads."""

_CONTENT: Mapping[int, Kind] = {
    DATA: "data",
    POSITION_DELETES: "position-deletes",
    EQUALITY_DELETES: "equality-deletes",
}


class Manifests(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some manifests to read for one table with expired snapshots."""

    number: int
    """Number that identifies the table within the run."""
    locations: tuple[str, ...]
    foreign: bool = False
    """Whether only other tables, or other versions of the table, need the manifests."""
    purged: bool = False
    """Whether some manifests may be missing because a purge deleted them, with the files that they listed."""


def manifests_of(
    number: int, locations: Sequence[str], *, foreign: bool = False, purged: bool = False
) -> list[Manifests]:
    """Return manifests of a table, split into groups of at most `MANIFESTS_OF_AN_ITEM`."""
    parts = [
        tuple(locations[at : at + MANIFESTS_OF_AN_ITEM])
        for at in range(0, len(locations), MANIFESTS_OF_AN_ITEM)
    ]
    return [Manifests(number, part, foreign, purged) for part in parts]


class LiveFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The live content files of a set of manifests: those listed with a status other than DELETED."""

    files: tuple[File, ...] = ()
    problem: str = ""
    """The error, if a manifest cannot be read; otherwise empty."""


class NeededFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content files that cannot be deleted, because some needed manifests list them as live."""

    files: tuple[int, ...] = ()
    """Digests of the candidates for deletion that these manifests list. `digests` gives a file one or two, and either
    one is enough to keep the file. Another candidate that happens to have the same digest is kept as well."""
    problem: str = ""
    """The error, if a manifest cannot be read; otherwise empty."""


class ReadManifests(MapFunction[Manifests, LiveFiles]):
    """Function that reads manifests that only expired snapshots need, and returns the content files that they list."""

    few = 64
    item = Manifests
    result = LiveFiles

    def __call__(self, reach: Reach, item: Manifests) -> LiveFiles:
        found: dict[str, File] = {}
        for location in item.locations:
            try:
                found |= {file.location: file for file in _live_files(reach.files, location)}
            except MissingFileError:
                continue  # an interrupted run deleted this manifest, after the files that it names
            except UnreadableFileError as error:
                return LiveFiles(problem=str(error))
        return LiveFiles(tuple(found.values()))


class FindNeeded(NamingFunction[Manifests, NeededFiles]):
    """Function that reads manifests that are still needed, and returns the candidate content files that they list."""

    few = 64
    item = Manifests
    result = NeededFiles

    def __init__(self, candidates: Mapping[int, Iterable[int]]) -> None:
        """
        Args:
            candidates: for each table, by `Manifests.number`, the `digests` of the content files that may be deleted if
                no needed manifest lists them.
        """
        self._candidates = {number: frozenset(files) for number, files in candidates.items()}

    def __call__(self, reach: Reach, item: Manifests) -> NeededFiles:
        candidates = self._candidates[item.number]
        found: set[int] = set()
        for location in item.locations:
            try:
                for file in _live_files(reach.files, location):
                    found |= candidates.intersection(digests(file.location))
            except UnreadableFileError as error:
                if item.purged and isinstance(error, MissingFileError):
                    continue
                return NeededFiles(problem=str(error))
        return NeededFiles(tuple(found))


def _live_files(files: Files, location: str) -> Iterator[File]:
    """Yield the files in a manifest, without its entries of status DELETED."""
    fields = (FILE_PATH, CONTENT, FILE_SIZE)
    for entry in manifest_entries(files, ListedManifest(location), fields):
        file = entry.file
        content, size = file.get(CONTENT) or DATA, file.get(FILE_SIZE) or 0
        if content not in (DATA, POSITION_DELETES, EQUALITY_DELETES) or not isinstance(size, int):
            raise UnreadableFileError(
                f"{location!r} has an invalid entry: its content is {content!r} (must be 0, 1 or 2) and its file "
                f"size is {size!r} (must be an integer)",
                location=location,
            )
        yield File(file[FILE_PATH], _CONTENT[content], size)
