"""Which snapshots, branches, tags, schemas and partition specs of a table expire.

The rules are those of Iceberg's `RemoveSnapshots`: branches and tags older than their `max-ref-age-ms` go, but never
`main`; of each branch that stays, the newest snapshots are kept by number and by age; what no branch or tag reaches is
kept by age alone; what a branch or tag names is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from polaris_spark.catalog.expiring import (
    RefFacts,
    Retention,
    SnapshotFacts,
    gc_enabled,
    read_ref_facts,
    read_snapshot,
    retention,
)
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.overflow import MAIN_REF, all_refs
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.snapshot_sets import all_named, all_snapshots

SpecsOf = Callable[[SnapshotFacts], set[int]]
"""The partition specs of a snapshot's manifests."""


class Asked(NamedTuple):
    """What a run of expiry was asked for."""

    now_ms: int
    """When it began, milliseconds since 1970."""
    older_than: int | None = None
    """Overrides the age of tables, namespaces and catalog; milliseconds since 1970."""
    retain_last: int | None = None
    """Overrides the number of snapshots of tables, namespaces and catalog."""
    clean_metadata: bool = False
    """Whether schemas and partition specs go that no snapshot needs."""


class Decision(NamedTuple):
    """What expires of a table."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    schemas: tuple[int, ...] = ()
    specs: tuple[int, ...] = ()

    def updates(self) -> list[dict[str, object]]:
        """The decision as metadata updates, in the order in which Iceberg makes them."""
        found: list[dict[str, object]] = [
            {"action": "remove-snapshot-ref", "ref-name": name} for name in self.refs
        ]
        if self.snapshots:
            found.append({"action": "remove-snapshots", "snapshot-ids": list(self.snapshots)})
        if self.specs:
            found.append({"action": "remove-partition-specs", "spec-ids": list(self.specs)})
        if self.schemas:
            found.append({"action": "remove-schemas", "schema-ids": list(self.schemas)})
        return found


NOTHING = Decision()


def decide_table(
    table: Table,
    reader: ObjectReader,
    levels: Sequence[Mapping[str, str]],
    asked: Asked,
    specs_of: SpecsOf,
) -> Decision | None:
    """What expires of a table; None where its files must not be deleted (`gc.enabled`).

    Args:
        reader: of the table's pieces.
        levels: properties of its namespaces from the nearest upwards, and of the catalog.
        specs_of: asked only if `asked.clean_metadata` and the table has several specs.
    Raises:
        BadRequestError: a property of retention is no whole number.
    """
    levels = [table.properties, *levels]
    if not gc_enabled(levels):
        return None
    kept = retention(levels, asked.now_ms, older_than=asked.older_than, retain_last=asked.retain_last)
    refs = {ref.name: read_ref_facts(ref.text) for ref in all_refs(table, reader)}
    if not asked.clean_metadata and all_named(table) and not (refs.keys() - {MAIN_REF}):
        return NOTHING
    snapshots = [read_snapshot(text) for text in all_snapshots(table, reader).added]
    decision = decide(snapshots, refs, kept, asked.now_ms)
    if not asked.clean_metadata:
        return decision
    gone = set(decision.snapshots)
    left = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in gone]
    schemas = {snapshot.schema_id for snapshot in left} | {table.current_schema_id}
    specs = {table.default_spec_id}
    for snapshot in left if len(table.specs) > 1 else ():
        specs |= specs_of(snapshot)
    return decision._replace(
        schemas=tuple(one.id for one in table.schemas if one.id not in schemas),
        specs=tuple(one.id for one in table.specs if one.id not in specs),
    )


def decide(
    snapshots: Sequence[SnapshotFacts], refs: Mapping[str, RefFacts], kept: Retention, now_ms: int
) -> Decision:
    """Which snapshots, and which branches and tags, expire.

    Args:
        snapshots: all of a table, in their order.
        refs: its branches and tags by name.
        kept: for branches and tags that say nothing themselves.
        now_ms: milliseconds since 1970.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    left = {name: ref for name, ref in refs.items() if _stays(name, ref, by_id, kept, now_ms)}
    needed = {ref.snapshot_id for ref in left.values()}
    reached = set(needed)
    for ref in left.values():
        if ref.type == "branch":
            ancestors = list(_ancestors(ref.snapshot_id, by_id))
            reached.update(one.snapshot_id for one in ancestors)
            needed.update(_kept_of_branch(ref, ancestors, kept, now_ms))
    for snapshot in snapshots:
        if snapshot.snapshot_id not in reached and snapshot.timestamp_ms >= kept.older_than:
            needed.add(snapshot.snapshot_id)
    return Decision(
        tuple(id for id in by_id if id not in needed),
        tuple(name for name in refs if name not in left),
    )


def _stays(
    name: str, ref: RefFacts, by_id: Mapping[int, SnapshotFacts], kept: Retention, now_ms: int
) -> bool:
    if name == MAIN_REF:
        return True
    snapshot = by_id.get(ref.snapshot_id)
    if snapshot is None:
        return False
    most = kept.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
    return now_ms - snapshot.timestamp_ms <= most


def _kept_of_branch(
    ref: RefFacts, ancestors: Sequence[SnapshotFacts], kept: Retention, now_ms: int
) -> Iterator[int]:
    age, least = ref.max_snapshot_age_ms, ref.min_snapshots_to_keep
    older_than = kept.older_than if age is None else now_ms - age
    least = kept.min_snapshots if least is None else least
    for position, ancestor in enumerate(ancestors):
        if position >= least and ancestor.timestamp_ms < older_than:
            return
        yield ancestor.snapshot_id


def _ancestors(id: int | None, by_id: Mapping[int, SnapshotFacts]) -> Iterator[SnapshotFacts]:
    """A snapshot and its ancestors as far as they exist; damaged metadata may have them in a circle."""
    seen: set[int] = set()
    while id is not None and id in by_id and id not in seen:
        seen.add(id)
        yield by_id[id]
        id = by_id[id].parent_snapshot_id
