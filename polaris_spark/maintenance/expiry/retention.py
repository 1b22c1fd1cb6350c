"""Decision which snapshots, branches, tags, schemas and partition specs of a table expire.

The rules are the same as in Iceberg's `RemoveSnapshots`. A branch or tag expires if its snapshot is older than
`max-ref-age-ms`; `main` never expires. Of each remaining branch, the newest snapshots are kept, by number and by age.
The snapshot to which a remaining branch or tag points is always kept. Other snapshots that are not in the history of a
remaining branch are kept until they reach the maximum age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from polaris_spark.catalog.metadata.overflow import MAIN_REF, all_refs
from polaris_spark.catalog.metadata.rows import ObjectReader, Table
from polaris_spark.catalog.metadata.snapshot_sets import all_named, all_snapshots
from polaris_spark.catalog.tables.snapshot_expiry import (
    RefFacts,
    Retention,
    SnapshotFacts,
    gc_enabled,
    read_ref_facts,
    read_snapshot,
    retention,
)

SpecsOf = Callable[[SnapshotFacts], set[int]]
"""Function that returns the ids of the partition specs used by a snapshot's manifests."""


class ExpiryRequest(NamedTuple):
    """The parameters of an expiry run."""

    now_ms: int
    """Time at which the run began, in milliseconds since 1970."""
    older_than: int | None = None
    """Time in milliseconds since 1970: older snapshots expire. Overrides the maximum age in the properties of the
    table, its namespaces and the catalog; None to use those properties."""
    retain_last: int | None = None
    """Number of snapshots of each branch to keep. Overrides the number in the properties of the table, its namespaces
    and the catalog; None to use those properties."""
    clean_metadata: bool = False
    """Whether to remove schemas and partition specs that no remaining snapshot needs."""
    for_refreshes: Mapping[str, frozenset[int]] | None = None
    """Ids of the snapshots that the next refreshes of materialized views need, by the UUID of the table. They are kept.
    None if there are none."""


class ExpiryDecision(NamedTuple):
    """The parts of a table that expire: ids of snapshots, names of branches and tags, ids of schemas and of specs."""

    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    schemas: tuple[int, ...] = ()
    specs: tuple[int, ...] = ()
    left_alone: str = ""
    """Reason why no part of the table may expire, or the error that prevented the decision; otherwise empty."""

    def updates(self) -> list[dict[str, object]]:
        """Return the metadata updates that remove these parts, as JSON values, in the order that Iceberg uses."""
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


NOTHING = ExpiryDecision()


def decide_table(
    table: Table,
    reader: ObjectReader,
    levels: Sequence[Mapping[str, str]],
    asked: ExpiryRequest,
    specs_of: SpecsOf,
    policy: Mapping[str, str] | None = None,
) -> ExpiryDecision | None:
    """Decide which parts of a table expire. Return None if nothing may expire because `gc.enabled` is false.

    Args:
        reader: reads the rows of the table's snapshots and refs.
        levels: properties of the table's namespace, then of each namespace above it, then of the catalog.
        policy: properties that a policy sets. They override those of the table, its namespaces and the catalog.
        specs_of: called only if `asked.clean_metadata` is true and the table has several specs.
    Raises:
        BadRequestError: a property that limits the age or number of snapshots is not a whole number.
    """
    levels = [table.properties, *levels]
    if not gc_enabled(levels):
        return None
    kept = retention(
        [policy or {}, *levels], asked.now_ms, older_than=asked.older_than, retain_last=asked.retain_last
    )
    refs = {ref.name: read_ref_facts(ref.text) for ref in all_refs(table, reader)}
    if not asked.clean_metadata and all_named(table) and not (refs.keys() - {MAIN_REF}):
        return NOTHING
    snapshots = [read_snapshot(text) for text in all_snapshots(table, reader).added]
    needed = (asked.for_refreshes or {}).get(table.uuid, frozenset())
    decision = decide(snapshots, refs, kept, asked.now_ms, needed)
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
    snapshots: Sequence[SnapshotFacts],
    refs: Mapping[str, RefFacts],
    kept: Retention,
    now_ms: int,
    needed_elsewhere: frozenset[int] = frozenset(),
) -> ExpiryDecision:
    """Decide which snapshots, branches and tags expire.

    Args:
        snapshots: all snapshots of a table, in the order of the table's metadata.
        refs: the table's branches and tags, by name.
        kept: the retention of branches and tags that do not set their own retention.
        now_ms: the current time, in milliseconds since 1970.
        needed_elsewhere: ids of further snapshots to keep.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    left = {name: ref for name, ref in refs.items() if _stays(name, ref, by_id, kept, now_ms)}
    needed = {*needed_elsewhere, *(ref.snapshot_id for ref in left.values())}
    reached = {ref.snapshot_id for ref in left.values()}
    for ref in left.values():
        if ref.type == "branch":
            ancestors = list(_ancestors(ref.snapshot_id, by_id))
            reached.update(one.snapshot_id for one in ancestors)
            needed.update(_kept_of_branch(ref, ancestors, kept, now_ms))
    for snapshot in snapshots:
        if snapshot.snapshot_id not in reached and snapshot.timestamp_ms >= kept.older_than:
            needed.add(snapshot.snapshot_id)
    return ExpiryDecision(
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
    """Yield a snapshot and those of its ancestors that still exist, newest first.

    Ends if the parent ids form a cycle, which is possible in damaged metadata.
    """
    seen: set[int] = set()
    while id is not None and id in by_id and id not in seen:
        seen.add(id)
        yield by_id[id]
        id = by_id[id].parent_snapshot_id
