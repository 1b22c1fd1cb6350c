"""Restores dropped tables and views. `undrop` adds a table or view with its old entity id and with its last content, to
which the log entry of the drop points.

Why the restored content is complete
------------------------------------
Its rows and files must still exist when the swap takes effect. An undrop therefore records two reads. They are compared
with the head that the swap replaces, like all reads of a change:

- `Kept`: the drop is not trimmed from history;
- `Unlogged`: the log has no later entry of the table. So this is its last content, and it was not restored and dropped
  again meanwhile, for example with PURGE or after an expiry of snapshots.

Neither read can be published to another process (`commits.intents`), so the process that searched the log compares
them.

- *Sweep.* The log entry of the drop points to the content, so a sweep marks its rows while the history has the drop.
  The undrop reads the drop in the history of the head that it replaces, as rules b and c of `maintenance.sweep_roots`
  ask for. If a floor or a fence is set meanwhile, the row of the reference changes. The swap then fails, and the reads
  are compared with the new head.
- *Jobs that delete files* (`remove_orphans`, `expire`, `purge_dropped`, and PURGE of other tables) keep the files of a
  table that was dropped without PURGE while a history has the drop (`catalog.drops.drops`). Floors are only raised. If
  a job read the head before the swap, the floor had not passed the drop, so the job keeps the files. If it read the
  head after the swap, it finds the table itself.
- *PURGE* deletes files at once, so a table that was dropped with PURGE is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from polaris_spark.catalog.branches.merge_base import reader_of
from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.drops.drops import Damage, logged
from polaris_spark.catalog.entities.entities import TableName, check_new_name, find, table_key, taken_by
from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name
from polaris_spark.catalog.merges.differences import EntityChange, Version
from polaris_spark.catalog.merges.merge_steps import Difference, Merged, name_of, owner_of_storage
from polaris_spark.catalog.merges.state_merge import MergeStates, new_difference
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import IDS, NAMESPACE, TABLE, VIEW, id_bytes
from polaris_spark.catalog.tables.contents import StorageView, content_of
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, CorruptionError, NotFoundError
from polaris_spark.index.keys import decode_key

_MOST_NAMES = 1_000
"""Maximum number of dropped tables and views whose names are compared with a name that was not found."""


class _Drop(NamedTuple):
    """A commit that dropped a table or view."""

    number: int
    entry: LogEntry
    storage: LogEntry | None
    """The log entry of the storage table that was dropped with a materialized view."""
    later: dict[int, tuple[int, LogEntry]]
    """The newest later drop of each table and view, as commit number and log entry, by entity id."""


def undrop(
    catalog: Catalog, name: TableName, operation: Operation, *, to: TableName | None = None, commit: int = 0
) -> Merged:
    """Restore a dropped table or view of this catalog's branch: its last content, under its old identity. A
    materialized view is restored with its rows. It gets its owner back, unless the commit before the drop was trimmed:
    then it has no owner.

    Args:
        to: a new name; by default, the old one.
        commit: number of the commit that dropped the table or view; by default, the newest such commit.
    Raises:
        AlreadyExistsError: the table or view exists, because it was already restored.
        BadRequestError: the table or view was dropped with PURGE; or it was restored after `commit`, and dropped again;
            or the new name is not allowed.
        MergeConflictError: the name or location of the table or view is taken, or its namespace does not exist.
        NotFoundError: the history that is still stored contains no drop of this name.
    """
    if to is not None:
        check_new_name(to.name)

    def difference(view: State) -> Difference:
        drop = _drop_of(view, catalog, name, commit)
        view.require_kept(drop.number)
        dropped = [drop.entry] if drop.storage is None else [drop.entry, drop.storage]
        if any(entry.summary.get("purge") == "true" for entry in dropped):
            raise BadRequestError(
                f"{name} was dropped with PURGE, so its files are or will be deleted; it cannot be restored"
            )
        present = view.lookup(IDS, id_bytes(drop.entry.entity))
        if present is not None:
            older = "" if commit else "; give 'commit' to restore an older drop"
            raise AlreadyExistsError(
                f"{name} was restored already; its name is {name_of(present.value)}{older}"
            )
        for entry in dropped:
            _refuse_later(name, drop, entry.entity)
        view.require_unlogged(entry.entity for entry in dropped)
        target = to or name
        keys = (table_key(target, decode_key(drop.entry.key).kind), table_key(storage_name(target)))
        changes = {
            entry.entity: EntityChange(entry.entity, None, Version(key, entry.before))
            for entry, key in zip(dropped, keys, strict=False)
        }
        return new_difference(catalog, changes, _before(view, drop.number))

    advice = "give another name with 'to', or make room for it"
    label = f"undrop {name}"
    change = _Undrop(catalog.context, operation, difference, label=label, adds="undrop", advice=advice)
    change.to = to
    return catalog.commit(change)[0]


def _before(view: State, number: int) -> CommitReader | None:
    """Return the state before a commit, which has the owner of what the commit dropped; None if the state was
    trimmed."""
    store, head, before = view.base.store, view.base.head, number - 1
    if before < head.floor_number:
        return None
    return reader_of(store, Head(ancestor(store, head, before), before, 0))


class _Undrop(MergeStates):
    """The merge that adds a dropped table or view. If a materialized view gets a new name, its metadata also gets the
    new identifier of its storage table."""

    to: TableName | None = None
    """The new name."""

    def apply(self, state: State, prepared: Difference) -> list[Merged]:
        merged = super().apply(state, prepared)
        found = None if self.to is None else find(state, table_key(self.to, VIEW))
        if found is not None and self.to is not None:
            view = content_of(state, found.content, View)
            if isinstance(view, View) and is_materialized(view):
                part = StorageView(self.context, self.operation, self.to)
                part.refer_to_storage(state, found, view, self.to, prepared.now)
        return merged


def _refuse_later(name: TableName, drop: _Drop, entity: int) -> None:
    """Refuse to restore an entity from `drop` if the entity was restored after `drop` and then dropped again, because
    its files may have been deleted in the meantime."""
    if entity in drop.later:
        number, entry = drop.later[entity]
        raise BadRequestError(
            f"{name} was restored after commit {drop.number}, and dropped again as {name_of(entry.key)} by commit "
            f"{number}; restore it from that drop"
        )


def _drop_of(view: State, catalog: Catalog, name: TableName, number: int) -> _Drop:
    """Return the drop of a table or view.

    Args:
        number: number of the commit that dropped it; 0 for the newest one.
    """
    keys, storage_key = {table_key(name, kind) for kind in (TABLE, VIEW)}, table_key(storage_name(name))
    later: dict[int, tuple[int, LogEntry]] = {}
    others: set[str] = set()
    for at, dropped in groupby(_drops(view, catalog), lambda one: one[0]):
        if at < number:
            break
        entries = [entry for _, entry in dropped]
        own = next((entry for entry in entries if entry.key in keys and number in (0, at)), None)
        if own is not None:
            storage = None
            if _is_materialized(view, own):  # a merge may log the storage table before or after the view
                storage = next((entry for entry in entries if entry.key == storage_key), None)
            after = [entry for entry in entries[: entries.index(own)] if entry is not storage]
            return _Drop(at, own, storage, {entry.entity: (at, entry) for entry in after} | later)
        for entry in entries:
            later.setdefault(entry.entity, (at, entry))
            if len(others) < _MOST_NAMES and owner_of_storage(entry.key) is None:
                others.add(name_of(entry.key))
    raise NotFoundError(_not_found(view, name, number, others))


def _drops(view: State, catalog: Catalog) -> Iterator[tuple[int, LogEntry]]:
    """Yield the log entries of dropped tables and views, newest first, each with the number of its commit."""
    history = StoreHead("", catalog.name, catalog.reference, view.base.head, {})
    for found in logged(view.base.store, history):
        if isinstance(found, Damage):
            raise CorruptionError(f"{found.owner}: {found.problem}")
        _, entry = found
        if entry.before and not entry.after and decode_key(entry.key).kind != NAMESPACE:
            yield found


def _is_materialized(view: State, entry: LogEntry) -> bool:
    """Whether this log entry dropped a materialized view."""
    if decode_key(entry.key).kind != VIEW:
        return False
    value = content_of(view, entry.before, View)
    return isinstance(value, View) and is_materialized(value)


def _not_found(view: State, name: TableName, number: int, others: set[str]) -> str:
    if number:
        return f"no table or view {name} was dropped by commit {number}"
    since = f"since commit {view.base.head.floor_number}, where the stored history begins"
    if taken_by(view, name) is not None:
        return f"{name} exists; no table or view of this name was dropped {since}"
    similar = difflib.get_close_matches(str(name), sorted(others), n=3)
    hint = f"; similar names were dropped: {', '.join(similar)}" if similar else ""
    return f"no table or view {name} was dropped {since}{hint}"
