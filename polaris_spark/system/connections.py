"""Stores that this process has open: for each, one backend, one generator of ids, and the references of its realms.

All code that opens the same store with the same options shares these, so that the changes of one process are committed
in groups and its reads use one cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

from polaris_spark.backends import Options
from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock, SystemClock
from polaris_spark.commits.mailbox import mailbox_of
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.errors import RealmStateError
from polaris_spark.ids import IdGenerator
from polaris_spark.objects import known_types
from polaris_spark.store.cache import process_cache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.realms import RealmRecord, Realms, ServingRealm
from polaris_spark.system.registry import References
from polaris_spark.system.stores import check_store, open_checked, open_store

S = TypeVar("S")

_numbers = count()


class StoreConnection:
    """An open store, shared by all callers that opened it. The backend is closed when all have called `close`."""

    def __init__(self, uri: StoreURI, backend: Backend, clock: Clock) -> None:
        self.uri = uri
        self.backend = backend
        self.clock = clock
        leases = NodeLeases(backend, clock)
        self.ids = IdGenerator(leases, clock)
        self.mailbox = mailbox_of(uri.key, self.ids.node, clock)
        self.store_clock = leases.store_clock
        self.realms = Realms(backend, clock)
        self.users = 0
        self._cache_key = f"{uri.key}#{next(_numbers)}" if backend.scope == "process" else uri.key
        """Key of this store in the cache. A store in the memory of this process gets a new key each time it is opened,
        because it is a different store each time."""
        self._references: dict[object, References] = {}
        self._shared: dict[object, Any] = {}
        self._guard = threading.Lock()

    def shared(self, key: object, make: Callable[[], S]) -> S:
        """Return an object that all users of this connection share. The first call makes it."""
        with self._guard:
            if key not in self._shared:
                self._shared[key] = make()
            found: S = self._shared[key]
            return found

    def serving(self, name: str, instance: str, deadline_ms: float) -> ServingRealm:
        """Return the object that checks whether an open realm can still be used. All sessions of this process that use
        the realm with the same deadline share this object."""
        return self.shared(
            (ServingRealm, name, instance, deadline_ms),
            lambda: ServingRealm(self.realms, self.clock, name, instance, deadline_ms),
        )

    def realm(self, name: str, *, create: bool, initialize: Callable[[References], None]) -> RealmRecord:
        """Return the realm of that name, which must be ACTIVE.

        Args:
            create: True to create the realm if it is missing, and to finish its creation if that was interrupted.
            initialize: function that writes a new realm's references.
        Raises:
            RealmStateError: the realm is missing or not ACTIVE.
        """
        found = self.realms.find(name)
        if found is None and not create:
            raise RealmStateError(
                f"realm {name!r} does not exist; to create it, open a catalog with create=true and a warehouse"
            )
        if found is not None and (not create or found.state.value not in ("CREATED", "INITIALIZING")):
            return self.realms.active(name)
        return self.realms.create(
            name,
            self.ids,
            lambda record: initialize(self._new_references(record, CommitSettings({}), None)),
            revisions=known_types(),
        )

    def references(
        self, realm: RealmRecord, settings: CommitSettings, files: FileWriter | None, key: object
    ) -> References:
        """Return an object that reads, creates and changes the references of a realm.

        Args:
            key: identifies the settings and the file writer. Calls with an equal key return the same object.
        """
        with self._guard:
            found = self._references.get((realm.instance, key))
            if found is None:
                found = self._new_references(realm, settings, files)
                self._references[realm.instance, key] = found
            return found

    def _new_references(
        self, realm: RealmRecord, settings: CommitSettings, files: FileWriter | None
    ) -> References:
        return References(
            self.store(realm),
            ids=self.ids,
            clock=self.clock,
            settings=settings,
            files=files,
            mailbox=self.mailbox,
        )

    def forget_realm(self, instance: str) -> None:
        """Remove a realm from the caches of this connection, to free memory. Call this for realms that no session of
        this process uses. If a session does use the realm, sessions that are opened later do not share its caches."""
        with self._guard:
            for key in [key for key in self._references if isinstance(key, tuple) and key[0] == instance]:
                del self._references[key]
            for key in [key for key in self._shared if isinstance(key, tuple) and instance in key]:
                del self._shared[key]

    def store(self, realm: RealmRecord) -> ObjectStore:
        """Return the object store of a realm, for reading and writing."""
        return ObjectStore(
            self.backend,
            realm.instance,
            process_cache(),
            store_key=self._cache_key,
            revisions=realm.revisions,
        )

    def store_of(self, instance: str) -> ObjectStore:
        """Return the object store of the realm with this instance id, for reading only."""
        return ObjectStore(self.backend, instance, process_cache(), store_key=self._cache_key)

    def close(self) -> None:
        """Close this connection for one of the callers that opened it. The last call also releases the lease under
        which this process makes ids, and closes the backend."""
        with _guard:
            self.users -= 1
            if self.users:
                return
            for key in [key for key, open in _open.items() if open is self]:
                del _open[key]
        try:
            self.ids.release()
        finally:
            self.mailbox.close()
            self.backend.close()


_open: dict[object, StoreConnection] = {}
_guard = threading.Lock()


def connect_store(
    uri: StoreURI, options: Options | None = None, *, clock: Clock | None = None, create: bool = True
) -> StoreConnection:
    """Open a store and return a connection to it. If this process has the store open with the same options, return the
    same connection again.

    Args:
        options: options of the store: the catalog properties that begin with `store.`, without that prefix.
        create: whether to create a store in a database that contains none.
    Raises:
        NoStoreError: the database contains no store, and `create` is false.
        NewerFormatError: a newer release made the store.
    """
    key = (os.getpid(), str(uri), tuple(sorted((options or {}).items(), key=lambda item: item[0])))
    joined = _join(key)
    if joined is not None:
        return joined
    # The guard is not held here, so that a database that does not answer does not delay the opening of other stores.
    clock = clock or SystemClock()
    backend = open_checked(uri, options, check=partial(open_store, clock=clock) if create else check_store)
    opened = StoreConnection(uri.located(options), backend, clock)
    with _guard:
        first = _open.setdefault(key, opened)
        first.users += 1
    if first is not opened:
        opened.backend.close()
    return first


def open_stores() -> list[StoreURI]:
    """Return the URIs of the stores that this process has open."""
    with _guard:
        return list({one.uri.key: one.uri for one in _open.values()}.values())


def _join(key: object) -> StoreConnection | None:
    with _guard:
        found = _open.get(key)
        if found is not None:
            found.users += 1
        return found
