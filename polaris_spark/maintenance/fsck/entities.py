"""Check of the newest commit of a catalog's branch: whether its indexes of names, ids and locations agree.

They must agree with each other, and with the namespaces, tables and views that they point to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from polaris_spark.catalog.entities.entities import TableName, namespace_key, table_key
from polaris_spark.catalog.entities.materialized_views import STORAGE, is_materialized, storage_name
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import (
    CATALOG,
    IDS,
    LOCATIONS,
    NAMES,
    NAMESPACE,
    TABLE,
    UNCONFIRMED,
    VIEW,
    CatalogRow,
    Namespace,
    Unloaded,
    id_bytes,
    id_from,
)
from polaris_spark.catalog.tables.contents import holdings_of
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.errors import BadRequestError, CorruptionError, ObjectTooLargeError
from polaris_spark.index import Branch, Entry, Index, IndexRoot, ShardReader
from polaris_spark.index.keys import children, decode_key, entry_key
from polaris_spark.index.root import as_branch
from polaris_spark.maintenance.fsck.contents import ContentCheck
from polaris_spark.maintenance.fsck.materialized_views import disagreements
from polaris_spark.maintenance.fsck.rows import Problem, RowReader

WRONG_ENTITY = "wrong-entity"
WRONG_LOCATION = "wrong-location"
OVERLAP = "overlap"
WRONG_VIEW = "wrong-materialized-view"

TOGETHER = 512

_CLASSES: dict[bytes, tuple[type, ...]] = {
    NAMESPACE: (Namespace,),
    TABLE: (Table, Unloaded),
    VIEW: (View, Unloaded),
    CATALOG: (CatalogRow,),
}
_LOCATION = b"l"

Segments = tuple[str, ...]


class EntitiesUnit(NamedTuple):
    """A key range of one index in the newest commit of a branch. It is checked against the commit's other indexes."""

    reference: str
    commit: int
    index_name: str
    start: bytes
    end: bytes | None
    shared: bool
    """True if the catalog allows tables with overlapping locations, so that overlaps are not reported."""


def entity_problems(rows: RowReader, unit: EntitiesUnit) -> Iterator[Problem]:
    """Yield the problems of the index entries in a unit's key range.

    Rows that cannot be read are skipped, because other checks report them.
    """
    commit = rows.values([unit.commit], Commit).get(unit.commit)
    if commit is None:
        return
    head = _Head(rows, unit, commit)
    checks: dict[str, Callable[[list[tuple[bytes, Entry]]], Iterator[Problem]]] = {
        NAMES: head.names,
        IDS: head.ids,
        LOCATIONS: head.locations,
        UNCONFIRMED: head.unconfirmed,
    }
    try:
        listed = head.index(unit.index_name).range(unit.start, unit.end)
        while some := list(islice(listed, TOGETHER)):
            yield from checks[unit.index_name](some)
    except CorruptionError:
        return  # the check of the index reports it


def row_of(root: IndexRoot, commit: int, key: bytes, read: ShardReader) -> int:
    """Return the id of the object that contains, or would contain, the entry for a key of an index.

    This object is the commit if the commit itself contains the entry, else a leaf of the index.

    Raises:
        CorruptionError: a shard on the path to the leaf cannot be read.
    """
    if key in root.keys or not root.shard:
        return commit
    id = root.shard
    for _ in range(root.height):
        branch = read([id])[id]
        if not isinstance(branch, Branch):
            break
        id = branch.children[bisect_right(branch.separators, key)]
    return id


def key_bounds(rows: RowReader, commit: int, name: str, parts: int) -> list[bytes]:
    """Return keys that split an index of a commit into ranges of about equal size.

    Args:
        parts: approximate number of ranges; there are fewer if the index is small.
    Returns:
        the first key of each range except the first; empty if the index cannot be read.
    """
    found = rows.values([commit], Commit).get(commit)
    if parts < 2 or found is None or name not in found.index_names:
        return []
    root = found.index_roots[found.index_names.index(name)]
    level = [(root.shard, b"")]
    try:
        for _ in range(root.height):
            if len(level) >= parts:
                break
            shards = rows.shards([id for id, _ in level])
            below: list[tuple[int, bytes]] = []
            for id, lower in level:
                branch = as_branch(shards[id], id)
                below += zip(branch.children, [lower, *branch.separators], strict=True)
            level = below
    except CorruptionError:
        return []
    step = -(-len(level) // parts)
    return [lower for _, lower in level[step::step]]


class _Head:
    def __init__(self, rows: RowReader, unit: EntitiesUnit, commit: Commit) -> None:
        self._rows = rows
        self._unit = unit
        self._roots = dict(zip(commit.index_names, commit.index_roots, strict=True))
        self._indexes: dict[str, Index] = {}
        self._namespaces: dict[tuple[str, ...], bool] = {(): True}
        self._contents = ContentCheck(rows, unit.reference)
        self._above: list[tuple[Segments, int]] | None = None

    def index(self, name: str) -> Index:
        if name not in self._indexes:
            self._indexes[name] = Index(self._roots.get(name, IndexRoot()), self._rows.shards)
        return self._indexes[name]

    # Names

    def names(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        contents = self._rows.read([entry.pointer for _, entry in entries])
        has_ids = self._unit.reference.startswith("cat/")
        ids = self.index(IDS).get_many([entry.value[:8] for _, entry in entries])
        for (key, entry), named in zip(entries, ids, strict=True):
            for message in self._name_faults(key, entry):
                yield self._entry_problem(NAMES, key, message)
            if has_ids and (named is None or named.value != key):
                there = "no entry" if named is None else f"{named.value!r}"
                yield self._entry_problem(NAMES, key, f"index ids has {there} for its entity id")
            found = contents.get(entry.pointer)
            if found is not None:
                value = found.value
                yield from self._content_problems(key, entry, value, found.header.type)
        path = f"head, index {NAMES}"
        yield from self._contents.check([entry.pointer for _, entry in entries], path)
        if has_ids:
            yield from self._owners(entries)
        yield from self._materialized(entries)

    def _name_faults(self, key: bytes, entry: Entry) -> Iterator[str]:
        if not entry.pointer:
            yield "it has no content"
        if len(entry.value) != 8:
            yield f"its entity id has a wrong length, {len(entry.value)} bytes"
        try:
            path, kind, name = decode_key(key)
        except CorruptionError as error:
            yield str(error)
            return
        if kind not in _CLASSES:
            yield f"its kind {kind!r} is unknown"
        if not self._has_namespace(path) and not self._is_storage(path, kind, name):
            yield f"its namespace {'.'.join(path)!r} does not exist"

    def _is_storage(self, path: tuple[str, ...], kind: bytes, name: str) -> bool:
        """Whether a key belongs to the storage table of a materialized view."""
        if kind != TABLE or name != STORAGE or len(path) < 2:
            return False
        found = self.index(NAMES).get(table_key(TableName(path[:-1], path[-1]), VIEW))
        if found is None:
            return False
        views = self._rows.read([found.pointer])
        if found.pointer not in views:  # another check reports that the view cannot be read
            return True
        value = views[found.pointer].value
        return isinstance(value, View) and is_materialized(value)

    def _materialized(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        """Yield a problem for each disagreement of a materialized view and its storage table."""
        pointers = [entry.pointer for key, entry in entries if _kind(key) == VIEW]
        views = self._rows.values(pointers, View)
        for key, entry in entries:
            view = views.get(entry.pointer)
            if _kind(key) != VIEW or view is None or not is_materialized(view):
                continue
            decoded = decode_key(key)
            name = TableName(decoded.path, decoded.name)
            stored = self.index(NAMES).get(table_key(storage_name(name)))
            tables = {} if stored is None else self._rows.values([stored.pointer], Table)
            if stored is not None and stored.pointer not in tables:
                continue  # another check reports why it cannot be read
            table = None if stored is None else tables[stored.pointer]
            messages: dict[int, list[str]] = {}  # one problem for each row
            for one in disagreements(name, view, table, StoredObjects(self._rows.store)):
                row = entry.pointer if one.in_view or stored is None else stored.pointer
                messages.setdefault(row, []).append(one.message)
            for row, some in messages.items():
                yield self._problem(WRONG_VIEW, row, "; ".join(some), self._path(NAMES, key))

    def _has_namespace(self, path: tuple[str, ...]) -> bool:
        if path not in self._namespaces:
            self._namespaces[path] = self.index(NAMES).get(namespace_key(path)) is not None
        return self._namespaces[path]

    def _content_problems(self, key: bytes, entry: Entry, value: object, type: str) -> Iterator[Problem]:
        try:
            kind, name = decode_key(key).kind, decode_key(key).name
        except CorruptionError:
            return
        if not isinstance(value, _CLASSES.get(kind, ())):
            message = f"its content is object {entry.pointer}, which has the wrong type {type!r}"
            yield self._entry_problem(NAMES, key, message)
            return
        assert isinstance(value, Namespace | Table | View | Unloaded | CatalogRow)
        entity = id_from(entry.value)
        told = None
        if value.entity_id != entity:
            told = f"its row has entity id {value.entity_id}, but {key!r} in index names has {entity}"
        elif isinstance(value, CatalogRow) and value.name != name:
            told = f"its row contains the name {value.name!r}, but in index names it is {name!r}"
        if told:
            yield self._problem(WRONG_ENTITY, entry.pointer, told, self._path(NAMES, key))

    def _owners(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        """Yield a problem for each location of a table or view if the location's index entry is missing or wrong.

        A location that the entity owns must be in the index `LOCATIONS`, and a location that it uses without owning it
        must be in `UNCONFIRMED`. The entry must contain the entity's id.
        """
        contents = self._rows.read([entry.pointer for _, entry in entries])
        wanted: dict[str, list[tuple[bytes, bytes, int, Segments]]] = {LOCATIONS: [], UNCONFIRMED: []}
        for key, entry in entries:
            found = contents.get(entry.pointer)
            if found is None or not isinstance(found.value, Table | View | Unloaded):
                continue
            try:
                held = holdings_of(found.value)
            except BadRequestError as error:
                if found.value.location:
                    yield self._problem(WRONG_LOCATION, entry.pointer, str(error), self._path(NAMES, key))
                continue
            entity = id_from(entry.value)
            for index, used in zip(wanted, held, strict=True):
                wanted[index] += [
                    (key, _location_key(place, entity), entity, place) for place in sorted(used)
                ]
        for index in wanted:
            yield from self._missing(index, wanted[index])

    def _missing(self, index: str, wanted: list[tuple[bytes, bytes, int, Segments]]) -> Iterator[Problem]:
        there = self.index(index).get_many([location for _, location, _, _ in wanted])
        for (key, location, entity, place), found in zip(wanted, there, strict=True):
            if found is None or id_from(found.value) != entity:
                what = "is missing" if found is None else f"belongs to entity {id_from(found.value)}"
                uses = "owns" if index == LOCATIONS else "names"
                message = f"{'/'.join(place)}, which {key!r} {uses}, {what} in index {index}"
                row = row_of(
                    self._roots.get(index, IndexRoot()), self._unit.commit, location, self._rows.shards
                )
                yield self._problem(WRONG_LOCATION, row, message, self._path(NAMES, key))

    # Ids

    def ids(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        named = self.index(NAMES).get_many([entry.value for _, entry in entries])
        for (key, entry), found in zip(entries, named, strict=True):
            if found is None or found.value != key:
                there = "nothing" if found is None else f"entity {id_from(found.value)}"
                message = f"its value is {entry.value!r}, but under that key, index names has {there}"
                yield self._entry_problem(IDS, key, message)

    # Locations

    def locations(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        return self._uses(LOCATIONS, entries)

    def unconfirmed(self, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        return self._uses(UNCONFIRMED, entries)

    def _uses(self, index: str, entries: list[tuple[bytes, Entry]]) -> Iterator[Problem]:
        """Yield a problem for each entry of an index of locations whose entity does not use the location.

        An entity must own its locations in the index `LOCATIONS`. Its locations in the index `UNCONFIRMED` must be used
        but not owned by the entity.
        """
        used = self._used(sorted({id_bytes(id_from(entry.value)) for _, entry in entries}))
        for key, entry in entries:
            entity = id_from(entry.value)
            try:
                path, kind, name = decode_key(key)
            except CorruptionError as error:
                yield self._entry_problem(index, key, str(error))
                continue
            if kind != _LOCATION or name != f"{entity:x}" or len(entry.value) != 8:
                message = f"its key contains the entity id {name!r}, but its value contains {entity:x}"
                yield self._entry_problem(index, key, message)
            held = used.get(entity, Holdings())
            if held is None:
                continue
            if path not in (held.owned if index == LOCATIONS else held.unconfirmed):
                what = "does not exist"
                if entity in used:
                    what = "does not own it" if index == LOCATIONS else "does not name it"
                message = f"{'/'.join(path)} belongs to entity {entity}, which {what}"
                yield self._entry_problem(index, key, message)
            if index == LOCATIONS:
                yield from self._overlaps(key, path, entity)

    def _used(self, entities: list[bytes]) -> dict[int, Holdings | None]:
        """Return the locations that entities use, by entity id.

        The value is None if the entity's table or view cannot be read. Entities that do not exist are left out.
        """
        keys = self.index(IDS).get_many(entities)
        there = [(entity, found.value) for entity, found in zip(entities, keys, strict=True) if found]
        named = self.index(NAMES).get_many([key for _, key in there])
        pointers = {id_from(e): found.pointer for (e, _), found in zip(there, named, strict=True) if found}
        contents = self._rows.read(list(pointers.values()))
        used: dict[int, Holdings | None] = {}
        for entity, pointer in pointers.items():
            value = contents[pointer].value if pointer in contents else None
            try:
                known = isinstance(value, Table | View | Unloaded)
                used[entity] = holdings_of(value) if known else None  # type: ignore[arg-type]  # just looked
            except BadRequestError:
                used[entity] = None
        return used

    def _overlaps(self, key: bytes, path: Segments, entity: int) -> Iterator[Problem]:
        """Yield a problem if a location lies below a location of another entity.

        This must be called for the entries of the index in key order. In this order, a location is followed immediately
        by all locations below it.
        """
        if self._unit.shared:
            return
        if self._above is None:
            self._above = self._owners_above(path)
        while self._above and path[: len(self._above[-1][0])] != self._above[-1][0]:
            self._above.pop()
        for above, other in self._above:
            if other != entity:
                message = f"{'/'.join(path)} of entity {entity} lies in {'/'.join(above)} of entity {other}"
                yield self._entry_problem(LOCATIONS, key, message, kind=OVERLAP)
                break
        self._above.append((path, entity))

    def _owners_above(self, path: Segments) -> list[tuple[Segments, int]]:
        found = []
        for length in range(1, len(path)):
            for _, entry in self.index(LOCATIONS).range(*children(path[:length], _LOCATION)):
                found.append((path[:length], id_from(entry.value)))
        return found

    def _entry_problem(self, index: str, key: bytes, message: str, kind: str = WRONG_ENTITY) -> Problem:
        root = self._roots.get(index, IndexRoot())
        row = row_of(root, self._unit.commit, key, self._rows.shards)
        return self._problem(kind, row, f"{key!r}: {message}", self._path(index, key))

    def _problem(self, kind: str, id: int, message: str, path: str) -> Problem:
        return self._rows.problem(kind, id, message, reference=self._unit.reference, path=path)

    def _path(self, index: str, key: bytes) -> str:
        return f"commit {self._unit.commit}, index {index}, key {key!r}"


def _location_key(place: Segments, entity: int) -> bytes:
    try:
        return entry_key(place, _LOCATION, f"{entity:x}")
    except ObjectTooLargeError:  # then the index cannot hold it, and no entry has the empty key
        return b""


def _kind(key: bytes) -> bytes:
    """Return the kind of a key of the index `names`; empty if it cannot be decoded, which another check reports."""
    try:
        return decode_key(key).kind
    except CorruptionError:
        return b""
