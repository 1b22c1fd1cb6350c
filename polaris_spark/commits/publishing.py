"""Steps 3 and 4 of the commit protocol: rows, then the swap, until it is known whether it took place.

A swap whose outcome is unknown is repeated as it is, with the same version token, which is always safe. It is done if a
repetition succeeds, if the head's version is ours, or if the ancestor of the head at our commit's number is our commit.
It can never be done any more if another version is there and that ancestor is not ours. Once in doubt, no error of the
database may be passed on as "nothing was changed".
"""

from __future__ import annotations

from enum import Enum

import msgspec

from polaris_spark.backends.base import Conflict, ReferenceRow, Swapped, fits_transaction
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import CorruptionError, OutcomeUnknownError, TryAgainError
from polaris_spark.store.objects import ObjectStore

encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class Outcome(Enum):
    """What came of one try to publish a commit."""

    COMMITTED = "it is in force"
    LOST = "another commit came first; this one is not in force and never will be"
    BUSY = "nothing was changed as yet; try again"
    IN_DOUBT = "it may be in force, or come into force; try again to know"


class Publication:
    """One commit on its way into the store. Whoever leads goes on with it; nothing of it is ever taken back."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        base: Snapshot,
        new: Snapshot,
        objects: list[tuple[int, msgspec.Struct]],
    ) -> None:
        """
        Args:
            base: the head to replace.
            new: the head to be.
            objects: every new object, the commit among them.
        """
        self.base = base
        self.new = new
        self.in_doubt = False
        """Whether it may be in force, or come into force, as far as is known."""
        self.cause: Exception | None = None
        """Why the last try was not conclusive."""
        self._rows = store.rows(objects)
        self._row = ReferenceRow(new.version, encode_head(new.head))
        self._store = store
        self._name = name
        self._together = fits_transaction(store.backend, self._rows)
        self._rows_written = False
        self._lost = self._remembered = False

    def remember(self) -> None:
        """Let readers in this process find the new objects without asking the database."""
        if not self._remembered:
            self._store.remember(self._rows)
            self._remembered = True

    def write_rows(self) -> None:
        """Write the objects, where that is apart from the swap. May be repeated.

        Raises:
            TryAgainError, OutcomeUnknownError: from the database. Nothing points to the rows as yet, so that nothing
                was changed in either case.
        """
        if not self._together and not self._rows_written:
            self._store.backend.write_objects(self._store.realm, self._rows)
            self._rows_written = True

    def publish(self) -> Outcome:
        """Try once to write the objects and to swap the reference.

        Raises:
            OutcomeUnknownError: it is in doubt and can never be known: history was trimmed, or the database fails in
                a way that trying again does not help.
        """
        try:
            self.write_rows()
        except (OutcomeUnknownError, TryAgainError) as error:
            self.cause = error
            return Outcome.BUSY
        doubted = self.in_doubt
        self.in_doubt = True  # whoever goes on after an interrupt does not know how far it came
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
                raise
            raise OutcomeUnknownError(f"a commit of {self._name!r} is in doubt: {error}") from error
        return Outcome.IN_DOUBT if self.in_doubt else Outcome.BUSY

    def _swap(self) -> bool:
        backend, realm, expected = self._store.backend, self._store.realm, self.base.version
        outcome: Swapped | Conflict
        if self._together:
            outcome = backend.write_and_swap(realm, self._rows, self._name, expected, self._row)
        else:
            outcome = backend.swap_reference(realm, self._name, expected, self._row)
        return isinstance(outcome, Swapped)

    def _happened(self) -> bool:
        """After a conflict of a repeated swap: did an earlier try of it succeed?"""
        row = self._store.backend.read_reference(self._store.realm, self._name)
        if row is None:
            raise CorruptionError(f"reference {self._name!r} vanished")
        if row.version == self.new.version:
            return True
        current = read_head(row, self._name)
        if current.number < self.new.head.number:
            return False
        return ancestor(self._store, current, self.new.head.number) == self.new.head.commit


def read_head(row: ReferenceRow, name: str) -> Head:
    """The value of a reference row that holds commits.

    Raises:
        CorruptionError: it cannot be decoded.
    """
    try:
        return _decode_head(row.value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"reference {name!r} cannot be decoded: {error}") from error
