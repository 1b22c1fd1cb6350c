"""The storage interface: what a database must offer to hold a catalog.

Two tables. `objects` holds immutable rows `(realm, id, part) -> value`; `references` holds mutable rows
`(realm, name) -> (version, value)`. Realms, names and ids are opaque here. All operations are synchronous and
thread-safe. Conditional operations *return* what happened and raise only for trouble; an outcome that is not known
raises `OutcomeUnknownError`. There is no default for any atomic operation, and nothing is kept outside the database.
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
"""The longest realm or reference name, in UTF-8 bytes."""

Scope = Literal["process", "writer", "machine", "cluster"]
Table = Literal["objects", "references"]


class ObjectKey(NamedTuple):
    """Key of a row of `objects` within a realm: a 63-bit id, and a part number from 0."""

    id: int
    part: int = 0


class ReferenceRow(NamedTuple):
    """A row of `references`: a version token never used twice, and the value it guards."""

    version: bytes
    value: bytes


class Swapped(NamedTuple):
    """A conditional operation took place."""


class Conflict(NamedTuple):
    """A conditional operation did not take place; `current` is the row found, if the database gave it for free."""

    current: ReferenceRow | None = None


class Split(NamedTuple):
    """A small picklable range of a scan; `detail` is the backend's own business."""

    table: Table
    detail: tuple[object, ...]


class Backend(ABC):
    """One database. Opened by `open_backend(uri, options)` of its module."""

    scope: ClassVar[Scope]
    """Who can open the same store at the same time: one process; one process to write and the others of its machine to
    read (`writer`); the processes of one machine; or a cluster."""

    @abstractmethod
    def setup(self) -> None:
        """Create the two tables if they are missing; safe to repeat and to race."""

    @abstractmethod
    def close(self) -> None:
        """Release connections; later calls raise. Closing twice is allowed."""

    @abstractmethod
    def read_objects(self, realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        """The rows that exist among `keys`; a row once acknowledged is always found until deleted."""

    @abstractmethod
    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        """Store rows durably. Repeating the same rows changes nothing; partial success is possible on an error."""

    @abstractmethod
    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        """Delete rows; missing ones are no error. May be repeated."""

    @abstractmethod
    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        """The latest row (linearizable with swaps), or None. An empty value differs from an absent row."""

    @abstractmethod
    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        """Put the row if there is none, atomically."""

    @abstractmethod
    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        """Replace the row if its version is `expected_version`, atomically; a missing row is a conflict."""

    @abstractmethod
    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        """Delete the row if its version is `expected_version`, atomically; a missing row is a conflict."""

    @abstractmethod
    def splits(self, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
        """About `n` ranges that together cover every row of `table` (of `realms`, or of all) exactly once."""

    @abstractmethod
    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Rows of a split. `objects`: realm string, id int64, part int32, value binary. `references`: realm string,
        name string, version binary, value binary. Rows written or deleted during the scan may or may not appear."""

    def scan_sizes(self, split: Split, start: int) -> Iterator[pa.RecordBatch]:
        """Rows of a split of `objects` without their values: realm string, id int64, part int32, size int64 (bytes of
        the value), start binary (as many of its first bytes; of a shorter value all)."""
        from polaris_spark.backends.arrow import sizes

        return (sizes(batch, start) for batch in self.scan(split))

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        """Rows and swap in one transaction: both or neither. Only where `transactional` is true."""
        raise NotImplementedError(f"{type(self).__name__} has no transactions")

    transactional: ClassVar[bool] = False
    """Whether `write_and_swap` is offered."""

    transaction_rows: ClassVar[int] = 100_000
    """Most rows that `write_and_swap` is asked to take; where there are more, rows are written first, then swapped."""

    transaction_bytes: ClassVar[int] = 8 * 2**20
    """The same for the bytes of their values."""

    def now_ms(self) -> int | None:
        """The time of the database server's clock, in milliseconds since 1970, by one cheap request. None if the
        database has no clock other than this machine's."""
        return None

    def drop_realm(self, realm: str) -> bool:
        """Delete every row of a realm in bulk; False where the database cannot (rows are then deleted by scan)."""
        return False


def fits_transaction(backend: Backend, rows: Sequence[ObjectRow]) -> bool:
    """Whether rows go into one transaction with a swap."""
    return (
        backend.transactional
        and len(rows) <= backend.transaction_rows
        and sum([len(row.value) for row in rows]) <= backend.transaction_bytes
    )
