"""`s3://bucket/prefix`, `gs://...`, `az://container/prefix`, `file:///path`: a store without any database.

In this package, an object is an object of the bucket, or a file of the directory. Rows of the table `objects` that are
written together share one object, called a pack (see `packs` and `pack_writer`). Each large row is a separate object,
and so is each row of `references`. Packs and references change by conditional PUTs, the only atomic operation of these
stores.

Consistency: a read or listing sees every acknowledged write (Amazon S3 since December 2020, Google Cloud Storage, Azure
Blob Storage). Of several conditional PUTs that expect the same state of a key, at most one succeeds. `setup` tests
this, and refuses a bucket where conditions are ignored. `file:` stores use locks instead (see `local`).

- **Swap.** Read the object (version, value, ETag), compare the version, and PUT with `If-Match: ETag`. Versions never
  repeat, so no two states of a key share an ETag, even if the ETag is a digest of the content. A process remembers the
  ETag of the version that it saw last, which saves the read. If this ETag is stale, the PUT fails, and the process then
  reads the object. The store's own comparison always decides.
- **Insert.** PUT with `If-None-Match: *`.
- **Delete.** Most stores have no conditional DELETE, and reading before deleting could delete a row that another
  process has changed in the meantime. So the object is replaced, with `If-Match`, by a *tombstone*, which counts as
  absent. An insert finds the tombstone and replaces it in the same way. Tombstones contain random bytes, so a delayed
  PUT that expects an older state always fails. Tombstones stay until `drop_realm`; there are few, because references
  are seldom deleted.
- **A lost answer** to a conditional PUT is an unknown outcome, because the PUT is sent only once. The caller may then
  repeat the change. If the repeated PUT is refused, and the object already has the content of the PUT, the earlier
  attempt succeeded. Then success is reported.

Options: `endpoint` (a URL, for other stores with an S3 API), `region`, `virtual-hosted` (true or false), `timeout` of
one request including retries (30 s), `connections` (32), the maximum number of concurrent requests. The user of the URI
is the access key id (Azure: the account), and `store.password` its secret. Without them, the store's usual environment
variables are used. A `file:` store has only the option `timeout`, the maximum wait for a lock (30 s).
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from polaris_spark.backends import Options
from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Scope,
    Split,
    Swapped,
    Table,
)
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows
from polaris_spark.backends.objectstore import keys, scans
from polaris_spark.backends.objectstore.keys import StoredReference
from polaris_spark.backends.objectstore.pack_writer import PackedRows
from polaris_spark.backends.objectstore.requests import Mark, Requests
from polaris_spark.errors import TryAgainError
from polaris_spark.forks import begin_anew_in_children
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_REMEMBERED: Final = 1_024
_ATTEMPTS: Final = 12


def open_backend(uri: StoreURI, options: Options) -> ObjectStoreBackend:
    """Return the backend for the store under a prefix of a bucket, or in a local directory. The module's docstring
    lists the options.

    Raises:
        StoreURIError: the URI names no bucket, or an option or its value is not valid.
    """
    if uri.scheme == "file":
        from polaris_spark.backends.objectstore import local

        timeout = local.lock_timeout_ms(options)
        return DirectoryBackend(local.DirectoryRequests(uri.path, timeout), timeout)
    from polaris_spark.backends.objectstore.cloud import CloudRequests
    from polaris_spark.backends.objectstore.settings import Settings

    settings = Settings.parse(uri, options)
    return ObjectStoreBackend(CloudRequests(settings), settings.timeout)


class ObjectStoreBackend(Backend):
    """A store in the objects of one bucket, below one prefix."""

    scope: ClassVar[Scope] = "cluster"

    def __init__(self, requests: Requests, timeout_ms: int) -> None:
        self._requests = requests
        self._timeout_ms = timeout_ms
        self._start()
        begin_anew_in_children(self)

    def setup(self) -> None:
        """Prepare the bucket or directory, and check that it can hold a store.

        Raises:
            StoreURIError: the bucket or directory cannot hold a store.
            StateError: the bucket does not exist, or the credentials are not sufficient.
        """
        self._requests.setup()

    def close(self) -> None:
        self._requests.close()

    def read_objects(self, realm: str, keys_: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        return self._rows.read(realm, keys_)

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        self._rows.write(realm, rows)

    def delete_objects(self, realm: str, keys_: Collection[ObjectKey]) -> None:
        check_realm(realm)
        self._rows.delete(realm, keys_)

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        found = self._find(realm, name)
        return None if found is None else found.stored.row

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        stored = StoredReference.of(realm, name, new)
        mark: Mark | None = None
        for attempt in range(_ATTEMPTS):
            if self._put(stored, mark):
                return Swapped()
            found = self._find(realm, name)
            if found is not None and found.stored == stored:
                return Swapped()
            current = None if found is None else found.stored.row
            if current is not None:
                return Conflict(current)
            mark = None if found is None else found.mark
            _pause(attempt)
        raise self._undecided(name)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._replace(expected_version, StoredReference.of(realm, name, new))

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        return self._replace(expected_version, StoredReference.tombstone(realm, name))

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        return scans.splits(self._requests, table, realms, n)

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        return scans.scan(self._requests, split)

    def now_ms(self) -> int | None:
        return self._requests.now_ms()

    def drop_realm(self, realm: str) -> bool:
        """Delete all objects of the bucket that belong to a realm, including tombstones, and return True."""
        check_realm(realm)
        tables: tuple[Table, ...] = ("objects", "references")
        for table in tables:
            prefix = keys.realm_prefix(table, keys.segment(realm))
            for page in self._requests.pages(prefix):
                self._requests.delete([key for key, _ in page])
        self._rows.forget()  # the cached packs may have been deleted
        return True

    def _start(self) -> None:
        """Start with an empty cache of packs, and an empty cache of the ETags of references."""
        self._rows = PackedRows(self._requests, self._timeout_ms)
        self._marks = _Marks()

    def begin_in_child(self) -> None:
        """Replace all locks in a forked child, because threads that do not exist in the child may hold them."""
        self._requests.begin_in_child()
        self._start()

    def _replace(self, expected_version: bytes, new: StoredReference) -> Swapped | Conflict:
        """Replace a row of `references` by `new` if its version is `expected_version`."""
        mark = self._marks.of(new, expected_version)
        for attempt in range(_ATTEMPTS):
            if mark is None:
                found = self._find(new.realm, new.name)
                if found is not None and found.stored == new:
                    return Swapped()
                current = None if found is None else found.stored.row
                if found is None or current is None or current.version != expected_version:
                    return Conflict(current)
                mark = found.mark
            if self._put(new, mark):
                return Swapped()
            mark = None
            _pause(attempt)
        raise self._undecided(new.name)

    def _put(self, new: StoredReference, mark: Mark | None) -> bool:
        key, body = keys.reference_key(new.realm, new.name), keys.encode_reference(new)
        put = self._requests.put_if(key, body, mark)
        if put is not None:
            self._marks.remember(new, put)
        return put is not None

    def _find(self, realm: str, name: str) -> _Found | None:
        key = keys.reference_key(realm, name)
        got = self._requests.get(key)
        if got is None:
            return None
        found = _Found(keys.decode_reference(got[0], key), got[1])
        self._marks.remember(*found)
        return found

    def _undecided(self, name: str) -> TryAgainError:
        return TryAgainError(
            f"{self._requests.where} refused {_ATTEMPTS} attempts to change reference {name!r}, because of "
            "concurrent writers; nothing was changed; try again later"
        )


class DirectoryBackend(ObjectStoreBackend):
    """A store in the files of one directory."""

    scope = "machine"


class _Found(NamedTuple):
    stored: StoredReference
    mark: Mark


class _Marks:
    """Cache of the versions of references that this process saw last, each with the mark (ETag or generation) of its
    object. A cached mark saves a read, but never decides an outcome: the store compares it with the current mark."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], tuple[bytes | None, Mark]] = OrderedDict()

    def of(self, reference: StoredReference, version: bytes) -> Mark | None:
        with self._lock:
            seen = self._seen.get((reference.realm, reference.name))
        return seen[1] if seen is not None and seen[0] == version and seen[1] else None

    def remember(self, reference: StoredReference, mark: Mark) -> None:
        place = (reference.realm, reference.name)
        with self._lock:
            self._seen[place] = (reference.version, mark)
            self._seen.move_to_end(place)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)


def _pause(attempt: int) -> None:
    """Pause between two attempts of a conditional write, after the store refused a PUT. After the first attempt
    (`attempt` 0) there is no pause, because the outcome is usually clear once the reference has been read. Later pauses
    are random; their maximum doubles with each attempt, up to 0.32 seconds."""
    if attempt:
        time.sleep(random.uniform(0.0, 0.005 * 2 ** min(attempt, 6)))
