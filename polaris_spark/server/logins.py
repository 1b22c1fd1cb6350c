"""Who sends a request: the interface of authenticators, and the log of logins."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from polaris_spark.rest.access import Role

log = logging.getLogger("polaris_spark.logins")


class Login(NamedTuple):
    """What an authenticator found out about the sender of a request."""

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
    exchangeable_until: float | None = None
    """The token can be exchanged for tokens of the realm that are valid until this time, in seconds since 1970. None if
    it cannot be exchanged."""


class Authenticator(Protocol):
    """Finds out who sent a request. Other packages add authenticators by the entry-point group
    `polaris_spark.authenticators`. Implementations must be thread-safe."""

    def authenticate(self, token: str) -> Login | None:
        """Return the login that a bearer token stands for. Return None if the token is not of a kind that this
        authenticator knows; then the next one is asked.

        Raises:
            NotAuthorizedError: the token is of such a kind, and it is not accepted. The message goes to the log, not to
                the client.
            TryAgainError: the token cannot be checked now.
        """
        ...


Factory = Callable[[dict[str, object]], Authenticator]
"""What an entry point refers to: a function that gets the settings of the authenticator from the file of
`--authentication`, without `type`. It raises `InputError` if a setting cannot be used."""

GROUP: Final = "polaris_spark.authenticators"
"""Entry-point group of authenticators. The name of an entry point is the `type` in the file of `--authentication`."""


def described(method: str, address: str, **more: str | None) -> str:
    """Return what is logged of a login or a refused one: a JSON object on one line. Values that are None are left
    out."""
    found = {"method": method, "address": address, **{name: text for name, text in more.items() if text}}
    return json.dumps(found, ensure_ascii=True)
