"""Logins: the interface of authenticators, and the log of logins."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Final, NamedTuple, Protocol

from polaris_spark.rest.access import Role

log = logging.getLogger("polaris_spark.logins")


class Login(NamedTuple):
    """The result of an authenticator: the sender of a request."""

    principal: str
    """Name of the principal."""
    roles: frozenset[str] | None = None
    """Names of the principal roles to which the caller is limited, of those that are assigned to the principal. None
    for all of them."""
    role: Role = Role.CLIENT
    """Role of the caller in a realm without access control."""
    method: str = "other"
    """How the caller logged in: `token`, `issued-token`, `oidc`, `client-credentials`, `token-exchange` or `other`."""
    expires: float = float("inf")
    """Time after which the login is not accepted, in seconds since 1970."""
    secret: int | None = None
    """Time at which the secret of this login was made (`HashedSecret.created`), in milliseconds since 1970; None if the
    principal logged in without a secret."""
    exchangeable_until: float | None = None
    """The token can be exchanged for tokens of the realm that are valid until this time, in seconds since 1970. None if
    it cannot be exchanged."""


class Authenticator(Protocol):
    """Identifies the sender of a request. Other packages add authenticators by the entry-point group
    `polaris_spark.authenticators`. Implementations must be thread-safe."""

    def authenticate(self, token: str) -> Login | None:
        """Return the login that a bearer token proves. Return None if this authenticator does not know this kind of
        token; the next authenticator is asked then.

        Raises:
            NotAuthorizedError: this authenticator knows the kind of token, but does not accept the token. The message
                goes to the log, not to the client.
            TryAgainError: the token cannot be checked now.
        """
        ...


Factory = Callable[[dict[str, object]], Authenticator]
"""Function that an entry point refers to. It takes the settings of the authenticator from the file of
`--authentication`, without `type`, and returns the authenticator. It raises `InputError` if a setting cannot be
used."""

GROUP: Final = "polaris_spark.authenticators"
"""Entry-point group of authenticators. The name of an entry point is the `type` in the file of `--authentication`."""


class LoginLog(RotatingFileHandler):
    """Writes logins to a file. The file, and the new one that replaces it when it is large, can be read by this user
    only."""

    def _open(self) -> TextIOWrapper:
        opened = open(  # noqa: SIM115  # the handler closes it
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )
        assert isinstance(opened, TextIOWrapper)
        return opened


def described(method: str, address: str, **more: str | None) -> str:
    """Return the log line of an accepted or refused login: a JSON object on one line. Values that are None are left
    out."""
    found = {"method": method, "address": address, **{name: text for name, text in more.items() if text}}
    return json.dumps(found, ensure_ascii=True)
