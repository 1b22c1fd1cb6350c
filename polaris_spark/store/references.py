"""Typed references of one realm: named rows that change by compare-and-swap."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from polaris_spark.backends.base import Backend, Conflict, ObjectRow, ReferenceRow, Swapped, fits_transaction
from polaris_spark.errors import CorruptionError, NewerFormatError, OutcomeUnknownError, StateError

V = TypeVar("V")
_encode = msgspec.msgpack.Encoder().encode


_random_bytes: Callable[[int], bytes] = os.urandom


def new_version() -> bytes:
    """Return a new version token for the row of a reference: 16 random bytes from the kernel, different in forked
    processes."""
    return _random_bytes(16)


@contextlib.contextmanager
def versions_from(source: Callable[[int], bytes]) -> Iterator[None]:
    """Return a context manager. Within its block, every version token of this process comes from `source`, so that
    simulations can be replayed."""
    global _random_bytes
    before, _random_bytes = _random_bytes, source
    try:
        yield
    finally:
        _random_bytes = before


class Versioned(NamedTuple, Generic[V]):
    """A reference as it was read: its version, which the next swap must expect, and its value."""

    version: bytes
    value: V


class ReferenceStore:
    """Reads and changes the references of one realm. Thread-safe; nothing is cached."""

    def __init__(self, backend: Backend, realm: str) -> None:
        """
        Args:
            backend: where the rows are.
            realm: instance id of the realm.
        """
        self.backend = backend
        self.realm = realm

    def read(self, name: str, cls: type[V]) -> Versioned[V] | None:
        """Return the present version and value of a reference, or None if the reference does not exist.

        Raises:
            CorruptionError: the value cannot be decoded as `cls`.
        """
        row = self.backend.read_reference(self.realm, name)
        return None if row is None else self.decode(name, row, cls)

    def row(self, value: object, version: bytes | None = None) -> ReferenceRow:
        """Encode a value and return the row to insert or to swap in, with a fresh version if `version` is None.

        To repeat a swap whose outcome is unknown, use the *same* row again.
        """
        return ReferenceRow(version or new_version(), _encode(value))

    def decode(self, name: str, row: ReferenceRow, cls: type[V]) -> Versioned[V]:
        """Decode a row, such as the row in a `Conflict`, and return its version and value.

        Raises:
            CorruptionError: the value cannot be decoded as `cls`.
            NewerFormatError: the value has fields that are unknown here, and `cls` forbids them.
        """
        try:
            return Versioned(row.version, _decoder(cast("Hashable", cls)).decode(row.value))
        except GARBLED as error:
            raise unreadable(error, f"the value of reference {self.realm}/{name}", cls) from error

    def rows(self) -> Iterator[tuple[str, ReferenceRow]]:
        """Yield (name, row) of every reference. Reads all rows of the realm."""
        for split in self.backend.splits("references", [self.realm], 1):
            for batch in self.backend.scan(split):
                columns = (batch.column(name).to_pylist() for name in ("name", "version", "value"))
                for name, version, value in zip(*columns, strict=True):
                    yield name, ReferenceRow(version, value)

    def names(self) -> set[str]:
        """Return the names of all references. Reads all rows of the realm."""
        return {name for name, _ in self.rows()}

    def insert(self, name: str, new: ReferenceRow) -> Swapped | Conflict:
        """Insert a row if no row of this name exists. Return `Swapped`, or `Conflict` if one exists."""
        return self.backend.insert_reference(self.realm, name, new)

    def swap(self, name: str, expected_version: bytes, new: ReferenceRow) -> Swapped | Conflict:
        """Replace the row if its version is `expected_version`, and return `Swapped`. Otherwise return `Conflict`."""
        return self.backend.swap_reference(self.realm, name, expected_version, new)

    def write_and_swap(
        self, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        """Write objects and swap the reference, in one transaction if the database supports this for these rows.
        Otherwise write the objects first, then swap."""
        if fits_transaction(self.backend, rows):
            return self.backend.write_and_swap(self.realm, rows, name, expected_version, new)
        self.backend.write_objects(self.realm, rows)
        return self.backend.swap_reference(self.realm, name, expected_version, new)

    def delete(self, name: str, expected_version: bytes) -> Swapped | Conflict:
        """Delete the row if its version is `expected_version`, and return `Swapped`. Otherwise return `Conflict`."""
        return self.backend.delete_reference(self.realm, name, expected_version)

    def put(self, name: str, expected_version: bytes | None, new: ReferenceRow, *, attempts: int = 5) -> bool:
        """Insert a row (if `expected_version` is None) or swap it, and repeat this while the outcome is unknown.

        Return True if this call wrote the row. After a conflict, return True only if the row now has the version of
        `new`, because then an earlier attempt succeeded.

        Use this only for rows whose value is replaced only by the owner of that value (leases, realm records, tasks).
        If such a row has another version after a conflict, the new row either was never written or has already been
        replaced. In both cases its value is not in force, so False is right.

        Raises:
            OutcomeUnknownError: the outcome is still unknown after `attempts` attempts.
        """
        for attempt in range(1, attempts + 1):
            try:
                outcome = self._insert_or_swap(name, expected_version, new)
            except OutcomeUnknownError:
                if attempt == attempts:
                    raise
                continue
            if isinstance(outcome, Swapped):
                return True
            current = outcome.current or self.backend.read_reference(self.realm, name)
            return current is not None and current.version == new.version
        raise OutcomeUnknownError(
            f"it is unknown whether reference {self.realm}/{name} was written: read it again"
        )

    def _insert_or_swap(
        self, name: str, expected_version: bytes | None, new: ReferenceRow
    ) -> Swapped | Conflict:
        if expected_version is None:
            return self.insert(name, new)
        return self.swap(name, expected_version, new)


GARBLED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding raises for bytes that are not an encoded value of the wanted type."""


def unreadable(error: Exception, what: str, cls: type) -> CorruptionError | StateError:
    """Return the error to raise for a value that cannot be decoded as `cls`.

    It is a NewerFormatError if the value only has more fields than `cls`. A struct forbids this by
    `forbid_unknown_fields` if this release writes changed copies of its values: a copy would lose the fields.

    Args:
        error: the exception that the decoder raised, one of `GARBLED`.
        what: name of the value, for the message.
    """
    if isinstance(error, msgspec.ValidationError) and _UNKNOWN_FIELD.search(str(error)):
        return NewerFormatError(
            f"{what} has fields that this release does not know ({error}); nothing was changed: install the release "
            "that wrote it, or a later one"
        )
    return CorruptionError(f"{what} cannot be decoded as {cls.__name__}: {error}")


_UNKNOWN_FIELD: Final = re.compile("^Object contains unknown field|^Expected `array` of at most length")
"""Beginning of the messages of msgspec for values with more fields than the struct."""


@cache
def _decoder(cls: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cls)
