"""Distinguishes rows that a sweep deleted during a read from rows that are lost.

A read is pinned to the heads that planning read. Rows reachable from these heads stay for as long as history is kept
(`history-retention`), and a sweep does not wait for reads. A missing row is therefore lost only if no sweep ran since
planning: each sweep fences the registry of references before it deletes anything (`maintenance.sweep_roots`).
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
    """Fence in the row of the registry of references."""


def begun(store: ReadStore, realm: str) -> Begun | None:
    """Return the state of a realm; None if the realm is not ACTIVE or has no registry of references.

    Call this before reading the realm's heads.
    """
    try:
        reader = store.realm(realm)
        return Begun(realm, reader.store.realm, reader.root().fence)
    except (RealmStateError, ReferenceGoneError):
        return None


@contextmanager
def sweeps_told(store: ReadStore, before: Begun | None) -> Iterator[None]:
    """Make the `with` block raise `HistoryTrimmedError` for a missing object if a sweep ran since the read was planned.

    Raises:
        HistoryTrimmedError: an object is missing, and a sweep ran.
        RealmStateError: an object is missing, and the realm was purged.
        MissingObjectError: an object is missing, and no sweep ran or `before` is None: the object is lost.
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
            f"{error}: history of realm {before.name!r} was trimmed and swept while it was being read, because the "
            "read took longer than history is kept; read again, and keep history for longer than reads take "
            "(history-retention). If a new read fails as well, the object is lost: fsck shows what is damaged"
        ) from error


def with_new_heads(plan: Callable[[], T]) -> T:
    """Return the result of `plan`, which reads heads; call `plan` a second time if an object is missing.

    A sweep may have deleted the object after the first call had read the heads. The second call reads newer heads, so
    an object that is missing then is lost.

    Raises:
        MissingObjectError: an object is lost.
    """
    try:
        return plan()
    except MissingObjectError:
        return plan()
