"""Databases that can hold a store, one module each, chosen by the scheme of a store URI.

A backend's module has a function `open_backend(uri, options)` that gives a `Backend`. Outside packages add
theirs by the entry-point group `polaris_spark.backends`: the entry's name is the scheme, its value that
function (`package.module:open_backend`).
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
"""Scheme to module of the backends of this package, for a source tree without installed metadata."""

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
"""Scheme to the extra of this package that installs its driver library."""

Options = Mapping[str, "str | Secret"]
"""Options of a store: those of its URI, and the properties under `store.` without that prefix."""


class OpenBackend(Protocol):
    """What a backend's module offers as `open_backend`."""

    def __call__(self, uri: StoreURI, options: Options) -> Backend:
        """The store that a URI names; `options` holds the URI's own, too. `setup()` creates it."""
        ...


def open_backend(uri: StoreURI | str, options: Options | None = None) -> Backend:
    """The store that a URI names.

    Args:
        uri: where it is.
        options: properties under `store.` without that prefix, such as `password`; they win over the URI's
            own.
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
    """Refuse, without opening anything, a scheme that cannot be opened here.

    Raises:
        StoreURIError: it is unknown.
        MissingLibraryError: the driver library is not installed; the message names the extra.
    """
    _opener(scheme)


def known_schemes() -> list[str]:
    """Schemes that can be opened here, sorted."""
    return sorted({**BUILT_IN, **_installed()})


def _opener(scheme: str) -> OpenBackend:
    try:
        # First, because looking for outside packages reads the directory of every archive on the module path.
        if scheme in BUILT_IN:
            return cast("OpenBackend", importlib.import_module(BUILT_IN[scheme]).open_backend)
        if scheme in _installed():
            return cast("OpenBackend", _installed()[scheme].load())
    except ImportError as error:
        raise _missing(scheme, error) from error
    near = difflib.get_close_matches(scheme, known_schemes(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise StoreURIError(f"no backend for {scheme!r} stores; {hint}known are: {', '.join(known_schemes())}")


@cache
def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _missing(scheme: str, error: ImportError) -> MissingLibraryError:
    extra = EXTRAS.get(scheme)
    install = f"pip install 'polaris_spark[{extra}]'" if extra else "install the library that it names"
    return MissingLibraryError(f"a {scheme}: store needs the library {error.name or error}; {install}")
