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
    whole = applied.content(SNAPSHOT_EXPIRY)
    everything = not by_policy or (whole is not None and whole.content.enable)
    found = ExpiryChoice([], {}, [], everything)
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


class _FolderLimits:
    """The time before which files of each folder are deleted."""

    def __init__(self, arguments: Mapping[str, Any], names: Names, now_ms: int, default_ms: int) -> None:
        self.limits: dict[str, int] = {}
        """As in `Search.limits`."""
        self._by_policy = arguments.get("by_policy", False)
        self._default = now_ms - default_ms
        self._names = names
        self._now_ms = now_ms
        self._is_given = "older_than" in arguments
        self._located: set[str] = set()
        """Folders that `locations` of policies name."""

    def add(self, places: Sequence[str], one: Enabled | None) -> None:
        """Set the limits of the places of a target. The `locations` of its policy count only in these places, so that
        a policy never affects files of other targets."""
        from polaris_spark.maintenance.policies.types import OrphanContent

        found = self._before_ms(one)
        own = one.content.locations if one is not None and isinstance(one.content, OrphanContent) else []
        asked = {self._path_of(location) for location in own}
        for place in map(self._path_of, places):
            for path in [path for path in self._located if _is_within(path, place)]:
                del self.limits[path]
                self._located.remove(path)
            self.limits[place] = found if not asked or any(_is_within(place, one) for one in asked) else 0
            inside = {path for path in asked if path != place and _is_within(path, place)}
            self.limits.update(dict.fromkeys(inside, found))
            self._located.update(inside)

    def _path_of(self, place: str) -> str:
        return self._names.of(place).path.rstrip("/")

    def _before_ms(self, one: Enabled | None) -> int:
        """Return the time before which files are deleted that a policy applies to; 0 to keep all."""
        from polaris_spark.maintenance.policies.types import DAY_MS, OrphanContent

        if one is None:
            return 0 if self._by_policy else self._default
        if not one.content.enable:
            return 0
        if self._is_given:
            return self._now_ms
        assert isinstance(one.content, OrphanContent)
        days = one.content.max_orphan_file_age_in_days
        return self._default if days is None else self._now_ms - max(days, 1) * DAY_MS


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

    from polaris_spark.catalog.metadata.rows import Table
    from polaris_spark.catalog.rows import TABLE
    from polaris_spark.catalog.tables.contents import content_of, places
    from polaris_spark.catalog.tables.metadata_export import wanted
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies
    from polaris_spark.maintenance.policies.types import ORPHAN_REMOVAL, OrphanConfig

    catalog, folders = session.catalog, _FolderLimits(arguments, names, now_ms, default_ms)
    applied = AppliedPolicies(catalog)
    if applied.is_empty:
        if arguments.get("by_policy", False):
            folders.add(roots, None)
        return OrphanChoice(now_ms - default_ms, folders.limits, None)
    whole = applied.content(ORPHAN_REMOVAL)
    folders.add(roots, whole)
    for table in wanted(catalog.head()):
        if table.kind != TABLE:
            continue
        one = _of(applied, ORPHAN_REMOVAL, table.name)
        if one is None or whole is None or one.policy.id != whole.policy.id:
            content = content_of(catalog.reader, table.content, Table)
            folders.add(["/".join(place) for place in places(content)], one)
    mismatch = None
    if whole is not None and whole.content.enable:
        mismatch = msgspec.convert(whole.content.config, OrphanConfig).prefix_mismatch_mode
    return OrphanChoice(max([*folders.limits.values(), 0]) or now_ms - default_ms, folders.limits, mismatch)


def _of(applied: AppliedPolicies, kind: str, name: TableName) -> Enabled | None:
    """Return the policy that applies to a table. For the storage table of a materialized view, this is the view's
    policy."""
    from polaris_spark.errors import NoSuchNamespaceError

    try:
        return applied.content(kind, name.namespace, name.name)
    except NoSuchNamespaceError:  # the name of the view is the last level
        return applied.content(kind, name.namespace[:-1])


def _is_within(path: str, folder: str) -> bool:
    """Whether a normalized path is the path of a folder, or below it."""
    return path == folder or path.startswith(f"{folder}/")
