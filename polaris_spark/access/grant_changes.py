"""Changes of grants and of owners."""

from __future__ import annotations

from collections.abc import Collection

from polaris_spark.access.changes import (
    AccessChange,
    RoleName,
    check_new_name,
    decode_privileges,
    encode_privileges,
    find_principal_row,
    find_role_row,
)
from polaris_spark.access.privileges import require_known
from polaris_spark.access.rows import (
    AUTHORIZER,
    AUTHORIZER_KEY,
    CATALOG_ADMIN,
    GRANTS,
    OWNERS,
    SERVICE_ADMIN,
    ChosenAuthorizer,
    principal_key,
)
from polaris_spark.access.securables import branch_of, catalog_of
from polaris_spark.catalog.rows import id_bytes
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError
from polaris_spark.index import Entry
from polaris_spark.index.keys import entry_key


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
            raise ForbiddenError(f"the grants of {role} cannot be changed; it always has all privileges")
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
            raise BadRequestError(
                "a realm cannot have an owner; to let a principal administer the realm, give it the role service_admin"
            )
        self.securable, self.principal, self.described = securable, principal, described

    def apply(self, state: State, prepared: int) -> None:
        _, row = find_principal_row(state, self.principal)
        state.put(OWNERS, self.securable, Entry(value=self.principal.encode()))
        summary = {"owner of": self.described}
        self.record(state, prepared, row.entity_id, principal_key(self.principal), summary=summary)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class SetAuthorizer(AccessChange[str | None]):
    """Set or remove the authorizer of the realm (`access.authorizers`), and return the name of the previous one."""

    action = "set-authorizer"

    def __init__(self, clock: Clock, operation: Operation, name: str | None) -> None:
        """
        Args:
            name: name of the authorizer in the settings; None to let grants and ownership decide.
        """
        super().__init__(clock, operation)
        if name is not None:
            check_new_name(name, "authorizer")
        self.name = name

    def apply(self, state: State, prepared: int) -> str | None:
        found = state.lookup(AUTHORIZER, AUTHORIZER_KEY)
        before = None if found is None else state.get(found.pointer, ChosenAuthorizer).name
        if before != self.name:
            content = 0 if self.name is None else state.add(ChosenAuthorizer(self.name))
            if content:
                state.put(AUTHORIZER, AUTHORIZER_KEY, Entry(content))
            else:
                state.remove(AUTHORIZER, AUTHORIZER_KEY)
            summary = {"authorizer": self.name or "", "before": before or ""}
            self.record(state, prepared, 0, AUTHORIZER_KEY, after=content, summary=summary)
        return before

    def repeat(self, state: State, entries: list[LogEntry]) -> str | None:
        return entries[-1].summary.get("before") or None


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
