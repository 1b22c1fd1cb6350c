"""Differences between two states of a catalog: which namespaces, tables and views were added, removed, renamed or
changed.

Entities are recognized by their ids, which renames do not change. Only the parts of the index `names` that the two
states do not share are read, so the cost depends on the number of differences and not on the size of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from polaris_spark.catalog.entities.entities import NameEntry
from polaris_spark.catalog.entities.materialized_views import STORAGE, is_materialized
from polaris_spark.catalog.metadata.rows import MATERIALIZED, ObjectReader, Snapshot, Table, View
from polaris_spark.catalog.metadata.texts import decode
from polaris_spark.catalog.metadata.version_details import (
    namespace_differences,
    table_differences,
    view_differences,
)
from polaris_spark.catalog.rows import NAMES, NAMESPACE, TABLE, VIEW, Namespace, Unloaded, id_from
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.catalog.tables.summaries import number_in
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.index import Entry, IndexRoot, ShardReader, diff
from polaris_spark.index.keys import decode_key

_SHOWN: Final = 8
"""Maximum number of fields in a text."""


class Version(NamedTuple):
    """An entity in one state: its key in the index `names`, and the object id of its content."""

    key: bytes
    content: int


class EntityChange(NamedTuple):
    """An entity that differs in two states. One of the versions is None if the entity is only in the other state."""

    entity_id: int
    before: Version | None
    after: Version | None


def changed_entities(read: ShardReader, before: Commit, after: Commit) -> dict[int, EntityChange]:
    """Return the entities that differ in two states, by entity id, sorted by name."""
    return _by_entity(diff(_names(before), _names(after), read))


def changed_among(
    keys: Collection[bytes], before: CommitReader, after: CommitReader
) -> dict[int, EntityChange]:
    """Return the entities that differ in two states, by entity id, sorted by name.

    Args:
        keys: keys in the index `names`. The states are the same at all other keys.
    """
    names = sorted(keys)
    entries = zip(names, before.index(NAMES).get_many(names), after.index(NAMES).get_many(names), strict=True)
    return _by_entity((key, old, new) for key, old, new in entries if old != new)


def _by_entity(differences: Iterable[tuple[bytes, Entry | None, Entry | None]]) -> dict[int, EntityChange]:
    found: dict[int, EntityChange] = {}
    for key, old, new in differences:
        if old is not None:
            id = id_from(old.value)
            found[id] = EntityChange(id, Version(key, old.pointer), found[id].after if id in found else None)
        if new is not None:
            id = id_from(new.value)
            found[id] = EntityChange(id, found[id].before if id in found else None, Version(key, new.pointer))
    return found


def namespaces_by_name(changes: Mapping[int, EntityChange], reader: ObjectReader) -> dict[int, EntityChange]:
    """Return the changes with namespaces recognized by their names instead of their ids, and without namespaces whose
    properties are the same in both states.

    A namespace that two branches create separately has another id in each of them, and also after a merge has made one
    namespace of both. A namespace cannot be renamed, so its name is the same in all states.
    """
    found: dict[int, EntityChange] = {}
    spaces: dict[bytes, EntityChange] = {}
    for id, change in changes.items():
        before, after = change.before, change.after
        key = (after or before).key  # type: ignore[union-attr]  # one of them is a version
        if decode_key(key).kind != NAMESPACE:
            found[id] = change
            continue
        known = spaces.get(key)
        if known is not None:
            found.pop(known.entity_id)
            before, after = before or known.before, after or known.after
            id = id if change.after else known.entity_id
        found[id] = spaces[key] = EntityChange(id, before, after)
    same = _with_equal_properties([(one.before, one.after) for one in spaces.values()], reader)
    for change, equal in zip(spaces.values(), same, strict=True):
        if equal:
            del found[change.entity_id]
    return found


def of_own_namespaces(changes: Mapping[int, EntityChange], state: State) -> dict[int, EntityChange]:
    """Return the changes with namespaces recognized by their names, under the ids that they have in a branch.

    Args:
        state: state of the branch. A version of a namespace with the same properties as in this state has the same
            content in the result.
    """
    changes = namespaces_by_name(changes, state)
    keys = {
        (one.after or one.before).key: id  # type: ignore[union-attr]  # one of them is a version
        for id, one in changes.items()
    }
    names = [key for key in keys if decode_key(key).kind == NAMESPACE]
    own = {
        keys[name]: (id_from(entry.value), Version(name, entry.pointer))
        for name, entry in zip(names, state.lookup_many(NAMES, names), strict=True)
        if entry is not None
    }
    pairs = [(version, own[id][1]) for id in own for version in changes[id][1:]]
    same = iter(_with_equal_properties(pairs, state))
    found: dict[int, EntityChange] = {}
    for id, change in changes.items():
        if id not in own:
            found[id] = change
            continue
        own_id, ours = own[id]
        before, after = (ours if next(same) else version for version in change[1:])
        found[own_id] = EntityChange(own_id, before, after)
    return found


def _with_equal_properties(
    pairs: Sequence[tuple[Version | None, Version | None]], reader: ObjectReader
) -> list[bool]:
    """Return for each pair whether both are versions of namespaces with the same properties."""
    ids = {one.content for pair in pairs for one in pair if one is not None and None not in pair}
    contents = reader.get_many(ids, Namespace) if ids else {}
    return [
        one is not None
        and other is not None
        and contents[one.content].properties == contents[other.content].properties
        for one, other in pairs
    ]


def entry_of(entity_id: int, version: Version) -> NameEntry:
    """Return the entry of a version in the index `names`."""
    return NameEntry(version.content, entity_id)


def _names(commit: Commit) -> IndexRoot:
    roots: dict[str, IndexRoot] = dict(zip(commit.index_names, commit.index_roots, strict=True))
    return roots.get(NAMES, IndexRoot())


class Described(NamedTuple):
    """One row of a comparison of two states."""

    kind: str
    """`namespace`, `table`, `view` or `materialized view`."""
    name: str
    change: str
    """`added`, `removed`, `renamed` or `changed`."""
    old_name: str | None
    """The earlier name of a renamed entity."""
    snapshots_added: int | None
    """Number of snapshots of a table that only the later state has; None if it is not a table."""
    rows_added: int | None
    """Sum of `added-records` of these snapshots."""
    files_added: int | None
    """Sum of `added-data-files` of these snapshots."""
    details: dict[str, str]
    """What changed in an entity that both states have (`metadata.version_details`)."""


def described(change: EntityChange, reader: ObjectReader) -> Described | None:
    """Return a row about a changed entity; None for the storage table of a materialized view, because the row of the
    view describes both."""
    version = change.after or change.before
    assert version is not None
    path, kind, name = decode_key(version.key)
    if change.before is None or change.after is None:
        verb = "added" if change.before is None else "removed"
    else:
        verb = "renamed" if change.before.key != change.after.key else "changed"
    value = None if kind == NAMESPACE else _content(version, reader)
    label = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view"}[kind]
    if isinstance(value, View) and is_materialized(value):
        label = "materialized view"
    added: tuple[int | None, int | None, int | None] = (None, None, None)
    if isinstance(value, Table):
        if name == STORAGE and MATERIALIZED in value.properties:
            return None
        added = (0, 0, 0) if change.after is None else _added(change, value, reader)
    old = None if change.before is None or verb != "renamed" else ".".join(_parts(change.before.key))
    details = differences(change.before, change.after, reader) if change.before and change.after else {}
    return Described(label, ".".join((*path, name)), verb, old, *added, details)


def differences(
    before: Version, after: Version, reader: ObjectReader, *, by_name: bool = False
) -> dict[str, str]:
    """Return what differs between the contents of two versions of an entity, as a dict from field (see
    `metadata.version_details`) to text. The result is empty if an imported table was not loaded yet, or the versions
    are of different kinds.

    Args:
        by_name: whether to compare the columns of tables by name instead of by id. Set it if `before` and `after` are
            versions of different tables.
    """
    if before.content == after.content:
        return {}
    old, new = _content(before, reader), _content(after, reader)
    if isinstance(old, Namespace) and isinstance(new, Namespace):
        return namespace_differences(old.properties, new.properties)
    if isinstance(old, Table) and isinstance(new, Table):
        return table_differences(old, new, reader, by_name=by_name)
    if isinstance(old, View) and isinstance(new, View):
        return view_differences(old, new, reader)
    return {}


def differences_text(change: EntityChange, reader: ObjectReader) -> str:
    """Return what changed in an entity that both states have, as one text such as `set a: 1, add-column c: int`; empty
    if nothing is known."""
    if change.before is None or change.after is None:
        return ""
    found = fields_in_text(differences(change.before, change.after, reader))
    after = _content(change.after, reader)
    if not isinstance(after, Table):
        return found
    snapshots, rows, files = _added(change, after, reader)
    added = ", ".join(
        _counted(number, kind)
        for number, kind in ((snapshots, "new snapshot"), (rows, "new row"), (files, "new file"))
    )
    return ", ".join(one for one in (added if snapshots else "", found) if one)


def _counted(number: int, kind: str) -> str:
    return f"{number} {kind}{'s' * (number != 1)}"


def fields_in_text(fields: Mapping[str, str]) -> str:
    """Return the first fields of `differences` as one text."""
    shown = [f"{name}: {text}" for name, text in list(fields.items())[:_SHOWN]]
    return ", ".join(shown + ([f"and {len(fields) - _SHOWN} more"] if len(fields) > _SHOWN else []))


def _content(version: Version, reader: ObjectReader) -> Namespace | Table | View | Unloaded:
    kind = decode_key(version.key).kind
    if kind == TABLE:
        return content_of(reader, version.content, Table)
    if kind == VIEW:
        return content_of(reader, version.content, View)
    return reader.get(version.content, Namespace)


def _added(change: EntityChange, after: Table, reader: ObjectReader) -> tuple[int, int, int]:
    """Return the number of new snapshots of a table, and how many rows and data files they added according to their
    summaries. What was removed is not subtracted, and rewritten rows and files count as added."""
    before = None if change.before is None else content_of(reader, change.before.content, Table)
    root = before.snapshots if isinstance(before, Table) else IndexRoot()
    new = [
        entry.pointer
        for _, old, entry in diff(root, after.snapshots, reader.read_shards)
        if old is None and entry is not None
    ]
    rows = files = 0
    for snapshot in reader.get_many(new, Snapshot).values() if new else ():
        summary = decode(snapshot.text).get("summary") or {}
        rows += number_in(summary, "added-records") or 0
        files += number_in(summary, "added-data-files") or 0
    return len(new), rows, files


def _parts(key: bytes) -> tuple[str, ...]:
    path, _, name = decode_key(key)
    return (*path, name)
