"""The record of deleted files: which job deleted which file of which table, at what time, and for which principal.

This record is separate from the catalog's history. It is in the reference `cat/<id>/deletions`, whose index `deletions`
maps a time and an id to a batch of files. A batch is recorded before its files are deleted, so that every deleted file
is recorded. Files that could not be deleted are then recorded again, with the outcome `failed`. Batches older than the
catalog property `history-retention` are removed when new batches are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import ensure_reference
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.change import Change, Operation, Unrepeated
from polaris_spark.commits.state import State
from polaris_spark.index import Entry
from polaris_spark.objects import object_type

DELETIONS: Final = "deletions"
"""Name of the index of the reference `cat/<id>/deletions`. It maps a time and an id to a `DeletedFiles`."""

FILES_OF_A_BATCH: Final = 1_000

_BATCHES_OF_A_COMMIT: Final = 100


class DeletedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that was deleted, or could not be deleted."""

    location: str
    kind: str
    bytes: int
    """Size of the file in bytes; 0 if the size was not known."""


@object_type("deleted-files", revision=1)
class DeletedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some files of one table that a job deleted, or could not delete."""

    time: int
    """Time of the deletion, in milliseconds since 1970."""
    principal: str
    job: str
    entity_id: int
    """Id of the table, which stays the same when the table is renamed."""
    table: str
    outcome: Literal["deleted", "failed"]
    files: tuple[DeletedFile, ...]


def deletions_reference(row: CatalogRow) -> str:
    """Return the name of the reference that holds a catalog's record of deleted files."""
    return f"cat/{row.entity_id:x}/deletions"


class _Record(Unrepeated, Change[None, None]):
    """Change that adds batches of deleted files to the record, and removes batches that are older than `before`: the
    oldest ones, at most `2 * _BATCHES_OF_A_COMMIT` of them."""

    def __init__(self, batches: Sequence[DeletedFiles], before: int, operation: Operation) -> None:
        self.batches = batches
        self.before = before
        self.operation = operation

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> None:
        old = state.scan(DELETIONS, b"", self.before.to_bytes(8, "big"), limit=2 * _BATCHES_OF_A_COMMIT)
        for key, _ in old:
            state.remove(DELETIONS, key)
        for batch in self.batches:
            id = state.add(batch)
            state.put(DELETIONS, batch.time.to_bytes(8, "big") + id.to_bytes(8, "big"), Entry(id))


def record_deletions(
    catalog: Catalog, operation: Operation, batches: Sequence[DeletedFiles], *, keep_ms: int
) -> None:
    """Add batches to a catalog's record of deleted files.

    Each batch lists files that are about to be deleted, or files that could not be deleted.

    Args:
        operation: names the principal.
        batches: batches of at most `FILES_OF_A_BATCH` files each.
        keep_ms: minimum time for which a batch stays in the record, in milliseconds.
    """
    if not batches:
        return
    name = deletions_reference(catalog.row)
    ensure_reference(catalog.references, name, operation)
    before = max(0, catalog.context.clock.now_ms() - keep_ms)
    for start in range(0, len(batches), _BATCHES_OF_A_COMMIT):
        part = batches[start : start + _BATCHES_OF_A_COMMIT]
        catalog.references.commit(name, _Record(part, before, operation))
