"""Expiry of a catalog's snapshots, from the decision to the deletion of files.

1. Decide which parts of each table expire. Executors do this if there are any.
2. Remove the expired parts from the tables, in few commits. Each commit also adds a record of the snapshots that it
   removed from a table: an expired-snapshots record (`catalog.tables.snapshot_expiry`). Then fence the other branches,
   so that merges that began before do not bring removed snapshots back.
3. Among the files of all recorded snapshots, of this run and of earlier runs, find the files that no table needs any
   more. Executors do this if there are any. The current version of the table is checked, and also all other tables of
   the store, in any realm, catalog and branch. If `check_files` is `locations`, only the tables with overlapping
   locations are checked. A dropped table that can be restored counts as a table (`catalog.drops.drops`). If a manifest
   list or manifest of a table is missing, all files in the table's own locations are kept (`orphans.search` says why).
4. Delete the files in three passes: content files, then the manifests that list them, then manifest lists and
   statistics files. Before each wave of files, the heads of the store are read again. `expiry.deletion` describes the
   short time in which files are not protected. A missing file counts as deleted. An interrupted run can be repeated: as
   long as a manifest list exists, the next run finds the files that it lists. If a file cannot be deleted, the files
   that list it are kept.
5. Remove the expired-snapshots records of tables that have no files left to delete, in few commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalog_changes import end_dropped
from polaris_spark.catalog.catalogs.property_changes import bind_branch
from polaris_spark.catalog.catalogs.references import heads_prefix
from polaris_spark.catalog.drops.drops import Drop
from polaris_spark.catalog.drops.overlapping_tables import Deletable, OtherTables, heads_around, table_content
from polaris_spark.catalog.engine import Engine
from polaris_spark.catalog.entities.entities import NamespaceName, TableName, find, table_key
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import IDS, Unloaded, id_bytes
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.catalog.tables.metadata_export import ExportItem
from polaris_spark.catalog.tables.snapshot_expiry import (
    EXPIRED,
    ExpiredSnapshots,
    entity_of,
    gc_enabled,
    namespace_levels,
)
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import ReferenceGoneError
from polaris_spark.index.keys import decode_key
from polaris_spark.maintenance.expiry.commits import (
    TABLES_OF_A_COMMIT,
    SettleExpired,
    ToExpire,
    remove_expired,
)
from polaris_spark.maintenance.expiry.deletion import ExpiredFileDeletion
from polaris_spark.maintenance.expiry.files import (
    DecideTables,
    Examine,
    File,
    NeededVersion,
    ToDecide,
    ToExamine,
)
from polaris_spark.maintenance.expiry.leftovers import ExpiryResult, Leftover
from polaris_spark.maintenance.expiry.manifests import FindNeeded, Manifests, ReadManifests, manifests_of
from polaris_spark.maintenance.expiry.names import digests, file_key, forget_folders
from polaris_spark.maintenance.expiry.retention import ExpiryRequest
from polaris_spark.maintenance.expiry.selection import take
from polaris_spark.maintenance.orphans.files_in_use import Question, UseMonitor
from polaris_spark.maintenance.periods import realm_policy
from polaris_spark.maintenance.store_tables import StoreDrops, tables_of_store
from polaris_spark.system.registry import ROOT

CheckFiles = Literal["store", "locations"]
"""Which tables to check for references to a file: all tables of the store, or tables with overlapping locations."""


class Limits(NamedTuple):
    """Limits on the work of one run. The next run does the remaining work."""

    max_tables: int | None = None
    """Maximum number of tables from which a run removes snapshots; None for no limit."""
    max_files: int | None = None
    """Number of deleted files after which a run deletes no files of further tables; None for no limit. The files of the
    table at which this number is reached are still deleted, so a run may delete more files."""


class ExpiryRun:
    """One run of expiry on a branch of a catalog."""

    def __init__(
        self,
        catalog: Catalog,
        principal: str,
        engine: Engine,
        asked: ExpiryRequest,
        *,
        limits: Limits,
        grace_ms: int,
        keep_records_ms: int,
        check_files: CheckFiles = "store",
        policies: Mapping[TableName, dict[str, str]] | None = None,
    ) -> None:
        """
        Args:
            engine: runs the work on tables and files. Its `progress` may raise an error to stop the run.
            asked: the parameters of the run, which decide which snapshots expire.
            grace_ms: the grace period of the session, in milliseconds.
            keep_records_ms: how long deleted files stay recorded, in milliseconds.
            check_files: which tables to check for references to a file before it is deleted.
            policies: properties that policies set for a table. They override those of the table, its namespaces and the
                catalog.
        """
        self._policies = policies or {}
        self._catalog = catalog
        self._operation = Operation(b"", principal)
        self._engine = engine
        self._asked = asked
        self._limits = limits
        self._grace_ms = grace_ms
        self._keep_records_ms = keep_records_ms
        self._check_files = check_files
        self._realm = catalog.references.store.realm
        self._outcomes: dict[int, ExpiryResult] = {}
        self._earlier: set[int] = set()
        """Object ids of the expired-snapshots records of earlier runs, which may have deleted some of the files."""
        self._drops = StoreDrops((), catalog.references.store.for_deleting().of_realm)

    def run(
        self,
        tables: Sequence[ExportItem],
        *,
        everything: bool,
        dry_run: bool,
        without: Sequence[ExportItem] = (),
    ) -> list[ExpiryResult]:
        """Expire snapshots, and delete the files that no table needs any more.

        Args:
            tables: tables whose snapshots may be removed.
            everything: True to delete the files of expired snapshots that earlier runs left for any table, also for
                dropped tables; False to delete files for `tables` only.
            dry_run: whether to change nothing, and only return what would be done.
            without: tables to skip, even if `everything` is true. Returns: a result for each table that lost parts or
                files, and for each table that was not changed, if there is a reason to report.
        """
        forget_folders()
        if not dry_run:
            catalog = self._catalog
            bind_branch(catalog.references, catalog.context, self._operation, catalog.row, catalog.reference)
        self._earlier = {entry.pointer for _, entry in self._catalog.view().base.index(EXPIRED).range()}
        decided = self._decide(tables)
        if not dry_run:
            self._remove(decided)
            end_dropped(self._catalog.references, realm_policy(self._catalog).grace_of, self._operation)
            self._fence_other_branches()
        heads = self._heads()
        self._drops = StoreDrops(heads, self._catalog.references.store.for_deleting().of_realm)
        view = self._own(heads)
        wanted = None if everything else {self._entity(view, table) for table in tables}
        most = self._limits.max_tables
        planned = {table.entity_id: table for table in decided[:most]} if dry_run else {}
        for table in planned.values():
            self._outcome(table.entity_id, table.name).removed = table.decision
        alone = {self._entity(view, table) for table in without}
        leftovers = self._leftovers(view, wanted, planned, heads, alone)
        self._find(leftovers)
        monitor = self._watched(leftovers, planned, heads)
        take(leftovers, self._engine, most=self._limits.max_files)
        if dry_run:
            self._count(leftovers)
        else:
            deletion = ExpiredFileDeletion(
                self._catalog,
                self._operation,
                self._engine,
                monitor,
                lambda: self._catalog_properties(monitor.heads),
                keep_records_ms=self._keep_records_ms,
            )
            deletion.run(leftovers)
            self._settle(leftovers)
        incomplete = sorted(monitor.question.incomplete.items())
        return [*self._outcomes.values(), *(ExpiryResult(owner, notes=[why]) for owner, why in incomplete)]

    # 1 and 2

    def _decide(self, tables: Sequence[ExportItem]) -> list[ToExpire]:
        view = self._catalog.view()
        numbers: dict[NamespaceName, int] = {}
        for table in tables:
            numbers.setdefault(table.name.namespace, len(numbers))
        catalog = self._catalog.context.binding.at(view).retention
        levels = [[*namespace_levels(view, namespace), catalog] for namespace in numbers]
        policies = [self._policies.get(table.name, {}) for table in tables]
        items = [
            ToDecide(table.content, numbers[table.name.namespace], policy)
            for table, policy in zip(tables, policies, strict=True)
        ]
        found: list[ToExpire] = []
        decide = DecideTables(self._realm, self._asked, levels)
        decided = self._engine.map(decide, items, "deciding which snapshots expire")
        for table, one, policy in zip(tables, decided, policies, strict=True):
            entity = self._entity(view, table)
            if not entity:
                continue
            if one.left_alone:
                self._outcome(entity, table.name).notes.append(one.left_alone)
            elif one.updates():
                place = levels[numbers[table.name.namespace]]
                found.append(ToExpire(table.name, entity, table.content, place, one, policy))
        found.sort(key=lambda table: table.name)
        return found

    def _entity(self, view: State, table: ExportItem) -> int:
        """Return the entity id of a table; 0 if the table no longer exists."""
        found = find(view, table_key(table.name))
        return 0 if found is None else found.entity_id

    def _remove(self, tables: Sequence[ToExpire]) -> None:
        def told(done: int, of: int) -> None:
            self._engine.progress("removing snapshots", done, of)

        most = self._limits.max_tables
        for one in remove_expired(self._catalog, self._operation, tables, self._asked, told, most=most):
            if one.error or one.decision.updates():
                outcome = self._outcome(one.table.entity_id, one.table.name)
                outcome.removed = one.decision
                outcome.notes += [one.error] if one.error else []

    def _fence_other_branches(self) -> None:
        """Make attempts to commit to other branches, and to create branches, start again if they began before the
        snapshots were removed. Otherwise, a merge or cherry-pick that had read this branch earlier could bring a
        removed snapshot to another branch, after its files were deleted."""
        catalog = self._catalog
        references, prefix = catalog.references, heads_prefix(catalog.row)
        for registered in references.listed():
            other = registered.name.startswith(prefix) and registered.name != catalog.reference
            if other and registered.registration.state == "live":
                with contextlib.suppress(ReferenceGoneError):
                    references.fence(registered.row_name)
        references.fence(ROOT)

    def _outcome(self, entity_id: int, name: TableName | None) -> ExpiryResult:
        text = f"dropped table {entity_id:x}" if name is None else dotted((*name.namespace, name.name))
        return self._outcomes.setdefault(entity_id, ExpiryResult(text))

    # 3

    def _own(self, heads: Sequence[StoreHead]) -> State:
        """Return the state of this catalog's branch at the head that `heads` contains for it."""
        found = self._own_head(heads)
        return self._catalog.view(None if found is None else found.reader(self._catalog.references.store))

    def _own_head(self, heads: Sequence[StoreHead]) -> StoreHead | None:
        own = (self._realm, self._catalog.reference)
        return next((head for head in heads if (head.realm, head.reference) == own), None)

    def _catalog_properties(self, heads: Sequence[StoreHead]) -> Mapping[str, str]:
        """Return the combined properties of the catalog and the session, as of the time at which `heads` were read."""
        own = self._own_head(heads)
        return {} if own is None else own.properties

    def _leftovers(
        self,
        view: State,
        wanted: set[int] | None,
        planned: Mapping[int, ToExpire],
        heads: Sequence[StoreHead],
        alone: set[int],
    ) -> list[Leftover]:
        """Return the tables with expired snapshots whose files may still exist.

        Args:
            wanted: entity ids of the tables to return; None for all tables.
            planned: in a dry run, the tables from which snapshots would be removed, by entity id.
            alone: entity ids of tables to leave out.
        """
        records: dict[int, list[int]] = {entity_id: [] for entity_id in planned}
        for key, entry in view.base.index(EXPIRED).range():
            if (wanted is None or entity_of(key) in wanted) and entity_of(key) not in alone:
                records.setdefault(entity_of(key), []).append(entry.pointer)
        if not records:
            return []
        neighbours = OtherTables(self._catalog, heads)
        all_there = all(table_content(view, entity_id) is not None for entity_id in records)
        own = None if all_there else self._own_head(heads)
        dropped = {} if own is None else self._drops.last(own)
        found = []
        for position, (entity_id, ids) in enumerate(records.items()):
            self._engine.progress("looking for tables with files to delete", position, len(records))
            drop = dropped.get(entity_id)
            leftover = self._leftover(view, entity_id, ids, planned.get(entity_id), neighbours, drop, heads)
            if leftover is None:
                continue
            found.append(leftover)
            if self._check_files == "locations":
                others = neighbours.of(entity_id, leftover.places)
                leftover.needed += [NeededVersion(other.realm, other.content) for other in others]
        return found

    def _leftover(
        self,
        view: State,
        entity_id: int,
        records: list[int],
        planned: ToExpire | None,
        neighbours: OtherTables,
        drop: Drop | None,
        heads: Sequence[StoreHead],
    ) -> Leftover | None:
        """Return a table with expired snapshots as a `Leftover`; None if the table's files must be kept.

        Args:
            drop: the drop of the table; None if it was not dropped, or the drop is no longer in the history.
        """
        entry = view.lookup(IDS, id_bytes(entity_id))
        name = None
        home: NamespaceName = ()
        content = table_content(view, entity_id)
        if entry is not None and content is not None:
            key = decode_key(entry.value)
            name = TableName(key.path, key.name)
        elif drop is not None:
            content, home = drop.content, decode_key(drop.key).path
        else:  # only the last expired-snapshots record still leads to the table, whose drop cannot be undone
            content = view.get(records[-1], ExpiredSnapshots).after
        table = content_of(view, content, Table)
        levels = namespace_levels(view, name.namespace if name else home)
        outcome = self._outcome(entity_id, name)
        if isinstance(table, Unloaded):
            outcome.notes.append("files are left: the table was imported lazily, and is not loaded yet")
            return None
        levels = [table.properties, *levels]
        if not gc_enabled([*levels, self._catalog_properties(heads)]):
            outcome.notes.append("files are left: gc.enabled is false")
            return None
        without = planned.decision.snapshots if planned else ()
        own = NeededVersion(self._realm, content, without, dropped=name is None)
        deletable = Deletable(self._catalog, table, neighbours)
        begun = not self._earlier.isdisjoint(records)
        return Leftover(entity_id, outcome, records, deletable, [own], begun=begun, levels=levels)

    def _find(self, leftovers: Sequence[Leftover]) -> None:
        items = [ToExamine(self._realm, tuple(one.records), tuple(one.needed)) for one in leftovers]
        naming: list[Manifests] = []
        checks: dict[int, list[Manifests]] = {}
        results = self._engine.map(Examine(), items, "reading manifest lists")
        for number, (leftover, examined) in enumerate(zip(leftovers, results, strict=True)):
            leftover.stop(examined.problem)
            if examined.shared:
                leftover.share()
            leftover.files.update((file.location, file) for file in examined.files)
            naming += manifests_of(number, examined.manifests)
            foreign = manifests_of(number, examined.foreign, foreign=True)
            purged = leftover.needed[0].dropped
            checks[number] = [*manifests_of(number, examined.own, purged=purged), *foreign]
        candidates: dict[int, dict[str, File]] = {}
        known: dict[int, dict[int, str]] = {}
        read = self._engine.map(ReadManifests(), naming, "reading manifests")
        for item, named in zip(naming, read, strict=True):
            leftovers[item.number].stop(named.problem)
            files, keys = candidates.setdefault(item.number, {}), known.setdefault(item.number, {})
            for file in named.files:
                key = file_key(file.location)
                files[key] = file
                keys.update(dict.fromkeys(digests(file.location), key))
        self._leave_needed(leftovers, candidates, known, checks)
        for number, files in candidates.items():
            leftovers[number].files.update((file.location, file) for file in files.values())

    def _leave_needed(
        self,
        leftovers: Sequence[Leftover],
        candidates: Mapping[int, dict[str, File]],
        known: Mapping[int, Mapping[int, str]],
        checks: Mapping[int, Sequence[Manifests]],
    ) -> None:
        """Remove from `candidates` the content files that are listed in manifests that are still needed.

        Args:
            candidates: for each position in `leftovers`, content files by `file_key`.
            known: for each position, the keys of these files by their `digests`.
            checks: for each position, the manifests that are still needed.
        """
        doubtful = {number: keys for number, keys in known.items() if keys}
        items = [one for number in doubtful for one in checks[number]]
        foreign: list[tuple[int, str]] = []
        found = self._engine.map(FindNeeded(doubtful), items, "reading manifests that stay")
        for item, needed in zip(items, found, strict=True):
            leftovers[item.number].stop(needed.problem)
            for digest in needed.files:
                key = known[item.number][digest]
                if item.foreign:
                    foreign.append((item.number, key))
                else:
                    candidates[item.number].pop(key, None)
        for number, key in foreign:
            if candidates[number].pop(key, None) is not None:
                leftovers[number].share()

    def _watched(
        self, leftovers: Sequence[Leftover], planned: Mapping[int, ToExpire], heads: Sequence[StoreHead]
    ) -> UseMonitor:
        """Remove from the leftovers the files that another table still needs.

        If `check_files` is `store`, all tables of the store are searched, wherever the files are. If it is `locations`,
        only dropped tables are searched here, if their locations overlap or are not known; `_leftovers` has added the
        live tables. If it cannot be found out which files the searched tables need, all remaining files are kept.

        Returns:
            the check for tables that begin to need files later, to be repeated before files are deleted.
        """
        holders: dict[str, list[Leftover]] = {}
        for leftover in leftovers:
            for location in () if leftover.problem else leftover.files:
                if leftover.deletable.grant(location) is not None:
                    holders.setdefault(location, []).append(leftover)
        store = self._catalog.references.store.for_deleting()
        oldest_purge_ms = self._catalog.context.clock.now_ms() - self._grace_ms
        question = Question(holders, self._engine)
        if holders and self._check_files == "store":
            without = {table.content: table.decision.snapshots for table in planned.values()}
            own = (self._realm, self._catalog.reference)
            question.ask(tables_of_store(heads, store.of_realm, own, without))
            question.ask(self._drops.holders(oldest_purge_ms))
        elif holders:
            around = {place for some in holders.values() for one in some for place in one.places}
            question.ask(self._drops.holders(oldest_purge_ms, around))
        for location in question.needed:
            for leftover in holders.pop(location):
                leftover.share(location)
        if question.problem:
            for leftover in {one for some in holders.values() for one in some}:
                leftover.stop(f"it is not known whether another table needs them: {question.problem}")
        return UseMonitor(question, heads, self._heads, store.of_realm, oldest_purge_ms)

    def _heads(self) -> list[StoreHead]:
        return heads_around(self._catalog)

    def _count(self, leftovers: Sequence[Leftover]) -> None:
        for leftover in leftovers:
            leftover.count(leftover.going())

    # 5

    def _settle(self, leftovers: Sequence[Leftover]) -> None:
        done = [one.settled() for one in leftovers if one.complete and one.records]
        for start in range(0, len(done), TABLES_OF_A_COMMIT):
            self._engine.progress("recording what was deleted", start, len(done))
            part = done[start : start + TABLES_OF_A_COMMIT]
            self._catalog.commit(SettleExpired(self._catalog.context, self._operation, part))
