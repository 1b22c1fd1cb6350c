"""Who sends a request, and the one decision whether this caller may send it. Every transport passes through here."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from polaris_spark.errors import ForbiddenError


class Role(IntEnum):
    """What a caller may do. A role may do everything that a lower role may do."""

    CLIENT = 1
    """An HTTP client: the Iceberg routes."""
    ADMINISTRATOR = 2
    """An HTTP client with a token that the token file marks: the extension too, within the server's locations."""
    LOCAL = 3
    """A program that opened the catalog in its own process, and the user's Spark driver: everything."""


class Caller(NamedTuple):
    """The sender of a request."""

    principal: str
    """Principal for the log."""
    role: Role = Role.CLIENT

    @property
    def is_local(self) -> bool:
        """Whether the caller has the rights of this process already."""
        return self.role is Role.LOCAL


def authorize(caller: Caller, least: Role, path: str) -> None:
    """Decide whether a caller may send a request. The handler calls this function once for every request.

    Args:
        least: least role that the route of the request needs.
        path: path of the request, for the message.
    Raises:
        ForbiddenError: the caller's role is too low.
    """
    if caller.role >= least:
        return
    if least is Role.ADMINISTRATOR:
        raise ForbiddenError(
            f"{path!r} needs the token of an administrator; the server's token file marks such a token by the word "
            "'administrator' after it"
        )
    raise ForbiddenError(f"{path!r} is answered only in the process that opened the catalog, not over HTTP")
