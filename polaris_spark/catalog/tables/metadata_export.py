"""Export: writes metadata files of tables and views from their rows in the database."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.entities.entities import NamespaceName, TableName, namespace_key, slug, table_key
from polaris_spark.catalog.entities.materialized_views import storage_name
from polaris_spark.catalog.files.files import Files, absolute
from polaris_spark.catalog.metadata.metadata_paths import is_compressed
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.metadata.table_parser import parse_table
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded
from polaris_spark.catalog.tables.contents import content_of, document, metadata_file
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import AlreadyExistsError, BadRequestError, InputError, PolarisError
from polaris_spark.index import Index
from polaris_spark.index.keys import decode_key, subtree

S = TypeVar("S", bound=msgspec.Struct)

WRITTEN, UNCHANGED, REPLACED = "written", "unchanged", "replaced"


class ExportItem(NamedTuple):
    """A table or view to export: its name, its kind (`TABLE` or `VIEW`), and the object id of its content."""

    name: TableName
    kind: bytes
    content: int


class Exported(NamedTuple):
    """Result of the export of a table or view."""

    name: TableName
    kind: bytes
    location: str
    """Location of the metadata file."""
    outcome: str
    """`written` for a new file, `replaced` for a file with other content, `unchanged` if the file had this metadata
    already, or empty if the export failed."""
    error: str = ""
    """Why the export failed; empty if it did not fail."""


def wanted(
    reader: CommitReader, *, table: tuple[str, ...] | None = None, namespace: NamespaceName | None = None
) -> list[ExportItem]:
    """Return the tables and views to export from one commit: one table or view, all in and below a namespace, or all in
    the catalog. A materialized view is exported with its storage table.

    Args:
        table: levels of the namespace, and the name of the table or view.
        namespace: levels of the namespace; () and None mean the whole catalog.
    Raises:
        InputError: both `table` and `namespace` are given.
        BadRequestError: the table, view or namespace does not exist.
    """
    if table is not None and namespace is not None:
        raise InputError("give a table or a namespace to export, not both")
    names = reader.index(NAMES)
    if table is not None:
        name = TableName(table[:-1], table[-1])
        for kind in (TABLE, VIEW):
            entry = names.get(table_key(name, kind))
            if entry is not None:
                return [ExportItem(name, kind, entry.pointer), *_storage_of(names, name, kind)]
        raise BadRequestError(f"there is no table or view {name}")
    if namespace and names.get(namespace_key(namespace)) is None:
        raise BadRequestError(f"there is no namespace {'.'.join(namespace)}")
    found = []
    for key, entry in names.range(*subtree(namespace or ())):
        decoded = decode_key(key)
        if decoded.kind in (TABLE, VIEW):
            found.append(ExportItem(TableName(decoded.path, decoded.name), decoded.kind, entry.pointer))
    return found


def _storage_of(names: Index, name: TableName, kind: bytes) -> list[ExportItem]:
    """Return the storage table of a materialized view."""
    storage = storage_name(name)
    if kind != VIEW or names.get(namespace_key(storage.namespace)) is not None:
        return []  # only an ordinary view can have the name of a namespace
    entry = names.get(table_key(storage))
    return [] if entry is None else [ExportItem(storage, TABLE, entry.pointer)]


class Exporter:
    """Writes metadata files: each to its own location, or all of them below one directory. Thread-safe."""

    def __init__(
        self, reader: ObjectReader, files: Files, *, directory: str | None = None, overwrite: bool = False
    ) -> None:
        """
        Args:
            directory: location below which all files are written, as `<namespace>/.../<name>-<id>/metadata/<file>`, so
                that the directory can be imported. If None, each file is written to the metadata location of its table
                or view.
            overwrite: whether to replace an existing file that has other content. If False, the export of its table or
                view fails.
        """
        self._reader = reader
        self._files = files
        self._directory = absolute(directory) if directory else None
        self._overwrite = overwrite

    def export(self, item: ExportItem) -> Exported:
        """Export a table or view, and return the result. Errors are not raised, but reported in the result."""
        location = ""
        try:
            value = self._read(item)
            location = self._location(item.name, value)
            return Exported(item.name, item.kind, location, self._export(location, value))
        except PolarisError as error:
            return Exported(item.name, item.kind, location, "", str(error))

    def _read(self, item: ExportItem) -> Table | View | Unloaded:
        if item.kind == TABLE:
            return content_of(self._reader, item.content, Table)
        return content_of(self._reader, item.content, View)

    def _location(self, name: TableName, value: Table | View | Unloaded) -> str:
        if self._directory is None:
            return value.metadata_location
        unique = f"{value.entity_id:x}" if isinstance(value, Unloaded) else slug(value.uuid)
        folders = [*(slug(level) for level in name.namespace), f"{slug(name.name)}-{unique}"]
        return "/".join((self._directory, *folders, "metadata", value.metadata_location.rpartition("/")[2]))

    def _export(self, location: str, value: Table | View | Unloaded) -> str:
        there = self._files.read_if_there(location)
        if isinstance(value, Unloaded):
            # The table or view has not changed since the import, so the file that its row names is the metadata.
            imported = self._files.read(value.metadata_location)
            same, content = there == imported, imported
        else:
            same, content = there is not None and self._is_same(there, location, value), b""
        if same:
            return UNCHANGED
        if there is not None and not self._overwrite:
            raise AlreadyExistsError(
                f"{location!r} exists with other content and was not changed; export with overwrite to replace it"
            )
        if not isinstance(value, Unloaded):
            content = metadata_file(value, self._reader)[1]
        self._files.put(location, content)
        return WRITTEN if there is None else REPLACED

    def _is_same(self, there: bytes, location: str, value: Table | View) -> bool:
        """Whether an existing file already contains the metadata of the table or view. The formatting of the JSON does
        not matter, because other programs wrote the files of registered tables."""
        mine = document(value, self._reader)
        try:
            text = gzip.decompress(there) if is_compressed(location) else there
            if text == mine:
                return True
            ours = msgspec.json.decode(mine)
            return bool(
                msgspec.json.decode(text) == ours or msgspec.json.decode(_as_ours(text, value)) == ours
            )
        # The file is not metadata.
        except (OSError, EOFError, zlib.error, ValueError, RecursionError, PolarisError):
            return False


class Export(MapFunction[ExportItem, Exported]):
    """Function that exports one table or view, for `Engine.map`."""

    item = ExportItem
    result = Exported
    few = 48
    threads = 1
    tasks_per_core = 4
    """More than one, so that a task with long table histories does not delay the whole job."""

    def __init__(self, *, directory: str | None, overwrite: bool) -> None:
        """
        Args:
            directory: location below which all files are written; None to use the metadata locations.
            overwrite: whether to replace an existing file that has other content.
        """
        self._directory = directory
        self._overwrite = overwrite

    def __call__(self, reach: Reach, item: ExportItem) -> Exported:
        reader = reach.reader(reach.own.realm)
        exporter = Exporter(reader, reach.files, directory=self._directory, overwrite=self._overwrite)
        return exporter.export(item)


def _as_ours(text: bytes, value: Table | View) -> bytes:
    """Parse the text of a metadata file, and return the text that this catalog would write for the same metadata."""
    draft = (parse_table if isinstance(value, Table) else parse_view)(text, now_ms=0)
    parsed, objects = draft.freeze(count(1).__next__, metadata_location=value.metadata_location)
    return document(parsed, _Scratch(dict(objects)))


class _Scratch:
    """Reader of objects that are in memory and were never stored."""

    def __init__(self, objects: Mapping[int, msgspec.Struct]) -> None:
        self._objects = objects

    def get(self, id: int, cls: type[S]) -> S:
        return self._objects[id]  # type: ignore[return-value]  # callers pass the object's type

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        return {id: self.get(id, cls) for id in ids}

    def prefetch(self, ids: Collection[int]) -> None:
        pass  # all objects are in memory

    def read_shards(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id: self._objects[id] for id in ids}
