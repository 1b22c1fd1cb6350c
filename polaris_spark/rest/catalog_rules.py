"""Checks of what a principal may do with the catalogs of a realm with access control."""

from __future__ import annotations

from polaris_spark.access import securables
from polaris_spark.access.changes import SetOwner
from polaris_spark.access.control import AccessControl
from polaris_spark.access.rules import Rules, Subject
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.rest.permissions import forbidden, knows_catalog


class CatalogRules:
    """Checks of what a principal may do with catalogs, for `catalog.catalog_changes.RealmCatalogs`. Each call uses the
    current rules."""

    def __init__(
        self, access: AccessControl, clock: Clock, operation: Operation, roles: frozenset[str] | None
    ) -> None:
        """
        Args:
            operation: principal and notes for the log.
            roles: names of the principal roles that the principal uses; None for all of its roles.
        """
        self._access = access
        self._clock = clock
        self._operation = operation
        self._roles = roles

    def require(self, privilege: str, row: CatalogRow | None) -> None:
        """Raise an error if the principal lacks a privilege on a catalog or on the realm.

        Args:
            row: the catalog; None for the realm.
        Raises:
            ForbiddenError: the principal lacks the privilege.
        """
        rules, subject = self._now()
        if not _may(rules, subject, privilege, row):
            described = "the realm" if row is None else f"catalog {row.name}"
            raise forbidden(subject, privilege, described)

    def sees(self, row: CatalogRow) -> bool:
        """Whether the principal may know that a catalog exists."""
        return knows_catalog(*self._now(), row)

    def reads(self, row: CatalogRow) -> bool:
        """Whether the principal may read the properties of a catalog."""
        return _may(*self._now(), "CATALOG_READ_PROPERTIES", row)

    def own(self, row: CatalogRow) -> None:
        """Make the principal the owner of a catalog that it has created."""
        securable = securables.catalog(row.entity_id)
        self._access.change(
            SetOwner(self._clock, self._operation, securable, self._operation.principal, row.name)
        )

    def _now(self) -> tuple[Rules, Subject]:
        rules = self._access.required()
        return rules, rules.subject(self._operation.principal, self._clock.now_ms(), self._roles)


def _may(rules: Rules, subject: Subject, privilege: str, row: CatalogRow | None) -> bool:
    chain = (*(() if row is None else (securables.catalog(row.entity_id),)), securables.REALM)
    return subject.may(privilege, chain) or rules.owns(subject.name, privilege, chain)
