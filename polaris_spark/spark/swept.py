"""Rows that a sweep took while they were being read, told apart from rows that are lost.

A read is pinned to heads that were read when it was planned. What they lead to stays for as long as history is kept
(`history-retention`), and no sweep is waited for. So a row that is missing is lost only if no sweep came in between:
each one fences the registry of references before it deletes anything (`maintenance.sweeping`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from polaris_spark.commits.publishing import read_head
from polaris_spark.errors import HistoryTrimmedError, MissingObjectError, RealmStateError, ReferenceGoneError
from polaris_spark.spark.reading import ReadStore
from polaris_spark.system.registry import ROOT

T = TypeVar("T")


class Begun(NamedTuple):
    """A realm as it was before a read of it was planned."""

    name: str
    instance: str
    fence: int
    """Of the registry of references."""


def begun(store: ReadStore, realm: str) -> Begun | None:
    """The realm of that name before its heads are read; None if it does not serve, so that it has none."""
    try:
        reader = store.realm(realm)
        return Begun(realm, reader.store.realm, reader.root().fence)
    except (RealmStateError, ReferenceGoneError):
        return None


@contextmanager
def sweeps_told(store: ReadStore, before: Begun | None) -> Iterator[None]:
    """Say of an object that is missing that a sweep took it, if one came since the read was planned.

    Raises:
        HistoryTrimmedError: one came.
        RealmStateError: the realm was purged.
        MissingObjectError: no sweep came: the object is lost.
    """
    try:
        yield
    except MissingObjectError as error:
        if before is None:
            raise
        row = store.backend.read_reference(before.instance, ROOT)
        if row is None:
            raise RealmStateError(f"realm {before.name!r} was purged while it was being read") from error
        if read_head(row, ROOT).fence == before.fence:
            raise
        raise HistoryTrimmedError(
            f"{error}: history of realm {before.name!r} was trimmed and swept while it was being read, because the "
            "read took longer than history is kept; read again, and keep history for longer than reads take "
            "(history-retention). If a new read fails as well, the object is lost: fsck shows what is damaged"
        ) from error


def with_new_heads(plan: Callable[[], T]) -> T:
    """What is planned from heads that `plan` reads; once more where an object is missing, which a sweep may have taken
    since then. The heads are newer now: what they need is lost if it is missing.

    Raises:
        MissingObjectError: an object is lost.
    """
    try:
        return plan()
    except MissingObjectError:
        return plan()
