"""What changes to tables and views have in common: finding the old content, and storing the new."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Mapping
from typing import ClassVar, Generic, NamedTuple, TypeVar

from polaris_spark.catalog import locations
from polaris_spark.catalog.entities import (
    CatalogChange,
    Context,
    Found,
    TableName,
    add_entity,
    check_name,
    put,
    remove_entity,
    require,
    require_free,
    require_namespace,
    table_key,
    taken_by,
)
from polaris_spark.catalog.expiring import gc_enabled, namespace_levels
from polaris_spark.catalog.metadata import (
    ObjectReader,
    TableDraft,
    ViewDraft,
    is_compressed,
    metadata_location,
    render,
    render_view,
)
from polaris_spark.catalog.metadata.manifest_lists import ManifestList
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import IDS, TABLE, VIEW, Unloaded, id_bytes
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, WrongTypeError
from polaris_spark.index import Entry
from polaris_spark.objects import type_name

C = TypeVar("C", Table, View)


class Prepared(NamedTuple):
    """What is fixed before the change is applied, however often that is repeated."""

    now: int
    """Milliseconds since 1970."""
    uuid: str
    """Of a new table or view; makes the metadata file's name unique."""
    lists: Mapping[str, ManifestList | BadRequestError] = {}
    """Manifest lists by location, or why one cannot be read: where an append is to be rebased."""


class Stored(NamedTuple, Generic[C]):
    """A table or view of the catalog: the id of its content, and the content."""

    content: int
    value: C


def document(value: Table | View, reader: ObjectReader) -> bytes:
    """The whole metadata of a table or view as the JSON of its metadata file, before any compression."""
    if isinstance(value, Table):
        return render(value, reader, snapshots="all")
    return render_view(value, reader)


def metadata_file(value: Table | View, reader: ObjectReader) -> tuple[str, bytes]:
    """Location and content of the metadata file of a table or view."""
    text = document(value, reader)
    where = value.metadata_location
    return where, gzip.compress(text) if is_compressed(where) else text


def places(value: Table | View | Unloaded) -> frozenset[tuple[str, ...]]:
    """The locations that a table or view owns; those that are known of one that is not loaded."""
    return locations.owned(value.location, {} if isinstance(value, Unloaded) else value.properties)


def content_of(reader: ObjectReader, content: int, cls: type[C]) -> C | Unloaded:
    """The content of a table or view, loaded or not.

    Raises:
        CorruptionError: it is missing, or neither.
    """
    try:
        return reader.get(content, cls)
    except WrongTypeError as error:
        if error.found != type_name(Unloaded):
            raise
        return reader.get(content, Unloaded)


class ContentChange(CatalogChange[Stored[C]], Generic[C]):
    """A change that leaves a table or view behind."""

    kind: ClassVar[bytes]
    cls: type[C]

    def __init__(self, context: Context, operation: Operation, name: TableName) -> None:
        super().__init__(context, operation)
        check_name((*name.namespace, name.name))
        self.name = name
        self.key = table_key(name, self.kind)

    def prepare(self, view: State) -> object:
        return Prepared(self.context.clock.now_ms(), str(uuid.uuid4()))

    def repeat(self, state: State, entries: list[LogEntry]) -> Stored[C]:
        return Stored(entries[-1].after, state.get(entries[-1].after, self.cls))

    def require_place(self, state: State) -> None:
        """The namespace exists and the name is free.

        Raises:
            NoSuchNamespaceError, AlreadyExistsError, BadRequestError: it is not so.
        """
        _require_namespace(state, self.name)
        require_free(state, self.name, self.kind)

    def store(
        self,
        state: State,
        found: Found | None,
        draft: TableDraft | ViewDraft,
        prepared: Prepared,
        *,
        existing_file: str | None = None,
    ) -> Stored[C]:
        """Write a draft as new content; `existing_file` is the metadata file that it was read from, if any."""
        before: Table | View | Unloaded | None = draft.base
        if before is None and found:
            before = content_of(state, found.content, self.cls)
        entity_id = found.entity_id if found else state.new_id()
        where = existing_file or metadata_location(draft, prepared.uuid)
        value, objects = draft.freeze(state.new_id, entity_id=entity_id, metadata_location=where)
        assert isinstance(value, self.cls)
        state.add_all(objects)
        content = state.add(value)
        if existing_file is None and self.context.metadata_files:
            state.write_file(*metadata_file(value, state))
        if before is None or not _same_places(before, value):
            old = places(before) if before else frozenset()
            new = places(value)
            locations.require_allowed(self.context.allowed, new - old)
            locations.move(state, entity_id, old, new, shared=self.context.shared_locations)
        key = self.key
        if found is None:
            add_entity(state, key, content, entity_id)
        else:
            put(state, key, Found(content, entity_id))
        before_id = found.content if found else 0
        self.record(
            state, prepared.now, entity_id, key, before=before_id, after=content, summary=draft.summary()
        )
        return Stored(content, value)


def _require_namespace(state: State, name: TableName) -> None:
    if not name.namespace:
        raise BadRequestError(f"{name} needs a namespace")
    require_namespace(state, name.namespace)


def _same_places(one: Table | View | Unloaded, other: Table | View) -> bool:
    if isinstance(one, Unloaded) or one.location != other.location:
        return False
    before, after = one.properties.get, other.properties.get
    return list(map(before, locations.PATHS)) == list(map(after, locations.PATHS))


class DropContent(CatalogChange["C | Unloaded"], Generic[C]):
    """Take a table or view away; with `purge`, the log entry says that its files are to go as well.

    One that is not loaded is taken away as it is, unless its files are to go.
    """

    def __init__(
        self, context: Context, operation: Operation, name: TableName, cls: type[C], *, purge: bool = False
    ) -> None:
        super().__init__(context, operation)
        self.name = name
        self.cls: type[C] = cls
        self.kind = TABLE if cls is Table else VIEW
        self.action = "drop-table" if cls is Table else "drop-view"
        self.purge = purge

    def apply(self, state: State, prepared: object) -> C | Unloaded:
        assert isinstance(prepared, int)
        found = require(state, self.name, self.kind)
        value = content_of(state, found.content, self.cls)
        if self.purge:
            own = state.get(found.content, self.cls).properties
            if not gc_enabled([own, *namespace_levels(state, self.name.namespace), self.context.retention]):
                raise BadRequestError(
                    f"Cannot purge {self.name}: gc.enabled is false for it, its namespace or the catalog, so its "
                    "files may belong to other tables; drop it without PURGE, or set gc.enabled to true first"
                )
        key = table_key(self.name, self.kind)
        remove_entity(state, key, found.entity_id)
        locations.move(state, found.entity_id, places(value), ())
        summary = {"purge": "true"} if self.purge else {}
        self.record(state, prepared, found.entity_id, key, before=found.content, summary=summary)
        return value

    def repeat(self, state: State, entries: list[LogEntry]) -> C | Unloaded:
        return content_of(state, entries[-1].before, self.cls)


class Rename(CatalogChange[None]):
    """Give a table or view another name, in another namespace if need be."""

    def __init__(
        self, context: Context, operation: Operation, source: TableName, target: TableName, kind: bytes
    ) -> None:
        super().__init__(context, operation)
        check_name((*target.namespace, target.name))
        self.action = "rename-table" if kind == TABLE else "rename-view"
        self.source = source
        self.target = target
        self.kind = kind

    def apply(self, state: State, prepared: object) -> None:
        assert isinstance(prepared, int)
        found = require(state, self.source, self.kind)
        if self.source == self.target:
            return
        _require_namespace(state, self.target)
        taken = taken_by(state, self.target)
        if taken is not None:
            raise AlreadyExistsError(f"Cannot rename {self.source} to {self.target}. {taken} already exists")
        old, new = table_key(self.source, self.kind), table_key(self.target, self.kind)
        remove_entity(state, old, found.entity_id)
        put(state, new, found)
        state.put(IDS, id_bytes(found.entity_id), Entry(value=new))
        self.record(
            state, prepared, found.entity_id, new, before=found.content, after=found.content, old_key=old
        )

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None
