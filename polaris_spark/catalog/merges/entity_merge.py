"""Three-way merge of the entities of a catalog: decide for each namespace, table and view that changed from one state
to another what happens to it in a branch. `merge_steps` makes these changes on the branch's working state.

`state_merge` says which states are merged. What counts as a conflict is decided here (`MergeRun._step`) and, for the
contents of tables, in `table_merge`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from polaris_spark.catalog.entities.entities import NameEntry, TableName, find, namespace_key, table_key
from polaris_spark.catalog.entities.materialized_views import (
    is_materialized,
    require_no_namespace,
    require_no_view,
)
from polaris_spark.catalog.merges.differences import (
    EntityChange,
    Version,
    differences,
    fields_in_text,
    of_own_namespaces,
)
from polaris_spark.catalog.merges.merge_steps import (
    GONE,
    KINDS,
    Difference,
    EntityConflict,
    MergeChange,
    Merged,
    Step,
    StepRun,
    Strategy,
    key_of,
    name_of,
    owner_of_storage,
    storage_key,
)
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import (
    IDS,
    NAMES,
    NAMESPACE,
    OWNERS,
    TABLE,
    VIEW,
    Namespace,
    Unloaded,
    id_bytes,
    id_from,
)
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError
from polaris_spark.index.keys import decode_key, subtree


class MergeRun(StepRun):
    """One run of `MergeStates.apply`: decides the steps of the merge, and carries them out."""

    def __init__(self, change: MergeChange, state: State, difference: Difference) -> None:
        if not difference.begun:  # in a transaction, a namespace has the same id as in the branch
            difference = difference._replace(changes=of_own_namespaces(difference.changes, state))
        super().__init__(change, state, difference)
        self.conflicts: dict[int, str] = {}

    def merge(self) -> list[Merged]:
        """Make the changes on the working state, and return the action taken for each entity."""
        ours = self._ours()
        for change in self.difference.changes.values():
            self.state.check_time()
            self._decide(change, ours[change.entity_id])
        self._join_materialized_views(ours)
        for id, reason in list(self.conflicts.items()):
            self._resolve(self.difference.changes[id], ours[id], reason)
        self._refuse_taken_names()
        self._carry_out()
        self._check_namespaces()
        return sorted(self.outcomes, key=lambda one: (one.name, one.kind))

    def take_over(self) -> list[Merged]:
        """Make the changes without conflicts: the branch takes the other state as it is. This is called if the branch
        has no commits since the commit from which the other state began. Return the action taken for each entity."""
        for change in self.difference.changes.values():
            step = self._step(change, change.before)
            if step is not None:
                self.steps[change.entity_id] = step
        self._carry_out()
        return sorted(self.outcomes, key=lambda one: (one.name, one.kind))

    def read_files(self) -> None:
        """Read and cache the files that `merge` needs: manifest lists and manifests of tables that both sides
        changed."""
        ours = self._ours()
        for change in self.difference.changes.values():
            self._decide(change, ours[change.entity_id])
        self._join_materialized_views(ours)  # storage tables are not merged
        for step in self.steps.values():
            if step.merges and step.new is not None and decode_key(step.new.key).kind == TABLE:
                with contextlib.suppress(EntityConflict):
                    self._merge_table(step)

    def _ours(self) -> dict[int, Version | None]:
        """Return the branch's version of each changed entity; None if the branch does not have it."""
        ids = list(self.difference.changes)
        keys = self.state.lookup_many(IDS, [id_bytes(id) for id in ids])
        known = [(id, entry.value) for id, entry in zip(ids, keys, strict=True) if entry is not None]
        entries = self.state.lookup_many(NAMES, [key for _, key in known])
        found: dict[int, Version | None] = dict.fromkeys(ids)
        for (id, key), entry in zip(known, entries, strict=True):
            found[id] = None if entry is None else Version(key, entry.pointer)
        return found

    def _decide(self, change: EntityChange, ours: Version | None) -> None:
        base, theirs = change.before, change.after
        try:
            step = self._step(change, ours)
        except EntityConflict as conflict:
            self.conflicts[change.entity_id] = str(conflict)
            return
        rolls_back = step is not None and step.merges and self.difference.restores
        if step is not None and change.entity_id in self._gone and theirs is not None and not rolls_back:
            self.conflicts[change.entity_id] = GONE
        elif step is not None and (base is not None or theirs is not None):
            self.steps[change.entity_id] = step

    def _step(self, change: EntityChange, ours: Version | None) -> Step | None:
        """Return the step that changes an entity in the branch; None if it needs no change."""
        id, base, theirs = change
        if theirs in (ours, base):
            return None
        if ours != base or self.difference.restores:
            base, theirs = self._without_loads(base, ours, theirs)
            if theirs in (ours, base):
                return None
        if ours == base and self._rolls_back(base, theirs):
            assert theirs is not None
            assert base is not None
            return Step(id, ours, Version(theirs.key, base.content), change, "merged", merges=True)
        if ours is not None and ours == base and theirs is not None and self._is_of_another(theirs, id):
            return Step(id, ours, ours, change, "changed", merges=True)
        if ours == base:
            action = "added" if base is None else "removed" if theirs is None else _changed(base, theirs)
            return Step(id, ours, theirs, change, action)
        if base is None and ours is not None and decode_key(ours.key).kind == NAMESPACE:
            return Step(id, ours, ours, change, "merged", merges=True)
        if base is None:
            raise EntityConflict("both sides added it, with different contents")
        if theirs is None:
            raise EntityConflict(f"the other state removed it, and this branch {_told(base, ours)}")
        if ours is None:
            raise EntityConflict(f"the other state {_told(base, theirs)}, and this branch removed it")
        if self.difference.has_needs and decode_key(ours.key).path != decode_key(base.key).path:
            raise EntityConflict(
                f"it was moved to another namespace of this branch, from {name_of(base.key)}"
            )
        key = _three_way(base.key, ours.key, theirs.key)
        if key is None:
            raise EntityConflict(
                f"the other state renamed it to {name_of(theirs.key)}, and this branch to {name_of(ours.key)}"
            )
        content = _three_way(base.content, ours.content, theirs.content)
        if content is not None and (content == ours.content or not self._rolls_back(base, theirs)):
            new = Version(key, content)
            return None if new == ours else Step(id, ours, new, change, _changed(ours, new))
        if decode_key(key).kind == VIEW:
            if not self._same_view(ours, theirs):
                raise EntityConflict("both sides changed the view")
            new = Version(key, ours.content)
            return None if new == ours else Step(id, ours, new, change, "renamed")
        return Step(id, ours, Version(key, ours.content), change, "merged", merges=True)

    def _without_loads(
        self, base: Version | None, ours: Version | None, theirs: Version | None
    ) -> tuple[Version | None, Version | None]:
        """Return the version of an entity at the base, and that of the other side, with equal contents where a side
        has only loaded a lazily imported table or view. So loading does not count as a change."""
        if base is None:
            return base, theirs
        if theirs is not None and self._is_same_import(base, theirs):
            theirs = theirs._replace(content=base.content)
        if ours is not None and self._is_same_import(base, ours):
            if theirs is not None and theirs.content == base.content:
                theirs = theirs._replace(content=ours.content)
            base = base._replace(content=ours.content)
        return base, theirs

    def _is_same_import(self, one: Version, other: Version) -> bool:
        """Whether one of two versions is a lazily imported table or view, and the other one is this table or view after
        it was loaded."""
        if one.content == other.content or decode_key(one.key).kind == NAMESPACE:
            return False
        values = [self._content(version) for version in (one, other)]
        locations = {value.metadata_location for value in values if value is not None}
        return len(locations) == 1 and sum(isinstance(value, Unloaded) for value in values) == 1

    def _is_of_another(self, theirs: Version, id: int) -> bool:
        """Whether a version of a namespace is that of another namespace with the same name: its content has another id
        than the branch's namespace."""
        is_namespace = decode_key(theirs.key).kind == NAMESPACE
        return is_namespace and self.state.get(theirs.content, Namespace).entity_id != id

    def _same_view(self, ours: Version, theirs: Version) -> bool:
        """Whether two versions of a view differ only in their metadata files, because both sides made the same
        changes."""
        mine, other = (content_of(self.state, one.content, View) for one in (ours, theirs))
        if not (isinstance(mine, View) and isinstance(other, View)):
            return False
        return mine == msgspec.structs.replace(other, metadata_location=mine.metadata_location)

    def _rolls_back(self, base: Version | None, theirs: Version | None) -> bool:
        """Whether the merge restores an older version of a table. This is done like a rollback: the table keeps its
        snapshots. The row of the older version cannot be used, because it may list snapshots that have expired since
        then."""
        return (
            self.difference.restores
            and base is not None
            and theirs is not None
            and base.content != theirs.content
            and decode_key(base.key).kind == TABLE
        )

    def _join_materialized_views(self, ours: Mapping[int, Version | None]) -> None:
        """If a materialized view or its storage table has a conflict, record the conflict for both, so that both are
        resolved in the same way."""
        versions = [
            version
            for id, change in self.difference.changes.items()
            for version in (change.before, change.after, ours[id])
        ]
        self.state.prefetch([one.content for one in versions if one and decode_key(one.key).kind == VIEW])
        # One key can belong to different entities in different states, for example if views exchanged their names.
        views: list[dict[bytes, int]] = [{}, {}, {}]
        for id, change in self.difference.changes.items():
            for of_state, version in zip(views, (change.before, change.after, ours[id]), strict=True):
                if version is not None and self._is_materialized(version):
                    of_state[version.key] = id
        for id, change in self.difference.changes.items():
            states = zip(views, (change.before, change.after, ours[id]), strict=True)
            owners = [(one, owner_of_storage(version.key)) for one, version in states if version is not None]
            view = next((one[owner] for one, owner in owners if owner in one), None)
            if view is None:
                continue
            step = self.steps.get(id)
            self._storage.add(id)
            unchanged = ours[id] == change.before and not {id, view} & self.conflicts.keys()
            if (
                unchanged
                and self._rolls_back(change.before, change.after)
                and not self._lost(change, ours[id])
            ):
                # Its snapshots and the document that describes them are those of the older version.
                self.steps[id] = Step(id, ours[id], change.after, change, "changed")
            elif id in self.conflicts or (step is not None and step.merges):
                self.conflicts[view] = "both sides changed or refreshed the materialized view"
            if view in self.conflicts:
                self.steps.pop(view, None)
                self.steps.pop(id, None)
                self.conflicts[id] = self.conflicts[view]
                if self._lost(change, ours[id]) or view in self._gone:
                    self._gone |= {id, view}

    def _resolve(self, change: EntityChange, ours: Version | None, reason: str) -> None:
        """Resolve the conflict of an entity by the strategy for this entity, or report the conflict."""
        strategy = self.change.strategy_for(ours, change.after, change.before)
        version = ours or change.after or change.before
        assert version is not None
        lost = strategy is Strategy.THEIRS and self._lost(change, ours)
        if ours is None and change.after is None:
            self.steps.pop(change.entity_id, None)  # a storage table that neither state has any more
        elif strategy is Strategy.THEIRS and not lost:
            self.steps[change.entity_id] = Step(
                change.entity_id,
                ours,
                change.after,
                change,
                "removed" if change.after is None else "replaced",
            )
        else:
            self.steps.pop(change.entity_id, None)
            if change.entity_id not in self._storage:  # the conflict of its view says it
                if strategy is Strategy.OURS:
                    self._tell(version.key, "kept", reason)
                elif lost:
                    self._report(version.key, GONE, Strategy.OURS)
                else:
                    lost = self._lost(change, ours)
                    remedies = (Strategy.OURS,) if lost else (Strategy.OURS, Strategy.THEIRS)
                    self._report(version.key, reason + self._sides(change, ours), *remedies)

    def _refuse_taken_names(self) -> None:
        """Find the steps whose new name already belongs to another entity of the branch, and resolve or report these
        conflicts. Two namespaces of the same name become one namespace.

        An entity whose step is dropped keeps its old name. Steps that would give this name to other entities are then
        looked at again.
        """
        moves = {
            step.new.key: step
            for step in self.steps.values()
            if step.new is not None and key_of(step.old) != step.new.key
        }
        freed = {
            step.old.key for step in self.steps.values() if step.old and step.old.key != key_of(step.new)
        }
        left = list(moves.values())[::-1]
        while left:
            step = left.pop()
            assert step.new is not None
            taken = None if self._is_settled(step, moves) else self._occupant(step, freed)
            if taken is None:
                continue
            key, entry = taken
            if self._makes_room(step, key, entry):
                freed.add(key)
                continue
            # The storage table of a materialized view stays with its view.
            storage = moves.get(storage_key(step.new.key)) if self._is_materialized(step.new) else None
            for dropped in (step, storage):
                if dropped is not None and self.steps.get(dropped.entity_id) is dropped:
                    del self.steps[dropped.entity_id]
                    if dropped.old is not None:
                        freed.discard(dropped.old.key)
                        left += [moves[one] for one in _same_name(dropped.old.key) if one in moves]

    def _is_settled(self, step: Step, moves: Mapping[bytes, Step]) -> bool:
        """Whether a step need not be looked at: it was dropped, or it is that of a storage table and goes with the step
        of its materialized view."""
        view = None if step.new is None else moves.get(owner_of_storage(step.new.key) or b"")
        is_storage = view is not None and self._is_materialized(view.new)
        return self.steps.get(step.entity_id) is not step or is_storage

    def _makes_room(self, step: Step, key: bytes, entry: NameEntry) -> bool:
        """Resolve or report the conflict of a step whose new name belongs to another entity. Return whether this entity
        is removed, so that the step gets the name. Otherwise, the step must be dropped.

        Args:
            key: key of the other entity.
            entry: entry of the other entity.
        """
        assert step.new is not None
        strategy = self.change.strategy_for(step.new)
        same_kind, is_of_another = key == step.new.key, self._is_of_another_owner(step, entry)
        if same_kind and decode_key(key).kind == NAMESPACE and step.old is None and not is_of_another:
            self._unite_namespaces(step, key, entry, strategy)
            return False
        replaces = same_kind and self._stands_alone(key, entry)
        if strategy is Strategy.THEIRS and replaces:
            removed = EntityChange(entry.entity_id, Version(key, entry.content), None)
            self.steps[entry.entity_id] = Step(entry.entity_id, removed.before, None, removed, "removed")
            return True
        reason = f"the branch has another {KINDS[decode_key(key).kind]} of this name"
        if strategy is Strategy.OURS:
            self._tell(step.new.key, "kept", reason)
            return False
        if same_kind and not is_of_another:
            reason += self._difference_from(Version(key, entry.content), step.new)
        self._report(step.new.key, reason, Strategy.OURS, *([Strategy.THEIRS] if replaces else []))
        return False

    def _is_of_another_owner(self, step: Step, entry: NameEntry) -> bool:
        """Whether a transaction in a realm with access control created an entity, and the entity of the same name in
        the branch has another owner. The principal of the transaction may then neither see that entity nor change
        it."""
        owner = self.difference.owners.get(step.entity_id)
        if not self.difference.has_needs or owner is None:
            return False
        found = self.state.lookup(OWNERS, id_bytes(entry.entity_id))
        return found is None or found.value != owner

    def _difference_from(self, ours: Version, theirs: Version) -> str:
        """Return how the new entity differs from the entity of the same name in the branch, as text to append to the
        reason for a conflict."""
        found = differences(ours, theirs, self.state, by_name=True)
        found.pop("location", None)  # no two tables or views have the same one
        return f" (the new one differs from it by: {fields_in_text(found)})" if found else ""

    def _stands_alone(self, key: bytes, entry: NameEntry) -> bool:
        """Whether an entity can be removed by itself: it is neither a materialized view nor a storage table."""
        if decode_key(key).kind == VIEW:
            value = content_of(self.state, entry.content, View)
            return isinstance(value, View) and not is_materialized(value)
        return owner_of_storage(key) is None

    def _occupant(self, step: Step, freed: Collection[bytes]) -> tuple[bytes, NameEntry] | None:
        """Return the key and entry of another entity of the branch that already has the new name of a step. Return None
        if there is none, or if the merge frees this name.

        Args:
            freed: keys of the names that the merge takes from their entities.
        """
        assert step.new is not None
        for key in _same_name(step.new.key):
            found = find(self.state, key)
            if found is not None and key not in freed and found.entity_id != step.entity_id:
                return key, found
        return None

    def _unite_namespaces(self, step: Step, key: bytes, entry: NameEntry, strategy: Strategy) -> None:
        """Merge two namespaces of the same name that both sides created: merge the properties of the other side's
        namespace into the branch's namespace."""
        assert step.new is not None
        ours = Version(key, entry.content)
        change = EntityChange(entry.entity_id, None, step.new)
        self._merge_namespace(Step(entry.entity_id, ours, ours, change, "merged", merges=True), strategy)

    def _check_namespaces(self) -> None:
        """Report a conflict for each table or view whose namespace does not exist in the branch, for each dropped
        namespace that is not empty in the branch, and for each name that a namespace and a view cannot both have."""
        placed = {step.new.key for step in self.steps.values() if step.new is not None}
        for step in self.steps.values():
            version = step.new or step.old
            assert version is not None
            path, kind, name = decode_key(version.key)
            if step.new is None and kind == NAMESPACE:
                # The other state may have dropped the namespace and created it again, with entities in it.
                inside = self.state.scan(NAMES, *subtree((*path, name)), limit=len(placed) + 1)
                if found := next((key for key, _ in inside if key not in placed), None):
                    inner = f"{KINDS[decode_key(found).kind]} {name_of(found)}"
                    problem = f"the other state removed it, but this branch has {inner} in it"
                    self._report(version.key, problem)
            elif step.new is not None and (problem := self._clash(version)):
                self._report(version.key, problem)
            elif step.new is not None and path and not self._has_parent(path, version.key):
                reason = f"namespace {'.'.join(path)} does not exist in the branch"
                self._report(version.key, reason)
            elif step.new is not None and path and key_of(step.old) != version.key and self._is_new(path):
                reason = f"namespace {'.'.join(path)} was dropped and created again in the branch"
                self._report(version.key, reason)

    def _clash(self, version: Version) -> str:
        """Return why a namespace or a materialized view cannot have its name in the branch; empty if it can."""
        path, kind, name = decode_key(version.key)
        try:
            if kind == NAMESPACE:
                require_no_view(self.state, (*path, name))
            elif kind == VIEW and is_materialized(self.state.get(version.content, View)):
                require_no_namespace(self.state, TableName(path, name))
        except AlreadyExistsError as error:
            return str(error)
        return ""

    def _has_parent(self, path: tuple[str, ...], key: bytes) -> bool:
        if find(self.state, namespace_key(path)) is not None:
            return True
        owner = owner_of_storage(key)
        found = None if owner is None else find(self.state, owner)
        return (
            owner is not None and found is not None and self._is_materialized(Version(owner, found.content))
        )

    def _is_new(self, path: tuple[str, ...]) -> bool:
        """Whether a transaction put something into a namespace, and the branch now has another namespace of this
        name. The principal of the transaction may have no privileges on that one."""
        other, key = self.difference.other, namespace_key(path)
        if not self.difference.has_needs or other is None:
            return False
        ours, theirs = find(self.state, key), other.index(NAMES).get(key)
        if ours is None or theirs is None or ours.entity_id == id_from(theirs.value):
            return False
        change = self.difference.changes.get(id_from(theirs.value))
        return change is None or change.before is not None  # else, the two namespaces are united


def _same_name(key: bytes) -> list[bytes]:
    """Return the keys of which a branch can have only one: a table and a view cannot have the same name."""
    path, kind, name = decode_key(key)
    if kind == NAMESPACE:
        return [key]
    return [table_key(TableName(path, name), one) for one in (kind, VIEW if kind == TABLE else TABLE)]


def _changed(old: Version, new: Version) -> str:
    return "changed" if old.key == new.key else "renamed"


def _told(before: Version | None, after: Version | None) -> str:
    """Return what happened to an entity that another state has removed."""
    if before is None or after is None or before.key == after.key:
        return "changed it"
    return f"renamed it from {name_of(before.key)} to {name_of(after.key)}"


def _three_way(base: Any, ours: Any, theirs: Any) -> Any:
    """Return the result of a three-way merge of a value; None if both sides changed the value in different ways."""
    if theirs in (base, ours):
        return ours
    return theirs if ours == base else None
