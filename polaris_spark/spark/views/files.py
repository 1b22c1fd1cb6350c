"""The system view `files`: one row for each data or delete file of the selected snapshots. Executors read the
manifests.

Planning reads only the tables and the summaries of their current snapshots. If a snapshot has very many files according
to its summary, several tasks read the table: each of n tasks reads every n-th manifest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.manifests import manifest_entries as m
from polaris_spark.catalog.manifests.manifest_entries import ListedManifest, ManifestEntry
from polaris_spark.catalog.manifests.partition_texts import PartitionTexts
from polaris_spark.catalog.metadata.overflow import MAIN_REF, all_refs
from polaris_spark.catalog.metadata.pieces import placed
from polaris_spark.catalog.metadata.rows import Ref, Snapshot, Table
from polaris_spark.catalog.rows import TABLE, Unloaded
from polaris_spark.catalog.tables.metadata_files import read_text
from polaris_spark.commits.state import StoredObjects
from polaris_spark.errors import PolarisError, UnreadableFileError
from polaris_spark.index import Index
from polaris_spark.spark.pruning import ANYTHING, Condition
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.entities import (
    READ_TOGETHER,
    EntityEntry,
    by_id,
    named,
    visible,
    with_loaded,
)
from polaris_spark.spark.views.file_columns import CONTENTS, FILE_COLUMNS, FileRow
from polaris_spark.spark.views.file_plan import FilesPart, plan_files
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import Secret


class FilesTask(NamedTuple):
    """A part of the files of some tables, and how they are read."""

    part: FilesPart
    snapshots: str
    content: Condition
    properties: tuple[tuple[str, Secret], ...]
    """Properties of pyiceberg's FileIO."""
    reports_unreadable: bool


class _Chosen(NamedTuple):
    """A selected snapshot, whose files are shown. `id` and `refs` are None if all snapshots of the table are
    selected."""

    json: Mapping[str, Any]
    id: int | None
    refs: list[str] | None


class _Ref(msgspec.Struct, rename="kebab"):
    snapshot_id: int


class _Snapshot(_Ref, rename="kebab"):
    manifest_list: str | None = None
    manifests: list[str] | None = None


class _Metadata(msgspec.Struct, rename="kebab"):
    """The parts of a table's metadata file that list snapshots and refs. The rest of the file is not validated."""

    current_snapshot_id: int | None = None
    refs: dict[str, _Ref] | None = None
    snapshots: list[_Snapshot] | None = None


_metadata = msgspec.json.Decoder(_Metadata).decode


class FilesView(SystemView[FilesTask, FileRow]):
    """A system view with one row for each file."""

    comment = "Data and delete files of every table's current snapshot, one row each"
    columns = FILE_COLUMNS
    shown = (Need("TABLE_READ_DATA", On.TABLE),)  # rows contain bounds, which are values of the table
    rows_per_partition = 2_000

    def plan(self, request: ScanRequest) -> list[Weighted[FilesTask]]:
        options, content = request.options, request.condition("content")
        properties = tuple((name, Secret(value.reveal())) for name, value in options.files)
        return [
            Weighted(
                FilesTask(part, options.snapshots, content, properties, options.unreadable == "report"),
                weight,
            )
            for part, weight in plan_files(request)
        ]

    def rows(self, store: ReadStore, task: FilesTask, needs: frozenset[str]) -> Iterator[FileRow]:
        tables = task.part.tables
        objects = store.objects(tables.pin.realm)
        files = _files(task.properties)
        entries = named(tables.pin.reader(objects), tables, TABLE)
        entries = visible(store, tables, entries, self.shown)
        for run, unread in with_loaded(objects, entries, Table):
            refs = [_refs(table, task, StoredObjects(objects)) for _, table in run]
            currents = by_id(
                objects,
                [
                    piece
                    for (_, table), named_by in zip(run, refs, strict=True)
                    for piece in _pieces(table, task, named_by)
                ],
                Snapshot,
            )
            for (entry, table), named_by in zip(run, refs, strict=True):
                chosen = _chosen(objects, table, task, named_by, currents)
                yield from _Reading(task, files, entry, needs).rows(chosen)
            for entry, unloaded in unread:
                yield from _Reading(task, files, entry, needs).unread(unloaded)

    def sees(self, store: ReadStore, scope: Scope, row: FileRow) -> bool:
        return True  # `rows` reads only tables that the principal may see

    def weigh(self, row: FileRow) -> int:
        file = row.item.file if row.item else {}
        return 512 + 64 * sum(len(value) for value in file.values() if isinstance(value, list))


SYSTEM_VIEW = FilesView()


class _Reading:
    """Reads the rows of one table."""

    def __init__(self, task: FilesTask, files: Files, entry: EntityEntry, needs: frozenset[str]) -> None:
        self._task = task
        self._files = files
        self._entry = entry
        self._fields = {int(need) for need in needs if need.isdigit()}
        self._opens = bool(needs)
        if task.content != ANYTHING:
            self._fields.add(m.CONTENT)
            self._opens = True

    def rows(self, snapshots: Iterator[_Chosen]) -> Iterator[FileRow]:
        """Yield a row of the view for each file of the selected snapshots. If all snapshots of the table are selected,
        a manifest that several snapshots share is read only once."""
        part, position, seen = self._task.part, 0, set[str]()
        for chosen in snapshots:
            row = FileRow(self._entry, chosen.id, chosen.refs)
            for manifest in self._manifests(chosen):
                if isinstance(manifest, UnreadableFileError):
                    yield row._replace(error=self._said(manifest))
                    continue
                if chosen.id is None:
                    if manifest.path in seen:
                        continue
                    seen.add(manifest.path)
                if position % part.parts == part.number:
                    yield from self._of_manifest(row._replace(manifest=manifest), manifest)
                position += 1

    def _manifests(self, chosen: _Chosen) -> Iterator[ListedManifest | UnreadableFileError]:
        """Yield the manifests of a snapshot. If the manifest list cannot be read, yield the error in part 0 of the
        table only.

        If the option `unreadable` is not `report`, raise the error instead, in every part.
        """
        try:
            yield from m.snapshot_manifests(self._files, chosen.json)
        except UnreadableFileError as error:
            reported = self._reported(error)
            if self._task.part.number == 0:
                yield reported

    def unread(self, unloaded: Unloaded) -> Iterator[FileRow]:
        """Yield the rows of a table that was imported lazily and is not loaded yet. Snapshots come from its metadata
        file."""
        try:
            metadata = _metadata(read_text(self._files, unloaded.metadata_location))
        except (PolarisError, ValueError) as error:
            location = unloaded.metadata_location
            reported = self._reported(UnreadableFileError(str(error), location=location))
            yield FileRow(self._entry, None, None, error=self._said(reported))
            return
        yield from self.rows(_chosen_of_metadata(metadata, self._task.snapshots))

    def _of_manifest(self, row: FileRow, manifest: ListedManifest) -> Iterator[FileRow]:
        if not self._may_hold_wanted(manifest):
            return
        if not self._opens and manifest.live_files is not None:
            yield from [row] * manifest.live_files
            return
        try:
            with m.open_manifest(self._files, manifest) as opened:
                texts = PartitionTexts(opened) if m.PARTITION in self._fields else None
                for item in opened.entries(self._fields):
                    if self._is_wanted(item):
                        partition = texts.of(item.file[m.PARTITION]) if texts else None
                        yield row._replace(item=item, partition=partition)
        except UnreadableFileError as error:
            yield row._replace(error=self._said(self._reported(error)))

    def _may_hold_wanted(self, manifest: ListedManifest) -> bool:
        deletes = manifest.content == m.DELETE_MANIFEST
        contents = (m.POSITION_DELETES, m.EQUALITY_DELETES) if deletes else (m.DATA,)
        return any(self._task.content.allows(CONTENTS[content]) for content in contents)

    def _is_wanted(self, item: ManifestEntry) -> bool:
        wanted = self._task.content
        return wanted == ANYTHING or wanted.allows(CONTENTS.get(item.file.get(m.CONTENT) or m.DATA))

    def _reported(self, error: UnreadableFileError) -> UnreadableFileError:
        """Return the error if the option `unreadable` is `report`; otherwise raise it."""
        if self._task.reports_unreadable:
            return error
        why = (
            f"{self._said(error)} (with the option unreadable=report, the view shows all other files, and this error "
            "in the column 'error')"
        )
        raise type(error)(why, location=error.location) from error

    def _said(self, error: UnreadableFileError) -> str:
        name = dotted((*self._entry.path, self._entry.name))
        return f"table {name} of catalog {self._entry.catalog!r}: {error}"


@lru_cache(maxsize=8)
def _files(properties: tuple[tuple[str, Secret], ...]) -> Files:
    """Return the object that reads files with these properties. All tasks of a process share it, to reuse
    connections."""
    return Files({name: value.reveal() for name, value in properties})


def _refs(table: Table, task: FilesTask, reader: StoredObjects) -> tuple[Ref, ...]:
    """Return the branches and tags of a table; empty if the option `snapshots` is `all`."""
    return () if task.snapshots == "all" else all_refs(table, reader)


def _pieces(table: Table, task: FilesTask, refs: Collection[Ref]) -> list[int]:
    """Return the object ids of the selected snapshots that branches and tags point to."""
    current = table.current_snapshot_id
    return [ref.snapshot for ref in refs if task.snapshots == "refs" or ref.snapshot_id == current]


def _chosen(
    store: ObjectStore,
    table: Table,
    task: FilesTask,
    named_by: Collection[Ref],
    read: Mapping[int, Snapshot],
) -> Iterator[_Chosen]:
    if task.snapshots == "all":
        places = placed(Index(table.snapshots, StoredObjects(store).read_shards))
        while some := [pointer for _, pointer, _ in islice(places, READ_TOGETHER)]:
            found = store.get_many(some, Snapshot)
            yield from (_Chosen(json.loads(found[pointer].text), None, None) for pointer in some)
        return
    refs: dict[int, list[str]] = {}
    for ref in named_by:
        refs.setdefault(ref.snapshot_id, []).append(ref.name)
    for id, piece in {ref.snapshot_id: ref.snapshot for ref in named_by}.items():
        if piece in read:
            yield _Chosen(json.loads(read[piece].text), id, sorted(refs[id]))


def _chosen_of_metadata(metadata: _Metadata, which: str) -> Iterator[_Chosen]:
    current = metadata.current_snapshot_id
    refs: dict[int, list[str]] = {}
    for name, ref in (metadata.refs or {}).items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    if current is not None and not metadata.refs:  # metadata of version 1 may lack refs
        refs[current] = [MAIN_REF]
    for snapshot in metadata.snapshots or ():
        id, found = snapshot.snapshot_id, msgspec.to_builtins(snapshot)
        if which == "all":
            yield _Chosen(found, None, None)
        elif id == current or (which == "refs" and id in refs):
            yield _Chosen(found, id, sorted(refs.get(id, ())))
