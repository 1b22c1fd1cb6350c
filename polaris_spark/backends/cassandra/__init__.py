"""`cassandra://user@host:9042,host2/keyspace`: Apache Cassandra 4 and 5, for any number of processes and machines.

A store is two tables in a keyspace. `setup` creates a missing keyspace, with the replication factor that
`?replication=` gives: `3` for every datacenter, or `dc1:3,dc2:3`. `?datacenter=` is the datacenter whose nodes receive
the requests (default: the datacenter of the hosts).

- **References** change only by lightweight transactions (LWT, Paxos). Each reference is a partition. References are
  also read by Paxos, which completes unfinished transactions, so reads and swaps of a reference are linearizable. A
  refused swap returns the existing row. Neither this backend nor the driver ever sends a conditional statement twice.
- **Rows** are written and read at a quorum, so that an acknowledged row is found whichever replica is down.
- With `?serial=SERIAL` (the default), clients in all datacenters agree on swaps, and rows use `QUORUM`. With
  `?serial=LOCAL_SERIAL`, clients of one datacenter agree without contacting the other datacenters, and rows use
  `LOCAL_QUORUM`. The comments of the tables record the level, and for `LOCAL_SERIAL` the datacenter. A client with
  another level or datacenter is refused, because such clients would lose each other's swaps.
- **Deletion** writes tombstones. Writes and deletions carry a timestamp of the client, strictly ascending within a
  process. So if a process deletes a row and writes it again, the row exists. If another process with a different clock
  wrote it again, the row might stay deleted. This does not happen, because ids are never reused, and a deleted row is
  never written again.
- **Scans** read token ranges in parallel. If a node has to read too much for one request, narrower ranges are used,
  down to ranges of ids within a single partition (`scans`). A realm's rows are spread over the whole ring, so for a
  scan of one realm the nodes look at the start of every partition, but read and send only rows of the requested realms.
- **`drop_realm`** deletes whole partitions of `objects`, each with one tombstone that hides all rows of the partition.
  It deletes references by LWT. If thousands of rows were deleted one by one, reads would have to skip them until they
  are compacted away.

Durability depends on the cluster's `commitlog_sync`. `periodic`, Cassandra's default, acknowledges before the log is on
disk: the write survives a power failure only if at least one of the replicas that acknowledged it keeps its power.
`group` and `batch` flush the log first.

All waits are bounded: `?connect_timeout=` (10 s) for a connection, `?timeout=` (30 s) for an operation. Heartbeats
detect a dead network. Idempotent requests are retried during the first third of the time-out. `?concurrency=` (128)
bounds the requests in flight. `?tls=verify-ca` or `verify-full`, with `?tls_ca=`, enables TLS.

The user needs CREATE on the keyspace once, for `setup` (on ALL KEYSPACES if the keyspace is missing); later SELECT and
MODIFY on the keyspace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from polaris_spark.backends import Options
from polaris_spark.backends.arrow import record_batches
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
from polaris_spark.backends.cassandra.partitions import bucket
from polaris_spark.backends.cassandra.requests import Answer, Request, Requests
from polaris_spark.backends.cassandra.scans import TOKENS, pages
from polaris_spark.backends.cassandra.settings import Settings
from polaris_spark.backends.chunks import chunks, sized, value_bytes
from polaris_spark.backends.limits import check_place, check_realm, check_reference, check_rows, distinct
from polaris_spark.errors import InputError
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

_KEYS: Final = 64  # keys of one request; 64 rows of the maximum size are 22 MB
_ROWS: Final = 128
_BYTES: Final = (
    512 * 1024
)  # bytes of one mutation; Cassandra refuses mutations over half a commit log segment, 16 MiB
_PAGE_ROWS: Final = 100
_PAGE_PARTITIONS: Final = 1_000  # for queries that select only keys
_SPLITS: Final = 65_536

T = TypeVar("T", ObjectKey, ObjectRow)


def open_backend(uri: StoreURI, options: Options) -> CassandraBackend:
    """Return the backend for the store in the keyspace of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no keyspace, or an option or its value is not valid.
    """
    return CassandraBackend(Settings.parse(uri, options))


class CassandraBackend(Backend):
    """A store in two tables of a Cassandra keyspace."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self._requests = Requests(settings)

    def setup(self) -> None:
        self._requests.create()

    def close(self) -> None:
        self._requests.close()

    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        check_realm(realm)
        answers = self._requests.read(_by_keys("get", realm, keys))
        return {ObjectKey(id, part): value for answer in answers for id, part, value in answer.rows}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        check_rows(realm, rows)
        requests = []
        for place, found in _buckets(rows):
            for chunk in sized(found, value_bytes, most_bytes=_BYTES, most=_ROWS):
                values = [(realm, place, row.id, row.part, row.value) for row in chunk]
                requests.append(
                    Request("put", values[0]) if len(values) == 1 else Request("put", several=tuple(values))
                )
        self._requests.write(requests)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        check_realm(realm)
        self._requests.write(_by_keys("remove", realm, keys))

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        check_place(realm, name)
        (answer,) = self._requests.read([Request("read", (realm, name))])
        return ReferenceRow(*answer.rows[0]) if answer.rows else None

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._changed("insert", realm, name, *new)

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        _check_version(name, expected_version)
        return self._changed("swap", *new, realm, name, expected_version)

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        check_place(realm, name)
        _check_version(name, expected_version)
        return self._changed("delete", realm, name, expected_version)

    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        """Return splits that are token ranges of equal width. Tokens are hashes of the partition keys, so the ranges
        hold about equally many rows."""
        names = None if realms is None else distinct(realms)
        if names == []:
            return []
        first, last = TOKENS
        n = max(1, min(n, _SPLITS))
        bounds = [first + (last - first) * i // n for i in range(n + 1)]
        return [Split(table, (*bounds[i : i + 2], names)) for i in range(n)]

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        low, high, realms = split.detail
        found = pages(self._requests, split.table, low, high, realms, _PAGE_ROWS)  # type: ignore[arg-type]  # as `splits` made them
        for page in found:
            yield from record_batches(split.table, page)

    def now_ms(self) -> int | None:
        """Return the time of the clock of the node that answers the request, in milliseconds since 1970."""
        (answer,) = self._requests.read([Request("now")])
        found: int = answer.rows[0][0]
        return found

    def drop_realm(self, realm: str) -> bool:
        """Delete the realm's references by LWT. Then scan the partition keys of `objects`, and delete the realm's
        partitions."""
        check_realm(realm)
        for page in pages(self._requests, "references", *TOKENS, [realm], _PAGE_ROWS):
            for _, name, *_ in page:
                while (row := self.read_reference(realm, name)) is not None:
                    self.delete_reference(realm, name, row.version)
        for page in pages(self._requests, "partitions", *TOKENS, [realm], _PAGE_PARTITIONS):
            self._requests.write([Request("drop", key) for key in dict.fromkeys(page)])
        return True

    def _changed(self, title: str, *values: object) -> Swapped | Conflict:
        answer = self._requests.change(Request(title, values))
        return _outcome(answer)


def _outcome(answer: Answer) -> Swapped | Conflict:
    """Return the outcome of a conditional statement from its answer. The answer has the column `[applied]`. If its
    value is false, the answer also has the columns of the existing row."""
    found = dict(zip(answer.columns, answer.rows[0], strict=True))
    if found["[applied]"]:
        return Swapped()
    return Conflict(ReferenceRow(found["version"], found["value"]) if found.get("version") else None)


def _buckets(found: Iterable[T]) -> Iterator[tuple[int, list[T]]]:
    buckets: dict[int, list[T]] = defaultdict(list)
    for each in sorted(found):
        buckets[bucket(each.id)].append(each)
    yield from buckets.items()


def _by_keys(title: str, realm: str, keys: Collection[ObjectKey]) -> list[Request]:
    return [
        Request(title, (realm, place, [tuple(key) for key in chunk]))
        for place, found in _buckets(set(keys))
        for chunk in chunks(found, _KEYS)
    ]


def _check_version(name: str, version: bytes) -> None:
    if not isinstance(version, bytes) or not version:
        raise InputError(
            f"the expected version of reference {name!r} is {version!r}; it must be bytes, and not empty"
        )
