"""Changes of principals, roles, assignments and grants: commits to the reference `access`.

A log entry of a change has the key and entity id of the principal or role that was changed. Its summary describes the
change, without secrets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, TypeVar

import msgspec

from polaris_spark.access.credentials import Credentials, hashed
from polaris_spark.access.privileges import require_known
from polaris_spark.access.rows import (
    ASSIGNMENTS,
    CATALOG_ADMIN,
    CLIENTS,
    GRANTS,
    OWNERS,
    PRINCIPALS,
    ROLES,
    SERVICE_ADMIN,
    CatalogRole,
    HashedSecret,
    Principal,
    PrincipalRole,
    catalog_role_key,
    principal_key,
    principal_role_key,
)
from polaris_spark.access.securables import branch_of, catalog_of
from polaris_spark.catalog.rows import CatalogRow, id_bytes, id_from
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    NotAuthorizedError,
    NotFoundError,
)
from polaris_spark.index import Entry
from polaris_spark.index.keys import entry_key, subtree
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


class AccessChange(Change[int, R]):
    """Base class of changes of the reference `access`. `prepare` determines only the time of the change."""

    action: str

    def __init__(self, clock: Clock, operation: Operation) -> None:
        self.clock = clock
        self.operation = operation

    def prepare(self, view: State) -> int:
        """Return the time of the change, in milliseconds since 1970."""
        return self.clock.now_ms()

    def record(
        self,
        state: State,
        now: int,
        entity_id: int,
        key: bytes,
        *,
        before: int = 0,
        after: int = 0,
        summary: Mapping[str, str] | None = None,
    ) -> None:
        """Add a log entry for this change.

        Args:
            now: time of the change, in milliseconds since 1970.
            key: key of the principal or role.
            before: object id of its row before the change.
            after: object id of its row after the change.
        """
        done = self.operation
        notes = {**(summary or {}), **dict(done.notes)}
        state.log(LogEntry(done.id, done.principal, now, self.action, entity_id, key, before, after, notes))


class PrincipalChange(AccessChange[Principal]):
    """Base class of changes of one principal."""

    def __init__(self, clock: Clock, operation: Operation, name: str) -> None:
        super().__init__(clock, operation)
        self.name = name

    def find(self, state: State) -> tuple[int, Principal]:
        """Return the object id and the row of the principal.

        Raises:
            NotFoundError: the principal does not exist or was dropped.
        """
        return find_principal_row(state, self.name)

    def replace(
        self, state: State, now: int, before: int, row: Principal, summary: Mapping[str, str] | None = None
    ) -> Principal:
        """Replace the row of the principal, and log this."""
        key = principal_key(self.name)
        after = state.add(row)
        state.put(PRINCIPALS, key, Entry(after, id_bytes(row.entity_id)))
        self.record(state, now, row.entity_id, key, before=before, after=after, summary=summary)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> Principal:
        return state.get(entries[-1].after, Principal)


class CreatePrincipal(PrincipalChange):
    """Create a principal with its first credentials.

    Raises:
        AlreadyExistsError: a principal has or had this name, or has this client id.
    """

    action = "create-principal"

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        name: str,
        credentials: Credentials,
        *,
        expires: int = 0,
        must_rotate: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(clock, operation, name)
        check_new_name(name, "principal")
        self.credentials = credentials
        self.expires = expires
        self.must_rotate = must_rotate
        self.properties = checked_properties(properties or {})
        self._secret: HashedSecret | None = None

    def apply(self, state: State, prepared: int) -> Principal:
        key = principal_key(self.name)
        there = state.lookup(PRINCIPALS, key)
        if there is not None:
            dropped = state.get(there.pointer, Principal).state == "dropped"
            raise AlreadyExistsError(
                f"a dropped principal had the name {self.name!r}, and the names of dropped principals are never used "
                "again; choose another name"
                if dropped
                else f"principal {self.name!r} already exists"
            )
        client = self.credentials.client_id.encode()
        if state.lookup(CLIENTS, client) is not None:
            raise AlreadyExistsError("another principal has this client id; choose another one")
        if self._secret is None:  # hashing is slow on purpose, so hash once for all attempts
            self._secret = hashed(self.credentials.secret, prepared)
        row = Principal(
            state.new_id(),
            self.name,
            self.credentials.client_id,
            prepared,
            secrets=(self._secret,),
            valid_from=0,
            expires=self.expires,
            must_rotate=self.must_rotate,
            properties=self.properties,
        )
        state.put(CLIENTS, client, Entry(value=key))
        return self.replace(state, prepared, 0, row)


class ReplaceCredentials(PrincipalChange):
    """Give a principal a new secret. The old one stays valid for some time, or becomes invalid at once."""

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        name: str,
        credentials: Credentials,
        *,
        keep_old_ms: int = 0,
        is_reset: bool = False,
        must_rotate: bool = False,
        expected: int | None = None,
    ) -> None:
        """
        Args:
            expected: `HashedSecret.created` of the secret with which the principal logged in; None for any. If it is no
                longer the newest secret, it cannot be replaced by this login.
            credentials: the new secret; its client id must be that of the principal.
            keep_old_ms: time for which the current secret stays valid, in milliseconds.
            is_reset: whether another principal does this, for example because the secret leaked. Then all tokens that
                were issued before become invalid, too.
            must_rotate: whether the principal must then rotate the new secret before it can do anything else.
        """
        super().__init__(clock, operation, name)
        self.action = "reset-credentials" if is_reset else "rotate-credentials"
        self.credentials = credentials
        self.keep_old_ms = keep_old_ms
        self.is_reset = is_reset
        self.must_rotate = must_rotate
        self.expected = expected
        self._secret: HashedSecret | None = None

    def apply(self, state: State, prepared: int) -> Principal:
        before, row = self.find(state)
        if row.client_id != self.credentials.client_id:
            raise BadRequestError(f"principal {self.name!r} has another client id than the new credentials")
        newest = row.secrets[0].created if row.secrets else 0
        if self.expected not in (None, newest):
            raise NotAuthorizedError(
                f"the credentials of {self.name!r} have changed since the login; only a login with the newest secret "
                "can replace it"
            )
        if self._secret is None:
            self._secret = hashed(self.credentials.secret, prepared)
        old: tuple[HashedSecret, ...] = ()
        if self.keep_old_ms > 0:
            ends = prepared + self.keep_old_ms
            old = tuple(
                msgspec.structs.replace(one, expires=min(one.expires or ends, ends))
                for one in row.secrets[:1]
            )
        changed = msgspec.structs.replace(
            row,
            secrets=(self._secret, *old),
            valid_from=prepared if self.is_reset or not old else row.valid_from,
            must_rotate=self.must_rotate,
        )
        return self.replace(state, prepared, before, changed)


class AlterPrincipal(PrincipalChange):
    """Revoke a principal, make it active again, or change its expiry or properties."""

    action = "alter-principal"

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        name: str,
        *,
        state: Literal["active", "revoked"] | None = None,
        expires: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            state: the new state; None to keep it.
            expires: time at which the principal expires, in milliseconds since 1970; 0 for never.
            properties: the properties that replace all present ones; None to keep the present ones.
        """
        super().__init__(clock, operation, name)
        self.state = state
        self.expires = expires
        self.properties = None if properties is None else checked_properties(properties)

    def apply(self, state: State, prepared: int) -> Principal:
        before, row = self.find(state)
        if self.state == "revoked" or self.expires:
            require_other_administrator(state, prepared, without=row.entity_id)
        changed = msgspec.structs.replace(
            row,
            state=self.state or row.state,
            valid_from=prepared if self.state == "revoked" else row.valid_from,
            expires=row.expires if self.expires is None else self.expires,
            properties=row.properties if self.properties is None else self.properties,
        )
        if changed == row:
            return row
        summary = {} if self.state is None else {"state": self.state}
        return self.replace(state, prepared, before, changed, summary)


class DropPrincipal(PrincipalChange):
    """Drop a principal: remove its secrets and roles. Its name is never used again."""

    action = "drop-principal"

    def apply(self, state: State, prepared: int) -> Principal:
        before, row = self.find(state)
        require_other_administrator(state, prepared, without=row.entity_id)
        for key, _ in state.scan(ASSIGNMENTS, id_bytes(row.entity_id), id_bytes(row.entity_id + 1)):
            state.remove(ASSIGNMENTS, key)
        state.remove(CLIENTS, row.client_id.encode())
        dropped = msgspec.structs.replace(row, state="dropped", secrets=(), valid_from=prepared)
        return self.replace(state, prepared, before, dropped)


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
        self, clock: Clock, operation: Operation, role: RoleName, properties: Mapping[str, str]
    ) -> None:
        super().__init__(clock, operation)
        self.role = role
        self.properties = checked_properties(properties)

    def apply(self, state: State, prepared: int) -> PrincipalRole | CatalogRole:
        before, row = find_role_row(state, self.role)
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
            raise ForbiddenError(f"the principal role {SERVICE_ADMIN} cannot be dropped")
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
                "a principal has principal roles, and a principal role has catalog roles: a catalog role cannot be "
                "given to a principal directly"
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


class Grant(AccessChange[list[str]]):
    """Grant privileges on a securable to a role, or revoke them. The result lists all privileges that are then granted
    to the role on this securable."""

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        role: RoleName,
        securable: bytes,
        privileges: Collection[str],
        *,
        described: str,
        revoke: bool = False,
    ) -> None:
        """
        Args:
            securable: see `access.securables`.
            privileges: names of privileges. If `revoke` is true, an empty collection means all.
            described: description of the securable for the log, such as `table db.t`.
        Raises:
            BadRequestError: a privilege is unknown, or cannot be granted on such a securable.
            ForbiddenError: the role is a catalog role and the securable is outside its catalog, or the role is
                built-in.
        """
        super().__init__(clock, operation)
        self.action = "revoke" if revoke else "grant"
        if not revoke:
            require_known(privileges, securable)
        if role.catalog is not None and catalog_of(securable) != role.catalog.entity_id:
            raise ForbiddenError(f"{role} can have grants only in its catalog, not on {described}")
        if role.name == (SERVICE_ADMIN if role.catalog is None else CATALOG_ADMIN):
            raise ForbiddenError(f"the grants of {role} cannot be changed; it has all privileges")
        self.role, self.securable, self.privileges = role, securable, tuple(privileges)
        self.described, self.revoke = described, revoke

    def apply(self, state: State, prepared: int) -> list[str]:
        _, row = find_role_row(state, self.role)
        key = self.securable + id_bytes(row.entity_id)
        entry = state.lookup(GRANTS, key)
        before = set() if entry is None else decode_privileges(entry.value)
        if self.revoke:
            after = before.difference(self.privileges) if self.privileges else set()
        else:
            after = before.union(self.privileges)
        if after != before:
            if after:
                state.put(GRANTS, key, Entry(value=encode_privileges(after)))
            else:
                state.remove(GRANTS, key)
            changed = ", ".join(sorted(after ^ before))
            summary = {"privileges": changed, "on": self.described, "role": str(self.role)}
            self.record(state, prepared, row.entity_id, self.role.key, summary=summary)
        return sorted(after)

    def repeat(self, state: State, entries: list[LogEntry]) -> list[str]:
        found = state.lookup(GRANTS, self.securable + id_bytes(entries[-1].entity))
        return [] if found is None else sorted(decode_privileges(found.value))


class SetOwner(AccessChange[None]):
    """Set the owner of a catalog or branch."""

    action = "set-owner"

    def __init__(
        self, clock: Clock, operation: Operation, securable: bytes, principal: str, described: str
    ) -> None:
        super().__init__(clock, operation)
        if catalog_of(securable) is None:
            raise BadRequestError("the realm has no owner; its administrators have the role service_admin")
        self.securable, self.principal, self.described = securable, principal, described

    def apply(self, state: State, prepared: int) -> None:
        _, row = find_principal_row(state, self.principal)
        state.put(OWNERS, self.securable, Entry(value=self.principal.encode()))
        summary = {"owner of": self.described}
        self.record(state, prepared, row.entity_id, principal_key(self.principal), summary=summary)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class BeginBranch(AccessChange[None]):
    """Set the owner and the grants of a new or renamed branch. A new branch does not get the grants of an earlier
    branch of the same name. A renamed branch keeps its owner and its grants."""

    action = "begin-branch"

    def __init__(
        self, clock: Clock, operation: Operation, securable: bytes, *, renamed: bytes | None = None
    ) -> None:
        """
        Args:
            securable: the branch. The principal of `operation` becomes the owner of a new branch.
            renamed: the securable of the branch's old name; None for a new branch.
        """
        super().__init__(clock, operation)
        self.securable, self.renamed = securable, renamed

    def apply(self, state: State, prepared: int) -> None:
        for index, key, _ in self._entries(state, self.securable):
            state.remove(index, key)
        if self.renamed is None:
            state.put(OWNERS, self.securable, Entry(value=self.operation.principal.encode()))
        else:
            for index, key, entry in self._entries(state, self.renamed):
                state.remove(index, key)
                state.put(index, self.securable + key[len(self.renamed) :], entry)
        self._note(state, prepared)

    def _note(self, state: State, now: int) -> None:
        name = branch_of(self.securable) or ""
        key = entry_key((), b"b", name)
        self.record(state, now, catalog_of(self.securable) or 0, key, summary={"branch": name})

    def _entries(self, state: State, securable: bytes) -> list[tuple[str, bytes, Entry]]:
        """Return the grants on a branch and its owner, as (index, key, entry)."""
        found = []
        for index, suffix in ((GRANTS, 8), (OWNERS, 0)):
            for key, entry in state.scan(index, securable, securable + b"\xff" * 9):
                if len(key) == len(securable) + suffix:
                    found.append((index, key, entry))
        return found

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class ClearBranch(BeginBranch):
    """Remove the owner and the grants of a dropped branch."""

    action = "clear-branch"

    def apply(self, state: State, prepared: int) -> None:
        for index, key, _ in self._entries(state, self.securable):
            state.remove(index, key)
        self._note(state, prepared)


class Begin(PrincipalChange):
    """Create the first administrator: the principal, the role `service_admin`, and the assignment of the role. Each of
    them is created only if it is missing. The credentials of an existing principal are replaced if `reset` is true."""

    action = "bootstrap"

    def __init__(
        self, clock: Clock, operation: Operation, name: str, credentials: Credentials, *, reset: bool
    ) -> None:
        super().__init__(clock, operation, name)
        check_new_name(name, "principal")
        self.credentials = credentials
        self.reset = reset
        self._create = CreatePrincipal(clock, operation, name, credentials)
        self._replace = ReplaceCredentials(clock, operation, name, credentials, is_reset=True)

    def apply(self, state: State, prepared: int) -> Principal:
        role = RoleName(SERVICE_ADMIN)
        role_id = ensure_role(self, state, prepared, role)
        there = state.lookup(PRINCIPALS, principal_key(self.name))
        if there is None:
            row = self._create.apply(state, prepared)
        elif self.reset:
            row = self._replace.apply(state, prepared)
            if row.state != "active" or row.expires:
                _, row = self.find(state)
                row = self.replace(
                    state, prepared, 0, msgspec.structs.replace(row, state="active", expires=0)
                )
        else:
            row = self.find(state)[1]
        assigned = id_bytes(row.entity_id) + id_bytes(role_id)
        if state.lookup(ASSIGNMENTS, assigned) is None:
            state.put(ASSIGNMENTS, assigned, Entry())
            self.record(state, prepared, row.entity_id, principal_key(self.name), summary={"role": str(role)})
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> Principal:
        return self.find(state)[1]


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
        raise BadRequestError(f"the name of a {what} can have at most {MAX_NAME_BYTES} bytes")


def checked_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Check the properties of a principal or role, and return them.

    Raises:
        BadRequestError: there are too many properties, or one is too long.
    """
    if len(given) > MAX_PROPERTIES or any(
        len(name) + len(text) > MAX_PROPERTY_CHARACTERS for name, text in given.items()
    ):
        raise BadRequestError(
            f"a principal or role can have at most {MAX_PROPERTIES} properties of {MAX_PROPERTY_CHARACTERS} characters"
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
            f"this is the only active principal with the role {SERVICE_ADMIN}; give the role to another one first"
        )


def encode_privileges(privileges: Collection[str]) -> bytes:
    """Return the value of an entry in the index `grants`."""
    return ",".join(sorted(privileges)).encode()


def decode_privileges(value: bytes) -> set[str]:
    """Return the names of the privileges in an entry of the index `grants`, including those that only newer releases
    know."""
    return set(value.decode().split(","))
