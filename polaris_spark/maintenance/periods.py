"""How long a realm's history, dropped references and log are kept.

Each catalog can set its own periods. A job that works on a whole realm must not apply the periods of the session's
catalog to other catalogs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import CATALOGS, catalog_prefix, kept_catalogs
from polaris_spark.catalog.entities.properties import GRACE, HISTORY_RETENTION, LOG_RETENTION


class Policy(NamedTuple):
    """How long history, dropped references, unreachable rows and the log of trimmed commits are kept.

    Periods are in milliseconds.
    """

    retention_ms: int
    """Retention period: minimum time for which history is kept, in milliseconds."""
    grace_ms: int
    """Grace period: minimum time for which unreachable rows and dropped references are kept, in milliseconds."""
    log_ms: int = 0
    """Minimum time for which the log of trimmed commits is kept, in milliseconds; 0 if it is not archived."""
    catalogs: Mapping[str, tuple[int, int, int]] = {}
    """Retention period, grace period and time for which the log is kept, in milliseconds, of each catalog that has its
    own periods. Keys are the prefixes of the names of the catalogs' references."""

    def retention_of(self, reference: str) -> int:
        """Return the minimum time for which the history of a reference is kept, in milliseconds.

        If the reference belongs to no catalog, this is the longest retention period of all catalogs.
        """
        return self._of(reference, 0)

    def grace_of(self, reference: str) -> int:
        """Return the minimum time for which a reference is kept after its drop, in milliseconds.

        If the reference belongs to no catalog, this is the longest grace period of all catalogs.
        """
        return self._of(reference, 1)

    def log_of(self, reference: str) -> int:
        """Return the minimum time for which the log of the trimmed commits of a reference is kept, in milliseconds.

        If the reference belongs to no catalog, this is the longest time of all catalogs.
        """
        return self._of(reference, 2)

    @property
    def rows_ms(self) -> int:
        """Minimum time for which unreachable rows are kept, in milliseconds: the longest grace period of all catalogs.

        The longest period is used because it is not known to which catalog an unreachable row belonged.
        """
        return max([self.grace_ms, *(own[1] for own in self.catalogs.values())])

    @property
    def shortest_grace_ms(self) -> int:
        """The shortest grace period of all catalogs, in milliseconds: no dropped reference is deleted sooner."""
        return min([self.grace_ms, *(own[1] for own in self.catalogs.values())])

    def _of(self, reference: str, position: int) -> int:
        base = (self.retention_ms, self.grace_ms, self.log_ms)[position]
        if not reference.startswith("cat/"):
            return max([base, *(own[position] for own in self.catalogs.values())])
        prefix = reference[: reference.index("/", 4) + 1]
        own = self.catalogs.get(prefix)
        return base if own is None else own[position]


def realm_policy(catalog: Catalog, *, retention_ms: int | None = None, grace_ms: int | None = None) -> Policy:
    """Return how long history, dropped references and the log are kept in the realm of `catalog`.

    The current properties of all catalogs of the realm are read, including dropped ones that can be restored.

    Args:
        catalog: the catalog that the session has open.
        retention_ms: replaces the session's property `history-retention`, in milliseconds. If a catalog's own period is
            longer, the longer period is used.
        grace_ms: replaces the session's property `grace` in the same way, in milliseconds.
    """
    binding, lifetime_ms = catalog.context.binding, catalog.context.operation_lifetime_ms
    own: dict[str, tuple[int, int, int]] = {}
    for row in kept_catalogs(catalog.references.read(CATALOGS)):
        if any(name in row.properties for name in (HISTORY_RETENTION, GRACE, LOG_RETENTION)):
            is_own = row.entity_id == catalog.row.entity_id
            grace = binding.period_ms(GRACE, row.properties, grace_ms, is_own=is_own)
            retention = binding.period_ms(HISTORY_RETENTION, row.properties, retention_ms, is_own=is_own)
            log = binding.period_ms(LOG_RETENTION, row.properties, is_own=is_own)
            own[catalog_prefix(row)] = max(retention, grace, lifetime_ms), grace, log
    return Policy(
        binding.period_ms(HISTORY_RETENTION, {}, retention_ms, is_own=False),
        binding.period_ms(GRACE, {}, grace_ms, is_own=False),
        binding.period_ms(LOG_RETENTION, {}, is_own=False),
        own,
    )


def own_policy(catalog: Catalog) -> Policy:
    """Return how long history, dropped references and the log of one catalog are kept, according to its current
    properties."""
    policy, name = realm_policy(catalog), catalog.reference
    return Policy(policy.retention_of(name), policy.grace_of(name), policy.log_of(name))
