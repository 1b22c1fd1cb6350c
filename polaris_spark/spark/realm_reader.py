"""Access to stores in Spark's workers, mostly for reading. Each process opens a store once."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from collections.abc import Mapping
from typing import NamedTuple

from polaris_spark.access.scopes import Scope, Sight
from polaris_spark.backends.base import Backend
from polaris_spark.catalog.branches.archived_log import Archive
from polaris_spark.catalog.catalogs.references import CATALOGS, catalogs_in, head_name, tag_name
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import SystemClock
from polaris_spark.commits.as_of import AsOf
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import InputError, NotFoundError, ReferenceGoneError, StoreURIError
from polaris_spark.names import is_transaction
from polaris_spark.spark import python_workers
from polaris_spark.spark.options import StoreLocation, refuse_memory
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.realms import RealmRecord, Realms
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, ROOT, Registered, listed_in, registered_by
from polaris_spark.system.stores import check_store, open_checked

_ATTEMPTS = 10


class ReadStore:
    """A store that is open for reading. Thread-safe."""

    def __init__(
        self, location: StoreLocation, backend: Backend, key: str, scope: Scope | None = None
    ) -> None:
        self.location = location
        self.backend = backend
        self.scope = scope
        """What the principal of the read may see; None for everything."""
        self.sights: dict[object, Sight] = {}
        """What the principal may see in states that were read (`views.pins.sight_of`)."""
        self._key = key

    def within(self, scope: Scope | None) -> ReadStore:
        """Return this store, limited to what a principal with the given scope may see."""
        return self if scope is self.scope else ReadStore(self.location, self.backend, self._key, scope)

    def realm(self, name: str) -> RealmReader:
        """Return a reader of the realm with this name (a realm is a tenant of the store).

        Raises:
            RealmStateError: the realm does not exist, or is not ACTIVE.
            NotFoundError: the scope of the read belongs to another realm.
        """
        record = Realms(self.backend, SystemClock()).active(name)
        if self.scope is not None and self.scope.realm != record.instance:
            raise NotFoundError(
                f"realm {name!r} is not accessible: this session can read only its own realm; leave out the option "
                "realm"
            )
        return RealmReader(record, self.objects(record.instance), self.scope)

    def realms(self) -> list[RealmRecord]:
        """Return the records of all realms, sorted by name."""
        return Realms(self.backend, SystemClock()).all()

    def objects(self, instance: str, revisions: Mapping[str, int] | None = None) -> ObjectStore:
        """Return the object store of the realm with this instance id. To write objects, pass the `revisions` of the
        realm's record."""
        return ObjectStore(self.backend, instance, process_cache(), store_key=self._key, revisions=revisions)


class RealmReader:
    """Reads the references and catalogs of a realm, and writes nothing."""

    def __init__(self, record: RealmRecord, store: ObjectStore, scope: Scope | None = None) -> None:
        self.record = record
        self.store = store
        self.scope = scope
        """What the principal of the read may see; None for everything."""
        self._references = ReferenceReader(store)

    def root(self) -> Head:
        """Return the head (newest commit) of the registry, which lists the realm's references.

        Raises:
            ReferenceGoneError: the realm has no registry of references.
        """
        head = self._references.head(ROOT)
        if head is None:
            raise ReferenceGoneError(
                f"realm {self.record.name!r} has no registry of references: either the realm was purged a moment ago, "
                "or the registry's row was lost; if it was lost, run polaris-spark recover"
            )
        return head

    def registered(self) -> list[Registered]:
        """Return all references in the registry that were not dropped, sorted by name. The registry does not list
        itself."""
        return [registered for registered in self.listed() if registered.registration.state == "live"]

    def listed(self) -> list[Registered]:
        """Return all references in the registry, live and dropped, sorted by name."""
        return listed_in(self.open(self.root()).index(REFERENCES))

    def open(self, head: Head) -> CommitReader:
        """Return a reader of the commit that a head points to."""
        return self._references.open(head)

    def archive(self) -> Archive:
        """Return a reader of the archived logs of the realm."""
        return Archive(self._references, self.open(self.root()))

    def live(self, name: str) -> tuple[Registered, Head]:
        """Return a reference and its current head (newest commit).

        A new reference may have no row yet. The head is then the reference's first head, according to the registry.

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
        """Return the current head of a registered reference. The head is sealed if the reference was dropped
        meanwhile."""
        return self._references.head_of(registered)

    def catalogs(self) -> list[CatalogRow]:
        """Return all catalogs that the reading principal may see, sorted by name."""
        _, head = self.live(CATALOGS)
        found = catalogs_in(self._references.open(head))
        return found if self.scope is None else [one for one in found if self.scope.knows(one.entity_id)]

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
        """Return the current head (newest commit) of a catalog's branch, of a transaction of this process, or the head
        of a tag.

        Raises:
            NotFoundError: the catalog does not have this branch.
        """
        if is_transaction(branch):
            from polaris_spark.catalog.merges.transactions import readable_head

            head = readable_head(catalog, branch)
            if head is not None:
                return head
        for name in (head_name(catalog, branch), tag_name(catalog, branch)):
            with contextlib.suppress(ReferenceGoneError):
                return self.live(name)[1]
        raise NotFoundError(f"catalog {catalog.name!r} has no branch {branch!r}")

    def has_branch(self, catalog: CatalogRow, branch: str) -> bool:
        """Whether a catalog has a branch of this name. `branch` then returns its head, and not that of a tag."""
        with contextlib.suppress(ReferenceGoneError):
            self.live(head_name(catalog, branch))
            return True
        return False

    def branch_or_tag(self, catalog: CatalogRow, as_of: AsOf) -> Head:
        """Return the current head of the branch, or the head of the tag, that a point names.

        Raises:
            NotFoundError: the catalog has neither.
        """
        try:
            return self.branch(catalog, as_of.name)
        except NotFoundError:
            raise NotFoundError(
                f"{as_of.option} is {as_of.name!r}, which is neither a commit nor a time, and catalog "
                f"{catalog.name!r} has no branch or tag of this name"
            ) from None


class _Opened(NamedTuple):
    store: ReadStore
    file: tuple[int, int] | None
    """Device and inode number of an embedded store's file; None for a database server."""


_opened: dict[tuple[int, StoreLocation], _Opened] = {}
_guard = threading.Lock()


def open_for_reading(location: StoreLocation) -> ReadStore:
    """Open a store, or return the store that this process has already opened. Open it again if its file was replaced.

    Raises:
        InputError: the store is in the memory of one process.
        StoreURIError: the URI or an option is malformed, or the store does not exist. No store is created.
        StateError: the database contains no store.
        NewerFormatError: a newer release created the store.
    """
    python_workers.spare_repeated_work()
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
        options = dict(location.options)
        backend = open_checked(uri, options, check=_check_shared)
        store = ReadStore(location, backend, f"{uri.located(options).key}:{file}")
        _opened[key] = _Opened(store, file)
        return store


def _check_shared(backend: Backend) -> None:
    if backend.scope == "process":
        raise InputError(
            "this store exists in the memory of one process, so Spark's workers cannot read it; use "
            "sqlite:///path/of/store.db or a database server"
        )
    check_store(backend)


def machine() -> str:
    """Return an id of this machine, unique in a cluster. All containers on one machine return the same id."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return platform.node()


def refuse_other_machine(location: StoreLocation, planned_on: str) -> None:
    """Refuse to read a store in files on a machine that did not plan the read.

    On another machine, the path of the store may not exist, or may belong to a different store.

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
