"""Parsing and validation of store URIs and options, shared by the settings of all backends."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from polaris_spark.backends import Options
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.property_values import duration_ms
from polaris_spark.secret_options import without_secrets
from polaris_spark.store_uris import Secret, StoreURI, is_driver_text, refuse_unknown_options

_LONGEST_MS: Final = 2**31
_HOST: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]/?@,]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~%/-]*)?")


class Host(NamedTuple):
    """A server's host name or address (IPv6 without brackets), and its port."""

    name: str
    port: int


class Given:
    """The options of a store, by name. Each method that reads an option raises `StoreURIError` if its value is
    invalid."""

    def __init__(self, scheme: str, options: Options, known: Collection[str]) -> None:
        """
        Args:
            options: the options of the store, from its URI and its properties `store.*`.
            known: names of the options that the backend supports, including `password` if it has one.
        Raises:
            StoreURIError: an option is unknown, or its value is not valid Unicode or contains the character NUL.
        """
        refuse_unknown_options(scheme, options, known)
        for name, value in options.items():
            if isinstance(value, str) and not is_driver_text(value):
                raise StoreURIError(
                    f"the option {name!r} of a {scheme}: store is not valid Unicode, or contains the character NUL"
                )
        self._scheme = scheme
        password = options.get("password")
        self.password = Secret(password) if isinstance(password, str) else password
        """The password; None if it was not given."""
        self.texts = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in options.items()
            if name != "password"
        }
        """The values of all options except the password, by name, as the user wrote them."""

    def duration_ms(self, name: str, default: str) -> int:
        """Return the value of an option that is a duration, in milliseconds, more than 0. `default` is used as the text
        of the option if the option is missing."""
        try:
            found = duration_ms(name, self.texts.get(name, default))
        except InputError as error:
            raise StoreURIError(str(error)) from None
        if not 0 < found < _LONGEST_MS:
            raise self.refused(name, "a duration longer than 0 and shorter than 24 days")
        return found

    def count(self, name: str, default: int, most: int) -> int:
        """Return the value of an option that is an integer from 1 to `most`; `default` if the option is missing."""
        text = self.texts.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
            raise self.refused(name, f"a number from 1 to {most}")
        return int(text)

    def one_of(self, name: str, known: Collection[str]) -> str | None:
        """Return the value of an option, which must be one of `known`; None if the option is missing."""
        text = self.texts.get(name)
        if text is not None and text not in known:
            *others, last = known
            raise self.refused(name, f"{', '.join(others)} or {last}" if others else last)
        return text

    def flag(self, name: str) -> bool:
        """Whether the value of an option is `true`; False if it is `false` or the option is missing."""
        return self.one_of(name, ("true", "false")) == "true"

    def matching(self, name: str, pattern: re.Pattern[str], wanted: str) -> str | None:
        """Return the value of an option, which must match `pattern` as a whole; None if the option is missing. `wanted`
        describes valid values, for the error message."""
        text = self.texts.get(name)
        if text is not None and not pattern.fullmatch(text):
            raise self.refused(name, wanted)
        return text

    def refused(self, name: str, wanted: str) -> StoreURIError:
        """Return the error to raise for an option with an invalid value. `wanted` describes valid values."""
        text = without_secrets(self.texts.get(name, ""))[:60]
        return StoreURIError(
            f"the option {name!r} of a {self._scheme}: store is {text!r}; it must be {wanted}"
        )


def account(uri: StoreURI, given: Given) -> tuple[str | None, Secret | None]:
    """Return the user from the URI and the password from the options. Either is None if missing; a user without a
    password is allowed.

    Raises:
        StoreURIError: a password is given without a user.
    """
    if uri.user is None and given.password is not None:
        raise StoreURIError(
            f"{uri}: a password is given without a user; write {uri.scheme}://user@{uri.authority}/..."
        )
    return uri.user, given.password


def endpoint(given: Given) -> str | None:
    """Return the value of the option `endpoint`: the URL of a service, without credentials and without a trailing
    slash. Return None if the option is missing."""
    found = given.matching("endpoint", _ENDPOINT, "a URL without credentials, such as https://host:port")
    return None if found is None else found.rstrip("/")


def hosts(uri: StoreURI, port: int) -> list[Host]:
    """Return the servers in the authority of a URI, where commas separate them.

    Args:
        port: the default port, for servers without a port in the URI.
    Raises:
        StoreURIError: the URI names no server, or a server is malformed.
    """
    found = []
    for one in uri.authority.split(","):
        match = _HOST.fullmatch(one)
        if match is None or not 0 < int(match["port"] or port) < 65_536:
            raise StoreURIError(
                f"{uri}: the server {one!r} is not of the form host:port; the port is optional, and is from 1 to "
                "65535"
            )
        found.append(Host(match["host"].removeprefix("[").removesuffix("]"), int(match["port"] or port)))
    return found
