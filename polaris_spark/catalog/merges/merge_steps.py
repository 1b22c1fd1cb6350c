"""The steps of a merge: each step changes one entity of the branch. This module carries them out on the working state
of the branch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches.merge_base import Ancestry
from polaris_spark.catalog.entities.entities import (
    CatalogChange,
    NameEntry,
    TableName,
    find,
    namespace_key,
    put,
    remove_entity,
    table_key,
)
from polaris_spark.catalog.entities.materialized_views import STORAGE, is_materialized, storage_name
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.merges.differences import EntityChange, Version, differences_text, entry_of
from polaris_spark.catalog.merges.kept_snapshots import adds_only_snapshots, with_kept_snapshots
from polaris_spark.catalog.merges.snapshot_merge import ManifestSource, TableConflictError, Versions
from polaris_spark.catalog.merges.table_merge import merge_tables
from polaris_spark.catalog.metadata.metadata_paths import metadata_location
from polaris_spark.catalog.metadata.rows import Table, View
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
)
from polaris_spark.catalog.tables.contents import (
    ContentPart,
    Prepared,
    content_of,
    holdings_of,
    metadata_file,
    occupy,
    same_places,
)
from polaris_spark.catalog.tables.schema_merge import SCHEMA_MERGE, is_on
from polaris_spark.catalog.tables.snapshot_expiry import ExpiredSnapshots, add_record
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import CommitReader, Read, State
from polaris_spark.errors import ForbiddenError
from polaris_spark.index import Entry, diff
from polaris_spark.index.keys import decode_key

KINDS = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view"}
"""Names of the kinds of entities."""


class Strategy(Enum):
    """The way in which a merge resolves a conflict in an entity."""

    FAIL = "fail"
    """The merge fails."""
    OURS = "ours"
    """The entity stays as it is in the branch."""
    THEIRS = "theirs"
    """The entity becomes as it is in the other state."""


class Merged(NamedTuple):
    """The action of a merge for one entity that the other side changed."""

    kind: str
    """`namespace`, `table` or `view`."""
    name: str
    action: str
    """`added`, `removed`, `renamed`, `changed`, `merged` (both sides changed it), `kept` (a conflict was resolved for
    the branch), `replaced` (a conflict was resolved for the other side), or `conflict`."""
    detail: str = ""
    """Old name of a renamed entity, or the reason for a conflict."""


class Difference(NamedTuple):
    """The changes that a merge applies to a branch."""

    now: int
    """Time of the merge, in milliseconds since 1970."""
    unique: str
    """A UUID; the names of new files are derived from it."""
    changes: dict[int, EntityChange]
    """The entities that changed from the base to the other state, by id."""
    ancestry: Ancestry | None = None
    """`ancestry_of` the other branch's commit; None if the change is not the merge of a branch."""
    gone: frozenset[int] = frozenset()
    """Ids of entities whose content in the other state cannot be used, because its files may be deleted already."""
    reads: Sequence[Read] = ()
    """Reads of a transaction, with their results when it began. The merge fails if the branch gives other results."""
    objects: Sequence[tuple[int, msgspec.Struct]] = ()
    """Objects, as (id, object), that the contents of the other state need and that are not stored yet."""
    files: Mapping[int, tuple[str, bytes]] = {}
    """Metadata files, as (location, content), that are not written yet, by the object id of the content in the other
    state. A file is written if the branch gets this content."""
    begun: int = 0
    """Id of the commit of the branch at which the other state began, if its changes were checked like changes of the
    branch. While this commit is the newest of the branch, the branch takes the other state as it is. Otherwise 0."""
    has_needs: bool = False
    """Whether privileges on names in the other state were checked: it is that of a transaction in a realm with access
    control. These privileges may not hold if the names mean other entities in the branch."""
    summaries: Mapping[int, Mapping[str, str]] = {}
    """Summaries for the log entries of entities, by id: what a transaction changed in them."""
    expired: Mapping[int, Sequence[ExpiredSnapshots]] = {}
    """Records of the snapshots that a transaction removed, by the entity id of the table. A record is added if the
    branch gets the content of the table from which the snapshots were removed."""
    log: Sequence[LogEntry] = ()
    """Log entries of the merged commits, to add to the log of the branch."""
    owners: Mapping[int, bytes] = {}
    """Owners of entities that only the other state has, by entity id, as in the index `owners`."""
    other: CommitReader | None = None
    """The other state, unless the difference is that of no state."""
    restores: bool = False
    """Whether the other state is older than the base, as in a revert. A table in both states is then restored as by a
    rollback: it keeps its snapshots, and its branches, tags and properties are set back."""


GONE = "its files may be deleted already, so this content cannot be restored"
"""Reason for which content of another state is not used (`Difference.gone`)."""


class EntityConflict(Exception):  # noqa: N818  # a signal within a merge
    """The changes of an entity conflict; the message says how."""

    def __init__(self, reason: str, *remedies: Strategy) -> None:
        """
        Args:
            remedies: the strategies that resolve the conflict.
        """
        super().__init__(reason)
        self.remedies = remedies


class Step(NamedTuple):
    """A change of one entity of the branch."""

    entity_id: int
    old: Version | None
    """Its version in the branch."""
    new: Version | None
    change: EntityChange
    action: str
    merges: bool = False
    """Whether the content of the table or namespace is merged after the step."""


class MergeChange(CatalogChange[Difference, list[Merged]]):
    """The part of the class `state_merge.MergeStates` that a run of a merge uses."""

    manifests: ManifestSource
    label: str
    """Description of the merge, for the log."""
    adds: str
    """Verb of the log's action for entities that the change adds to the branch."""

    @abstractmethod
    def strategy_for(self, *versions: Version | None) -> Strategy:
        """Return the strategy that resolves a conflict in an entity. The names in `versions` identify the entity."""


class _MergedContent(ContentPart[Table]):
    """The part of a merge that stores the merged content of a table."""

    action = "update-table"
    kind = TABLE
    cls = Table


class StepRun:
    """Carries out the steps of a merge on the working state of the branch."""

    def __init__(self, change: MergeChange, state: State, difference: Difference) -> None:
        self.change = change
        self.context = change.context
        self.state = state
        self.difference = difference
        self.steps: dict[int, Step] = {}
        self.outcomes: list[Merged] = []
        self.remedies: dict[Merged, tuple[Strategy, ...]] = {}
        """For each reported conflict, the strategies that have not been tried and resolve it."""
        self._gone = set(difference.gone)
        """Ids of entities that cannot get their content in the other state (`Difference.gone`)."""
        self._storage: set[int] = set()
        """Ids of changed storage tables whose materialized views are changed, too."""

    def _carry_out(self) -> None:
        """Carry out all steps on the working state: first the removals, then the renames and new contents."""
        state = self.state
        state.prefetch(
            [v.content for step in self.steps.values() for v in (step.old, step.new) if v is not None]
        )
        for step in self.steps.values():
            if step.old is not None and step.new is None:
                state.check_time()
                remove_entity(state, step.old.key, step.entity_id)
                self._occupy(step)
                self._log(step, "drop", before=step.old.content, after=0)
                self._tell(step.old.key, step.action)
        for step in self._in_order():
            state.check_time()
            try:
                self._place(step)
            except EntityConflict as conflict:
                assert step.new is not None
                self._report(step.new.key, str(conflict), *conflict.remedies)

    def _in_order(self) -> Iterator[Step]:
        """Yield the steps that are not removals. They are in an order in which each name is free before another entity
        gets it. If entities exchange their names, one of them gets a temporary name first."""
        left = {step.entity_id: step for step in self.steps.values() if step.new is not None}
        held = {step.old.key: id for id, step in left.items() if step.old is not None}
        waiting: dict[bytes, list[Step]] = {}
        ready = list(left.values())[::-1]
        while left:
            if not ready:  # each of the others waits for another one's name
                aside = next(iter(left.values()))
                left[aside.entity_id] = self._set_aside(aside)
                freed = key_of(aside.old) or b""
                del held[freed]
                ready += waiting.pop(freed)
            step = left[ready.pop().entity_id]
            holder = held.get(key_of(step.new) or b"", step.entity_id)
            if holder != step.entity_id:
                waiting.setdefault(key_of(step.new) or b"", []).append(step)
                continue
            yield step
            del left[step.entity_id]
            if step.old is not None:
                held.pop(step.old.key, None)
                ready += waiting.pop(step.old.key, [])

    def _set_aside(self, step: Step) -> Step:
        """Give an entity a temporary name, so that another entity can get its name. Return the step that gives the
        entity its new name."""
        old, state = step.old, self.state
        assert old is not None
        path, kind, _ = decode_key(old.key)
        wanted = {key_of(one.new) for one in self.steps.values()}
        key = b""
        name = f"{step.entity_id:x}"
        while not key or key in wanted or find(state, key) is not None:
            key = table_key(TableName(path, name), kind)
            name += "_"
        aside = Version(key, old.content)
        state.remove(NAMES, old.key)
        put(state, aside.key, entry_of(step.entity_id, aside))
        moved = step._replace(new=aside)
        self._log(moved, "rename", {}, before=old.content, after=old.content, old_key=old.key)
        return step._replace(old=aside)

    def _place(self, step: Step) -> None:
        """Put an entity under its new name with its new content."""
        step = self._with_kept_snapshots(step)
        old, new, state = step.old, step.new, self.state
        assert new is not None
        if old != new:
            if old is None or old.key != new.key:
                taken = find(state, new.key)
                if taken is not None and taken.entity_id != step.entity_id:
                    # For example, a namespace that is removed has a table with the name of a storage table.
                    kind = KINDS[decode_key(new.key).kind]
                    raise EntityConflict(f"the branch has another {kind} of this name")
                if old is not None:
                    state.remove(NAMES, old.key)
                state.put(IDS, id_bytes(step.entity_id), Entry(value=new.key))
            if old is None and step.entity_id in self.difference.owners:
                owner = self.difference.owners[step.entity_id]
                state.put(OWNERS, id_bytes(step.entity_id), Entry(value=owner))
            put(state, new.key, entry_of(step.entity_id, new))
            self._occupy(step)
            if new.content in self.difference.files:
                state.write_file(*self.difference.files[new.content])
            for record in self.difference.expired.get(step.entity_id, ()):
                if record.after == new.content:
                    add_record(state, record)
            verb = "create" if old is None else "rename" if old.key != new.key else "update"
            self._log(
                step,
                verb,
                before=0 if old is None else old.content,
                after=new.content,
                old_key=old.key if old is not None and old.key != new.key else b"",
            )
        if not step.merges:
            before = step.change.before
            self._tell(
                new.key, step.action, name_of(before.key) if step.action == "renamed" and before else ""
            )
        elif decode_key(new.key).kind == NAMESPACE:
            self._merge_namespace(step, self.change.strategy_for(new, old))
        else:
            self._merge_table(step)

    def _with_kept_snapshots(self, step: Step) -> Step:
        """If a step takes a table as it is in the other state, return a step that adds the snapshots that the branch
        keeps (`kept_snapshots`). Otherwise, return the step unchanged; also for a transaction, which removes snapshots
        only if its requests ask for it, and for a storage table, which must match the records of its materialized
        view."""
        old, new, state = step.old, step.new, self.state
        if old is None or new is None or old.content == new.content or self.difference.begun:
            return step
        if decode_key(new.key).kind != TABLE or step.entity_id in self._storage:
            return step
        ours, theirs = self._content(old), self._content(new)
        base = None if step.change.before is None else self._content(step.change.before)
        if not (isinstance(ours, Table) and isinstance(theirs, Table)) or isinstance(base, Unloaded | View):
            return step
        draft = with_kept_snapshots(
            base, ours, theirs, state, now_ms=self.difference.now, check_time=state.check_time
        )
        if draft is None:
            return step
        effective = self.context.binding.at(state)
        where = metadata_location(draft, self.difference.unique)
        if not state.allows(Table):
            draft.overflow_bound = math.inf
        value, objects = draft.freeze(state.new_id, metadata_location=where)
        state.add_all(objects)
        if effective.metadata_files:
            state.write_file(*metadata_file(value, state))
        return step._replace(new=Version(new.key, state.add(value)))

    def _merge_table(self, step: Step) -> None:
        """Merge the contents of a table that both sides changed."""
        state, change, now = self.state, self.change, self.difference.now
        base, theirs, new = step.change.before, step.change.after, step.new
        assert base is not None
        assert theirs is not None
        assert new is not None
        tables = [content_of(state, version.content, Table) for version in (base, new, theirs)]
        loaded = [table for table in tables if isinstance(table, Table)]
        versions = Versions(*loaded) if len(loaded) == len(tables) else None
        by_parts = self.difference.restores or self.difference.begun
        if versions is not None and not by_parts and adds_only_snapshots(versions.base, versions.ours, state):
            taken = Step(step.entity_id, new, Version(new.key, theirs.content), step.change, "changed")
            self._place(taken)
            return
        effective = self.context.binding.at(state)
        path, _, name = decode_key(new.key)
        try:
            if versions is None:
                raise TableConflictError(
                    "its imported metadata was not loaded yet in an older state, so its changes cannot be merged"
                )
            merged = merge_tables(
                versions,
                state,
                now_ms=now,
                unique=self.difference.unique,
                files=self.change.manifests,
                schema_merge=lambda own: is_on(own, SCHEMA_MERGE, default=effective.schema_merge),
                check_time=state.check_time,
                restores=self.difference.restores,
            )
        except TableConflictError as conflict:
            strategy = change.strategy_for(new, step.old)
            lost = strategy is not Strategy.OURS and self._lost(step.change, new)
            if strategy is Strategy.FAIL:
                remedies = (Strategy.OURS,) if lost else (Strategy.OURS, Strategy.THEIRS)
                raise EntityConflict(f"{conflict}{self._sides(step.change, new)}", *remedies) from conflict
            if strategy is Strategy.THEIRS and lost:
                raise EntityConflict(GONE, Strategy.OURS) from conflict
            if strategy is Strategy.THEIRS:
                self._place(
                    Step(step.entity_id, new, Version(new.key, theirs.content), step.change, "replaced")
                )
            else:
                self._tell(new.key, "kept", str(conflict))
            return
        for file in merged.files:
            state.write_file(*file)
        if merged.draft.changed:
            part = _MergedContent(self.context, change.operation, TableName(path, name))
            part.said = {**self.difference.summaries.get(step.entity_id, {}), "from": change.label}
            prepared = Prepared(now, self.difference.unique)
            part.store(state, entry_of(step.entity_id, new), merged.draft, prepared, effective)
            self._tell(new.key, "merged")
        elif step.old is not None and step.old.key != new.key:
            self._tell(new.key, "renamed", name_of(base.key))

    def _merge_namespace(self, step: Step, strategy: Strategy) -> None:
        """Merge the properties of a namespace that both sides changed, or that has another id on the other side."""
        state, new = self.state, step.new
        base, theirs = step.change.before, step.change.after
        assert new is not None
        assert theirs is not None
        before = {} if base is None else state.get(base.content, Namespace).properties
        mine = state.get_for_rewrite(new.content, Namespace)
        other = state.get(theirs.content, Namespace).properties
        properties = dict(mine.properties)
        kept = ""
        for name in dict.fromkeys((*before, *other)):
            old, here, there = before.get(name), mine.properties.get(name), other.get(name)
            if there in (old, here):
                continue
            problem = (
                f"both sides changed the property {name!r}: it is {_shown(here)} in this branch and "
                f"{_shown(there)} in the other state"
            )
            if here != old and strategy is Strategy.FAIL:
                self._report(new.key, problem, Strategy.OURS, Strategy.THEIRS)
                return
            if here != old and strategy is Strategy.OURS:
                kept = kept or problem
            if here == old or strategy is Strategy.THEIRS:
                properties.pop(name, None)
                properties |= {} if there is None else {name: there}
        if properties != mine.properties:
            content = state.add(msgspec.structs.replace(mine, properties=properties))
            put(state, new.key, NameEntry(content, step.entity_id))
            changed = step._replace(new=Version(new.key, content))
            self._log(changed, "update", before=new.content, after=content)
            self._tell(new.key, step.action)
        elif kept:
            self._tell(new.key, "kept", kept)

    def _occupy(self, step: Step) -> None:
        """Record the locations of a table or view whose content changed."""
        old, new = self._content(step.old), self._content(step.new)
        if old is new or (old is not None and new is not None and same_places(old, new)):
            return
        before, after = (Holdings() if one is None else holdings_of(one) for one in (old, new))
        if before == after:
            return
        try:
            added = (after.owned | after.unconfirmed) - (before.owned | before.unconfirmed)
            self.context.require_allowed(added)
            occupy(self.context, self.state, step.entity_id, before, after)
        except ForbiddenError as error:
            raise EntityConflict(str(error)) from error

    def _content(self, version: Version | None) -> Table | View | Unloaded | None:
        kind = NAMESPACE if version is None else decode_key(version.key).kind
        if version is None or kind == NAMESPACE:
            return None
        if kind == TABLE:
            return content_of(self.state, version.content, Table)
        return content_of(self.state, version.content, View)

    def _is_materialized(self, version: Version | None) -> bool:
        """Whether a version is that of a materialized view. Only then does the table with the key of its storage table
        belong to it: a namespace can have the name of any other view, and a table named `storage`."""
        value = self._content(version)
        return isinstance(value, View) and is_materialized(value)

    def _lost(self, change: EntityChange, ours: Version | None) -> bool:
        """Whether an older version of a table, which is to be restored, lists snapshots that the table no longer has.
        The files of these snapshots may have been deleted. If so, the entity is added to `_gone`."""
        theirs = change.after
        if self.difference.restores and ours is not None and theirs is not None:
            both_tables = {decode_key(one.key).kind for one in (ours, theirs)} == {TABLE}
            if both_tables and not same_snapshots(self.state, theirs.content, ours.content):
                self._gone.add(change.entity_id)
        return change.entity_id in self._gone

    def _sides(self, change: EntityChange, ours: Version | None) -> str:
        """Return the changes of both sides, as text to append to the reason for a conflict; an empty string if nothing
        is known."""
        own = differences_text(change._replace(after=ours), self.state)
        other = differences_text(change, self.state)
        sides = [
            f"{side}: {text}" for side, text in (("this branch", own), ("the other state", other)) if text
        ]
        return f" ({'; '.join(sides)})" if sides else ""

    def _log(
        self,
        step: Step,
        verb: str,
        summary: Mapping[str, str] | None = None,
        *,
        before: int,
        after: int,
        old_key: bytes = b"",
    ) -> None:
        """Add the log entry of a step. If `summary` is None, use the summary that the difference has for the entity."""
        if summary is None:
            summary = self.difference.summaries.get(step.entity_id, {})
        key = (step.new or step.old or step.change.before or step.change.after).key  # type: ignore[union-attr]
        change, said = self.change, {**summary, "from": self.change.label}
        change.action = f"{change.adds if verb == 'create' else verb}-{KINDS[decode_key(key).kind]}"
        now, id = self.difference.now, step.entity_id
        change.record(self.state, now, id, key, before=before, after=after, old_key=old_key, summary=said)

    def _tell(self, key: bytes, action: str, detail: str = "") -> None:
        if owner_of_storage(key) is not None and action != "conflict" and self._is_storage(key):
            return  # the row of its view says it
        self.outcomes.append(Merged(KINDS[decode_key(key).kind], name_of(key), action, detail))

    def _report(self, key: bytes, reason: str, *remedies: Strategy) -> None:
        """Add the row of a conflict.

        Args:
            remedies: the strategies that have not been tried and resolve the conflict.
        """
        self._tell(key, "conflict", reason)
        self.remedies[self.outcomes[-1]] = remedies

    def _is_storage(self, key: bytes) -> bool:
        """Whether a table is the storage table of a materialized view. The path of a storage table is the name of its
        view, so no namespace has this path."""
        path, _, _ = decode_key(key)
        return find(self.state, namespace_key(path)) is None


def name_of(key: bytes) -> str:
    """Return the name of an entity, given its key in the index `names`."""
    path, _, name = decode_key(key)
    return ".".join((*path, name))


def owner_of_storage(key: bytes) -> bytes | None:
    """Return the key of the view whose storage table has this key; None if it is not the key of a storage table."""
    path, kind, name = decode_key(key)
    if kind != TABLE or name != STORAGE or len(path) < 2:
        return None
    return table_key(TableName(path[:-1], path[-1]), VIEW)


def storage_key(key: bytes) -> bytes:
    """Return the key that the storage table of a view has if the view is materialized; empty if it is no view."""
    path, kind, name = decode_key(key)
    return table_key(storage_name(TableName(path, name))) if kind == VIEW else b""


def same_snapshots(state: State, content: int, later: int) -> bool:
    """Whether a later version of a table still has all snapshots of an earlier one.

    Args:
        content: object id of the earlier version.
        later: object id of the later version.
    """
    if content == later:
        return True
    old, new = (content_of(state, one, Table) for one in (content, later))
    if not isinstance(old, Table) or not isinstance(new, Table):
        return False
    return all(after is not None for _, _, after in diff(old.snapshots, new.snapshots, state.read_shards))


def _shown(value: str | None) -> str:
    return "removed" if value is None else repr(value[:100])


def key_of(version: Version | None) -> bytes | None:
    """Return the key of a version in the index `names`; None if there is no version."""
    return None if version is None else version.key
