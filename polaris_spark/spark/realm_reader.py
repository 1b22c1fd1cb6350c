"""Stores that Spark's workers open for reading: once per process, without writing anything."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.references import CATALOGS, catalogs_in, head_name
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import SystemClock
from polaris_spark.commits.rows import Head
from polaris_spark.config import StoreURI
from polaris_spark.errors import InputError, NotFoundError, ReferenceGoneError, StoreURIError
from polaris_spark.spark import archives
from polaris_spark.spark.options import StoreLocation, refuse_memory
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.realms import RealmRecord, Realms
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, ROOT, Registered, listed_in, registered_by
from polaris_spark.system.stores import check_store, open_checked

_ATTEMPTS = 10


class ReadStore:
    """An open store. Thread-safe."""

    def __init__(self, location: StoreLocation, backend: Backend, key: str) -> None:
        self.location = location
        self.backend = backend
        self._key = key

    def realm(self, name: str) -> RealmReader:
        """Return the ACTIVE realm with this name.

        Raises:
            RealmStateError: the realm does not exist, or is not ACTIVE.
        """
        record = Realms(self.backend, SystemClock()).active(name)
        return RealmReader(record, self.objects(record.instance))

    def realms(self) -> list[RealmRecord]:
        """Return every realm, sorted by name."""
        return Realms(self.backend, SystemClock()).all()

    def objects(self, instance: str, revisions: Mapping[str, int] | None = None) -> ObjectStore:
        """Return the object store of the realm with this instance id. Writers must pass the realm's `revisions`."""
        return ObjectStore(self.backend, instance, process_cache(), store_key=self._key, revisions=revisions)


class RealmReader:
    """References and catalogs of a realm, read without write access."""

    def __init__(self, record: RealmRecord, store: ObjectStore) -> None:
        self.record = record
        self.store = store
        self._references = ReferenceReader(store)

    def root(self) -> Head:
        """Return the head of the registry of references.

        Raises:
            ReferenceGoneError: the realm has no registry of references.
        """
        head = self._references.head(ROOT)
        if head is None:
            raise ReferenceGoneError(
                f"the registry of references of realm {self.record.name!r} is missing: either the realm was purged "
                "meanwhile, or the registry's row was lost (then run polaris-spark recover)"
            )
        return head

    def registered(self) -> list[Registered]:
        """Return the registrations of all live references, sorted by name. The registry does not list itself."""
        listed = listed_in(self._references.open(self.root()).index(REFERENCES))
        return [registered for registered in listed if registered.registration.state == "live"]

    def head(self, name: str) -> Head:
        """Return the newest head of a live reference.

        Raises:
            ReferenceGoneError: the registry lists no live reference with this name.
        """
        return self.live(name)[1]

    def live(self, name: str) -> tuple[Registered, Head]:
        """Return a live reference and its newest head.

        If the reference has no row yet, the head is the first head, which the registration contains.

        Raises:
            ReferenceGoneError: the registry lists no live reference with this name.
        """
        for _ in range(_ATTEMPTS):
            entry = self._references.open(self.root()).index(REFERENCES).get(name.encode())
            if entry is None:
                break
            registered = registered_by(name, entry)
            if registered.registration.state != "live":
                break
            head = self.head_of(registered)
            if not head.sealed:  # a sealed reference was dropped after the registry was read: read again
                return registered, head
        raise ReferenceGoneError(f"reference {name!r} of realm {self.record.name!r} does not exist")

    def head_of(self, registered: Registered) -> Head:
        """Return the newest head of a registered reference. The head may be sealed."""
        return self._references.head_of(registered)

    def catalogs(self) -> list[CatalogRow]:
        """Return all catalogs, sorted by name."""
        return catalogs_in(self._references.open(self.head(CATALOGS)))

    def catalog(self, name: str) -> CatalogRow:
        """Return the catalog with this name.

        Raises:
            NotFoundError: the catalog does not exist; the message lists the existing catalogs.
        """
        catalogs = self.catalogs()
        for catalog in catalogs:
            if catalog.name == name:
                return catalog
        known = ", ".join(repr(catalog.name) for catalog in catalogs) or "none"
        raise NotFoundError(
            f"catalog {name!r} does not exist in realm {self.record.name!r}; the catalogs are: {known}"
        )

    def branch(self, catalog: CatalogRow, branch: str) -> Head:
        """Return the newest head of a catalog's branch.

        Raises:
            NotFoundError: the catalog does not have this branch.
        """
        try:
            return self.head(head_name(catalog, branch))
        except ReferenceGoneError:
            raise NotFoundError(f"catalog {catalog.name!r} has no branch {branch!r}") from None


class _Opened(NamedTuple):
    store: ReadStore
    file: tuple[int, int] | None
    """Device and inode number of an embedded store's file; None for a database server."""


_opened: dict[tuple[int, StoreLocation], _Opened] = {}
_guard = threading.Lock()


def open_for_reading(location: StoreLocation) -> ReadStore:
    """Return the store. Each process opens a store once, and keeps it open.

    Raises:
        InputError: the store is in memory, so other processes cannot read it.
        StoreURIError: the URI or an option is malformed, or the store does not exist. Reading creates no store.
        StateError: the database holds no store.
        NewerFormatError: a newer release created the store.
    """
    uri = StoreURI.parse(location.uri)
    refuse_memory(uri)
    key = (os.getpid(), location)
    with _guard:
        file = _file(uri)
        found = _opened.get(key)
        if found is not None and found.file == file:
            return found.store
        if found is not None:  # the file was replaced; the open connection would keep reading the old file
            del _opened[key]
            found.store.backend.close()
        archives.keep_known()
        options = dict(location.options)
        backend = open_checked(uri, options, check=_check_shared)
        store = ReadStore(location, backend, f"{uri.located(options).key}:{file}")
        _opened[key] = _Opened(store, file)
        return store


def _check_shared(backend: Backend) -> None:
    if backend.scope == "process":
        raise InputError(
            "this store exists in one process only, and Spark's workers cannot read it; use sqlite:///path/of/store.db "
            "or a database server"
        )
    check_store(backend)


def machine() -> str:
    """Return an id of this machine within a cluster. Containers on one machine have the same id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


def refuse_other_machine(location: StoreLocation, planned_on: str) -> None:
    """Refuse to read a store in files on a machine other than the one that planned the read.

    On another machine the path leads to no file, or to a different store.

    Raises:
        InputError: the store is in files, and this machine is not `planned_on`.
    """
    uri = StoreURI.parse(location.uri)
    if uri.address == "path" and machine() != planned_on:
        raise InputError(
            f"a {uri.scheme}: store can be used on one machine only, but Spark's driver and this executor run on "
            "different machines: use a database server"
        )


def _file(uri: StoreURI) -> tuple[int, int] | None:
    if uri.address != "path":
        return None
    try:
        found = os.stat(uri.path)
    except FileNotFoundError:
        raise StoreURIError(
            f"there is no store {uri}: the file does not exist on {platform.node()}; reading does not create a store"
        ) from None
    except OSError as error:
        raise StoreURIError(f"{uri} cannot be opened: {error.strerror}") from None
    return found.st_dev, found.st_ino
