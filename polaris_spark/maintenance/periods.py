"""How long a realm's history and dropped references are kept.

Each catalog can set its own periods. A job that works on a whole realm must not apply the periods of the session's
catalog to other catalogs.
"""

from __future__ import annotations

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.catalogs import list_catalogs
from polaris_spark.catalog.properties import GRACE, HISTORY_RETENTION
from polaris_spark.catalog.references import catalog_prefix
from polaris_spark.maintenance.sweep_roots import Policy


def realm_policy(catalog: Catalog, *, retention_ms: int | None = None, grace_ms: int | None = None) -> Policy:
    """Return how long history and dropped references are kept in the realm of `catalog`.

    The current properties of all catalogs of the realm are read.

    Args:
        catalog: the catalog that the session has open.
        retention_ms: replaces the session's property `history-retention`, in milliseconds. If a catalog's own period is
            longer, the longer period is used.
        grace_ms: replaces the session's property `grace` in the same way, in milliseconds.
    """
    binding, lifetime_ms = catalog.context.binding, catalog.context.operation_lifetime_ms
    own: dict[str, tuple[int, int]] = {}
    for row in list_catalogs(catalog.references):
        if HISTORY_RETENTION in row.properties or GRACE in row.properties:
            is_own = row.entity_id == catalog.row.entity_id
            grace = binding.period_ms(GRACE, row.properties, grace_ms, is_own=is_own)
            retention = binding.period_ms(HISTORY_RETENTION, row.properties, retention_ms, is_own=is_own)
            own[catalog_prefix(row)] = max(retention, grace, lifetime_ms), grace
    return Policy(
        binding.period_ms(HISTORY_RETENTION, {}, retention_ms, is_own=False),
        binding.period_ms(GRACE, {}, grace_ms, is_own=False),
        own,
    )


def own_policy(catalog: Catalog) -> Policy:
    """Return how long history and dropped references of one catalog are kept, according to its current properties."""
    policy = realm_policy(catalog)
    return Policy(policy.retention_of(catalog.reference), policy.grace_of(catalog.reference))
