"""Roles of callers, and the check that a caller is allowed to send a request. The check is the same for all
transports."""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import NamedTuple

from polaris_spark.commit_notes import Notes
from polaris_spark.errors import ForbiddenError


class Role(IntEnum):
    """A caller's role, which determines the requests that the caller may send. A role allows everything that a lower
    role allows."""

    CLIENT = 1
    """An HTTP client. It can use the routes of the Iceberg protocol."""
    ADMINISTRATOR = 2
    """An HTTP client whose token is marked in the token file as the token of an administrator. It can also use those
    routes of the extension that are available over HTTP, but only for locations that the server allows."""
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

    @property
    def is_local(self) -> bool:
        """Whether the caller runs in this process (role `LOCAL`). Such a caller already has all rights of the
        process."""
        return self.role is Role.LOCAL


def authorize(caller: Caller, least: Role, path: str) -> None:
    """Raise an error if a caller is not allowed to send a request. The handler calls this once for every request.

    Args:
        least: lowest role that can use the route of the request.
        path: path of the request, for the message.
    Raises:
        ForbiddenError: the caller's role is too low.
    """
    if caller.role >= least:
        return
    if least is Role.ADMINISTRATOR:
        raise ForbiddenError(
            f"{path!r} needs the token of an administrator: in the server's token file, the line of such a token ends "
            "with the word 'administrator'"
        )
    raise ForbiddenError(
        f"{path!r} cannot be used over HTTP; use it in a process that opens the catalog itself"
    )


def is_loopback(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
