"""`mongodb://user@host1:27017,host2/database?replicaSet=name`, `mongodb+srv://`: MongoDB 4.4 and later.

A store is two collections of a database, `objects` and `references`. Each operation goes to the primary.

- **Swap.** `replaceOne({_id, version}, new)`, without upsert: one document changes atomically, and only if it has the
  expected version. Writes wait until a majority of the replica set has them in its journal. A write concern error is
  an unknown outcome: the primary has applied the write, but the next primary may not have it.
- **Retries.** The driver's retryable writes are off: a swap whose answer was lost is not sent again, but raises
  `OutcomeUnknownError`. Writes of rows and deletions are idempotent, and this backend retries them once. The driver
  retries reads until the deadline.
- **Reads of a reference** are linearizable: the primary confirms that it is still the primary, so that a deposed
  primary cannot return an older row.
- **Reads of objects** return the primary's current data, which includes all writes that a majority acknowledged. Such a
  read may reach a deposed primary, so a row is reported as *missing* only after a linearizable read of its `_id`.
- **Scans** read majority-committed data with a cursor, in the order of `_id`. A lost cursor is replaced by a cursor
  that continues after the last row.

A standalone server, which is not a member of a replica set, does not support these read concerns, and is used without
them.

Options: `timeout` (30 s) of one whole operation, including elections and the wait for a majority; `connect_timeout`
(10 s) of the first search for a primary, and of opening a connection; `pool` (32), the maximum number of connections of
a process to one server; and MongoDB's own `appName`, `authMechanism`, `authSource`, `compressors`, `directConnection`,
`loadBalanced`, `replicaSet`, `tls`, `tlsCAFile`, `tlsCertificateKeyFile` and similar. The user needs the role
`readWrite` on the database.

Commits are not transactions: the rows are acknowledged first, and the swap follows. A transaction of a replica set
would cost one more round trip, because insert, replacement and commit are sent one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import BulkWriteError, DuplicateKeyError

from polaris_spark.backends import Options
from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
    Table,
)
from polaris_spark.backends.chunks import chunks, sized
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.mongodb import failures, keys, scans
from polaris_spark.backends.mongodb.connections import Connections, Documents, Opened
from polaris_spark.backends.mongodb.settings import Settings
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_ASKED_AT_ONCE: Final = 128
_WRITTEN_AT_ONCE: Final = 16 * 2**20  # bytes; the driver divides this further, by the server's message limits


def open_backend(uri: StoreURI, options: Options) -> MongoDBBackend:
    """Return the backend for the store in the database of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no host or database, or an option or its value is not valid.
    """
    return MongoDBBackend(Settings.parse(uri, options))


class MongoDBBackend(Backend):
    """A store in two collections of a MongoDB database. Each row is a document."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self._connections = Connections(settings)

    def setup(self) -> None:
        self._connections.create()

    def close(self) -> None:
        self._connections.close()

    def read_objects(self, realm: str, keys_: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        ids = _object_ids(realm, keys_)
        return self._connections.read(lambda opened: _values(opened, ids)) if ids else {}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        name = realm.encode()
        documents = [
            {"_id": keys.object_id(name, row.id, row.part), "value": row.value} for row in sorted(rows)
        ]
        for chunk in sized(documents, lambda one: len(one["value"]), most_bytes=_WRITTEN_AT_ONCE):
            self._connections.write(lambda opened, chunk=chunk: _insert(opened.objects, chunk))  # type: ignore[misc]  # the loop's own

    def delete_objects(self, realm: str, keys_: Collection[ObjectKey]) -> None:
        check_realm(realm)
        for chunk in chunks(_object_ids(realm, keys_), _ASKED_AT_ONCE):
            self._connections.write(
                lambda opened, chunk=chunk: opened.objects.delete_many({"_id": {"$in": chunk}})  # type: ignore[misc]  # the loop's own
            )

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        key = {"_id": keys.reference_id(realm, name)}
        found = self._connections.read(lambda opened: opened.latest_references.find_one(key))
        return None if found is None else ReferenceRow(found["version"], found["value"])

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        document = _reference(realm, name, new)

        def insert(opened: Opened) -> Swapped | Conflict:
            try:
                opened.references.insert_one(document)
            except DuplicateKeyError:
                return Conflict()
            return Swapped()

        return self._connections.change(insert)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        document = _reference(realm, name, new)
        expected = {"_id": document["_id"], "version": expected_version}
        done = self._connections.change(lambda opened: opened.references.replace_one(expected, document))
        return Swapped() if done.matched_count else Conflict()

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        expected = {"_id": keys.reference_id(realm, name), "version": expected_version}
        done = self._connections.change(lambda opened: opened.references.delete_one(expected))
        return Swapped() if done.deleted_count else Conflict()

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        """Return about `n` splits, which are ranges of `_id`s. A sample of `_id`s determines the bounds of the
        ranges."""
        return self._connections.read(lambda opened: scans.splits(opened, table, realms, n))

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        return scans.scan(self._connections, split)

    def now_ms(self) -> int | None:
        """Return the time of the primary's clock, in milliseconds since 1970; None if the server does not report it.
        The time comes from the command `isMaster` (the older name of `hello`), which all servers support."""
        said = self._connections.read(lambda opened: opened.references.database.command("isMaster"))
        time = said.get("localTime")
        return None if time is None else (time - datetime(1970, 1, 1)) // timedelta(milliseconds=1)

    def drop_realm(self, realm: str) -> bool:
        """Delete the documents of a realm, in chunks, so that each request ends before the time-out."""
        check_realm(realm)
        low, high = keys.objects_of(realm)
        while True:
            bound = self._connections.read(lambda opened: scans.bound(opened, low, high))
            run = keys.between(low, high if bound is None else bound)
            self._connections.write(lambda opened, run=run: opened.objects.delete_many(run))  # type: ignore[misc]  # the loop's own
            if bound is None:
                break
        ours = keys.between(*keys.references_of(realm))
        self._connections.write(lambda opened: opened.references.delete_many(ours))
        return True


def _reference(realm: str, name: str, row: ReferenceRow) -> dict[str, Any]:
    return {"_id": keys.reference_id(realm, name), "version": row.version, "value": row.value}


def _object_ids(realm: str, wanted: Collection[ObjectKey]) -> list[bytes]:
    name = realm.encode()
    return [keys.object_id(name, id, part) for id, part in sorted(set(wanted))]


def _values(opened: Opened, ids: Sequence[bytes]) -> dict[ObjectKey, bytes]:
    found: dict[bytes, bytes] = {}
    for chunk in chunks(ids, _ASKED_AT_ONCE):
        # With this size, the first batch has as many documents as fit in a message, instead of the default of 101.
        asked = opened.objects.find({"_id": {"$in": chunk}}, batch_size=len(chunk) + 1)
        found.update((each["_id"], each["value"]) for each in asked)
    if opened.latest_objects is not None:
        for missing in [one for one in ids if one not in found]:
            late = opened.latest_objects.find_one({"_id": missing})
            if late is not None:
                found[missing] = late["value"]
    return {keys.object_key(id): value for id, value in found.items()}


def _insert(objects: Documents, documents: Sequence[dict[str, Any]]) -> None:
    """Insert the documents that do not exist yet. Existing documents are not replaced, because rows never change."""
    try:
        objects.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        if not failures.only_duplicates(error):
            raise
