"""The MongoDB client of one process for one store, and the store's collections with read and write concerns for each
use.

All threads of a process share one `MongoClient`, which holds the connections. A client does not survive a fork, so a
child makes its own client. The child keeps a reference to the parent's client, because garbage collection would close
the parent's connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import pymongo
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.backends.mongodb import failures
from polaris_spark.backends.mongodb.settings import Settings
from polaris_spark.errors import (
    NoStoreError,
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.forks import begin_anew_in_children

FORMAT: Final = 1
"""Version of the format of the two collections. It is in the document of `references` that marks the database as a
store."""

# Realm names are not empty, so no reference has this `_id`, and it sorts before all references.
_MARK: Final = {"realm": "", "name": ""}

T = TypeVar("T")
Documents = Collection[dict[str, Any]]


class Opened(NamedTuple):
    """The two collections of a store, each with several read concerns."""

    objects: Documents
    """`objects`, for reads of the primary's current data, and for writes that a majority acknowledges."""
    references: Documents
    """`references`, for reads of the primary's current data, and for writes that a majority acknowledges."""
    committed_objects: Documents
    """`objects`, for reads of majority-committed data."""
    committed_references: Documents
    """`references`, for reads of majority-committed data."""
    latest_objects: Documents | None
    """`objects`, for linearizable reads; None if the server is standalone."""
    latest_references: Documents
    """`references`, for linearizable reads."""


class Connections:
    """Runs functions on a store's collections. Thread-safe; a forked child opens its own client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closed = False
        self._inherited: list[object] = []
        self._begin()
        begin_anew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._made: MongoClient[dict[str, Any]] | None = None
        self._opened: Opened | None = None
        self._checked = False

    def begin_in_child(self) -> None:
        """Start without a client in a forked child. A reference to the parent's client is kept, because garbage
        collection would close its connections."""
        self._inherited.append(self._made)
        self._begin()

    def read(self, work: Callable[[Opened], T]) -> T:
        """Run `work`, which must only read, and return its result. The driver retries each read until the time-out.

        Raises:
            TryAgainError, StoreURIError, StateError: see `failures`.
        """
        return self._run(work, failures.of_read)

    def change(self, work: Callable[[Opened], T]) -> T:
        """Run `work` once, and return its result.

        Raises:
            OutcomeUnknownError, TryAgainError, StoreURIError, StateError: see `failures`.
        """
        return self._run(work, failures.of_write)

    def _run(self, work: Callable[[Opened], T], failure: Callable[[str, PyMongoError], PolarisError]) -> T:
        opened = self._usable()
        try:
            return work(opened)
        except PyMongoError as error:
            raise failure(self.settings.where, error) from error

    def write(self, work: Callable[[Opened], T]) -> T:
        """Run `work`, which must be idempotent, and return its result. Run it once more if the outcome is unknown.

        Raises:
            OutcomeUnknownError, TryAgainError, StoreURIError, StateError: see `failures`.
        """
        opened = self._usable()
        try:
            return work(opened)
        except PyMongoError as error:
            first = error
        doubt = failures.of_write(self.settings.where, first)
        if not failures.lost(first):
            raise doubt from first
        try:
            return self.change(work)
        except (
            OutcomeUnknownError,
            TryAgainError,
        ) as error:  # the outcome of the first attempt is still unknown
            raise doubt from error

    def unread(self, error: PyMongoError) -> PolarisError:
        """Return the error of this package for an error that a cursor raised during a read."""
        return failures.of_read(self.settings.where, error)

    def create(self) -> None:
        """Mark the database as a store, if it is not marked yet. The server creates the collections when rows are
        inserted.

        Raises:
            NewerFormatError: a newer release made the store.
            StoreURIError: the database holds another program's collections, or the user lacks a permission.
        """
        opened = self._open()
        both = opened.objects, opened.references
        names = self._asked(lambda: [each.name for each in both if each.find_one({}, {"_id": 1})])
        if self.read_mark(
            opened
        ):  # after the search for documents, because another process may set up the store
            return
        if names:
            raise StoreURIError(
                f"{self.settings.where} holds collections of another program: {', '.join(names)}; choose another "
                "database"
            )
        try:
            mark = {"version": b"", "value": b"", "format": FORMAT}
            opened.references.update_one({"_id": _MARK}, {"$setOnInsert": mark}, upsert=True)
        except DuplicateKeyError:
            pass  # another process marked it at the same time
        except PyMongoError as error:
            raise failures.of_write(self.settings.where, error) from error
        self._checked = True

    def read_mark(self, opened: Opened) -> bool:
        """Read the document that marks a database as a store, and return whether the database has this document.

        Raises:
            NewerFormatError: a newer release made the store.
        """
        mark = self._asked(lambda: opened.latest_references.find_one({"_id": _MARK}))
        if mark is not None:
            refuse_newer_format(self.settings.where, mark["format"], FORMAT)
        self._checked = mark is not None
        return self._checked

    def close(self) -> None:
        """Close all connections. Later calls raise `StateError`."""
        with self._lock:
            self._closed = True
            if self._made is not None:
                self._made.close()

    def _usable(self) -> Opened:
        opened = self._opened
        if opened is not None and self._checked and not self._closed:
            return opened
        opened = self._open()
        if not self.read_mark(opened):
            raise NoStoreError(self.settings.where)
        return opened

    def _open(self) -> Opened:
        client = self._client()
        opened = self._opened
        if opened is None:  # several threads may do this concurrently, with the same result
            self._asked(lambda: self._look_for_primary(client))
            opened = self._opened = _collections(client, self.settings.database)
        return opened

    def _client(self) -> MongoClient[dict[str, Any]]:
        with self._lock:
            if self._closed:
                raise StateError(f"the store {self.settings.where} is closed; open it again")
            if self._made is None:
                arguments = self.settings.driver()
                try:
                    self._made = MongoClient(**arguments)
                except (OSError, PyMongoError, TypeError, ValueError) as error:
                    raise StoreURIError(f"{self.settings.where} cannot be opened: {error}") from error
            return self._made

    def _look_for_primary(self, client: MongoClient[dict[str, Any]]) -> None:
        # With `timeoutMS` set, the driver ignores its separate time-out for server selection.
        with pymongo.timeout(self.settings.connect_timeout / 1_000):
            client.admin.command("ping")

    def _asked(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except PyMongoError as error:
            raise failures.of_read(self.settings.where, error) from error


def _collections(client: MongoClient[dict[str, Any]], database: str) -> Opened:
    """Return the collections of a store, from a client that is connected."""
    store = client.get_database(
        database,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern(),
        write_concern=WriteConcern(w="majority", j=True),
    )
    objects, references = store["objects"], store["references"]
    servers = client.topology_description.server_descriptions().values()
    if any(server.server_type_name == "Standalone" for server in servers):
        # These read concerns need a replica set. A standalone server always reads its latest state.
        return Opened(objects, references, objects, references, None, references)
    committed, latest = ReadConcern("majority"), ReadConcern("linearizable")
    return Opened(
        objects,
        references,
        objects.with_options(read_concern=committed),
        references.with_options(read_concern=committed),
        objects.with_options(read_concern=latest),
        references.with_options(read_concern=latest),
    )
