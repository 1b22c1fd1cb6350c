"""Parallel reads of the entities (namespaces, tables and views) of catalogs.

Each task reads a range of keys of the index `names`, which maps names to entities, at one commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from polaris_spark.access.needs import Needs
from polaris_spark.access.privileges import SEES_NAMESPACE
from polaris_spark.access.scopes import Scope, Sight, privilege_for
from polaris_spark.catalog.entities.identifiers import dotted, parse_dotted
from polaris_spark.catalog.rows import IDS, NAMES, NAMESPACE, TABLE, VIEW, Unloaded, id_bytes, id_from
from polaris_spark.commits.state import CommitReader, StoredObjects
from polaris_spark.errors import InputError
from polaris_spark.ids import MAX_ID
from polaris_spark.index import Entry
from polaris_spark.index.keys import decode_key, encode_path, entry_key, key_after
from polaris_spark.index.ranges import key_ranges
from polaris_spark.spark.pruning import ANYTHING, Condition
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import LONG, STRING, ViewColumn, batches, equal_rows
from polaris_spark.spark.views.pins import Pin, pins
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted, partition_count
from polaris_spark.store.objects import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")
T = TypeVar("T")

READ_TOGETHER = 128
"""Number of objects that are read from the database in one batch."""

LOOKED_UP = 100
"""Maximum number of requested ids of entities or commits for which planning looks up each id."""

Range = tuple[bytes, bytes | None]
"""A range of index keys: start (included) and end (excluded). If the end is None, the range ends with the index."""


class NamesTask(NamedTuple):
    """A task that reads one key range of the index `names`, and keeps the entries whose names and entity ids meet the
    conditions."""

    pin: Pin
    start: bytes
    end: bytes | None
    names: Condition
    entities: Condition


class EntityEntry(NamedTuple):
    """An entry of the index `names`: the name and ids of a namespace, table or view."""

    catalog: str
    path: tuple[str, ...]
    kind: bytes
    name: str
    entity_id: int
    content_id: int
    key: bytes

    @property
    def entry(self) -> EntityEntry:
        """This object. So an index entry can be used like a row of a view, which has its index entry in `entry`."""
        return self


def wanted_keys(request: ScanRequest, kind: bytes | None) -> list[Range]:
    """Return the key ranges of the entities that may satisfy the conditions on `namespace` and `name`.

    The ranges do not overlap and are in ascending order. The condition on `name` narrows them only if it allows a
    single name and `kind` is not None."""
    namespace, name = request.condition("namespace"), request.condition("name")
    if namespace.values is not None:
        paths = [parse_dotted(text) for text in namespace.values if isinstance(text, str)]
        ranges = []
        for path in paths:
            with contextlib.suppress(InputError):  # the name is too long for a key, so no entity has it
                ranges += [_directly_in(path, kind, name)] if path is not None else []
        return sorted(ranges)
    if namespace.prefix and "`" not in namespace.prefix:
        levels = namespace.prefix.split(".")
        if all(levels[:-1]):
            try:
                low = encode_path([level for level in levels if level])
            except InputError:  # the prefix is too long for a key
                return []
            return [(low, _following(low))]
    return [(b"", None)]


def _directly_in(path: tuple[str, ...], kind: bytes | None, name: Condition) -> Range:
    if kind is not None and name.values is not None and len(name.values) == 1:
        (only,) = name.values
        key = entry_key(path, kind, only)
        return key, key_after(key)
    start = encode_path(path) + b"\x01"
    return start, start[:-1] + b"\x02"


def _following(prefix: bytes) -> bytes | None:
    """Return the smallest byte string that is greater than all byte strings with this prefix; None if there is no such
    string."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes((cut[-1] + 1,)) if cut else None


def plan_names(
    request: ScanRequest, kind: bytes | None, rows_per_partition: int, wanted: list[Range] | None = None
) -> list[Weighted[NamesTask]]:
    """Return tasks that together read the requested entities. Each task has the approximate number of its index
    entries.

    Planning reads the heads and commits of the catalogs, the upper levels of index trees, and at most `LOOKED_UP` ids.

    Args:
        request: the request; its conditions on `catalog`, `namespace`, `name` and `entity_id` limit the key ranges.
        kind: kind of the entities; None for all kinds.
        rows_per_partition: minimum number of rows in a partition, if enough rows exist.
        wanted: key ranges to read; None to derive the ranges from the conditions on `namespace` and `name`.
    """
    realm = request.store.realm(request.options.realm)
    reader = StoredObjects(realm.store).read_shards
    names, entities = request.condition("name"), request.condition("entity_id")
    wanted = wanted_keys(request, kind) if wanted is None else wanted
    planned = []
    for pin in pins(realm, request):
        head = pin.reader(realm.store)
        commit = head.commit
        if NAMES not in commit.index_names:
            continue
        root = commit.index_roots[commit.index_names.index(NAMES)]
        n = partition_count(request.options.splits, root.count + len(root.keys), rows_per_partition)
        by_entity = _keys_of_entities(head, entities)
        for start, end in wanted if by_entity is None else by_entity:
            for found in key_ranges(root, reader, start, end, n):
                task = NamesTask(pin, found.start, found.end, names, entities)
                planned.append(Weighted(task, found.entries))
    return planned


def _keys_of_entities(reader: CommitReader, entities: Condition) -> list[Range] | None:
    """Look up the requested entity ids in the index `ids`, and return one key range for each entity found.

    Return None if the condition lists no ids, or lists more than `LOOKED_UP` ids.
    """
    if entities.values is None or len(entities.values) > LOOKED_UP:
        return None
    ids = [id_bytes(id) for id in sorted(entities.values) if 0 < id <= MAX_ID]
    keys = sorted(found.value for found in reader.index(IDS).get_many(ids) if found is not None)
    return [(key, key_after(key)) for key in keys]


def named(reader: CommitReader, task: NamesTask, kind: bytes | None) -> Iterator[EntityEntry]:
    """Yield the index entries of a task that satisfy its conditions. If `kind` is None, yield entities of every
    kind."""
    mark = None if kind is None else b"\x01" + kind
    for key, entry in reader.index(NAMES).range(task.start, task.end):
        if mark is not None and mark not in key:  # the byte before the kind occurs nowhere else in a key
            continue
        found = _named(task.pin.catalog, key, entry)
        if task.names.allows(found.name) and task.entities.allows(found.entity_id):
            yield found


def visible(
    store: ReadStore, task: NamesTask, entries: Iterator[EntityEntry], shown: Needs
) -> Iterator[EntityEntry]:
    """Return those entries of a task that the reading principal may see.

    Args:
        shown: the privileges with which a principal may see a row of the view (`SystemView.shown`).
    """
    sight = task.pin.sight(store)
    if sight is None:
        return entries
    privileges = {kind: privilege_for(shown, kind) for kind in (NAMESPACE, TABLE, VIEW)}
    return (entry for entry in entries if _is_visible(sight, entry, privileges.get(entry.kind)))


def _is_visible(sight: Sight, entry: EntityEntry, privilege: str | None) -> bool:
    if privilege is None:
        return False
    if sight.may(privilege, entry.path, entry.kind, entry.name, entry.entity_id):
        return True
    return privilege == SEES_NAMESPACE and sight.is_on_the_way((*entry.path, entry.name))


def _named(catalog: str, key: bytes, entry: Entry) -> EntityEntry:
    path, kind, name = decode_key(key)
    return EntityEntry(catalog, path, kind, name, id_from(entry.value), entry.pointer, key)


def with_contents(
    store: ObjectStore, entries: Iterator[EntityEntry], cls: type[S]
) -> Iterator[list[tuple[EntityEntry, S]]]:
    """Yield the entries, each with the object that describes its entity. Each list was read in one batch.

    Raises:
        CorruptionError: an object is missing, or is not a `cls`.
    """
    while run := list(islice(entries, READ_TOGETHER)):
        found = store.get_many([entry.content_id for entry in run], cls)
        yield [(entry, found[entry.content_id]) for entry in run]


def with_loaded(
    store: ObjectStore, entries: Iterator[EntityEntry], cls: type[S]
) -> Iterator[tuple[list[tuple[EntityEntry, S]], list[tuple[EntityEntry, Unloaded]]]]:
    """Yield the entries of tables or views in pairs of lists. Each pair was read in one batch.

    The first list contains the entries that are loaded, each with the object that describes the table or view. The
    second list contains the entries that were imported lazily and are not loaded yet, each with its `Unloaded` object.
    """
    while run := list(islice(entries, READ_TOGETHER)):
        found = store.read([entry.content_id for entry in run])
        unread = {id: value for id, one in found.items() if isinstance(value := one.value, Unloaded)}
        loaded = store.get_many([id for id in found if id not in unread], cls)
        yield (
            [(entry, loaded[entry.content_id]) for entry in run if entry.content_id in loaded],
            [(entry, unread[entry.content_id]) for entry in run if entry.content_id in unread],
        )


class MaybeUnloaded(Protocol):
    """A row for a table or view whose metadata may not be loaded yet, because it was imported lazily."""

    @property
    def unloaded(self) -> Unloaded | None:
        """The data that is stored about a table or view that is not loaded yet; None if it is loaded."""


def of_loaded(*columns: ViewColumn[Any]) -> tuple[ViewColumn[Any], ...]:
    """Return the columns, changed so that they also have values for tables and views that are not loaded yet.

    The value for an unloaded table or view is the field of `Unloaded` with the column's name; null if there is none.
    """
    return tuple([column._replace(value=_unless_unloaded(column)) for column in columns])


def _unless_unloaded(column: ViewColumn[Any]) -> Callable[[MaybeUnloaded], Any]:
    def value(row: MaybeUnloaded) -> Any:
        return column.value(row) if row.unloaded is None else getattr(row.unloaded, column.name, None)

    return value


def loaded(
    store: ObjectStore, entries: Iterator[EntityEntry], cls: type[S]
) -> Iterator[tuple[EntityEntry, S]]:
    """Yield the entries of tables or views that are loaded, each with the object that describes it. Skip others."""
    return chain.from_iterable(run for run, _ in with_loaded(store, entries, cls))


WITHOUT_UNLOADED = "lazily imported tables and views have no rows until they are loaded"
"""Text for the comments of the views that skip tables and views that are not loaded yet."""


def with_pieces(
    store: ObjectStore, items: Iterable[T], piece: Callable[[T], int], cls: type[S]
) -> Iterator[tuple[T, S]]:
    """Yield each item with the object that it points to. `READ_TOGETHER` objects are read in one batch.

    Args:
        piece: function that returns the id of the object that an item points to.
    Raises:
        CorruptionError: an object is missing, or is not a `cls`.
    """
    remaining = iter(items)
    while run := list(islice(remaining, READ_TOGETHER)):
        found = store.get_many({piece(item) for item in run}, cls)
        yield from ((item, found[piece(item)]) for item in run)


def by_id(store: ObjectStore, ids: Collection[int], cls: type[S]) -> dict[int, S]:
    """Read objects, and return them by id. The id 0 is ignored, because it means that there is no object."""
    return store.get_many({id for id in ids if id}, cls)


class EntityView(SystemView[NamesTask, R], Generic[R]):
    """A system view whose rows are derived from entities. A subclass defines at least `comment`, `kind` and `columns`.
    It also defines `of` if its rows can be made from the entities and the objects that they point to. Otherwise it
    defines `rows`, which can also read other indexes of the commit in `NamesTask.pin`, as `lineage.py` does."""

    kind: ClassVar[bytes | None]
    """Kind of the entities in the view: `NAMESPACE`, `TABLE` or `VIEW` of `catalog/rows.py`; None for all kinds."""
    one_each: ClassVar[bool] = False
    """Whether the view has exactly one row for each entity.

    If true, the index `names` alone is read to count rows and to read columns whose `needs` is empty.
    """

    def plan(self, request: ScanRequest) -> list[Weighted[NamesTask]]:
        return plan_names(request, self.kind, self.rows_per_partition)

    def rows(self, store: ReadStore, task: NamesTask, needs: frozenset[str]) -> Iterator[R]:
        return self.of(store.objects(task.pin.realm), self._named(store, task), needs)

    def read(
        self, store: ReadStore, tasks: Sequence[NamesTask], columns: Sequence[ViewColumn[R]]
    ) -> Iterator[pa.RecordBatch]:
        if not self.one_each or any(column.needs for column in columns):
            return super().read(store, tasks, columns)
        if all(column is _CATALOG for column in columns):  # as for count(*)
            return chain.from_iterable(self._alike(store, task, columns) for task in tasks)
        entries = (entry for task in tasks for entry in self._named(store, task))
        return batches(
            cast("Sequence[ViewColumn[EntityEntry]]", columns), entries, lambda entry: 128 + len(entry.key)
        )

    def _alike(
        self, store: ReadStore, task: NamesTask, columns: Sequence[ViewColumn[R]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task if only the column `catalog` is requested."""
        return equal_rows(columns, [task.pin.catalog] * len(columns), self.count(store, task))

    def count(self, store: ReadStore, task: NamesTask) -> int:
        """Return the number of rows of a task. Call this only if `one_each` is true.

        The keys of the index are counted. They are decoded only if the task has conditions, or the reading principal
        may not see everything.
        """
        if task.names != ANYTHING or task.entities != ANYTHING:
            return sum(1 for _ in self._named(store, task))
        mark = b"" if self.kind is None else b"\x01" + self.kind
        if task.pin.sight(store) is not None:
            return sum(1 for _ in self._named(store, task))
        names = task.pin.reader(store.objects(task.pin.realm)).index(NAMES)
        return sum(mark in key for key in names.keys(task.start, task.end))

    def _named(self, store: ReadStore, task: NamesTask) -> Iterator[EntityEntry]:
        found = named(task.pin.reader(store.objects(task.pin.realm)), task, self.kind)
        return visible(store, task, found, self.shown)

    def sees(self, store: ReadStore, scope: Scope, row: R) -> bool:
        return True  # the entities of the rows were chosen before the rows were made

    def of(self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]) -> Iterator[R]:
        """Yield the rows of the given entities. Called on an executor.

        To read objects in batches, implementations call `with_contents` (any entities), `loaded` (tables or views), and
        `with_pieces` (further objects). `needs` contains `ViewColumn.needs` of the requested columns.
        """
        raise NotImplementedError


class OfEntity(Protocol):
    """A row that is derived from an entity (a namespace, table or view)."""

    @property
    def entry(self) -> EntityEntry:
        """The entity's entry in the index `names`."""


_CATALOG: ViewColumn[Any] = ViewColumn(
    "catalog", STRING, "Catalog that the entity belongs to", lambda row: row.entry.catalog, ""
)

IDENTITY: tuple[ViewColumn[OfEntity], ...] = (
    _CATALOG,
    ViewColumn(
        "namespace",
        STRING,
        "Namespace, levels joined by dots; a level that contains a dot or backquote is in backquotes",
        lambda row: dotted(row.entry.path),
        "",
    ),
    ViewColumn("name", STRING, "Name within the namespace", lambda row: row.entry.name, ""),
    ViewColumn(
        "entity_id",
        LONG,
        "Stable id of the entity: unchanged by renames, never reused",
        lambda row: row.entry.entity_id,
        "",
    ),
    ViewColumn(
        "content_id",
        LONG,
        "Id of the object with its current state; it changes with each change of the entity",
        lambda row: row.entry.content_id,
        "",
    ),
)
"""Columns that all views of entities have. Queries can join the views on these columns."""
