"""Roles of callers, and the check that a caller is allowed to send a request. The check is the same for all
transports."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from polaris_spark.access.needs import Asked, Needs, On
from polaris_spark.access.rules import Rules, Subject
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.listing import Keep
from polaris_spark.commit_notes import Notes
from polaris_spark.errors import ForbiddenError, NotAuthorizedError
from polaris_spark.names import is_transaction
from polaris_spark.property_values import is_loopback as is_loopback
from polaris_spark.rest.permissions import (
    Permissions,
    check,
    hidden_catalog,
    knows_catalog,
)


class Role(IntEnum):
    """A caller's role, which determines the requests that the caller may send. A role allows everything that a lower
    role allows."""

    CLIENT = 1
    """An HTTP client. It can use the routes of the Iceberg protocol."""
    ADMINISTRATOR = 2
    """An HTTP client whose token is marked in the token file as the token of an administrator. It can also use those
    routes of the extension that are available over HTTP, but only for locations that the server allows. In a realm with
    access control, every HTTP client can use these routes, if it has the privileges that they need."""
    LOCAL = 3
    """A program that opened the catalog in its own process, or the user's Spark driver. It can use all routes."""


class Caller(NamedTuple):
    """The sender of a request."""

    principal: str
    """Principal that the log records for the caller's changes."""
    role: Role = Role.CLIENT
    notes: Notes = ()
    """Notes on the caller's changes, unless a request gives others."""
    roles: frozenset[str] | None = None
    """Names of the principal roles that the caller uses, of those that the principal has; None for all of them."""
    is_verified: bool = False
    """Whether credentials or a token have proven that the caller is this principal. Otherwise the name is only a claim,
    which a realm with access control does not accept."""
    secret: int | None = None
    """Time at which the secret of the caller's login was made (`HashedSecret.created`), in milliseconds since 1970;
    None if the caller logged in without a secret of the principal."""

    @property
    def is_local(self) -> bool:
        """Whether the caller runs in this process (role `LOCAL`). Such a caller already has all rights of the
        process."""
        return self.role is Role.LOCAL


def require_role(caller: Caller, least: Role, path: str, *, has_rules: bool = False) -> None:
    """Raise an error if a caller's role does not allow a request, regardless of the names in the request.

    Args:
        least: lowest role that can use the route of the request.
        path: path of the request, for the message.
        has_rules: whether the realm has access control. Then privileges decide what an administrator may do.
    Raises:
        ForbiddenError: the caller's role is too low.
    """
    if caller.role >= least or (has_rules and least is Role.ADMINISTRATOR):
        return
    if least is Role.ADMINISTRATOR:
        raise ForbiddenError(
            f"{path!r} needs the token of an administrator: in the server's token file, the line of such a token ends "
            "with the word 'administrator'"
        )
    raise ForbiddenError(
        f"{path!r} cannot be used over HTTP; use it in a process that opens the catalog itself"
    )


def subject_of(
    rules: Rules, caller: Caller, needs: Needs, catalog: Catalog, prefix: str | None, *, has_state: bool
) -> Subject:
    """Return the caller as a `Subject`: its principal with the roles that are active.

    Args:
        needs: the privileges that the request's route needs.
        prefix: name of the catalog in the request; None if there is none.
        has_state: whether the request names a state of the catalog.
    Raises:
        NotAuthorizedError: the caller has not logged in, or its principal is not active in the realm.
        NotFoundError: the caller may not see the catalog.
    """
    if not caller.is_verified:
        raise NotAuthorizedError(
            "this realm has access control, and this session or client has not logged in: give credentials"
        )
    declared = _declared(needs)
    subject = rules.active_subject(caller.principal, caller.roles)
    if subject is None:
        now = catalog.context.clock.now_ms()
        subject = rules.subject(caller.principal, now, caller.roles, rotating=declared.is_own)
    is_open = (declared.is_own or declared.is_for_all) and prefix is None and not has_state
    is_rotating = subject.principal.must_rotate and caller.is_local  # it has opened this catalog
    if not (is_open or is_rotating) and not knows_catalog(rules, subject, catalog.row):
        raise hidden_catalog(prefix)
    return subject


_REMEMBERED = 4_096
"""Maximum number of allowed requests that are remembered for a caller."""


def authorize(
    rules: Rules,
    subject: Subject,
    needs: Needs,
    asked: Callable[[], Asked],
    catalog: Catalog,
    *,
    key: str | None = None,
) -> tuple[Catalog, Keep | None]:
    """Raise an error if a caller may not send a request in a realm with access control. The handler calls this once for
    every request, and a transaction for each request in its body.

    Args:
        rules: the rules of the realm.
        subject: the caller.
        needs: the needs of the route.
        asked: returns the parts of the request that determine what it names.
        catalog: the catalog in the state to which the request refers.
        key: identifies a request without a body that reads one entity: such a request is checked once for each commit
            and caller. None for other requests. Returns: the catalog with which to answer the request, which first
            reads the head on which the names were checked; and a function that selects the entries that a list shows
            (None: all).
    Raises:
        ForbiddenError: the caller may see what the request names, but lacks a privilege.
        NotFoundError: the caller may not see what the request names. The error is the same as for a name that does not
            exist.
    """
    if is_open(needs):
        return catalog.owning(), None
    head = catalog.head()
    is_checked_once = (
        key is not None
        and subject.delegated is None
        and not catalog.is_fixed
        and not is_transaction(catalog.branch)
    )
    known = (key, catalog.reference, head.head.commit) if is_checked_once else None
    if known is not None and known in subject.allowed:
        return catalog.beginning_at(head), None
    permissions = Permissions(rules, subject, catalog, head, catalog.newest(head))
    keep = check(permissions, needs, asked()).keep
    permissions.note()
    found = catalog.beginning_at(head)
    if known is not None and keep is None:
        if len(subject.allowed) >= _REMEMBERED:
            subject.allowed.clear()
        subject.allowed.add(known)
        return found, None
    if permissions.resolved:
        found = found.resolving(dict(permissions.resolved).items())
    return found.owning(), keep


def is_open(needs: Needs) -> bool:
    """Whether the route needs the same privileges regardless of the names in the request."""
    return _declared(needs).is_open


class _Declared(NamedTuple):
    """Properties of the needs of a route."""

    is_open: bool
    is_own: bool
    """Whether the function of the route checks the caller."""
    is_for_all: bool


_known_needs: dict[int, _Declared] = {}


def _declared(needs: Needs) -> _Declared:
    """Return the properties of the needs of a route. The result is cached by the identity of `needs`, which is safe
    because routes are never deleted."""
    found = _known_needs.get(id(needs))
    if found is None:
        places = {need.on for need in needs}
        found = _known_needs[id(needs)] = _Declared(
            places <= _WITHOUT_NAMES, not places.isdisjoint((On.PROCEDURE, On.OWN)), On.NOTHING in places
        )
    return found


_WITHOUT_NAMES = frozenset((On.NOTHING, On.PROCEDURE, On.OWN, On.KNOWN_CATALOG))
