"""Changes to roles and their assignments, and the base class of all changes to the reference `access`.

The log entry of a change has the key and entity id of the principal or role that was changed. Its summary describes the
change, without secrets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.access.rows import (
    ASSIGNMENTS,
    CATALOG_ADMIN,
    GRANTS,
    PRINCIPALS,
    ROLES,
    SERVICE_ADMIN,
    CatalogRole,
    Principal,
    PrincipalRole,
    catalog_role_key,
    principal_key,
    principal_role_key,
)
from polaris_spark.catalog.rows import CatalogRow, id_bytes, id_from
from polaris_spark.clock import Clock
from polaris_spark.commits.change import ClockedChange, LoggedChange, Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    ForbiddenError,
    NotFoundError,
)
from polaris_spark.index import Entry
from polaris_spark.index.keys import subtree
from polaris_spark.names import problem_of_part

R = TypeVar("R")

MAX_NAME_BYTES = 512
MAX_PROPERTIES = 100
"""Maximum number of properties of a principal or role."""
MAX_PROPERTY_CHARACTERS = 4_096

Row = Principal | PrincipalRole | CatalogRole


class RoleName(NamedTuple):
    """Name of a role. For a role of a catalog, also the catalog."""

    name: str
    catalog: CatalogRow | None = None

    @property
    def key(self) -> bytes:
        """Key in the index `roles`."""
        if self.catalog is None:
            return principal_role_key(self.name)
        return catalog_role_key(self.catalog.entity_id, self.name)

    def __str__(self) -> str:
        if self.catalog is None:
            return f"principal role {self.name!r}"
        return f"catalog role {self.name!r} of catalog {self.catalog.name!r}"


class AccessChange(ClockedChange[R], LoggedChange[int, R]):
    """Base class of changes of the reference `access`."""


class CreateRole(AccessChange[PrincipalRole | CatalogRole]):
    """Create a principal role or catalog role."""

    action = "create-role"

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        role: RoleName,
        properties: Mapping[str, str] | None = None,
        *,
        if_missing: bool = False,
    ) -> None:
        """
        Args:
            if_missing: True to return a role of this name unchanged if it exists, instead of raising an error.
        """
        super().__init__(clock, operation)
        check_new_name(role.name, "role")
        self.role = role
        self.properties = checked_properties(properties or {})
        self.if_missing = if_missing

    def apply(self, state: State, prepared: int) -> PrincipalRole | CatalogRole:
        key = self.role.key
        there = state.lookup(ROLES, key)
        if there is not None:
            if self.if_missing:
                return _role(state, there.pointer, self.role)
            raise AlreadyExistsError(f"{self.role} already exists")
        return add_role(self, state, prepared, self.role, self.properties)

    def repeat(self, state: State, entries: list[LogEntry]) -> PrincipalRole | CatalogRole:
        return _role(state, entries[-1].after, self.role)


class AlterRole(AccessChange[PrincipalRole | CatalogRole]):
    """Replace the properties of a role."""

    action = "alter-role"

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        role: RoleName,
        properties: Mapping[str, str],
        *,
        expected: int | None = None,
    ) -> None:
        """
        Args:
            expected: object id of the row that the caller has read; None to skip the check. If the role has another row
                by now, the change is refused.
        """
        super().__init__(clock, operation)
        self.role = role
        self.properties = checked_properties(properties)
        self.expected = expected

    def apply(self, state: State, prepared: int) -> PrincipalRole | CatalogRole:
        before, row = find_role_row(state, self.role)
        require_unchanged(str(self.role), before, self.expected)
        changed = msgspec.structs.replace(row, properties=self.properties)
        if changed == row:
            return row
        after = state.add(changed)
        state.put(ROLES, self.role.key, Entry(after, id_bytes(row.entity_id)))
        self.record(state, prepared, row.entity_id, self.role.key, before=before, after=after)
        return changed

    def repeat(self, state: State, entries: list[LogEntry]) -> PrincipalRole | CatalogRole:
        return _role(state, entries[-1].after, self.role)


class DropRole(AccessChange[None]):
    """Drop a role, with its grants and assignments."""

    action = "drop-role"

    def __init__(self, clock: Clock, operation: Operation, role: RoleName) -> None:
        super().__init__(clock, operation)
        if role.catalog is None and role.name == SERVICE_ADMIN:
            raise ForbiddenError(
                f"the principal role {SERVICE_ADMIN} cannot be dropped; it is the role of administrators"
            )
        self.role = role

    def apply(self, state: State, prepared: int) -> None:
        before, row = find_role_row(state, self.role)
        own = id_bytes(row.entity_id)
        for index in (GRANTS, ASSIGNMENTS):
            for key, _ in state.scan(index, b"", None):
                if key.endswith(own) or (index == ASSIGNMENTS and key.startswith(own)):
                    state.remove(index, key)
        state.remove(ROLES, self.role.key)
        self.record(state, prepared, row.entity_id, self.role.key, before=before)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class Assign(AccessChange[bool]):
    """Assign a principal role to a principal, or a catalog role to a principal role; or revoke the assignment. The
    result is whether this changed anything."""

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        role: RoleName,
        *,
        principal: str = "",
        principal_role: str = "",
        revoke: bool = False,
    ) -> None:
        """
        Args:
            role: a principal role if `principal` is given, else a catalog role.
        """
        super().__init__(clock, operation)
        self.action = "revoke-role" if revoke else "assign-role"
        if (role.catalog is None) != bool(principal) or bool(principal) == bool(principal_role):
            raise BadRequestError(
                "a catalog role cannot be assigned to a principal directly; assign the catalog role to a principal "
                "role, and the principal role to the principal"
            )
        self.role, self.principal, self.principal_role, self.revoke = role, principal, principal_role, revoke

    def apply(self, state: State, prepared: int) -> bool:
        if self.principal:
            key, holder = (
                principal_key(self.principal),
                find_principal_row(state, self.principal)[1].entity_id,
            )
        else:
            named = RoleName(self.principal_role)
            key, holder = named.key, find_role_row(state, named)[1].entity_id
        if self.role.catalog is not None and self.role.name == CATALOG_ADMIN and not self.revoke:
            role_id = ensure_role(self, state, prepared, self.role)
        else:
            role_id = find_role_row(state, self.role)[1].entity_id
        assigned = id_bytes(holder) + id_bytes(role_id)
        there = state.lookup(ASSIGNMENTS, assigned) is not None
        if there is not self.revoke:
            return False
        if self.revoke:
            if self.role == RoleName(SERVICE_ADMIN):
                require_other_administrator(state, prepared, without=holder)
            state.remove(ASSIGNMENTS, assigned)
        else:
            state.put(ASSIGNMENTS, assigned, Entry())
        self.record(state, prepared, holder, key, summary={"role": str(self.role)})
        return True

    def repeat(self, state: State, entries: list[LogEntry]) -> bool:
        return True


def require_unchanged(what: str, present: int, expected: int | None) -> None:
    """Check that a row is still the row that the caller has read.

    Args:
        what: description of the principal or role.
        present: object id of the current row.
        expected: object id of the row that the caller has read; None to skip the check.
    Raises:
        CommitFailedError: the current row is not the expected row.
    """
    if expected not in (None, present):
        raise CommitFailedError(f"{what} has changed since it was read; read it again, and repeat the change")


def check_new_name(name: str, what: str) -> None:
    """Check that a new principal or role may have this name, by the rules of `polaris_spark.names`.

    Raises:
        BadRequestError: the name is not allowed.
    """
    problem = problem_of_part(name)
    if problem is None and name != name.strip():
        problem = "begins or ends with a space"
    if problem is not None:
        raise BadRequestError(f"the name {name[:200]!a} of a {what} {problem}; choose another name")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise BadRequestError(
            f"the name of a {what} has {len(name.encode()):,} bytes; the maximum is {MAX_NAME_BYTES}"
        )


def checked_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Check the properties of a principal or role, and return them.

    Raises:
        BadRequestError: there are too many properties, or one is too long.
    """
    if len(given) > MAX_PROPERTIES or any(
        len(name) + len(text) > MAX_PROPERTY_CHARACTERS for name, text in given.items()
    ):
        raise BadRequestError(
            f"a principal or role can have at most {MAX_PROPERTIES} properties, and each name with its value at "
            f"most {MAX_PROPERTY_CHARACTERS} characters"
        )
    return dict(given)


def find_principal_row(state: State, name: str) -> tuple[int, Principal]:
    """Return the object id and the row of a principal that is not dropped.

    Raises:
        NotFoundError: there is no such principal.
    """
    found = state.lookup(PRINCIPALS, principal_key(name))
    row = None if found is None else state.get_for_rewrite(found.pointer, Principal)
    if found is None or row is None or row.state == "dropped":
        raise NotFoundError(f"there is no principal {name!r}")
    return found.pointer, row


def find_role_row(state: State, role: RoleName) -> tuple[int, PrincipalRole | CatalogRole]:
    """Return the object id and the row of a role.

    Raises:
        NotFoundError: the role does not exist.
    """
    found = state.lookup(ROLES, role.key)
    if found is None:
        raise NotFoundError(f"there is no {role}")
    return found.pointer, _role(state, found.pointer, role)


def _role(state: State, id: int, role: RoleName) -> PrincipalRole | CatalogRole:
    if role.catalog is None:
        return state.get_for_rewrite(id, PrincipalRole)
    return state.get_for_rewrite(id, CatalogRole)


def ensure_role(change: AccessChange[R], state: State, now: int, role: RoleName) -> int:
    """Return the entity id of a role. Create the role if it does not exist."""
    there = state.lookup(ROLES, role.key)
    if there is not None:
        return id_from(there.value)
    return add_role(change, state, now, role, {}).entity_id


def add_role(
    change: AccessChange[R], state: State, now: int, role: RoleName, properties: Mapping[str, str]
) -> PrincipalRole | CatalogRole:
    """Add a new role, and return its row."""
    row: PrincipalRole | CatalogRole
    if role.catalog is None:
        row = PrincipalRole(state.new_id(), role.name, now, dict(properties))
    else:
        row = CatalogRole(state.new_id(), role.catalog.entity_id, role.name, now, dict(properties))
    content = state.add(row)
    state.put(ROLES, role.key, Entry(content, id_bytes(row.entity_id)))
    change.record(state, now, row.entity_id, role.key, after=content)
    return row


def require_other_administrator(state: State, now_ms: int, *, without: int) -> None:
    """Raise an error if a principal is the last active administrator. Without an administrator, nobody could change the
    rules.

    Args:
        without: entity id of the principal that will no longer be an administrator.
    Raises:
        ForbiddenError: no other active principal has the role `service_admin`.
    """
    role = state.lookup(ROLES, principal_role_key(SERVICE_ADMIN))
    if role is None:
        return
    entries = state.scan(PRINCIPALS, *subtree(()))
    rows = state.get_many([entry.pointer for _, entry in entries], Principal).values()
    keys = [id_bytes(row.entity_id) + role.value for row in rows if row.is_active(now_ms)]
    administrators = [
        id_from(key) for key, entry in zip(keys, state.lookup_many(ASSIGNMENTS, keys), strict=True) if entry
    ]
    if administrators == [without]:
        raise ForbiddenError(
            f"the principal is the only active principal with the role {SERVICE_ADMIN}; give the role to another "
            "principal first"
        )


def encode_privileges(privileges: Collection[str]) -> bytes:
    """Return the names of privileges as the value of an entry in the index `grants`."""
    return ",".join(sorted(privileges)).encode()


def decode_privileges(value: bytes) -> set[str]:
    """Return the names of the privileges in an entry of the index `grants`, including those that only newer releases
    know."""
    return set(value.decode().split(","))
