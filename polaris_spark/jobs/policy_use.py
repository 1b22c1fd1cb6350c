"""How the policies of a catalog decide what jobs do.

An argument of a call takes precedence over a policy, and a policy over properties. Jobs skip everything to which a
policy with `enable` false applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.jobs.procedure import Parameter

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.tables.metadata_export import ExportItem
    from polaris_spark.maintenance.orphans.known_files import Names
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies, Enabled
    from polaris_spark.rest.session import Session

BY_POLICY = Parameter(
    "by_policy", "BOOLEAN", "only work on what an enabled policy of the catalog applies to; workers set this"
)


class ExpiryChoice(NamedTuple):
    """The tables that an expiry works on."""

    tables: list[ExportItem]
    properties: dict[TableName, dict[str, str]]
    """Properties that a policy sets. They override those of the table, its namespaces and the catalog."""
    alone: list[ExportItem]
    """Tables that the run skips."""
    everything: bool
    """Whether to work on everything that is not in `alone`, including dropped tables."""


def choose_expiry(session: Session, tables: Sequence[ExportItem], *, by_policy: bool) -> ExpiryChoice:
    """Return which tables an expiry works on, and how their policies change what expires.

    Args:
        tables: the tables that the arguments of the call choose.
        by_policy: whether to choose only tables to which an enabled policy applies.
    """
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies
    from polaris_spark.maintenance.policies.types import SNAPSHOT_EXPIRY, expiry_properties

    applied = AppliedPolicies(session.catalog)
    if applied.is_empty:
        return ExpiryChoice([] if by_policy else list(tables), {}, [], everything=not by_policy)
    found = ExpiryChoice([], {}, [], everything=not by_policy or _is_on(applied.content(SNAPSHOT_EXPIRY)))
    for table in tables:
        one = _of(applied, SNAPSHOT_EXPIRY, table.name)
        if (one is None and by_policy) or (one is not None and not one.content.enable):
            found.alone.append(table)
            continue
        found.tables.append(table)
        if one is not None:
            found.properties[table.name] = expiry_properties(one.content)
    return found


class OrphanChoice(NamedTuple):
    """How policies change a search for orphan files."""

    before_ms: int
    limits: Mapping[str, int]
    """As in `Search.limits`."""
    mismatch: str | None
    """What to do with mismatches of prefixes; None if no policy sets this."""


def choose_orphans(
    session: Session,
    arguments: Mapping[str, Any],
    roots: Sequence[str],
    names: Names,
    now_ms: int,
    default_ms: int,
) -> OrphanChoice:
    """Return how the policies of a catalog change a search for orphan files.

    Args:
        arguments: arguments of `remove_orphans`.
        roots: the folders that are searched.
        default_ms: default age of files that are deleted, in milliseconds.
    """
    import msgspec

    from polaris_spark.catalog.catalogs.catalog import Catalog
    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.catalog.tables.contents import content_of, places
    from polaris_spark.catalog.tables.metadata_export import wanted
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies
    from polaris_spark.maintenance.policies.types import DAY_MS, ORPHAN_REMOVAL, OrphanConfig, OrphanContent

    catalog: Catalog = session.catalog
    by_policy, is_given = arguments.get("by_policy", False), "older_than" in arguments
    applied = AppliedPolicies(catalog)
    if applied.is_empty:
        kept = {names.of(root).path.rstrip("/"): 0 for root in roots} if by_policy else {}
        return OrphanChoice(now_ms - default_ms, kept, None)

    def limit(one: Enabled | None) -> int:
        """Return the time before which files are deleted; 0 to keep all."""
        if one is None:
            return 0 if by_policy else now_ms - default_ms
        if not one.content.enable:
            return 0
        if is_given:
            return now_ms
        assert isinstance(one.content, OrphanContent)
        days = one.content.max_orphan_file_age_in_days
        return now_ms - (default_ms if days is None else max(days, 1) * DAY_MS)

    limits: dict[str, int] = {}
    located: set[str] = set()  # folders that `locations` of policies name

    def path_of(place: str) -> str:
        return names.of(place).path.rstrip("/")

    def add(places: Sequence[str], one: Enabled | None) -> None:
        """Set the limits of the places of a target. The `locations` of its policy count only in these places, so that a
        policy never affects files of other targets."""
        found = limit(one)
        own = one.content.locations if one is not None and isinstance(one.content, OrphanContent) else []
        asked = {path_of(location) for location in own}
        for place in map(path_of, places):
            for path in [path for path in located if _is_within(path, place)]:
                del limits[path]
                located.remove(path)
            limits[place] = found if not asked or any(_is_within(place, one) for one in asked) else 0
            inside = {path for path in asked if path != place and _is_within(path, place)}
            limits.update(dict.fromkeys(inside, found))
            located.update(inside)

    whole = applied.content(ORPHAN_REMOVAL)
    add(roots, whole)
    head = catalog.head()
    for table in wanted(head):
        if table.kind != TABLE:
            continue
        one = _of(applied, ORPHAN_REMOVAL, table.name)
        if one is None or whole is None or one.policy.id != whole.policy.id:
            add(["/".join(p) for p in places(content_of(catalog.reader, table.content, Table))], one)
    mismatch = None
    if whole is not None and whole.content.enable:
        mismatch = msgspec.convert(whole.content.config, OrphanConfig).prefix_mismatch_mode
    return OrphanChoice(max([*limits.values(), 0]) or now_ms - default_ms, limits, mismatch)


def _of(applied: AppliedPolicies, kind: str, name: TableName) -> Enabled | None:
    """Return the policy that applies to a table; that of the view, for the storage table of a materialized view."""
    from polaris_spark.errors import NoSuchNamespaceError

    try:
        return applied.content(kind, name.namespace, name.name)
    except NoSuchNamespaceError:  # the name of the view is the last level
        return applied.content(kind, name.namespace[:-1])


def _is_within(path: str, folder: str) -> bool:
    """Whether a normalized path is that of a folder, or below it."""
    return path == folder or path.startswith(f"{folder}/")


def _is_on(one: Enabled | None) -> bool:
    return one is not None and one.content.enable
