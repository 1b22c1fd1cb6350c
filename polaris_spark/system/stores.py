"""The record of a store's format, and the reserved realm `::system::` that holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from polaris_spark.backends import Options, open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock
from polaris_spark.errors import NewerFormatError, NoStoreError
from polaris_spark.store.references import ReferenceStore
from polaris_spark.store_uris import StoreURI

SYSTEM_REALM: Final = "::system::"
"""Realm that holds the store's own records. Realm names that begin with `::` are reserved."""

STORE_FORMAT: Final = 1
"""The store format that this release writes. It is also the highest format that this release can use."""

STORE: Final = "store"
"""Name of the record of the store itself."""


class StoreRecord(msgspec.Struct, frozen=True):
    """The record of a store: its format, its creation time (milliseconds since 1970), and the release that it needs."""

    format: int
    created_ms: int
    needs: str = ""
    """Name of the release that can use this format, such as `polaris_spark 2.0`, for the error message of older
    releases."""


def system_references(backend: Backend) -> ReferenceStore:
    """Return a reader and writer of the records in the system realm."""
    return ReferenceStore(backend, SYSTEM_REALM)


def open_store(backend: Backend, clock: Clock) -> StoreRecord:
    """Return the store's record; create the database tables and the record if they are missing.

    It is safe to repeat this, and to do it in several processes at once.

    Raises:
        NewerFormatError: a newer release made the store; the message names the release that can use it.
    """
    backend.setup()
    references = system_references(backend)
    found = references.read(STORE, StoreRecord)
    if found is None:
        references.put(STORE, None, references.row(StoreRecord(STORE_FORMAT, clock.now_ms())))
    return check_store(backend)


def check_store(backend: Backend) -> StoreRecord:
    """Return the record of an existing store. Writes nothing.

    Raises:
        NoStoreError: the database contains no store.
        NewerFormatError: a newer release made the store; the message names the release that can use it.
    """
    found = system_references(backend).read(STORE, StoreRecord)
    if found is None:
        raise NoStoreError("the database")
    refuse_newer_format(found.value.format, "the store", found.value.needs)
    return found.value


def open_checked(
    uri: StoreURI, options: Options | None = None, *, check: Callable[[Backend], object] = check_store
) -> Backend:
    """Open the backend of a store, check the store, and return the backend.

    Args:
        options: options of the store: the catalog properties that begin with `store.`, without that prefix.
        check: function that raises an error if the store cannot be used; the backend is then closed. The default,
            `check_store`, raises an error if the database contains no store, and writes nothing.
    """
    backend = open_backend(uri, options)
    try:
        check(backend)
    except BaseException:
        backend.close()
        raise
    return backend


def refuse_newer_format(format: int, what: str, needs: str = "", *, newest: int = STORE_FORMAT) -> None:
    """Raise an error if the format of a store or realm is newer than this release can use.

    Args:
        what: the store or realm, for the message.
        needs: the release that can use the format, if it is known.
        newest: the highest format that this release can use.
    Raises:
        NewerFormatError: the format is newer; the message contains the format and the release that can use it.
    """
    if format > newest:
        release = needs or f"a release of polaris_spark that can use format {format}"
        raise NewerFormatError(
            f"{what} has format {format}, but this release can use formats only up to {newest}: use {release}"
        )
