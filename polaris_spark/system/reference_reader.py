"""Reading of a realm's references without writing: no row is written, no lease is taken, and no head is cached.

Opening a reference in order to commit to it (`registry`) writes the row of the reference if the row is missing. The
reader in this module returns the reference's first head instead, and its caller decides what happens if the row was
lost.
"""

from __future__ import annotations

from collections.abc import Callable

from polaris_spark.backends.base import Backend
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registrations import REFERENCES, ROOT, Registered, listed_in


def head_in_row(backend: Backend, realm: str, row_name: str) -> Head | None:
    """Return the head in the row of a reference; None if there is no row.

    Args:
        realm: instance id of the realm.
    Raises:
        CorruptionError: the row cannot be decoded.
    """
    row = backend.read_reference(realm, row_name)
    return None if row is None else read_head(row, row_name)


class ReferenceReader:
    """Reader of the references of one realm. Thread-safe. Nothing is cached: every method reads the rows again."""

    def __init__(self, store: ObjectStore, *, missing: Callable[[Registered], None] | None = None) -> None:
        """
        Args:
            missing: called with a live reference that has no row. It should raise an error if the row was lost, and
                return if the row was never written. If it returns, the row is read again. If `missing` is None, missing
                rows are accepted.
        """
        self.store = store
        self._missing = missing

    def head(self, row_name: str) -> Head | None:
        """Return the head in the row of a reference; None if there is no row.

        Raises:
            CorruptionError: the row cannot be decoded.
        """
        return head_in_row(self.store.backend, self.store.realm, row_name)

    def head_of(self, registered: Registered) -> Head:
        """Return the newest head of a registered reference, or its first head if it has no row.

        The head of a dropped reference is sealed, unless the process that dropped it has not sealed its row yet.
        """
        head = self.head(registered.row_name)
        if head is None and self._missing is not None and registered.registration.state == "live":
            self._missing(registered)
            head = self.head(registered.row_name)
        dropped = registered.registration.state == "dropped"
        return registered.first_head(sealed=dropped) if head is None else head

    def registry(self) -> CommitReader | None:
        """Return the newest commit of the registry; None if the realm has no registry yet."""
        head = self.head(ROOT)
        return None if head is None else self.open(head)

    def listed(self) -> list[Registered]:
        """Return all registrations, live and dropped, ordered by name; none if the realm has no registry."""
        registry = self.registry()
        return [] if registry is None else listed_in(registry.index(REFERENCES))

    def open(self, head: Head) -> CommitReader:
        """Return a reader of the commit that a head points to."""
        return CommitReader(self.store, b"", head, self.store.get(head.commit, Commit))
