"""Backends: one module for each database that can hold a store, selected by the scheme of the store URI.

A backend's module has a function `open_backend(uri, options)` that returns a `Backend`. Other packages add backends
with the entry-point group `polaris_spark.backends`: the entry's name is the scheme, and its value is the function
(`package.module:open_backend`).
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from polaris_spark.config import Secret, StoreURI
from polaris_spark.errors import MissingLibraryError, StoreURIError

if TYPE_CHECKING:
    from polaris_spark.backends.base import Backend

GROUP = "polaris_spark.backends"
"""The entry-point group of backends."""

BUILT_IN = {
    "az": "polaris_spark.backends.objectstore",
    "bigtable": "polaris_spark.backends.bigtable",
    "cassandra": "polaris_spark.backends.cassandra",
    "dynamodb": "polaris_spark.backends.dynamodb",
    "file": "polaris_spark.backends.objectstore",
    "gs": "polaris_spark.backends.objectstore",
    "mariadb": "polaris_spark.backends.mariadb",
    "memory": "polaris_spark.backends.memory",
    "mongodb": "polaris_spark.backends.mongodb",
    "mongodb+srv": "polaris_spark.backends.mongodb",
    "mysql": "polaris_spark.backends.mariadb",
    "postgres": "polaris_spark.backends.postgresql",
    "postgresql": "polaris_spark.backends.postgresql",
    "rocksdb": "polaris_spark.backends.rocksdb",
    "s3": "polaris_spark.backends.objectstore",
    "sqlite": "polaris_spark.backends.sqlite",
}
"""Module of each built-in backend, by scheme. These backends are listed here and not as entry points, so that they also
work in a source tree whose package metadata is not installed."""

EXTRAS = {
    "rocksdb": "rocksdb",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "mariadb": "mariadb",
    "mysql": "mariadb",
    "cassandra": "cassandra",
    "bigtable": "bigtable",
    "dynamodb": "dynamodb",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "s3": "objectstore",
    "gs": "objectstore",
    "az": "objectstore",
}
"""Extra of this package that installs a backend's driver library, by scheme."""

Options = Mapping[str, "str | Secret"]
"""Options of a store by name: the options of its URI, and the properties `store.*` without the prefix `store.`."""


class OpenBackend(Protocol):
    """The function `open_backend` of a backend's module."""

    def __call__(self, uri: StoreURI, options: Options) -> Backend:
        """Return the store at a URI; a missing store is created only by the result's `setup()`. `options` includes the
        options of the URI."""
        ...


def open_backend(uri: StoreURI | str, options: Options | None = None) -> Backend:
    """Return the store at a URI.

    Args:
        uri: the store URI.
        options: properties `store.*` without the prefix `store.`, such as `password`; they override the options of
            the URI.
    Raises:
        StoreURIError: the URI or an option is malformed, or the scheme is unknown.
        MissingLibraryError: the driver library is not installed; the message names the extra.
    """
    if isinstance(uri, str):
        uri = StoreURI.parse(uri)
    opener = _opener(uri.scheme)
    merged: dict[str, str | Secret] = dict(uri.options)
    if uri.password is not None:
        merged["password"] = uri.password
    merged.update(options or {})
    try:
        return opener(uri, merged)
    except ImportError as error:
        raise _missing(uri.scheme, error) from error


def require_backend(scheme: str) -> None:
    """Check that the backend of a scheme exists and that its driver library is installed. No store is opened.

    Raises:
        StoreURIError: the scheme is unknown.
        MissingLibraryError: the driver library is not installed; the message names the extra.
    """
    _opener(scheme)


def known_schemes() -> list[str]:
    """Return the schemes of all built-in and installed backends, sorted."""
    return sorted({**BUILT_IN, **_installed()})


def _opener(scheme: str) -> OpenBackend:
    try:
        # Built-in backends first: a search for entry points reads the directory of every archive on the module path.
        if scheme in BUILT_IN:
            return cast("OpenBackend", importlib.import_module(BUILT_IN[scheme]).open_backend)
        if scheme in _installed():
            return cast("OpenBackend", _installed()[scheme].load())
    except ImportError as error:
        raise _missing(scheme, error) from error
    near = difflib.get_close_matches(scheme, known_schemes(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise StoreURIError(
        f"no backend for {scheme!r} stores; {hint}the known schemes are: {', '.join(known_schemes())}"
    )


@cache
def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _missing(scheme: str, error: ImportError) -> MissingLibraryError:
    extra = EXTRAS.get(scheme)
    install = f"pip install 'polaris_spark[{extra}]'" if extra else "install this library"
    return MissingLibraryError(f"a {scheme}: store needs the library {error.name or error}; {install}")
