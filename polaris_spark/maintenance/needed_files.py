"""The files that a table or view needs: its metadata files, manifest lists, manifests, data files and delete files.

Every job that deletes files uses this module to find out which files must be kept. Each step is a separate function of
values that can be sent to executors, so that the steps can run in one process or in several.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.folders import repeated
from polaris_spark.catalog.files.locations import owned_names
from polaris_spark.catalog.files.ownership import unconfirmed_of
from polaris_spark.catalog.manifests.manifest_entries import (
    FILE_PATH,
    ListedManifest,
    listed_manifests,
    manifest_entries,
)
from polaris_spark.catalog.metadata.renderer import render
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.tables.metadata_files import read_text
from polaris_spark.catalog.tables.snapshot_expiry import gc_enabled
from polaris_spark.errors import BadRequestError, CorruptionError, MissingFileError, PolarisError

EVERYWHERE = "/"
"""The location that contains all files. It stands for the location of a table that cannot be read, because this table
might need any file."""


class Content(NamedTuple):
    """A version of a table or view, to which a head or a log entry points."""

    owner: str
    """The table's catalog and name, for messages."""
    value: Table | View | Unloaded | None
    """The value of the table's or view's row; None if it cannot be read or its object type is not installed here."""
    strict: bool = True
    """Whether missing files are a problem. False for a dropped table, whose files may have been deleted."""
    levels: tuple[Mapping[str, str], ...] = ()
    """Properties of the table's namespace, then of each namespace above it, then of the catalog."""
    problem: str = ""
    """The error, if the table's row or log entry cannot be read; otherwise empty."""
    moved: bool = False
    """Whether the realm was moved to another store. Later versions there may need any file in the table's locations."""
    warehouse: str = ""
    """If not empty, this stands for the tables that were made after the realm was moved to another store: the location
    of the realm's warehouse, all of whose files must be kept."""


class Needs(NamedTuple):
    """The files and locations that a table or view names in its metadata."""

    places: tuple[str, ...] = ()
    """Locations that the table owns."""
    files: tuple[str, ...] = ()
    """Metadata and statistics files."""
    lists: tuple[str, ...] = ()
    """Manifest lists."""
    manifests: tuple[str, ...] = ()
    """Manifests that snapshots of format version 1 name directly, without a manifest list."""
    collected: bool = True
    """True if `gc.enabled` allows jobs to delete files of the table (see
    `catalog.tables.snapshot_expiry.gc_enabled`)."""
    partitions: tuple[str, ...] = ()
    """`<name>=` for each partition field whose name begins with `_` or `.`. Files in these partition folders are not
    treated as hidden files."""
    problem: str = ""
    """The error, if the table cannot be read; otherwise empty."""
    missing: bool = False
    """Whether the problem is that the metadata file does not exist."""
    unconfirmed: tuple[str, ...] = ()
    """Locations that the table names but does not own (`catalog.files.ownership`). No job deletes files in these
    locations on behalf of this table."""


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: int = -1
    manifest_list: str = ""
    manifests: list[str] = []


class _Statistics(msgspec.Struct, rename="kebab"):
    snapshot_id: int = -1
    statistics_path: str = ""


class _Previous(msgspec.Struct, rename="kebab"):
    metadata_file: str = ""


class _Field(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    fields: list[_Field] = []


class _Metadata(msgspec.Struct, rename="kebab"):
    location: str = ""
    properties: dict[str, str] | None = None
    snapshots: list[_Snapshot] | None = None
    statistics: list[_Statistics] | None = None
    partition_statistics: list[_Statistics] | None = None
    metadata_log: list[_Previous] | None = None
    partition_specs: list[_Spec] | None = None
    partition_spec: list[_Field] | None = None


_decode = msgspec.json.Decoder(_Metadata).decode


def needs_of(content: Content, reader: ObjectReader, files: Files, *, without: Collection[int] = ()) -> Needs:
    """Return the files and locations that a table or view names.

    If the table was imported lazily, its metadata file was not read then, and is read now. Errors are reported in
    `Needs.problem`.

    Args:
        reader: reads the rows of the table's schemas, snapshots and other parts.
        without: ids of snapshots whose files are left out of the result.
    """
    value = content.value
    if content.problem:
        return Needs((EVERYWHERE,), collected=False, problem=f"{content.owner}: {content.problem}")
    if content.warehouse:
        return Needs((content.warehouse,))
    if value is None:
        return Needs(problem=f"{content.owner} has an object type that is not installed here")
    if isinstance(value, View):
        collected = gc_enabled([value.properties, *content.levels])
        mine, away = owned_names(value.location, value.properties, value.unconfirmed)
        return Needs(mine, (value.metadata_location,), collected=collected, unconfirmed=away)
    try:
        if isinstance(value, Unloaded):
            text = read_text(files, value.metadata_location)
        else:
            text = render(value, reader, snapshots="all")
        return _needs(_decode(text), value, content.levels, without)
    except CorruptionError as error:
        places = (value.location, EVERYWHERE)
        return Needs(places, collected=False, problem=f"{content.owner}: {error}")
    except (BadRequestError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        return Needs(
            (value.location,),
            (value.metadata_location,),
            problem=f"{content.owner}: {error}",
            missing=missing,
        )


def _needs(
    metadata: _Metadata,
    value: Table | Unloaded,
    levels: Sequence[Mapping[str, str]],
    without: Collection[int],
) -> Needs:
    properties = metadata.properties or {}
    location = metadata.location or value.location
    statistics = [
        one
        for one in (*(metadata.statistics or ()), *(metadata.partition_statistics or ()))
        if one.snapshot_id not in without
    ]
    snapshots = [one for one in metadata.snapshots or () if one.snapshot_id not in without]
    fields = [field for spec in metadata.partition_specs or () for field in spec.fields]
    names = {field.name for field in (*fields, *(metadata.partition_spec or ()))}
    unconfirmed = value.unconfirmed
    if isinstance(value, Unloaded):
        unconfirmed += unconfirmed_of(location, properties, value.metadata_location)
    mine, away = owned_names(location, properties, unconfirmed)
    return Needs(
        mine,
        (
            value.metadata_location,
            *(previous.metadata_file for previous in metadata.metadata_log or ()),
            *(one.statistics_path for one in statistics),
            # A table created by Iceberg's Hadoop catalog has this file.
            *([f"{location}/metadata/version-hint.text"] if location else []),
        ),
        tuple(one.manifest_list for one in snapshots if one.manifest_list),
        tuple(manifest for one in snapshots if not one.manifest_list for manifest in one.manifests),
        gc_enabled([properties, *levels]),
        tuple(sorted(f"{name}=" for name in names if name[:1] in ("_", "."))),
        unconfirmed=away,
    )


class NamedLocations(NamedTuple):
    """The files that a manifest list or manifest names."""

    locations: tuple[str, ...] = ()
    problem: str = ""
    """The error, if the manifest list or manifest cannot be read; otherwise empty."""
    missing: bool = False
    """Whether the problem is that the manifest list or manifest does not exist."""


def named_by_list(files: Files, location: str) -> NamedLocations:
    """Return the locations of the manifests in a manifest list."""
    return _named(lambda: [manifest.path for manifest in manifests_of_list(files, location)])


def named_by_manifest(files: Files, location: str) -> NamedLocations:
    """Return the locations of the data and delete files in a manifest, without its entries of status DELETED."""

    def read() -> list[str]:
        return [entry.file[FILE_PATH] for entry in manifest_entries(files, ListedManifest(location))]

    return _named(lambda: repeated(read))


def manifests_of_list(files: Files, location: str) -> list[ListedManifest]:
    """Return the entries of a manifest list. Reading is retried if storage fails.

    Raises:
        MissingFileError: the file does not exist.
        UnreadableFileError: the file cannot be read, or is not a manifest list.
    """
    return repeated(lambda: list(listed_manifests(files, location)))


def _named(read: Callable[[], list[str]]) -> NamedLocations:
    try:
        return NamedLocations(tuple(read()))
    except MissingFileError as error:
        return NamedLocations(problem=str(error), missing=True)
    except (OSError, ValueError, PolarisError) as error:
        return NamedLocations(problem=str(error))
