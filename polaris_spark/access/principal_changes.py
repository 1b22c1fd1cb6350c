"""Changes of principals and of their credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from polaris_spark.access.changes import (
    AccessChange,
    check_new_name,
    checked_properties,
    find_principal_row,
    require_other_administrator,
    require_unchanged,
)
from polaris_spark.access.credentials import Credentials, hashed
from polaris_spark.access.rows import ASSIGNMENTS, CLIENTS, PRINCIPALS, HashedSecret, Principal, principal_key
from polaris_spark.catalog.rows import id_bytes
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, NotAuthorizedError
from polaris_spark.index import Entry


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
        """Replace the row of the principal, and add an entry to the log of the reference `access`."""
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
            raise AlreadyExistsError(
                f"another principal has the client id {self.credentials.client_id!r}; choose another one"
            )
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
            expected: `HashedSecret.created` of the secret with which the principal logged in; None to skip the check.
                If the principal has a newer secret by now, the change is refused.
            credentials: the new secret; its client id must be the principal's.
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
            raise BadRequestError(
                f"the client id of the new credentials differs from that of principal {self.name!r}; a principal's "
                "client id cannot change"
            )
        newest = row.secrets[0].created if row.secrets else 0
        if self.expected not in (None, newest):
            raise NotAuthorizedError(
                f"the credentials of {self.name!r} have changed since the login; log in with the newest secret to "
                "replace it"
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
        expected: int | None = None,
    ) -> None:
        """
        Args:
            expected: object id of the row that the caller has read; None to skip the check. If the principal has
                another row by now, the change is refused.
            state: the new state; None to keep it.
            expires: time at which the principal expires, in milliseconds since 1970; 0 for never.
            properties: the properties that replace all present ones; None to keep the present ones.
        """
        super().__init__(clock, operation, name)
        self.state = state
        self.expires = expires
        self.properties = None if properties is None else checked_properties(properties)
        self.expected = expected

    def apply(self, state: State, prepared: int) -> Principal:
        before, row = self.find(state)
        require_unchanged(f"principal {self.name!r}", before, self.expected)
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
