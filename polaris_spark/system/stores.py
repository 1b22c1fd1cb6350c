"""The record of a store's format, and the reserved realm that holds it."""

from __future__ import annotations

from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock
from polaris_spark.errors import NewerFormatError, NoStoreError
from polaris_spark.store.references import ReferenceStore

SYSTEM_REALM: Final = "::system::"
"""Realm of the store's own records; realm names beginning with `::` are reserved."""

STORE_FORMAT: Final = 1
"""The store format that this release writes, and the highest that it can use."""

STORE: Final = "store"
"""Name of the record of the store itself."""


class StoreRecord(msgspec.Struct, frozen=True):
    """What a store is: its format, when it was made (milliseconds since 1970), and what is needed to use
    it."""

    format: int
    created_ms: int
    needs: str = ""
    """The release that can use this format, such as `polaris_spark 2.0`; told to older ones."""


def system_references(backend: Backend) -> ReferenceStore:
    """References of the system realm."""
    return ReferenceStore(backend, SYSTEM_REALM)


def open_store(backend: Backend, clock: Clock) -> StoreRecord:
    """The store's record; tables and record are made where they are missing. May be repeated and raced.

    Raises:
        NewerFormatError: a newer release made the store; the message names what is needed.
    """
    backend.setup()
    references = system_references(backend)
    found = references.read(STORE, StoreRecord)
    if found is None:
        references.put(STORE, None, references.row(StoreRecord(STORE_FORMAT, clock.now_ms())))
    return check_store(backend)


def check_store(backend: Backend) -> StoreRecord:
    """The record of a store that exists; writes nothing.

    Raises:
        NoStoreError: there is no store yet.
        NewerFormatError: a newer release made it; the message names what is needed.
    """
    found = system_references(backend).read(STORE, StoreRecord)
    if found is None:
        raise NoStoreError("the database")
    refuse_newer_format(found.value.format, "the store", found.value.needs)
    return found.value


def refuse_newer_format(format: int, what: str, needs: str = "") -> None:
    """Refuse a store or realm of a format that this release does not know.

    Raises:
        NewerFormatError: the format is newer; the message names it, and the release that can use it.
    """
    if format > STORE_FORMAT:
        release = needs or f"a release of polaris_spark that knows format {format}"
        raise NewerFormatError(
            f"{what} has format {format}, this release knows up to {STORE_FORMAT}: use {release}"
        )
