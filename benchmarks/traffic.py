"""Counts of the rows, bytes and round trips between a store and its database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, ReferenceRow


class Traffic:
    """Rows, bytes and round trips since creation or the last `clear`. A transaction counts as one round trip."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all counts to zero."""
        self.round_trips = 0
        self.object_reads = 0
        """Number of batches of objects that were read. Each batch is also counted as a round trip."""
        self.rows_read = 0
        self.bytes_read = 0
        self.rows_written = 0
        """Number of rows written, including swapped references."""
        self.bytes_written = 0
        """Bytes of the values of rows written, without keys and the database's own overhead."""


@contextmanager
def counted(backend: Backend) -> Iterator[Traffic]:
    """Count all operations of a backend while the block runs, by all users of the backend."""
    traffic = Traffic()
    read_objects, read_reference = backend.read_objects, backend.read_reference
    write_objects, swap_reference = backend.write_objects, backend.swap_reference
    write_and_swap = backend.write_and_swap

    def counted_read(realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        found = read_objects(realm, keys)
        traffic.round_trips += 1
        traffic.object_reads += 1
        traffic.rows_read += len(found)
        traffic.bytes_read += sum(map(len, found.values()))
        return found

    def counted_reference(realm: str, name: str) -> ReferenceRow | None:
        found = read_reference(realm, name)
        traffic.round_trips += 1
        traffic.rows_read += found is not None
        traffic.bytes_read += 0 if found is None else len(found.value)
        return found

    def wrote(rows: Sequence[ObjectRow], reference: ReferenceRow | None) -> None:
        traffic.round_trips += 1
        traffic.rows_written += len(rows) + (reference is not None)
        traffic.bytes_written += sum([len(row.value) for row in rows])
        traffic.bytes_written += 0 if reference is None else len(reference.value)

    def counted_write(realm: str, rows: Sequence[ObjectRow]) -> None:
        wrote(rows, None)
        write_objects(realm, rows)

    def counted_swap(realm: str, name: str, expected_version: bytes, new: ReferenceRow) -> Any:
        wrote((), new)
        return swap_reference(realm, name, expected_version, new)

    def counted_both(
        realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Any:
        wrote(rows, new)
        return write_and_swap(realm, rows, name, expected_version, new)

    counting: dict[str, Any] = {
        "read_objects": counted_read,
        "read_reference": counted_reference,
        "write_objects": counted_write,
        "swap_reference": counted_swap,
        "write_and_swap": counted_both,
    }
    for name, method in counting.items():
        setattr(backend, name, method)
    try:
        yield traffic
    finally:
        for name in counting:
            delattr(backend, name)
