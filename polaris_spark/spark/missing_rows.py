"""Find out why a row is missing: a sweep (garbage collection) deleted it during a read, or it was lost by a fault.

A read uses the heads (newest commits) that planning found. Rows reachable from these heads are kept for the time
`history-retention`; a sweep does not wait for reads that take longer. If no sweep ran since planning, a missing row is
lost. Each sweep writes a new id (the fence) into the row of the registry of references before it deletes anything, so a
changed fence shows that a sweep ran (`maintenance.sweep_roots`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from polaris_spark.errors import HistoryTrimmedError, MissingObjectError, RealmStateError, ReferenceGoneError
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.system.reference_reader import head_in_row
from polaris_spark.system.registry import ROOT

T = TypeVar("T")


class Begun(NamedTuple):
    """The state of a realm before a read was planned."""

    name: str
    instance: str
    fence: int
    """Id in the row of the registry of references. Each sweep replaces it before deleting rows."""


def begun(store: ReadStore, realm: str) -> Begun | None:
    """Return the current state of a realm; None if the realm is not ACTIVE or has no registry of references.

    Call this before planning reads the heads of the realm's references.
    """
    try:
        reader = store.realm(realm)
        return Begun(realm, reader.store.realm, reader.root().fence)
    except (RealmStateError, ReferenceGoneError):
        return None


@contextmanager
def sweeps_told(store: ReadStore, before: Begun | None) -> Iterator[None]:
    """If an object turns out to be missing in the `with` block, raise an error that says why it is missing.

    Args:
        before: the state of the realm before the read was planned.
    Raises:
        HistoryTrimmedError: an object is missing, and a sweep (garbage collection) ran since the read was planned.
        RealmStateError: an object is missing, and the realm was purged.
        MissingObjectError: an object is missing, and no sweep ran, so the object is lost; or `before` is None.
    """
    try:
        yield
    except MissingObjectError as error:
        if before is None:
            raise
        head = head_in_row(store.backend, before.instance, ROOT)
        if head is None:
            raise RealmStateError(f"realm {before.name!r} was purged while it was being read") from error
        if head.fence == before.fence:
            raise
        raise HistoryTrimmedError(
            f"{error}: old history of realm {before.name!r} was trimmed and deleted during the read, because the read "
            "took longer than history is kept; read again, and increase history-retention so that history is kept for "
            "longer than a read takes. If a new read fails too, the object is lost: fsck shows what is damaged"
        ) from error


def with_new_heads(plan: Callable[[], T]) -> T:
    """Return the result of `plan`, which reads the heads of references. If an object is missing, call `plan` once more.

    A sweep (garbage collection) may have deleted the object after the first call read the heads. The second call reads
    newer heads, so an object that is still missing is lost.

    Raises:
        MissingObjectError: an object is lost.
    """
    try:
        return plan()
    except MissingObjectError:
        return plan()
