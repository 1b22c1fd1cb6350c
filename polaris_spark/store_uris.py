"""Store URIs, which say where a store is, and secret values. Both are parsed from text and checked before a store is
opened."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from polaris_spark.databases import FILE_SCHEMES, database_of
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.secret_options import REFERENCE, is_secret, without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_STORE_NAME = re.compile(r"[A-Za-z0-9_.-]{0,128}")


def is_driver_text(text: str) -> bool:
    """Whether database drivers accept a text. They do if it contains neither NUL nor a lone surrogate.

    Drivers encode texts as UTF-8, and many pass them to C code as C strings. In Python, the value of an environment
    variable contains lone surrogates if it is not UTF-8.
    """
    return not any(c == "\0" or 0xD800 <= ord(c) <= 0xDFFF for c in text)


def _usable(text: str, what: str) -> str:
    """Return the text if database drivers accept it (`is_driver_text`).

    Args:
        what: description of the text for the error message, which does not show the text because it may be secret.
    Raises:
        InputError: drivers do not accept the text.
    """
    if not is_driver_text(text):
        raise InputError(f"{what} is not valid Unicode, or contains the character NUL")
    return text


class Secret:
    """A password or another secret value, given as text or as `env:NAME`, the name of an environment variable that
    contains it. `repr` does not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret value, which is read from the environment variable if one was given.

        Raises:
            InputError: the environment variable is not set, or the value is not text that database drivers accept.
        """
        if not self._text.startswith(REFERENCE):
            return _usable(self._text, "a secret")
        name = self._text.removeprefix(REFERENCE)
        value = os.environ.get(name)
        if value is None:
            raise InputError(f"the environment variable {name!r}, which must contain a secret, is not set")
        return _usable(value, f"the environment variable {name!r}")

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class StoreURI:
    """The location of a store. `str()` returns the URI without its password.

    `memory:`, `memory:name`; `sqlite:///absolute/path`, `sqlite:relative/path` (made absolute when parsed);
    `scheme://user:password@host:port,host:port/path?option=value` for databases behind a network. Names and
    paths may be percent-encoded.
    """

    scheme: str
    authority: str = ""
    """Hosts with ports, separated by commas; for object stores, the bucket. Some backends also accept an empty
    authority."""
    path: str = ""
    """If `address` is `host`: the part after the authority and a slash. If it is `path`: an absolute path. If it is
    `name`: the store's name."""
    user: str | None = None
    password: Secret | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StoreURI:
        """Parse a store URI.

        Raises:
            StoreURIError: the URI is malformed. The message says how, and never contains the password.
            MissingLibraryError: the package that adds the scheme cannot be imported.
        """
        match = _SCHEME.fullmatch(text.strip())
        if match is None:
            raise StoreURIError(
                f"a store URI must begin with a scheme, such as sqlite:///path/of/store.db or memory:, "
                f"not {without_secrets(text)!r}"
            )
        scheme, rest = match.group(1).lower(), match.group(2)
        if any(ord(c) < 32 or ord(c) == 127 for c in rest):
            raise StoreURIError(f"a store URI ({scheme}:) has control characters; percent-encode them")
        if any(0xD800 <= ord(c) <= 0xDFFF for c in rest):
            raise StoreURIError(f"a store URI ({scheme}:) is not valid Unicode: it contains a lone surrogate")
        if "#" in rest:
            raise StoreURIError(
                f"a store URI ({scheme}:) must not contain a fragment; write '#' in a path as %23"
            )
        rest, mark, query = rest.partition("?")
        options = _options(scheme, query) if mark else {}
        address = _address(scheme)
        if address == "name":
            return cls(scheme, path=_store_name(scheme, rest), options=options)
        if address == "path":
            return cls(scheme, path=_file_path(scheme, rest), options=options)
        return _network(scheme, rest, options)

    @property
    def address(self) -> Literal["host", "path", "name"]:
        """Form of the URI after the scheme: `host`, `path` or `name` (see `Database.address`). It is `host` if the
        scheme is unknown."""
        return _address(self.scheme)

    @property
    def key(self) -> str:
        """Text that identifies the store within a process: the URI without credentials. It contains only those options
        that distinguish stores (`Database.locating`)."""
        names = _locating(self.scheme)
        located = "".join(f":{name}={self.options[name]}" for name in names if name in self.options)
        return f"{self.scheme}:{self.authority}:{self.path}{located}"

    def located(self, options: Mapping[str, str | Secret] | None) -> StoreURI:
        """Return this URI with additional options. Only options that distinguish stores (`Database.locating`) are
        added.

        Args:
            options: options of the store that were given separately from the URI.
        """
        names = _locating(self.scheme)
        given = {name: text for name, text in (options or {}).items() if name in names}
        return replace(
            self, options={**self.options, **{n: t for n, t in given.items() if isinstance(t, str)}}
        )

    def hides(self, option: str, text: str) -> bool:
        """Whether the value `text` of an option of the store must not be shown: it is secret, or it names an
        environment variable in an option that does not distinguish stores (`Database.locating`)."""
        return is_secret(option, text) or (
            text.startswith(REFERENCE) and option not in _locating(self.scheme)
        )

    def __str__(self) -> str:
        query = f"?{urlencode(self.options)}" if self.options else ""
        if self.address == "name":
            return f"{self.scheme}:{self.path}{query}"
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        slash = "/" if self.path and not self.path.startswith("/") else ""
        return f"{self.scheme}://{user}{self.authority}{slash}{quote(self.path)}{query}"


def refuse_unknown_options(scheme: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that a backend does not have, and suggest the most similar known option.

    Raises:
        StoreURIError: an option is unknown.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its options are: {', '.join(known) or 'none'}"
            raise StoreURIError(f"a {scheme}: store has no option {name!r}; {hint}")


def _address(scheme: str) -> Literal["host", "path", "name"]:
    database = database_of(scheme)
    return "host" if database is None else database.address


def _locating(scheme: str) -> tuple[str, ...]:
    database = database_of(scheme)
    return () if database is None else database.locating


def _options(scheme: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except UnicodeDecodeError:
        raise StoreURIError(f"an option of a {scheme}: store URI is not UTF-8") from None
    except ValueError:
        raise StoreURIError(
            f"the options of a {scheme}: store URI must have the form name=value&name=value"
        ) from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise StoreURIError(
            f"an option of a {scheme}: store URI is given twice; the options of the URI are "
            f"{', '.join(n for n, _ in pairs)}"
        )
    for name, text in pairs:
        if "\0" in name + text:
            raise StoreURIError(
                f"the option {name!r} of a {scheme}: store URI contains the character NUL (%00); remove it"
            )
        if is_secret(name, text):
            raise StoreURIError(
                f"the option {name} of a {scheme}: store URI is or contains a secret, which is not allowed in a URI; "
                f"set the catalog property store.{name} instead"
            )
    return options


def _unescaped(scheme: str, text: str) -> str:
    """Return a part of a URI with its percent-encoding removed.

    Raises:
        StoreURIError: the part encodes bytes that are not UTF-8, or the character NUL.
    """
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise StoreURIError(f"a store URI ({scheme}:) has a percent-encoded part that is not UTF-8") from None
    if "\0" in found:
        raise StoreURIError(
            f"a store URI ({scheme}:) contains the character NUL (%00), which names cannot contain; remove it"
        )
    return found


def _store_name(scheme: str, rest: str) -> str:
    if rest.startswith("//"):
        raise StoreURIError(
            f"a {scheme}: URI must not contain '//', because the store has only a name, and no host or path; "
            f"write {scheme}: or {scheme}:name"
        )
    if not _STORE_NAME.fullmatch(rest):
        raise StoreURIError(
            f"the name of a {scheme}: store must consist of at most 128 letters, digits, '_', '.' and '-'"
        )
    return rest


def _file_path(scheme: str, rest: str) -> str:
    path = _unescaped(scheme, rest)
    if path.startswith("//") and not path.startswith("///"):
        raise StoreURIError(
            f"a {scheme}: store has no host; write {scheme}:///absolute/path or {scheme}:relative/path, "
            f"not {scheme}:{without_secrets(path)}"
        )
    if not path.strip("/"):
        raise StoreURIError(
            f"a {scheme}: store URI must have a path: {scheme}:///absolute/path or {scheme}:relative/path"
        )
    if path.lstrip("/") == ":memory:":
        raise StoreURIError("':memory:' is not the path of a store; write memory: for a store in memory")
    if path.endswith("/"):
        raise StoreURIError(
            f"{scheme}:{path} names a directory; the path of a {scheme}: store must not end with a slash"
        )
    return os.path.abspath("/" + path.lstrip("/") if path.startswith("/") else path)


def _network(scheme: str, rest: str, options: dict[str, str]) -> StoreURI:
    if not rest.startswith("//"):
        near = difflib.get_close_matches(scheme, FILE_SCHEMES, n=1)
        hint = f"did you mean '{near[0]}:{without_secrets(rest)}'? " if near else ""
        files = ", ".join(f"{each}:" for each in FILE_SCHEMES)
        raise StoreURIError(
            f"the store URI '{without_secrets(f'{scheme}:{rest}')}' is malformed; {hint}Only {files} may have a "
            "path after the scheme; any other database needs two slashes and a host, as in postgresql://host/path"
        )
    authority, _, path = rest[2:].partition("/")
    if "@" in path:  # the user or password probably contains a slash; a part of the password would be shown
        raise StoreURIError(
            f"a {scheme}: store URI has '@' after a slash; in a user or password, write '/' as %2F, and in a path, "
            "write '@' as %40"
        )
    user = password = None
    if "@" in authority:
        credentials, _, authority = authority.rpartition("@")
        name, colon, secret = credentials.partition(":")
        user = _unescaped(scheme, name) or None
        password = Secret(_unescaped(scheme, secret)) if colon else None
    return StoreURI(scheme, _unescaped(scheme, authority), _unescaped(scheme, path), user, password, options)
