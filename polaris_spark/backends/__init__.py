"""Backends: one module for each database that can hold a store, selected by the scheme of the store URI.

A backend's module has a function `open_backend(uri, options)` that returns a `Backend`. `polaris_spark.databases` maps
each scheme to its module.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from polaris_spark.databases import database_of, known_schemes
from polaris_spark.errors import MissingLibraryError, StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

if TYPE_CHECKING:
    from polaris_spark.backends.base import Backend

Options = Mapping[str, "str | Secret"]
"""Options of a store, by name. They come from the store's URI and from the properties `store.*`, whose names are given
here without the prefix `store.`."""


class OpenBackend(Protocol):
    """Type of the function `open_backend` that the module of each backend has."""

    def __call__(self, uri: StoreURI, options: Options) -> Backend:
        """Return the backend for the store at a URI. This creates nothing: the backend's `setup()` creates a missing
        store. `options` includes the options of the URI."""
        ...


def open_backend(uri: StoreURI | str, options: Options | None = None) -> Backend:
    """Return the backend for the store at a URI. This creates nothing: the backend's `setup()` creates a missing store.

    Args:
        uri: the store URI.
        options: properties `store.*` without the prefix `store.`, such as `password`; they override the options of
            the URI.
    Raises:
        StoreURIError: the URI or an option is malformed, or the scheme is unknown.
        MissingLibraryError: the driver library is not installed; the message says how to install it.
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
        MissingLibraryError: the driver library is not installed; the message says how to install it.
    """
    _opener(scheme)


def _opener(scheme: str) -> OpenBackend:
    database = database_of(scheme)
    if database is None:
        near = difflib.get_close_matches(scheme, known_schemes(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise StoreURIError(
            f"no backend for {scheme!r} stores; {hint}the known schemes are: {', '.join(known_schemes())}"
        )
    try:
        return cast("OpenBackend", importlib.import_module(database.module).open_backend)
    except ImportError as error:
        raise _missing(scheme, error) from error


def _missing(scheme: str, error: ImportError) -> MissingLibraryError:
    database = database_of(scheme)
    extra = None if database is None else database.extra
    install = f"pip install 'polaris_spark[{extra}]'" if extra else "install this library"
    return MissingLibraryError(f"a {scheme}: store needs the library {error.name or error}; {install}")
