"""The storage interface: the operations that a database must support to hold a catalog.

A store consists of two tables. `objects` holds immutable rows `(realm, id, part) -> value`. `references` holds mutable
rows `(realm, name) -> (version, value)`. A realm is a separate key space of a store. Realm names, reference names and
ids are opaque to backends.

All operations are synchronous and thread-safe. Conditional operations *return* `Swapped` or `Conflict`, and raise only
for failures. If the outcome is unknown, an operation raises `OutcomeUnknownError`. All state that other processes
need is in the database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from polaris_spark.objects import MAX_ROW_BYTES as MAX_ROW_BYTES
from polaris_spark.objects import ObjectRow as ObjectRow

if TYPE_CHECKING:
    import pyarrow as pa

MAX_NAME_BYTES = 512
"""Maximum length of a realm name or reference name, in bytes of UTF-8."""

Scope = Literal["process", "writer", "machine", "cluster"]
Table = Literal["objects", "references"]


class ObjectKey(NamedTuple):
    """Key of a row of the table `objects` within a realm: a 63-bit id, and a part number that starts at 0."""

    id: int
    part: int = 0


class ReferenceRow(NamedTuple):
    """A row of the table `references`: a version token, and a value.

    The caller makes the version token (`store.references.new_version`), and never uses one twice.
    """

    version: bytes
    value: bytes


class Swapped(NamedTuple):
    """Result of a conditional operation whose condition was met: the change was made."""


class Conflict(NamedTuple):
    """Result of a conditional operation whose condition was not met: nothing was changed. `current` is the existing
    row; None if there is no row, or if the backend would need another request to read it."""

    current: ReferenceRow | None = None


class Split(NamedTuple):
    """A range of rows that one call of `scan` reads. It is small and picklable. `detail` describes the range in a
    format that only the backend interprets."""

    table: Table
    detail: tuple[object, ...]


class Backend(ABC):
    """One store in a database, opened by `open_backend(uri, options)` of the backend's module."""

    scope: ClassVar[Scope]
    """Which processes can have the same store open at the same time. `process`: one process. `writer`: one process that
    writes, and any number of processes on the same machine that only read. `machine`: any number of processes on one
    machine. `cluster`: any number of processes on any number of machines."""

    @abstractmethod
    def setup(self) -> None:
        """Create the two tables if they are missing. Idempotent, and safe if several processes call it at the same
        time."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Later operations raise an error; closing twice is allowed."""

    @abstractmethod
    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        """Return the values of the rows that exist among `keys`, by key. A row whose write was acknowledged is always
        found until it is deleted."""

    @abstractmethod
    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        """Store rows durably. Writing the same rows again changes nothing. If this raises an error, some of the rows
        may have been written."""

    @abstractmethod
    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        """Delete rows. Missing rows are not an error. Idempotent."""

    @abstractmethod
    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        """Return the latest row, or None if no row of that name exists. (An empty value is not the same as a missing
        row.) Reads and swaps are linearizable."""

    @abstractmethod
    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        """Insert the row atomically if no row of that name exists."""

    @abstractmethod
    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        """Replace the row atomically if its version is `expected_version`. A missing row is a conflict."""

    @abstractmethod
    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        """Delete the row atomically if its version is `expected_version`. A missing row is a conflict."""

    @abstractmethod
    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        """Return about `n` ranges of rows of `table`. Together they contain every row of `realms` (None: of all realms)
        exactly once."""

    @abstractmethod
    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split in record batches. Columns of `objects`: realm string, id int64, part int32, value
        binary. Columns of `references`: realm string, name string, version binary, value binary. Rows that are written
        or deleted during the scan may or may not appear. A reference that is swapped meanwhile appears once, with one
        of its versions."""

    def scan_sizes(self, split: Split, start: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split of the table `objects` in record batches, with the size of each value and the start
        of the value. Columns: realm string, id int64, part int32, size int64 (size of the value, in bytes), start
        binary (the first `start` bytes of the value, or the whole value if it is shorter)."""
        from polaris_spark.backends.arrow import sizes

        return (sizes(batch, start) for batch in self.scan(split))

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        """Write rows of the table `objects` and swap a reference in one transaction. If the result is `Conflict`, no
        row was written. Call this only if `transactional` is true."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot write rows and swap a reference in one transaction"
        )

    transactional: ClassVar[bool] = False
    """Whether the backend implements `write_and_swap`."""

    transaction_rows: ClassVar[int] = 100_000
    """Maximum number of rows in one call of `write_and_swap`. A commit with more rows calls `write_objects` and then
    `swap_reference` instead."""

    transaction_bytes: ClassVar[int] = 8 * 2**20
    """Maximum total size of the rows' values in one call of `write_and_swap`, in bytes. Keys are not counted. The
    reference's row is not counted, either."""

    def now_ms(self) -> int | None:
        """Return the time of the database server's clock, in milliseconds since 1970. This takes one cheap request.
        Return None if the database has no clock other than this machine's."""
        return None

    def drop_realm(self, realm: str) -> bool:
        """Delete every row of a realm in bulk, and return True. Return False if the backend cannot do this; the caller
        then scans the realm and deletes the rows that the scan returns."""
        return False


def fits_transaction(backend: Backend, rows: Sequence[ObjectRow]) -> bool:
    """Whether the backend has `write_and_swap`, and `rows` are within its limits."""
    return (
        backend.transactional
        and len(rows) <= backend.transaction_rows
        and sum([len(row.value) for row in rows]) <= backend.transaction_bytes
    )
