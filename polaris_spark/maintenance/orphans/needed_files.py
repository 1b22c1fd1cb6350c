"""The files that tables and views name: what their metadata says, then manifest lists, then manifests.

Each step is a function of what was read before, so that they run in one process or spread over many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.expiring import Levels, gc_enabled
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import repeated
from polaris_spark.catalog.locations import PATHS
from polaris_spark.catalog.manifest_entries import (
    FILE_PATH,
    ListedManifest,
    listed_manifests,
    manifest_entries,
)
from polaris_spark.catalog.metadata import ObjectReader, render
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.reading import read_text
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.log import ancestor, commits
from polaris_spark.commits.rows import Entries, LogEntry
from polaris_spark.errors import BadRequestError, CorruptionError, MissingFileError, PolarisError
from polaris_spark.index.keys import decode_key
from polaris_spark.store.objects import ObjectStore, read_each

_READ_TOGETHER = 128
"""How many contents are read in one batch."""

EVERYWHERE = "/"
"""A place that all files lie in: of what cannot be read, and might need any file."""

_TAKES_AWAY = ("drop-table", "drop-view", "register-table", "register-view")


class Content(NamedTuple):
    """A table or view as a head or a log entry holds it."""

    owner: str
    """For messages: its catalog and name."""
    value: Table | View | Unloaded | None
    """None where it is of a kind that is not known here."""
    strict: bool = True
    """Whether its files must be there: those of what was dropped may have been deleted."""
    levels: tuple[Mapping[str, str], ...] = ()
    """Properties of its namespaces from the nearest upwards, and of the catalog."""
    problem: str = ""
    """Why it cannot be read, if it is damaged."""


class Needs(NamedTuple):
    """What a table or view names itself."""

    places: tuple[str, ...] = ()
    """Locations that it owns."""
    files: tuple[str, ...] = ()
    """Metadata and statistics."""
    lists: tuple[str, ...] = ()
    """Manifest lists."""
    manifests: tuple[str, ...] = ()
    """Those that snapshots of version 1 name directly."""
    collected: bool = True
    """Whether `gc.enabled` lets files be deleted (`catalog.expiring.gc_enabled`)."""
    partitions: tuple[str, ...] = ()
    """`<name>=` of partition fields that hidden files' names would begin with."""
    problem: str = ""
    """Why it cannot be read, if it cannot."""
    missing: bool = False
    """Whether the problem is that its metadata file is not there."""


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


class Drop(NamedTuple):
    """A table or view that was taken away, as the log says it."""

    owner: str
    content: int
    time: int
    """Milliseconds since 1970."""
    purge: bool
    """Whether its files were to go with it."""
    commit: int
    """Number of the commit."""
    entity: int
    key: bytes


class Damage(NamedTuple):
    """A part of a log that cannot be read."""

    owner: str
    """For messages: the catalog, and which part."""
    problem: str
    """Names the row."""


def drops_of(
    store: ObjectStore, at: StoreHead, low: int | None = None, high: int | None = None
) -> Iterator[Drop | Damage]:
    """The tables and views that commits of a history took away, or replaced by others that were registered.

    Args:
        low: number of the first commit to look at, by default the history floor.
        high: number of the last one, by default the head.
    """
    head = at.head
    low = head.floor_number if low is None else low
    if high is not None and high < head.number:
        head = msgspec.structs.replace(head, commit=ancestor(store, head, high), number=high)
    for found in logged(store, at._replace(head=msgspec.structs.replace(head, floor_number=low))):
        if isinstance(found, Damage):
            yield found
            continue
        number, entry = found
        if entry.before and entry.action in _TAKES_AWAY:
            purge = entry.summary.get("purge") == "true"
            yield Drop(at.owner(entry.key), entry.before, entry.time, purge, number, entry.entity, entry.key)


def logged(store: ObjectStore, at: StoreHead) -> Iterator[tuple[int, LogEntry] | Damage]:
    """The log entries of a history from the newest back to its floor, each with its commit's number; those of many
    commits are read together."""
    found = (commit for _, commit in commits(store, at.head))
    while True:
        try:
            run = list(islice(found, _READ_TOGETHER))
        except CorruptionError as error:
            yield Damage(f"the history of {at.catalog}", str(error))
            return
        if not run:
            return
        ids = [commit.entries for commit in run if commit.entries]
        entries = read_each(ids, lambda some: store.get_many(some, Entries)) if ids else {}
        for commit in run:
            listed = entries.get(commit.entries)
            if isinstance(listed, CorruptionError):
                yield Damage(f"the log of {at.catalog}, commit number {commit.number}", str(listed))
            elif listed is not None:
                yield from ((commit.number, entry) for entry in reversed(listed.entries))


def contents_of_drops(head: StoreHead, store: ObjectStore, drops: Iterable[Drop]) -> Iterator[Content]:
    """The tables and views that drops took away from a head."""
    for content in _read(head, store, ((drop.key, drop.content) for drop in drops)):
        yield content._replace(strict=False)


def contents_of(
    head: StoreHead, store: ObjectStore, start: bytes = b"", end: bytes | None = None
) -> Iterator[Content]:
    """The tables and views of a head, whose keys in the index of names lie in a range."""
    names = head.snapshot(store).index(NAMES).range(start, end)
    kinds = (TABLE, VIEW)
    yield from _read(
        head, store, ((key, entry.pointer) for key, entry in names if decode_key(key).kind in kinds)
    )


def _read(head: StoreHead, store: ObjectStore, named: Iterator[tuple[bytes, int]]) -> Iterator[Content]:
    levels = Levels(head.snapshot(store), head.properties)
    while run := list(islice(named, _READ_TOGETHER)):
        found = read_each([id for _, id in run], store.read)
        for key, id in run:
            read = found[id]
            if isinstance(read, CorruptionError):
                yield Content(head.owner(key), None, problem=str(read))
                continue
            value = read.value
            known = value if isinstance(value, (Table, View, Unloaded)) else None
            yield Content(head.owner(key), known, levels=levels.of(decode_key(key).path))


def needs_of(content: Content, reader: ObjectReader, files: Files, *, without: Collection[int] = ()) -> Needs:
    """What a table or view names; one that was imported unread is read from its metadata file.

    Args:
        reader: of its pieces.
        without: ids of snapshots that do not count.
    """
    value = content.value
    if content.problem:
        return Needs((EVERYWHERE,), collected=False, problem=f"{content.owner}: {content.problem}")
    if value is None:
        return Needs(problem=f"{content.owner} is of a kind that is not installed here")
    if isinstance(value, View):
        collected = gc_enabled([value.properties, *content.levels])
        return Needs(
            _places(value.location, value.properties), (value.metadata_location,), collected=collected
        )
    try:
        if isinstance(value, Unloaded):
            text = read_text(files, value.metadata_location)
        else:
            text = render(value, reader, snapshots="all")
        return _needs(_decode(text), value, content.levels, without)
    except CorruptionError as error:
        places = (value.location, EVERYWHERE)
        return Needs(places, collected=False, problem=f"{content.owner}: {error}")
    except (BadRequestError, msgspec.MsgspecError) as error:
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
    return Needs(
        _places(location, properties),
        (
            value.metadata_location,
            *(previous.metadata_file for previous in metadata.metadata_log or ()),
            *(one.statistics_path for one in statistics),
            # Of tables that Hadoop's catalog made.
            *([f"{location}/metadata/version-hint.text"] if location else []),
        ),
        tuple(one.manifest_list for one in snapshots if one.manifest_list),
        tuple(manifest for one in snapshots if not one.manifest_list for manifest in one.manifests),
        gc_enabled([properties, *levels]),
        tuple(sorted(f"{name}=" for name in names if name[:1] in ("_", "."))),
    )


def _places(location: str, properties: dict[str, str]) -> tuple[str, ...]:
    paths = [location, *(properties[name] for name in PATHS if name in properties)]
    return tuple(path for path in dict.fromkeys(paths) if path)


class Named(NamedTuple):
    """What a manifest list or manifest names."""

    locations: tuple[str, ...] = ()
    problem: str = ""
    """Why it cannot be read, if it cannot."""
    missing: bool = False
    """Whether the problem is that it is not there."""


class Manifests:
    """Reads manifest lists and manifests. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def of_list(self, location: str) -> Named:
        """The manifests that a manifest list names."""
        return _named(lambda: [manifest.path for manifest in listed_manifests(self._files, location)])

    def of_manifest(self, location: str) -> Named:
        """The data and delete files that a manifest holds, without those that it says were deleted."""
        manifest = ListedManifest(location)
        return _named(lambda: [entry.file[FILE_PATH] for entry in manifest_entries(self._files, manifest)])


def _named(read: Callable[[], list[str]]) -> Named:
    try:
        return Named(tuple(repeated(read)))
    except MissingFileError as error:
        return Named(problem=str(error), missing=True)
    except (OSError, ValueError, PolarisError) as error:
        return Named(problem=str(error))
