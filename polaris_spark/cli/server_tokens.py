"""Tokens for the requests of `--server URL`: a token that the user gives, or tokens that the server issues for the
credentials of a principal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

import requests

from polaris_spark.access.credentials import Credentials
from polaris_spark.cli.options import CREDENTIAL_VARIABLE
from polaris_spark.errors import InputError, PolarisError, TryAgainError
from polaris_spark.secret_options import REFERENCE

TOKEN_VARIABLE = "POLARIS_SPARK_TOKEN"
"""Name of the environment variable that contains the token for `--server`, unless `--token` names another variable."""

LOGIN_SECONDS = 30.0
"""Time limit of a login, in seconds."""
EARLY_SECONDS = 60.0
"""A token is renewed this time before its end, but at the earliest after half of its lifetime, in seconds."""


class Tokens(Protocol):
    """The tokens of a server's client."""

    def current(self) -> str:
        """Return a token for the next request.

        Raises:
            requests.RequestException: the server cannot be reached.
            TryAgainError: the server cannot issue a token now.
            PolarisError: the server refuses the credentials.
        """
        ...

    def forget(self) -> bool:
        """Forget the current token, which the server refused. Return whether `current` can then return another
        token."""
        ...


class GivenToken:
    """A token that the user gives."""

    def __init__(self, token: str) -> None:
        self._token = token

    def current(self) -> str:
        """See `Tokens.current`."""
        return self._token

    def forget(self) -> bool:
        """See `Tokens.forget`."""
        return False


class IssuedTokens:
    """Tokens that a server issues for the credentials of a principal (RFC 6749, 4.4)."""

    def __init__(
        self, url: str, credentials: Credentials, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            url: address of the server.
            clock: returns a time in seconds.
        """
        self._url = f"{url.rstrip('/')}/v1/oauth/tokens"
        self._form = {
            "grant_type": "client_credentials",
            "client_id": credentials.client_id,
            "client_secret": credentials.secret.reveal(),
            "scope": "PRINCIPAL_ROLE:ALL",
        }
        self._clock = clock
        self._session = requests.Session()
        self._session.auth = lambda prepared: prepared  # no password of ~/.netrc
        self._token = ""
        self._until = 0.0

    def current(self) -> str:
        """See `Tokens.current`."""
        if not self._token or self._clock() >= self._until:
            self._log_in()
        return self._token

    def forget(self) -> bool:
        """See `Tokens.forget`."""
        self._token = ""
        return True

    def _log_in(self) -> None:
        begun = self._clock()
        answer = self._session.post(self._url, data=self._form, timeout=LOGIN_SECONDS, allow_redirects=False)
        try:
            found = answer.json()
        except ValueError:
            found = None
        found = found if isinstance(found, dict) else {}
        if answer.status_code == 429 or answer.status_code >= 500:
            raise TryAgainError(f"the server cannot issue a token now: {_reason(answer, found)}")
        try:
            if answer.status_code != 200:
                raise ValueError
            token, lifetime = str(found["access_token"]), float(found["expires_in"])
        except (KeyError, TypeError, ValueError):
            raise PolarisError(
                f"the server issues no token for the credentials in {CREDENTIAL_VARIABLE}: {_reason(answer, found)}"
            ) from None
        self._token, self._until = token, begun + lifetime - min(EARLY_SECONDS, lifetime / 2)


def _reason(answer: requests.Response, found: dict[str, object]) -> str:
    """Return the description in an OAuth error response, or the message in another error response."""
    error = found.get("error")
    message = error.get("message") if isinstance(error, dict) else found.get("error_description")
    return str(message or f"status {answer.status_code}")


def tokens_for(url: str, name: str | None) -> Tokens:
    """Return the tokens for a server.

    Args:
        url: address of the server.
        name: `env:NAME`, where NAME is the environment variable that contains the token; None for `TOKEN_VARIABLE` or,
            if it is not set, the credentials in `CREDENTIAL_VARIABLE`.
    Raises:
        InputError: the name has another form, there is no token and there are no credentials, or they cannot be used.
    """
    if name is not None and not name.startswith(REFERENCE):
        raise InputError(
            "--token takes env:NAME, the name of an environment variable: "
            "a token on the command line is visible to all users of this machine"
        )
    variable = TOKEN_VARIABLE if name is None else name.removeprefix(REFERENCE)
    found = os.environ.get(variable, "").strip()
    credential = os.environ.get(CREDENTIAL_VARIABLE, "") if name is None and not found else ""
    if credential:
        return IssuedTokens(
            url, Credentials.parse(credential, f"the environment variable {CREDENTIAL_VARIABLE!r}")
        )
    if not found:
        more = f", or credentials in {CREDENTIAL_VARIABLE!r}" if name is None else ""
        raise InputError(
            f"the environment variable {variable!r} is not set; --server needs a token in it{more}"
        )
    if not (found.isascii() and found.isprintable()):
        raise InputError(
            f"the value of the environment variable {variable!r} is not a token: it contains characters that are "
            "not printable ASCII"
        )
    return GivenToken(found)
