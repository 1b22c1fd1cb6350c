"""The access rules of a realm: an immutable structure in memory that is built from one commit of the reference
`access`.

A principal may do something if one of its active roles holds the needed privilege, or one that implies it, on the
securable or on any securable above it; or if the principal owns the securable or one above it. Above a table or view
are its namespaces, the branch, the catalog and the realm. There are only grants, and no denials.

If the realm has an authorizer (`access.authorizers`), it decides instead: grants and ownership then allow nothing. The
only exception is that a principal whose grants include `SERVICE_MANAGE_ACCESS` on the realm may always open a catalog
and replace the authorizer (`Subject.manages_access`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.authorizers import Securable
from polaris_spark.access.decisions import Delegated
from polaris_spark.access.privileges import ALL, implied
from polaris_spark.access.reading import list_roles
from polaris_spark.access.rows import (
    ASSIGNMENTS,
    AUTHORIZER,
    AUTHORIZER_KEY,
    CATALOG_ADMIN,
    GRANTS,
    OWNERS,
    PRINCIPALS,
    SERVICE_ADMIN,
    CatalogRole,
    ChosenAuthorizer,
    Principal,
    PrincipalRole,
)
from polaris_spark.catalog.rows import id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import NotAuthorizedError

Chain = Sequence[bytes]
"""A securable and all securables above it, the lowest first (`access.places`)."""

_BRANCH_PRIVILEGES = frozenset({"BRANCH_FULL_METADATA"})
"""The privileges of the owner of a branch. They do not include reading its tables: otherwise, every principal that may
create a branch could read all tables."""


class Subject:
    """A principal, the roles that are active for a request, and the privileges that these roles hold."""

    def __init__(
        self,
        principal: Principal,
        roles: Mapping[int, Held],
        names: Mapping[int, str],
        delegated: Delegated | None = None,
    ) -> None:
        """
        Args:
            roles: the privileges that the active roles hold, by entity id of the role.
            names: names of the active roles, by entity id.
            delegated: the decisions of the realm's authorizer; None if the realm has none.
        """
        self.principal = principal
        self.delegated = delegated
        """If this is not None, it decides, and `held` is empty."""
        self.manages_access = any(
            "SERVICE_MANAGE_ACCESS" in held.get(securables.REALM, ()) for held in roles.values()
        )
        """Whether the roles are granted `SERVICE_MANAGE_ACCESS` on the realm, even if an authorizer decides."""
        self.is_always_active = (
            principal.state == "active" and not principal.expires and not principal.must_rotate
        )
        """Whether the principal may send requests at any time: it is active, never expires, and need not rotate its
        credentials."""
        self.role_names = dict(names)
        """Names of the active roles, by entity id."""
        self.held: dict[bytes, frozenset[str]] = {}
        """All granted and implied privileges, by securable."""
        self.allowed: set[object] = set()
        """Cache of requests that are allowed on a commit. They are not checked again on that commit."""
        self.catalogs: set[int] = set()
        """Entity ids of the catalogs in which the roles hold a privilege."""
        for held in roles.values() if delegated is None else ():
            for securable, privileges in held.items():
                there = self.held.get(securable)
                self.held[securable] = privileges if there is None else there | privileges
        for securable in self.held:
            catalog = securables.catalog_of(securable)
            if catalog is not None:
                self.catalogs.add(catalog)

    @property
    def name(self) -> str:
        """Name of the principal."""
        return self.principal.name

    def may(self, privilege: str, chain: Chain) -> bool:
        """Whether the roles hold a privilege on any securable of a chain."""
        held = self.held
        for securable in chain:
            privileges = held.get(securable)
            if privileges is not None and privilege in privileges:
                return True
        return False

    def entities(self, catalog: int) -> list[int]:
        """Return the entity ids of the namespaces, tables and views of a catalog on which the roles hold a
        privilege."""
        return [
            id
            for securable in self.held
            if securables.catalog_of(securable) == catalog
            and (id := securables.entity_of(securable)) is not None
        ]


Held = dict[bytes, frozenset[str]]
"""Granted and implied privileges, by securable."""


class Reason(NamedTuple):
    """A grant that gives the needed privilege."""

    role: str
    privilege: str
    """The granted privilege."""
    securable: bytes


class Rules:
    """The rules in one commit of the reference `access`. Immutable, apart from a cache of subjects."""

    def __init__(self, head: CommitReader, realm: str = "") -> None:
        """
        Args:
            realm: name of the realm, for its authorizer.
        """
        self.head = head
        self.realm = realm
        authorizer = head.index(AUTHORIZER).get(AUTHORIZER_KEY)
        self.authorizer = (
            None if authorizer is None else head.store.get(authorizer.pointer, ChosenAuthorizer).name
        )
        """Name of the authorizer that decides; None if grants and ownership decide."""
        self.commit = head.head.commit
        """Id of the commit."""
        pointers = [entry.pointer for _, entry in head.index(PRINCIPALS).range()]
        rows = head.store.get_many(pointers, Principal)
        self.principals = {row.name: row for row in rows.values()}
        """All principals by name, including revoked and dropped ones."""
        self.roles: dict[int, PrincipalRole | CatalogRole] = {row.entity_id: row for row in list_roles(head)}
        """All roles by entity id."""
        self._assigned: dict[int, list[int]] = {}
        for key, _ in head.index(ASSIGNMENTS).range():
            self._assigned.setdefault(id_from(key), []).append(id_from(key[8:]))
        self.grants: dict[int, dict[bytes, frozenset[str]]] = {}
        """The granted privileges, without implied ones, by role and securable."""
        for key, entry in head.index(GRANTS).range():
            granted = _granted(entry.value)
            self.grants.setdefault(id_from(key[-8:]), {})[key[:-8]] = granted
        for id, role in self.roles.items():
            if isinstance(role, PrincipalRole):
                if role.name == SERVICE_ADMIN:
                    self.grants.setdefault(id, {})[securables.REALM] = ALL
            elif role.name == CATALOG_ADMIN:
                self.grants.setdefault(id, {})[securables.catalog(role.catalog)] = ALL
        self._owners = {key: entry.value.decode() for key, entry in head.index(OWNERS).range()}
        self._held: dict[int, Held] = {}
        self._subjects: dict[tuple[str, frozenset[str] | None], Subject] = {}

    def active_subject(self, name: str, roles: frozenset[str] | None) -> Subject | None:
        """Return the result of `subject` from the cache, without a check of the time. Return None if the result is not
        in the cache, or if the principal can expire or must rotate its credentials."""
        found = self._subjects.get((name, roles))
        return found if found is not None and found.is_always_active else None

    def subject(
        self, name: str, now_ms: int, roles: frozenset[str] | None = None, *, rotating: bool = False
    ) -> Subject:
        """Return a principal with its active roles.

        Args:
            now_ms: the time, in milliseconds since 1970.
            roles: names of the principal roles that the caller uses; None for all roles of the principal. Roles that
                the principal does not have are ignored.
            rotating: whether the request rotates the caller's own credentials. Only such a request is allowed while the
                principal must rotate its credentials.
        Raises:
            NotAuthorizedError: the principal does not exist, is revoked, has expired, or must rotate its credentials.
        """
        principal = self.principals.get(name)
        if principal is None or not principal.is_active(now_ms):
            raise NotAuthorizedError(f"principal {name!r} is not active in this realm")
        if principal.must_rotate and not rotating:
            raise NotAuthorizedError(
                f"principal {name!r} must rotate its credentials before it can do anything else; call "
                "rotate_credentials"
            )
        key = (name, roles)
        found = self._subjects.get(key)
        if found is None:
            active = self._active(principal, roles)
            found = Subject(
                principal,
                {id: self._held_by(id) for id in active},
                {id: self.roles[id].name for id in active},
                self._delegated(principal, active),
            )
            if len(self._subjects) >= 10_000:
                self._subjects.clear()
            self._subjects[key] = found
        return found

    def _delegated(self, principal: Principal, active: Collection[int]) -> Delegated | None:
        if self.authorizer is None:
            return None
        names = [self.roles[id].name for id in active if isinstance(self.roles[id], PrincipalRole)]
        return Delegated(self.authorizer, self.realm, principal.name, names)

    def _active(self, principal: Principal, roles: Collection[str] | None) -> list[int]:
        found: dict[int, None] = {}
        for id in self._assigned.get(principal.entity_id, ()):
            role = self.roles.get(id)
            if role is not None and (roles is None or role.name in roles):
                found[id] = None
                for below in self._assigned.get(id, ()):
                    if below in self.roles:
                        found[below] = None
        return list(found)

    def may_ever_manage(self, principal: Principal) -> bool:
        """Whether a principal may manage access to the realm, whatever its current state: because one of its roles
        holds `SERVICE_MANAGE_ACCESS`, or because the realm's authorizer allows it.

        Raises:
            AuthorizerError: the authorizer made no decision.
        """
        privilege, roles = "SERVICE_MANAGE_ACCESS", self._active(principal, None)
        if any(privilege in self._held_by(id).get(securables.REALM, ()) for id in roles):
            return True
        delegated = self._delegated(principal, roles)
        return delegated is not None and delegated.may(privilege, Securable("realm"))

    def _held_by(self, role: int) -> Held:
        found = self._held.get(role)
        if found is None:
            granted = self.grants.get(role, {})
            found = self._held[role] = {securable: implied(some) for securable, some in granted.items()}
        return found

    def roles_of(self, holder: int) -> list[PrincipalRole | CatalogRole]:
        """Return the roles that a principal or principal role has directly, given its entity id."""
        return [self.roles[id] for id in self._assigned.get(holder, ()) if id in self.roles]

    def holders_of(self, role: int) -> list[int]:
        """Return the entity ids of the principals or principal roles that have a role directly."""
        return [holder for holder, roles in self._assigned.items() if role in roles]

    def owner(self, securable: bytes) -> str | None:
        """Return the principal that owns a catalog or branch; None if it has no owner."""
        return self._owners.get(securable)

    def knows(self, securable: bytes) -> bool:
        """Whether there are grants on a securable, or it is a catalog or branch that has an owner."""
        return securable in self._owners or any(securable in granted for granted in self.grants.values())

    def owns(self, name: str, privilege: str, chain: Chain) -> bool:
        """Whether a principal has a privilege because it owns the catalog or branch in a chain."""
        if not self._owners or self.authorizer is not None:
            return False
        for securable in chain:
            if self._owners.get(securable) == name:
                own = _BRANCH_PRIVILEGES if securables.branch_of(securable) is not None else ALL
                if privilege in implied(own):
                    return True
        return False

    def owned_by(self, name: str) -> list[tuple[bytes, frozenset[str]]]:
        """Return the catalogs and branches that a principal owns, each with the privileges that the ownership gives,
        including implied ones."""
        found = []
        for securable, owner in self._owners.items() if self.authorizer is None else ():
            if owner == name:
                own = _BRANCH_PRIVILEGES if securables.branch_of(securable) is not None else ALL
                found.append((securable, implied(own)))
        return found

    def reasons(self, subject: Subject, privilege: str, chain: Chain) -> list[Reason]:
        """Return the grants that give a subject a privilege on a securable, the lowest securable first."""
        found = []
        for securable in chain:
            for id in subject.role_names:
                some = self.grants.get(id, {}).get(securable, frozenset())
                for granted in [privilege] if privilege in some else sorted(some):
                    if privilege in implied(frozenset((granted,))):
                        found.append(Reason(self.describe_role(id), granted, securable))
        return found

    def describe_role(self, id: int) -> str:
        """Return the name of a role, and what kind of role it is."""
        role = self.roles[id]
        kind = "principal role" if isinstance(role, PrincipalRole) else "catalog role"
        return f"{kind} {role.name}"

    def catalog_roles(self, catalog: int) -> list[CatalogRole]:
        """Return the roles of a catalog, given its entity id, by name."""
        found = [r for r in self.roles.values() if isinstance(r, CatalogRole) and r.catalog == catalog]
        return sorted(found, key=lambda role: role.name)

    def principal_roles(self) -> list[PrincipalRole]:
        """Return the principal roles, by name."""
        found = [r for r in self.roles.values() if isinstance(r, PrincipalRole)]
        return sorted(found, key=lambda role: role.name)


_PARSED: dict[bytes, frozenset[str]] = {}


def _granted(value: bytes) -> frozenset[str]:
    """Return the privileges in an entry of the index `grants`. Equal values share one set."""
    found = _PARSED.get(value)
    if found is None:
        if len(_PARSED) >= 4_096:
            _PARSED.clear()
        found = _PARSED[value] = frozenset(value.decode().split(","))
    return found
