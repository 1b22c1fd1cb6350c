"""Steps 5 and 6 of the commit protocol: write the rows, then repeat the swap of the reference's row until its outcome
is known.

A swap whose outcome is unknown is repeated unchanged, with the same version token. This is always safe. The swap has
taken place if a repetition succeeds, if the head has the version of this swap, or if the commit with this commit's
number in the head's history is this commit. The swap can no longer take place if the head has another version and the
commit with this commit's number in its history is another commit. While it is unknown whether the commit took place, no
error of the database may be reported as "nothing was changed".
"""

from __future__ import annotations

from enum import Enum

import msgspec

from polaris_spark.backends.base import Conflict, ReferenceRow, Swapped, fits_transaction
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError, OutcomeUnknownError, TryAgainError
from polaris_spark.objects import ObjectRow
from polaris_spark.store.objects import ObjectRows, ObjectStore
from polaris_spark.store.references import GARBLED, unreadable

encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class Outcome(Enum):
    """Outcome of one attempt to publish a commit."""

    COMMITTED = "it succeeded"
    LOST = "another commit came first; this one did not succeed and never will"
    BUSY = "nothing was changed so far; try again"
    IN_DOUBT = "it may have succeeded, or may still succeed; try again to find out"


class Publication:
    """One commit that is being written. If another thread becomes the leader of the batch, it can continue the same
    publication. Publishing never deletes rows."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        base: CommitReader,
        new: CommitReader,
        objects: list[tuple[int, msgspec.Struct]],
        rows: ObjectRows | None = None,
    ) -> None:
        """
        Args:
            base: the head that the commit replaces.
            new: the head that the commit produces.
            objects: (id, value) of every new object, including the commit.
            rows: rows of further new objects.
        """
        self.base = base
        self.new = new
        self.in_doubt = False
        """Whether it is unknown if the commit took place: it may have taken place or may still take place."""
        self.current: ReferenceRow | None = None
        """The row that the last attempt found instead, if the database returned it."""
        self.cause: Exception | None = None
        """Error of the last attempt whose outcome was `BUSY` or `IN_DOUBT`."""
        self.rows = store.rows(objects)
        """The rows of the new objects."""
        if rows is not None:
            self.rows += rows
            self.rows.decoded += rows.decoded
        self.row = ReferenceRow(new.version, encode_head(new.head))
        """The reference's new row."""
        self._store = store
        self._name = name
        self._written: list[ObjectRow] = self.rows
        """All rows to write."""
        self._together = fits_transaction(store.backend, self._written)
        """Whether to write the rows in one transaction with the swap."""
        self._rows_written = False
        self._lost = self._remembered = False

    def add_rows(self, rows: list[ObjectRow]) -> None:
        """Add rows to write that readers in this process do not need."""
        self._written = [*self.rows, *rows]
        self._together = fits_transaction(self._store.backend, self._written)

    def remember(self) -> None:
        """Put the new objects into the cache of this process, so that readers need not query the database."""
        if not self._remembered:
            self._store.remember(self.rows)
            self._remembered = True

    def write_rows(self) -> None:
        """Write the objects, unless they are written in one transaction with the swap. May be repeated.

        Raises:
            TryAgainError, OutcomeUnknownError: from the database. No reference points to the rows yet, so nothing was
                changed in either case.
        """
        if not self._together and not self._rows_written:
            self._store.backend.write_objects(self._store.realm, self._written)
            self._rows_written = True

    def publish(self) -> Outcome:
        """Try once to write the objects and to swap the reference. Return the outcome.

        Raises:
            OutcomeUnknownError: it is not known whether the commit took place, and trying again cannot show it: the
                history was trimmed, or the database fails permanently.
        """
        try:
            self.write_rows()
        except (OutcomeUnknownError, TryAgainError) as error:
            self.cause = error
            return Outcome.BUSY
        doubted = self.in_doubt
        self.in_doubt = True  # after an interrupt, the next leader cannot know whether the swap was sent
        try:
            if not self._lost:
                if self._swap():
                    return Outcome.COMMITTED
                if not doubted:
                    return Outcome.LOST
                self._lost = True
            return Outcome.COMMITTED if self._happened() else Outcome.LOST
        except OutcomeUnknownError as error:
            self.cause = error
        except TryAgainError as error:
            self.in_doubt, self.cause = doubted, error
        except Exception as error:
            if not doubted:
                self.in_doubt = False
                raise
            raise OutcomeUnknownError(
                f"it is not known whether a commit to {self._name!r} took place: {error}; before you repeat the "
                "change, check the log for it"
            ) from error
        return Outcome.IN_DOUBT if self.in_doubt else Outcome.BUSY

    def _swap(self) -> bool:
        backend, realm, expected = self._store.backend, self._store.realm, self.base.version
        outcome: Swapped | Conflict
        if self._together:
            outcome = backend.write_and_swap(realm, self._written, self._name, expected, self.row)
        else:
            outcome = backend.swap_reference(realm, self._name, expected, self.row)
        if isinstance(outcome, Conflict):
            self.current = outcome.current
        return isinstance(outcome, Swapped)

    def _happened(self) -> bool:
        """Return True if an earlier attempt of this swap succeeded. Called after a repeated swap had a conflict."""
        row = self._store.backend.read_reference(self._store.realm, self._name)
        if row is None:
            raise CorruptionError(
                f"the row of reference {self._name!r} existed when this commit began, and is now missing: either the "
                "realm was purged, or the row was lost (then run recover)"
            )
        if row.version == self.new.version:
            return True
        self.current = row
        current = read_head(row, self._name)
        if current.number < self.new.head.number:
            return False
        return ancestor(self._store, current, self.new.head.number) == self.new.head.commit


def read_head(row: ReferenceRow, name: str) -> Head:
    """Decode a reference's row and return its head. `name` is the row's name, for error messages.

    Raises:
        CorruptionError: the value cannot be decoded.
        NewerFormatError: a newer release wrote the row, with fields that are unknown here.
    """
    try:
        return _decode_head(row.value)
    except GARBLED as error:
        raise unreadable(error, f"the row of reference {name!r}", Head) from error
