"""Turn on access control: create the reference `access` and the first administrator."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from polaris_spark.access.changes import RoleName, check_new_name, ensure_role
from polaris_spark.access.credentials import Credentials, verify
from polaris_spark.access.principal_changes import CreatePrincipal, PrincipalChange, ReplaceCredentials
from polaris_spark.access.reading import access_head, find_client, find_principal, roles_of
from polaris_spark.access.rows import ACCESS, ASSIGNMENTS, PRINCIPALS, SERVICE_ADMIN, Principal, principal_key
from polaris_spark.catalog.catalogs.catalogs import ensure_reference
from polaris_spark.catalog.rows import id_bytes
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import InputError
from polaris_spark.index import Entry
from polaris_spark.system.registry import References


class Bootstrapped(NamedTuple):
    """Result of `bootstrap`: the administrator, and what was new."""

    principal: Principal
    credentials: Credentials | None
    """The new credentials; None if the principal existed and keeps its credentials."""
    was_on: bool
    """Whether the realm had access control before."""


def bootstrap(
    references: References,
    operation: Operation,
    name: str,
    given: Credentials | None,
    *,
    reset: bool = False,
) -> Bootstrapped:
    """Turn on access control for a realm if it is off, and create the first administrator. A repeated call is
    safe: without `reset`, it only checks the administrator that exists.

    Args:
        name: name of the administrator.
        given: credentials to use; None to generate new ones if the administrator does not exist.
        reset: whether to make the principal an active administrator with new credentials in any case. A missing
            principal is created, even if the realm has other principals.
    Raises:
        InputError: the principal was dropped, or has another client id than `given`. Or `reset` is false, and the
            principal has other credentials than `given`, is not an active administrator, or does not exist in a realm
            that has other principals.
    """
    head = access_head(references)
    known = None if head is None else find_principal(head, name)
    now = references.clock.now_ms()
    if known is not None and known.state == "dropped":
        raise InputError(
            f"a dropped principal had the name {name!r}, and the names of dropped principals are never used again; "
            "name another administrator with --principal"
        )
    if head is not None and not reset:
        if known is not None:
            _check_administrator(head, known, given, now)
            return Bootstrapped(known, None, was_on=True)
        if next(iter(head.index("principals").range()), None) is not None:
            raise InputError(
                f"access control is on, but there is no principal {name!r}; name an existing administrator with "
                f"--principal, or use --reset to create {name!r} as an administrator"
            )
    if known is not None and given is not None:
        other = None if head is None else find_client(head, given.client_id)
        if other is None or other.entity_id != known.entity_id:
            raise InputError(
                f"the client id of principal {name!r} is {known.client_id!r} and cannot change; give credentials with "
                "this client id, or name another administrator with --principal"
            )
    credentials = given or Credentials.new(known.client_id if known is not None else "")
    ensure_reference(references, ACCESS, operation)
    change = Begin(references.clock, operation, name, credentials, reset=reset)
    row = references.commit(ACCESS, change)
    if not verify(row, credentials.secret.reveal(), references.clock.now_ms()):
        # Another process created the same principal at the same time.
        return Bootstrapped(row, None, was_on=True)
    return Bootstrapped(row, credentials, was_on=head is not None)


def _check_administrator(head: CommitReader, known: Principal, given: Credentials | None, now: int) -> None:
    """Check that a principal is an active administrator and has the credentials `given` (None: any credentials).

    Args:
        now: current time, in milliseconds since 1970.
    Raises:
        InputError: the principal is not an active administrator, or has other credentials.
    """
    if not known.is_active(now) or SERVICE_ADMIN not in roles_of(head, known):
        raise InputError(
            f"principal {known.name!r} exists, but is not an active administrator; name an administrator with "
            f"--principal, or use --reset to make {known.name!r} an administrator with new credentials"
        )
    if given is not None and not (
        given.client_id == known.client_id and verify(known, given.secret.reveal(), now)
    ):
        raise InputError(
            f"principal {known.name!r} exists, but its credentials differ from the given ones; to replace its "
            "credentials, use --reset"
        )


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
