"""The system view `objects`: one row for each stored object. The database divides the objects into splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from polaris_spark import objects
from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL
from polaris_spark.backends.base import ObjectKey, Split
from polaris_spark.errors import PolarisError
from polaris_spark.ids import MAX_ID, unpack
from polaris_spark.spark.pruning import ANYTHING, Condition
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import INT, LONG, LONGS, STRING, TIMESTAMP, ViewColumn, batches, micros
from polaris_spark.spark.views.content import content_json
from polaris_spark.spark.views.object_columns import read_columns
from polaris_spark.spark.views.stored import StoredObject, stored_object, stored_objects
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted

if TYPE_CHECKING:
    import pyarrow as pa

_JSON = "json"


class ObjectsTask(NamedTuple):
    """The objects that one task reads: the objects in a database split, or the objects with the given ids if `split` is
    None. Objects that do not satisfy the conditions are left out."""

    realm: str
    """Name of the realm."""
    instance: str
    split: Split | None
    ids: tuple[int, ...]
    types: Condition
    wanted_ids: Condition
    times: Condition
    content: bool

    @property
    def conditions(self) -> dict[str, Condition]:
        """The conditions that the objects must satisfy, by column."""
        return {"id": self.wanted_ids, "type": self.types, "created_at": self.times}


class ObjectViewRow(NamedTuple):
    """A stored object. `content` is its content as JSON; None if it was not requested or cannot be decoded."""

    realm: str
    stored: StoredObject
    content: str | None
    error: str | None


class Objects(SystemView[ObjectsTask, ObjectViewRow]):
    """A system view with one row for each stored object."""

    shown = (Need(READS_ALL, On.REALM),)
    comment = "Immutable objects, one row each, of any type"
    rows_per_partition = 1
    columns = (
        ViewColumn("realm", STRING, "Realm that the object belongs to", lambda row: row.realm),
        ViewColumn("id", LONG, "Id of the object", lambda row: row.stored.id),
        ViewColumn(
            "type",
            STRING,
            "Name of the object's type; null if the row cannot be read",
            lambda row: row.stored.header and row.stored.header.type,
        ),
        ViewColumn(
            "revision",
            INT,
            "Revision of the type with which it was written",
            lambda row: row.stored.header and row.stored.header.revision,
        ),
        ViewColumn("parts", INT, "Number of rows of the object", lambda row: row.stored.parts),
        ViewColumn("bytes", LONG, "Size of all its parts in bytes", lambda row: row.stored.size),
        ViewColumn(
            "created_at",
            TIMESTAMP,
            "Time at which its id was assigned",
            lambda row: micros(unpack(row.stored.id).ms),
        ),
        ViewColumn("node", INT, "Node that assigned its id", lambda row: unpack(row.stored.id).node),
        ViewColumn(
            "strong_ids",
            LONGS,
            "Objects that it points to and keeps alive",
            lambda row: row.stored.header and row.stored.header.strong,
        ),
        ViewColumn(
            "weak_ids",
            LONGS,
            "Objects that it points to without keeping them alive, such as a commit's parents",
            lambda row: row.stored.header and row.stored.header.weak,
        ),
        ViewColumn(
            "content",
            STRING,
            "Decoded content as JSON, with the option content=true; null if the type is not installed",
            lambda row: row.content,
            _JSON,
        ),
        ViewColumn(
            "error",
            STRING,
            "Why the object cannot be read; null if it can",
            lambda row: row.error,
        ),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[ObjectsTask]]:
        request.refuse_as_of(
            "it shows the rows of the database, which never change; filter by the column created_at"
        )
        name = request.options.realm
        if not request.condition("realm").allows(name):
            return []
        instance = request.store.realm(name).store.realm
        ids = request.condition("id")
        task = ObjectsTask(
            name,
            instance,
            None,
            (),
            request.condition("type"),
            ids,
            request.condition("created_at"),
            request.options.content,
        )
        if ids.values is not None:
            looked_up = tuple(sorted(id for id in ids.values if 0 <= id <= MAX_ID))
            return [Weighted(task._replace(ids=looked_up), 1)]
        splits = request.store.backend.splits("objects", [instance], request.options.splits)
        return [Weighted(task._replace(split=split), 1) for split in splits]

    def rows(self, store: ReadStore, task: ObjectsTask, needs: frozenset[str]) -> Iterator[ObjectViewRow]:
        wants_content = task.content and _JSON in needs
        return _shown(task, _stored(store, task, whole=wants_content), content=wants_content)

    def read(
        self, store: ReadStore, tasks: Sequence[ObjectsTask], columns: Sequence[ViewColumn[ObjectViewRow]]
    ) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            if task.split is None or (task.content and any(column.needs == _JSON for column in columns)):
                yield from super().read(store, (task,), columns)
                continue
            for found in read_columns(store.backend, task.split, task.realm, columns, task.conditions):
                if isinstance(found, list):
                    yield from batches(columns, _shown(task, found), self.weigh)
                else:
                    yield found

    def weigh(self, row: ObjectViewRow) -> int:
        header = row.stored.header
        pointers = len(header.strong) + len(header.weak) if header else 0
        return 128 + 8 * pointers + (len(row.content) if row.content else 0)


SYSTEM_VIEW = Objects()


def _shown(
    task: ObjectsTask, found: Iterable[StoredObject], *, content: bool = False
) -> Iterator[ObjectViewRow]:
    """Yield rows for the objects that satisfy the task's conditions. `content` tells whether to decode their
    content."""
    all_are = set(task.conditions.values()) == {ANYTHING}
    for stored in found:
        if all_are or _is_wanted(task, stored):
            text, error = _content(stored) if content else (None, stored.error)
            yield ObjectViewRow(task.realm, stored, text, error)


def _is_wanted(task: ObjectsTask, stored: StoredObject) -> bool:
    return (
        task.types.allows(stored.header and stored.header.type)
        and task.wanted_ids.allows(stored.id)
        and task.times.allows(micros(unpack(stored.id).ms))
    )


def _stored(store: ReadStore, task: ObjectsTask, *, whole: bool) -> Iterator[StoredObject]:
    if task.split is not None:
        yield from stored_objects(store.backend, task.split, whole=whole)
        return
    found = store.backend.read_objects(task.instance, [ObjectKey(id) for id in task.ids])
    for key, value in found.items():
        stored = stored_object(store.backend, task.instance, key, value, whole=whole)
        if stored is not None:
            yield stored


def _content(stored: StoredObject) -> tuple[str | None, str | None]:
    """Return the content of an object as JSON, and None; or None, and the reason why the object cannot be read.

    Both values are None if no installed module defines the object's type.
    """
    if stored.error is not None:
        return None, stored.error
    try:
        value = objects.decode(stored.data, f"{stored.realm}/{stored.id}").value
        return (None, None) if value is None else (content_json(value), None)
    except PolarisError as error:
        return None, str(error)
