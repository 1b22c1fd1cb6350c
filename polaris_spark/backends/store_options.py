"""Parsing and validation of store URIs and options, shared by the settings of all backends."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from polaris_spark.backends import Options
from polaris_spark.config import Secret, StoreURI, is_driver_text, refuse_unknown_options
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.property_values import duration_ms
from polaris_spark.secret_options import without_secrets

_LONGEST_MS: Final = 2**31
_HOST: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]/?@,]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~%/-]*)?")


class Host(NamedTuple):
    """A server's host name or address (IPv6 without brackets), and its port."""

    name: str
    port: int


class Given:
    """Options by name. Each method that reads an option raises `StoreURIError` if the value is not valid."""

    def __init__(self, scheme: str, options: Options, known: Collection[str]) -> None:
        """
        Args:
            options: the options of the URI and of the configuration.
            known: names of the options that the backend supports, including `password` if it has one.
        Raises:
            StoreURIError: an option is unknown.
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
        """All other options by name, as they were given."""

    def duration_ms(self, name: str, default: str) -> int:
        """Return an option that is a duration, in milliseconds (more than 0); `default` if it was not given."""
        try:
            found = duration_ms(name, self.texts.get(name, default))
        except InputError as error:
            raise StoreURIError(str(error)) from None
        if not 0 < found < _LONGEST_MS:
            raise self.refused(name, "a duration longer than 0 and shorter than 24 days")
        return found

    def count(self, name: str, default: int, most: int) -> int:
        """Return an option that is an integer from 1 to `most`; `default` if it was not given."""
        text = self.texts.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
            raise self.refused(name, f"a number from 1 to {most}")
        return int(text)

    def one_of(self, name: str, known: Collection[str]) -> str | None:
        """Return an option whose value must be one of `known`; None if it was not given."""
        text = self.texts.get(name)
        if text is not None and text not in known:
            *others, last = known
            raise self.refused(name, f"{', '.join(others)} or {last}" if others else last)
        return text

    def flag(self, name: str) -> bool:
        """Whether an option is `true`; False if it was not given."""
        return self.one_of(name, ("true", "false")) == "true"

    def matching(self, name: str, pattern: re.Pattern[str], wanted: str) -> str | None:
        """Return an option whose whole value must match `pattern`; None if it was not given."""
        text = self.texts.get(name)
        if text is not None and not pattern.fullmatch(text):
            raise self.refused(name, wanted)
        return text

    def refused(self, name: str, wanted: str) -> StoreURIError:
        """Return the error for an option with an invalid value; `wanted` describes valid values."""
        text = without_secrets(self.texts.get(name, ""))[:60]
        return StoreURIError(
            f"the option {name!r} of a {self._scheme}: store is {text!r}; it must be {wanted}"
        )


def account(uri: StoreURI, given: Given) -> tuple[str | None, Secret | None]:
    """Return user and password, each None if it was not given; a user may have no password.

    Raises:
        StoreURIError: a password is given without a user.
    """
    if uri.user is None and given.password is not None:
        raise StoreURIError(
            f"{uri}: a password is given without a user; write {uri.scheme}://user@{uri.authority}/..."
        )
    return uri.user, given.password


def endpoint(given: Given) -> str | None:
    """Return the option `endpoint`, the URL of a service without credentials and without a trailing slash; None if it
    was not given."""
    found = given.matching("endpoint", _ENDPOINT, "a URL without credentials: https://host:port")
    return None if found is None else found.rstrip("/")


def hosts(uri: StoreURI, port: int) -> list[Host]:
    """Return the servers in the authority of a URI, which are separated by commas.

    Args:
        port: default port.
    Raises:
        StoreURIError: the URI names no server, or a server is malformed.
    """
    found = []
    for one in uri.authority.split(","):
        match = _HOST.fullmatch(one)
        if match is None or not 0 < int(match["port"] or port) < 65_536:
            raise StoreURIError(f"{uri}: {one!r} is not of the form host:port, with a port from 1 to 65535")
        found.append(Host(match["host"].removeprefix("[").removesuffix("]"), int(match["port"] or port)))
    return found
