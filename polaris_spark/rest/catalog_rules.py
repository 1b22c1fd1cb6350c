"""Checks of what a principal may do with the catalogs of a realm with access control."""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.access import securables
from polaris_spark.access.authorizers import Securable
from polaris_spark.access.control import AccessControl
from polaris_spark.access.grant_changes import SetOwner
from polaris_spark.access.rules import Rules, Subject
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.entities.entities import Context
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.rest.permissions import forbidden, known_catalogs
from polaris_spark.system.registry import References


def realm_catalogs(
    references: References,
    context: Context,
    operation: Operation,
    access: AccessControl,
    roles: frozenset[str] | None,
    *,
    rotating: bool = False,
) -> RealmCatalogs:
    """Return the catalogs of a realm, as one principal may see and change them.

    Args:
        context: settings and services of changes.
        operation: principal and notes for the log. It has no id.
        roles: names of the principal roles that the principal uses; None for all of its roles.
        rotating: whether a principal that must rotate its credentials sees all catalogs. It can then open one, and
            rotate its credentials there.
    """
    rules = None
    if access.is_on:
        rules = CatalogRules(access, references.clock, operation, roles, rotating=rotating)
    return RealmCatalogs(references, context, operation, rules)


class CatalogRules:
    """Checks of what a principal may do with catalogs, for `catalog.catalogs.realm_catalogs.RealmCatalogs`. Each call
    uses the current rules."""

    def __init__(
        self,
        access: AccessControl,
        clock: Clock,
        operation: Operation,
        roles: frozenset[str] | None,
        *,
        rotating: bool,
    ) -> None:
        self._access = access
        self._clock = clock
        self._operation = operation
        self._roles = roles
        self._rotating = rotating

    def require(self, privilege: str, row: CatalogRow | None) -> None:
        """Raise an error if the principal lacks a privilege on a catalog or on the realm.

        Args:
            row: the catalog; None for the realm.
        Raises:
            ForbiddenError: the principal lacks the privilege.
        """
        if not all(self.may(privilege, [row])):
            described = "the realm" if row is None else f"catalog {row.name}"
            raise forbidden(self._now()[1], privilege, described)

    def may(self, privilege: str, rows: Sequence[CatalogRow | None]) -> list[bool]:
        """Return, for each of the given catalogs, whether the principal has a privilege on the catalog; None stands for
        the realm."""
        rules, subject = self._now()
        if subject.delegated is not None:
            named = [Securable("realm") if row is None else Securable("catalog", row.name) for row in rows]
            return subject.delegated.which(privilege, named)
        chains = [
            (*(() if row is None else (securables.catalog(row.entity_id),)), securables.REALM) for row in rows
        ]
        return [
            subject.may(privilege, chain) or rules.owns(subject.name, privilege, chain) for chain in chains
        ]

    def sees(self, rows: Sequence[CatalogRow]) -> list[bool]:
        """Return, for each of the given catalogs, whether the principal may know that the catalog exists."""
        rules, subject = self._now(rotating=self._rotating)
        if subject.principal.must_rotate:
            return [True] * len(rows)
        return known_catalogs(rules, subject, rows)

    def own(self, row: CatalogRow) -> None:
        """Make the principal the owner of a catalog that it has created."""
        securable = securables.catalog(row.entity_id)
        self._access.change(
            SetOwner(self._clock, self._operation, securable, self._operation.principal, row.name)
        )

    def _now(self, *, rotating: bool = False) -> tuple[Rules, Subject]:
        rules, now = self._access.required(), self._clock.now_ms()
        return rules, rules.subject(self._operation.principal, now, self._roles, rotating=rotating)
