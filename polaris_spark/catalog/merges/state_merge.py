"""Merges of branches, reverts of commits and cherry-picks: three-way merges of states of a catalog, entity by entity.

A merge takes what changed from a *base* state to another state (*theirs*), and makes the same changes to the newest
state of a branch (*ours*):

| operation | base | theirs |
| --- | --- | --- |
| merge of a branch | newest common ancestor (`merge_base`) | newest commit of that branch |
| revert of commits | the last of the commits | the state before the first of them |
| cherry-pick of a commit | the state before the commit | the commit |

An entity (a namespace, table or view) that only one side changed is taken from that side. If both sides changed it, its
name and its content are merged separately; `table_merge` merges the contents of tables. What cannot be merged is a
conflict. A materialized view and its storage table are one unit.

Only the entities that differ between base and theirs are looked up in the branch, and these look-ups are the recorded
reads of the change. So a merge does not compete with commits to other tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from polaris_spark.catalog.branches.merge_base import record_merge
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import Context, TableName, namespace_key, table_key
from polaris_spark.catalog.merges.differences import EntityChange, Version
from polaris_spark.catalog.merges.entity_merge import MergeRun
from polaris_spark.catalog.merges.merge_steps import (
    KINDS,
    Difference,
    MergeChange,
    Merged,
    Strategy,
    name_of,
    owner_of_storage,
    storage_key,
)
from polaris_spark.catalog.merges.snapshot_merge import ManifestSource
from polaris_spark.catalog.rows import NAMES, NAMESPACE, OWNERS, TABLE, VIEW, id_bytes, id_from
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import CommitReader, Newest, Point, Range, Read, State
from polaris_spark.errors import CorruptionError, InputError, MergeConflictError
from polaris_spark.index.keys import decode_key

MERGED = "merged"
"""Action of the log entries that a merge adds to the log of a branch for changes of the merged commits. They change
nothing in the branch."""

_SHOWN = 20
"""Maximum number of conflicts in an error message."""


def new_difference(
    catalog: Catalog, changes: dict[int, EntityChange], other: CommitReader | None = None
) -> Difference:
    """Return the difference that a merge applies to the branch of a catalog, with the current time and a new UUID.

    Args:
        other: the other state, from which the branch takes the owners of new entities; None if it has no new entities.
    """
    if other is not None:
        changes = with_storage_tables(changes, other)
    new = [id_bytes(id) for id, change in changes.items() if change.before is None]
    owners = {} if other is None else _owners(other, new)
    now = catalog.context.clock.now_ms()
    return Difference(now, str(uuid.uuid4()), changes, owners=owners, other=other)


def with_storage_tables(changes: dict[int, EntityChange], other: CommitReader) -> dict[int, EntityChange]:
    """Return the changes, and the storage tables of the materialized views among them, also those that the other state
    has not changed. If a view is taken from the other state by the strategy 'theirs', so is its storage table."""
    views = [change.after.key for change in changes.values() if change.after is not None]
    keys = sorted(filter(None, map(storage_key, views)))
    found = dict(changes)
    for key, entry in zip(keys, other.index(NAMES).get_many(keys) if keys else (), strict=True):
        if entry is not None and id_from(entry.value) not in found:
            same = Version(key, entry.pointer)
            found[id_from(entry.value)] = EntityChange(id_from(entry.value), same, same)
    return found


def _owners(other: CommitReader, entities: list[bytes]) -> dict[int, bytes]:
    found = other.index(OWNERS).get_many(sorted(entities)) if OWNERS in other.commit.index_names else []
    return {
        id_from(id): entry.value
        for id, entry in zip(sorted(entities), found, strict=False)
        if entry is not None
    }


class MergeStates(MergeChange):
    """Apply the difference of two states to a branch, in one commit."""

    action = "merge"
    from_elsewhere = True

    def __init__(
        self,
        context: Context,
        operation: Operation,
        difference: Callable[[State], Difference],
        *,
        label: str,
        strategy: Strategy = Strategy.FAIL,
        strategies: Mapping[str, Strategy] | None = None,
        dry_run: bool = False,
        adds: str = "create",
        advice: str = "",
    ) -> None:
        """
        Args:
            difference: function that takes the branch's state, and returns the difference to apply to it. Each call
                reads the other state again.
            label: description of the merge for the log, such as `merge dev`.
            strategy: what happens to entities whose changes conflict.
            strategies: strategies for single entities, by name.
            dry_run: whether to return conflicts as rows. The caller then does not commit the change.
            adds: verb of the log's action for entities that the change adds to the branch.
            advice: end of the message about conflicts, which says what the user can do. If it is empty, the message
                names the strategies that have not been tried.
        """
        super().__init__(context, operation)
        self._difference = difference
        self.label = label
        self._strategy = strategy
        self._strategies = dict(strategies or {})
        self._dry_run = dry_run
        self.adds = adds
        self._advice = advice
        self.manifests = ManifestSource(context)
        self.guard: Callable[[State], None] = lambda _: None
        """Called with the branch's state before it is read or changed. Raises an error to refuse the merge."""

    def prepare(self, view: State) -> Difference:
        self.guard(view)
        difference = self._difference(view)
        if difference.begun != view.base.head.commit:
            state = State(view.base, view.new_id)
            state.add_all(difference.objects)
            MergeRun(self, state, difference).read_files()
        return difference

    def apply(self, state: State, prepared: Difference) -> list[Merged]:
        self.guard(state)
        state.add_all(prepared.objects)
        self._refuse_unknown_names(state, prepared)
        run = MergeRun(self, state, prepared)
        begun = Newest(prepared.begun)
        if prepared.begun and state.holds([begun]):
            state.reads.append(begun)
            merged = run.take_over()
        else:
            _refuse_changed(state, prepared.reads)
            merged = run.merge()
        conflicts = [one for one in merged if one.action == "conflict"]
        if conflicts and not self._dry_run:
            raise MergeConflictError(self._told(conflicts, run.remedies))
        if prepared.ancestry is not None and not conflicts:
            record_merge(state, prepared.ancestry)
        if not conflicts:
            for entry in prepared.log:
                state.log(entry)
        return merged

    def _refuse_unknown_names(self, state: State, difference: Difference) -> None:
        """Check that the names in the strategies of single entities are names of entities.

        Raises:
            InputError: an entity of this name neither exists in the branch or the other state, nor was changed.
        """
        if not self._strategies or not difference.changes:
            return
        versions = [version for change in difference.changes.values() for version in change[1:]]
        known = {name_of(version.key) for version in versions if version is not None}
        states = [state.base, *([] if difference.other is None else [difference.other])]
        for name in self._strategies.keys() - known:
            keys = sorted(_keys_named(name))
            if not any(entry for one in states for entry in one.index(NAMES).get_many(keys)):
                raise InputError(
                    f"'strategies' has the name {name[:200]!r}, but neither the branch nor the other state has a "
                    "namespace, table or view of this name; write names as in the result of 'dry_run', such as db.t, "
                    "without quotes"
                )

    def _told(self, conflicts: list[Merged], remedies: Mapping[Merged, Sequence[Strategy]]) -> str:
        shown = "; ".join(f"{one.kind} {one.name}: {one.detail}" for one in conflicts[:_SHOWN])
        more = f"; and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        return (
            f"{self.label} has {len(conflicts)} conflict{'s' * (len(conflicts) > 1)}, nothing was changed: "
            f"{shown}{more}; {self._advice or _advice_on(conflicts, remedies)}"
        )

    def repeat(self, state: State, entries: list[LogEntry]) -> list[Merged]:
        return [
            Merged(
                KINDS[decode_key(entry.key).kind], name_of(entry.key), _ACTIONS.get(entry.action, "changed")
            )
            for entry in entries
            if entry.action != MERGED
        ]

    def strategy_for(self, *versions: Version | None) -> Strategy:
        # A storage table has the strategy of its materialized view.
        keys = [version.key for version in versions if version is not None]
        names = [name_of(owner_of_storage(key) or key) for key in keys]
        return next((self._strategies[name] for name in names if name in self._strategies), self._strategy)


_ACTIONS = {
    f"{verb}-{kind}": action
    for kind in KINDS.values()
    for verb, action in (("create", "added"), ("undrop", "added"), ("drop", "removed"), ("rename", "renamed"))
}


def _keys_named(name: str) -> list[bytes]:
    """Return the keys that entities with a name such as `a.b.c` may have in the index `names`."""
    *path, last = name.split(".")
    if not all((*path, last)):
        return []
    keys = [namespace_key((*path, last))]
    return keys + [table_key(TableName(tuple(path), last), kind) for kind in (TABLE, VIEW) if path]


def _advice_on(conflicts: Sequence[Merged], remedies: Mapping[Merged, Sequence[Strategy]]) -> str:
    """Return what the user can do about conflicts."""
    named: dict[Sequence[Strategy], list[str]] = {}
    for one in conflicts:
        named.setdefault(tuple(remedies.get(one, ())), []).append(one.name)
    return "; ".join(_advice(strategies, named[strategies], alone=len(named) == 1) for strategies in named)


def _advice(strategies: Sequence[Strategy], names: Sequence[str], *, alone: bool) -> str:
    """Return what the user can do about conflicts that the same strategies resolve.

    Args:
        alone: whether there are no other conflicts.
    """
    listed = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    these = ("this" if len(names) == 1 else "them") if alone else listed
    if len(strategies) > 1:
        return f"choose the strategy 'ours' or 'theirs' for {'them' if alone else listed}"
    if strategies:
        return f"only the strategy {strategies[0].value!r} can resolve {these}: choose it, or change the branch first"
    return f"no strategy can resolve {these}: change the branch first"


def _refuse_changed(state: State, reads: Sequence[Read]) -> None:
    """Check that everything that a transaction read is unchanged in `state`, and record the check among the reads of
    `state`.

    Raises:
        MergeConflictError: something has changed; the message names it.
    """
    for read in reads:
        if not state.holds([read]):
            raise MergeConflictError(
                f"the transaction cannot be committed; nothing was changed. It read {_described(read)}, which has "
                "been changed since the transaction began: roll back, and repeat the transaction"
            )
    state.reads.extend(reads)


def _described(read: Read) -> str:
    if isinstance(read, Point):
        return f"{KINDS[decode_key(read.key).kind]} {name_of(read.key)}"
    try:  # a list of the entries of a namespace starts with the key of an entry, without the name and maybe the kind
        path = decode_key(read.start + NAMESPACE).path if isinstance(read, Range) else ()
    except CorruptionError:  # a larger part of the catalog was listed
        return "a list of the catalog's entries"
    return f"the list of namespace {'.'.join(path)}" if path else "the list of the namespaces of the catalog"
