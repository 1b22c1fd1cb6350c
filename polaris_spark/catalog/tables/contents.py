"""Common parts of changes to tables and views: finding the old content, and storing the new content."""

from __future__ import annotations

import gzip
import math
import os
import uuid
from collections.abc import Mapping
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.entities.entities import (
    CatalogChange,
    Context,
    NameEntry,
    TableName,
    TimedChange,
    add_entity,
    check_name,
    check_new_name,
    find,
    put,
    remove_entity,
    require,
    require_free,
    require_namespace,
    table_key,
    taken_by,
)
from polaris_spark.catalog.entities.materialized_views import (
    is_materialized,
    refuse_storage,
    require_no_namespace,
    set_document,
    storage_name,
    view_of,
    with_storage_table,
)
from polaris_spark.catalog.entities.properties import EffectiveProperties
from polaris_spark.catalog.entities.refresh_records import require_refresh_only, set_refreshes
from polaris_spark.catalog.files import locations, ownership
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.manifests.manifest_lists import ManifestList
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import is_compressed, metadata_location
from polaris_spark.catalog.metadata.renderer import render, render_view
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.rows import IDS, NAMES, TABLE, VIEW, Unloaded, id_bytes
from polaris_spark.catalog.tables.snapshot_expiry import gc_enabled, namespace_levels
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, ForbiddenError, WrongTypeError
from polaris_spark.index import Entry
from polaris_spark.objects import type_name

P = TypeVar("P")
C = TypeVar("C", Table, View)


UNCONFIRMED_LOCATIONS = "unconfirmed-locations"
"""Key in the summary of a log entry. The value lists, separated by spaces, the locations that are in the metadata of an
imported table or view but that it does not own."""


class Prepared(NamedTuple):
    """Values that are chosen once, before a change is applied. They stay the same if the change is applied again."""

    now: int
    """Time of the change, in milliseconds since 1970."""
    uuid: str
    """A new UUID. It makes the name of the metadata file unique, and identifies the table or view if that is new."""
    lists: Mapping[str, ManifestList | BadRequestError] = {}
    """Maps the location of a manifest list to the list, or to the error if the list cannot be read. Empty unless an
    append is to be rebased."""


class StoredContent(NamedTuple, Generic[C]):
    """A table or view as stored: the object id of its content, and the content."""

    content: int
    value: C


def new_uuid() -> str:
    """Return a new random UUID (RFC 9562, section 5.4). `uuid.uuid4` takes three times as long."""
    bits = int.from_bytes(os.urandom(16), "big") & ~(0xF << 76 | 0x3 << 62) | 4 << 76 | 2 << 62
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def document(value: Table | View, reader: ObjectReader) -> bytes:
    """Return the whole metadata of a table or view as the JSON of its metadata file, before any compression."""
    if isinstance(value, Table):
        return render(value, reader, snapshots="all")
    return render_view(value, reader)


def metadata_file(value: Table | View, reader: ObjectReader) -> tuple[str, bytes]:
    """Return the location of the metadata file of a table or view, and the content to write to it."""
    text = document(value, reader)
    where = value.metadata_location
    return where, gzip.compress(text) if is_compressed(where) else text


def holdings_of(value: Table | View | Unloaded) -> Holdings:
    """Return the locations that a table or view uses. For an `Unloaded` (imported, but metadata not read yet), return
    only the locations in its row. A materialized view uses only the folder of its metadata, because its storage table
    has another folder below the view's location.

    Raises:
        BadRequestError: a location is not absolute.
    """
    properties = {} if isinstance(value, Unloaded) else value.properties
    location = value.location
    if isinstance(value, View) and is_materialized(value):
        location = f"{location.rstrip('/')}/metadata"
    return locations.holdings(location, properties, value.unconfirmed)


def places(value: Table | View | Unloaded) -> frozenset[tuple[str, ...]]:
    """Return the locations that a table or view owns, as path segments.

    Raises:
        BadRequestError: a location is not absolute.
    """
    return holdings_of(value).owned


def unconfirmed_summary(value: Table | View) -> dict[str, str]:
    """Return the locations that an imported table or view uses but does not own, as an item for the summary of a log
    entry. Return an empty dict if there are none."""
    return {UNCONFIRMED_LOCATIONS: " ".join(value.unconfirmed)} if value.unconfirmed else {}


def occupy(context: Context, state: State, entity_id: int, before: Holdings, after: Holdings) -> None:
    """Record in the indexes `locations` and `unconfirmed` that a table or view now has the locations `after` instead of
    the locations `before`.

    All checks are made before the first change, so that a commit with many tables can skip a refused table.

    Raises:
        ForbiddenError: `require_available` refuses a location.
    """
    require_available(context, state, entity_id, before, after)
    locations.move(state, entity_id, before, after)


def require_available(
    context: Context, state: State, entity_id: int, before: Holdings, after: Holdings
) -> None:
    """Check that a table or view that now uses the locations `before` may use the locations `after` instead.

    Raises:
        ForbiddenError: a newly owned location cannot be owned by any table or view (`require_ownable`); or the catalog
            does not share locations, and a newly used location overlaps a location that another entity owns; or the
            catalog's property `allowed-locations` does not allow a newly used location.
    """
    new = after.owned - before.owned
    context.require_stored(state, new | (after.unconfirmed - before.unconfirmed - before.owned))
    if not context.shared_locations:
        for place in sorted(new | (after.unconfirmed - before.unconfirmed - before.owned)):
            locations.refuse_overlap(state, entity_id, place, names_owner=not context.has_owners)
    for place in sorted(new):
        require_ownable(context, place)


def require_ownable(context: Context, place: tuple[str, ...]) -> None:
    """Check that a table or view may own this location.

    Raises:
        ForbiddenError: the location is the root of a file system or bucket, or is or contains a home folder; or the
            catalog does not share locations, and the location contains the catalog's warehouse, or overlaps the
            warehouse or a table of another catalog of the realm.
    """
    why = ownership.unownable(place) or _taken(context, place)
    if why:
        raise ForbiddenError(f"location {'/'.join(place)} cannot belong to a table or view: {why}")


def _taken(context: Context, place: tuple[str, ...]) -> str:
    if context.shared_locations:
        return ""
    if locations.is_below_any(locations.segments(context.warehouse), [place]):
        return f"it contains the warehouse of this catalog, {context.warehouse}"
    why = context.refused_elsewhere(place)
    # In a realm with access control, the principal may not see that catalog.
    return (
        "it overlaps with the warehouse or a table of another catalog" if why and context.has_owners else why
    )


def content_of(reader: ObjectReader, content: int, cls: type[C]) -> C | Unloaded:
    """Return the content of a table or view. Return an `Unloaded` if it was imported and its metadata is not read yet.

    Raises:
        CorruptionError: the row is missing, or is neither a `cls` nor an `Unloaded`.
    """
    try:
        return reader.get(content, cls)
    except WrongTypeError as error:
        if error.found != type_name(Unloaded):
            raise
        return reader.get(content, Unloaded)


class ContentChange(CatalogChange[P, StoredContent[C]], Generic[P, C]):
    """A change that stores new content of a table or view."""

    kind: ClassVar[bytes]
    cls: type[C]
    with_view: ClassVar[bool] = False
    """Whether the change of a storage table is a part of a change that also stores its materialized view."""
    said: Mapping[str, str] = {}
    """Further fields of the log entry, in addition to the changes of the draft."""

    def __init__(self, context: Context, operation: Operation, name: TableName) -> None:
        super().__init__(context, operation)
        check_name((*name.namespace, name.name))
        self.name = name
        self.key = table_key(name, self.kind)

    def new_values(self) -> Prepared:
        """Return a `Prepared` with the current time and a new UUID."""
        return Prepared(self.context.clock.now_ms(), new_uuid())

    def repeat(self, state: State, entries: list[LogEntry]) -> StoredContent[C]:
        return StoredContent(entries[-1].after, state.get(entries[-1].after, self.cls))

    def require_place(self, state: State) -> None:
        """Check that the namespace exists, that no table or view has the name, and that a new table or view may have
        this name.

        Raises:
            NoSuchNamespaceError, AlreadyExistsError, BadRequestError: a check fails.
        """
        _require_namespace(state, self.name)
        require_free(state, self.name, self.kind)
        check_new_name(self.name.name)

    def store(
        self,
        state: State,
        found: NameEntry | None,
        draft: TableDraft | ViewDraft,
        prepared: Prepared,
        effective: EffectiveProperties,
        *,
        existing_file: str | None = None,
    ) -> StoredContent[C]:
        """Store a draft (the changed metadata of a table or view), update the indexes, and add a log entry.

        Args:
            found: the table or view that the draft replaces; None if it is new.
            effective: the effective properties of the catalog.
            existing_file: the metadata file that the draft was read from, if any.
        """
        before: Table | View | Unloaded | None = draft.base
        if before is None and found:
            before = content_of(state, found.content, self.cls)
        entity_id = found.entity_id if found else state.new_id()
        where = existing_file or metadata_location(draft, prepared.uuid)
        is_storage = self.with_view
        if isinstance(draft, TableDraft) and found and not self.with_view:
            is_storage = self._store_view(state, draft, where, prepared, effective)
        if isinstance(draft, TableDraft) and not state.allows(Table):
            draft.overflow_bound = math.inf
        summary = draft.summary()
        value, objects = draft.freeze(state.new_id, entity_id=entity_id, metadata_location=where)
        assert isinstance(value, self.cls)
        if existing_file is not None:
            away = ownership.unconfirmed_of(value.location, value.properties, existing_file)
        else:
            away = locations.still_named(value.unconfirmed, value.location, value.properties)
        if away != value.unconfirmed:
            value = msgspec.structs.replace(value, unconfirmed=away)
        if isinstance(value, View):
            is_imported = existing_file is not None or isinstance(before, Unloaded)
            definer = "" if is_imported else self._definer(state, before, value)
            value = msgspec.structs.replace(value, definer=definer)
        state.add_all(objects)
        content = state.add(value)
        if existing_file is None and (effective.metadata_files or is_storage):
            state.write_file(*metadata_file(value, state))
        if before is None or not same_places(before, value):
            old = holdings_of(before) if before else Holdings()
            new = holdings_of(value)
            added = (new.owned | new.unconfirmed) - (old.owned | old.unconfirmed)
            self.context.require_allowed(added)
            occupy(self.context, state, entity_id, old, new)
        if found is None:
            add_entity(state, self.key, content, entity_id, self.context.owner_of(self.operation))
        else:
            put(state, self.key, NameEntry(content, entity_id))
        if existing_file is not None:
            summary |= unconfirmed_summary(value)
        old_id, said = found.content if found else 0, {**self.said, **summary}
        self.record(state, prepared.now, entity_id, self.key, before=old_id, after=content, summary=said)
        return StoredContent(content, value)

    def _definer(self, state: State, before: object, after: View) -> str:
        """Return the principal that made the current version of a view; an empty string if it is not known.

        Args:
            before: the object before the change; ignored unless it is a view.
        """
        if isinstance(before, View) and _current_piece(before) == _current_piece(after):
            return before.definer
        return self.operation.principal if self.context.has_owners and state.allows(View) else ""

    def _store_view(
        self, state: State, draft: TableDraft, where: str, prepared: Prepared, effective: EffectiveProperties
    ) -> bool:
        """If the table is the storage table of a materialized view, complete the draft, and store the view so that it
        refers to the table's new metadata file. Return whether the table is a storage table.

        The view is logged before the table, so that the last log entry describes the request.

        Args:
            draft: the changed table, which is not stored yet.
            where: location of the table's new metadata file.
        Raises:
            BadRequestError: only a refresh may make such a change of a storage table.
        """
        owner = view_of(state, self.name)
        if owner is None:
            return False
        name, found, view = owner
        require_refresh_only(draft, self.name, view)
        set_refreshes(draft, view)
        changed = ViewDraft(view, state, now_ms=prepared.now, check_time=state.check_time)
        set_document(changed.own_properties(), where, view.properties)
        changed.record("set-properties")
        part = StorageView(self.context, self.operation, name)
        part.said = self.said
        part.store(state, found, changed, prepared, effective)
        return True


class ContentPart(ContentChange[Prepared, C]):
    """A part of a change. The change itself prepares it and calls `store`."""

    def prepare(self, view: State) -> Prepared:
        raise AssertionError("the change that contains this part must prepare it")

    def apply(self, state: State, prepared: Prepared) -> StoredContent[C]:
        raise AssertionError("the change that contains this part must apply it")


class StorageChange(ContentPart[Table]):
    """The storage-table part of a change to a materialized view."""

    action = "update-table"
    kind = TABLE
    cls = Table
    with_view = True


class StorageView(ContentPart[View]):
    """The materialized-view part of a change to its storage table."""

    action = "update-view"
    kind = VIEW
    cls = View

    def refer_to_storage(
        self, state: State, found: NameEntry, view: View, name: TableName, now: int
    ) -> NameEntry:
        """Store a materialized view under a new name. Its versions get the identifier that the storage table has under
        this name. Return the view's entry in the index `names`.

        Args:
            view: the content of `found`.
        """
        draft = ViewDraft(view, state, now_ms=now, check_time=state.check_time)
        draft.versions.replace(lambda version: with_storage_table(version, name))
        draft.record("set-storage-table")
        prepared = Prepared(now, str(uuid.uuid5(uuid.UUID(view.uuid), f"{name}@{now}")))
        stored = self.store(state, found, draft, prepared, self.context.binding.at(state))
        return found._replace(content=stored.content)


def _require_namespace(state: State, name: TableName) -> None:
    if not name.namespace:
        raise BadRequestError(f"{name} has no namespace; tables and views must be in one, as in sales.{name}")
    require_namespace(state, name.namespace)


def same_places(one: Table | View | Unloaded, other: Table | View | Unloaded) -> bool:
    """Whether two versions of a table or view certainly use the same locations. False if this quick check cannot decide
    it."""
    if isinstance(one, Unloaded) or isinstance(other, Unloaded):
        return False
    if one.location != other.location or one.unconfirmed != other.unconfirmed:
        return False
    before, after = one.properties.get, other.properties.get
    return list(map(before, locations.PATHS)) == list(map(after, locations.PATHS))


class DropContent(TimedChange["C | Unloaded"], Generic[C]):
    """Drop a table or view. With `purge`, the log entry says that its files are to be deleted as well.

    A lazily imported table or view is dropped without reading its metadata file, unless `purge` is true.
    """

    def __init__(
        self,
        context: Context,
        operation: Operation,
        name: TableName,
        cls: type[C],
        *,
        purge: bool = False,
        only_materialized: bool = False,
    ) -> None:
        """
        Args:
            only_materialized: whether to refuse a view that is not materialized.
        """
        super().__init__(context, operation)
        self.name = name
        self._only_materialized = only_materialized
        self.cls: type[C] = cls
        self.kind = TABLE if cls is Table else VIEW
        self.action = "drop-table" if cls is Table else "drop-view"
        self.purge = purge
        self.storage: Table | None = None
        """The storage table that was dropped with a materialized view."""

    def apply(self, state: State, prepared: int) -> C | Unloaded:
        found = require(state, self.name, self.kind)
        value = content_of(state, found.content, self.cls)
        if self._only_materialized and not is_materialized(state.get(found.content, View)):
            raise BadRequestError(f"view {self.name} is not materialized")
        if self.kind == TABLE:
            refuse_storage(state, self.name, "dropped")
        if self.purge:
            self._require_purgeable(state, self.name, state.get(found.content, self.cls).properties)
        self.storage = None  # an earlier attempt may have found another view of this name
        if isinstance(value, View) and is_materialized(value):
            self._drop_storage(state, prepared)
        key = table_key(self.name, self.kind)
        remove_entity(state, key, found.entity_id)
        occupy(self.context, state, found.entity_id, holdings_of(value), Holdings())
        self.record(state, prepared, found.entity_id, key, before=found.content, summary=self._summary())
        return value

    def _require_purgeable(self, state: State, name: TableName, own: Mapping[str, str]) -> None:
        """Check that `gc.enabled` is true for a table or view.

        Args:
            own: properties of the table or view.
        Raises:
            BadRequestError: the table or view, one of its namespaces, or the catalog sets the property to false.
        """
        retention = self.context.binding.at(state).retention
        if not gc_enabled([own, *namespace_levels(state, self.name.namespace), retention]):
            raise BadRequestError(
                f"Cannot purge {name}: gc.enabled is false for it, its namespace or the catalog, so other "
                "tables may need its files; drop it without PURGE, or set gc.enabled to true first"
            )

    def _drop_storage(self, state: State, now: int) -> None:
        """Drop the storage table of the materialized view that is dropped."""
        key = table_key(storage_name(self.name))
        found = find(state, key)
        if found is None:
            return
        value = state.get(found.content, Table)
        if self.purge:
            self._require_purgeable(state, storage_name(self.name), value.properties)
        self.storage = value
        remove_entity(state, key, found.entity_id)
        occupy(self.context, state, found.entity_id, holdings_of(value), Holdings())
        drop = DropContent(self.context, self.operation, storage_name(self.name), Table)
        drop.record(state, now, found.entity_id, key, before=found.content, summary=self._summary())

    def _summary(self) -> dict[str, str]:
        return {"purge": "true"} if self.purge else {}

    def repeat(self, state: State, entries: list[LogEntry]) -> C | Unloaded:
        return content_of(state, entries[-1].before, self.cls)


class Rename(TimedChange[None]):
    """Rename a table or view; the new name may be in another namespace."""

    def __init__(
        self, context: Context, operation: Operation, source: TableName, target: TableName, kind: bytes
    ) -> None:
        super().__init__(context, operation)
        check_name((*target.namespace, target.name))
        if target.name != source.name:
            check_new_name(target.name)
        self.action = "rename-table" if kind == TABLE else "rename-view"
        self.source = source
        self.target = target
        self.kind = kind

    def apply(self, state: State, prepared: int) -> None:
        found = require(state, self.source, self.kind)
        if self.source == self.target:
            return
        _require_namespace(state, self.target)
        taken = taken_by(state, self.target)
        if taken is not None:
            raise AlreadyExistsError(f"Cannot rename {self.source} to {self.target}. {taken} already exists")
        if self.kind == TABLE:
            refuse_storage(state, self.source, "renamed")
        else:
            found = self._with_storage(state, found, prepared)
        old, new = table_key(self.source, self.kind), table_key(self.target, self.kind)
        state.remove(NAMES, old)
        put(state, new, found)
        state.put(IDS, id_bytes(found.entity_id), Entry(value=new))
        self.record(
            state, prepared, found.entity_id, new, before=found.content, after=found.content, old_key=old
        )

    def _with_storage(self, state: State, found: NameEntry, now: int) -> NameEntry:
        """Return the renamed view's entry in the index `names`. If the view is materialized, also rename its storage
        table, and set the table's new identifier in the versions of the view."""
        view = content_of(state, found.content, View)
        if isinstance(view, Unloaded) or not is_materialized(view):
            return found
        require_no_namespace(state, self.target)
        old, new = table_key(storage_name(self.source)), table_key(storage_name(self.target))
        storage = find(state, old)
        if storage is not None:
            state.remove(NAMES, old)
            put(state, new, storage)
            state.put(IDS, id_bytes(storage.entity_id), Entry(value=new))
            move = Rename(
                self.context, self.operation, storage_name(self.source), storage_name(self.target), TABLE
            )
            content = storage.content
            move.record(state, now, storage.entity_id, new, before=content, after=content, old_key=old)
        part = StorageView(self.context, self.operation, self.source)
        return part.refer_to_storage(state, found, view, self.target, now)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


def _current_piece(view: View) -> int | None:
    """Return the object id of the current version of a view."""
    return next((one.piece for one in view.versions if one.id == view.current_version_id), None)
