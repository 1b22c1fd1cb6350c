"""Deletion of the files of tables that were dropped with PURGE, if the drop itself did not delete the files.

`DROP TABLE ... PURGE` deletes a table's files at once if it can quickly find out that no other table may need them.
Otherwise, or if this was interrupted, the drop's log entry says that the files must still be deleted. Maintenance
deletes them when the drop is older than the grace period and no live or recoverable head of the store needs them. It
then adds another log entry, with the dropped table and the time of the drop. If history is trimmed before that, so that
the drop is no longer in it, the files become orphan files, which `search` finds.

The deletion is safe for the reasons given in `search`. Only the rule about the age of files is not needed, because the
files of a dropped table were committed long ago. A file is deleted after the files that it lists, so that after an
interruption the next run finds the remaining files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.drops.drops import Damage, Drop, drops_of, logged
from polaris_spark.catalog.entities.entities import Context, TimedChange
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.folders import Folders, repeated
from polaris_spark.catalog.rows import NAMES
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State, StoredObjects
from polaris_spark.errors import BadRequestError
from polaris_spark.maintenance.needed_files import EVERYWHERE, needs_of
from polaris_spark.maintenance.orphans.contents import contents_of_drops
from polaris_spark.store.objects import ObjectStore

PURGED = "purge-table"
"""Action of the log entry which records that the files of a dropped table have been deleted."""

_DROPPED_AT = "dropped-at"
"""Key in the summary of a `PURGED` log entry. Its value is the time of the drop, in milliseconds since 1970, which
distinguishes drops of the same table on several branches."""

_LOOKS = 16
"""Number of threads that check whether files exist."""


class PendingPurge(NamedTuple):
    """A table that was dropped with PURGE and whose files must still be deleted."""

    head: StoreHead
    """Head of a branch whose history contains the drop."""
    drop: Drop
    places: tuple[str, ...]
    """Locations that the table owned."""


class KeptDrop(NamedTuple):
    """A dropped table whose files must be kept, or an unreadable part of a log, which may contain more drops."""

    owner: str
    places: tuple[str, ...]
    why: str


class Purges(NamedTuple):
    """Tables that were dropped with PURGE, grouped by what remains to be done for them."""

    there: list[PendingPurge]
    """Tables whose files must still be deleted."""
    gone: list[PendingPurge]
    """Tables whose metadata files, statistics files and manifest lists do not exist any more. Only the log entry with
    the action `PURGED` is missing."""
    kept: list[KeptDrop]
    """Tables whose files must be kept, and unreadable parts of logs."""


def pending(heads: Iterable[StoreHead], store: ObjectStore, files: Files, *, oldest_ms: int) -> Purges:
    """Return the tables that were dropped with PURGE and whose files are not recorded as deleted yet.

    Args:
        heads: heads of the branches of one catalog.
        oldest_ms: time in milliseconds since 1970. Tables that were dropped later are left to a later run.
    """
    store = store.for_deleting()
    found: dict[tuple[int, int], tuple[StoreHead, Drop]] = {}
    done: set[tuple[int, int]] = set()
    purges = Purges([], [], [])
    for head in heads:
        done |= _recorded(store, head)
        for drop in drops_of(store, head):
            if isinstance(drop, Damage):
                purges.kept.append(KeptDrop(drop.owner, (), drop.problem))
            elif drop.purge and drop.time <= oldest_ms - head.grace_beyond_ms:
                found.setdefault((drop.entity, drop.time), (head, drop))
    waiting = [one for key, one in found.items() if key not in done]
    folders = Folders(files)
    with ThreadPoolExecutor(_LOOKS) as pool:
        for head, drop in waiting:
            [content] = contents_of_drops(head, store, [drop])
            needs = needs_of(content, StoredObjects(store), files)
            if content.value is None or not needs.collected:
                places = tuple(place for place in needs.places if place != EVERYWHERE)
                purges.kept.append(KeptDrop(drop.owner, places, needs.problem or "gc.enabled is false"))
                continue
            look = pool.map(lambda location: _is_there(folders, location), (*needs.files, *needs.lists))
            one = PendingPurge(head, drop, needs.places)
            (purges.there if any(look) else purges.gone).append(one)
    return purges


def _recorded(store: ObjectStore, head: StoreHead) -> set[tuple[int, int]]:
    entries = (found[1] for found in logged(store, head) if not isinstance(found, Damage))
    return {(entry.entity, int(entry.summary[_DROPPED_AT])) for entry in entries if entry.action == PURGED}


def _is_there(folders: Folders, location: str) -> bool:
    try:
        return repeated(lambda: folders.file(location)) is not None
    except (OSError, ValueError, BadRequestError):  # not known; the deletion will show
        return True


class RecordPurges(TimedChange[None]):
    """Change that adds one log entry for each given dropped table. The entry records that the table's files have been
    deleted."""

    action = PURGED
    onto_protected = True

    def __init__(self, context: Context, operation: Operation, drops: Sequence[Drop]) -> None:
        super().__init__(context, operation)
        self._drops = drops

    def apply(self, state: State, prepared: int) -> None:
        for drop in self._drops:
            # Another table may have the name now; it is not changed.
            entry = state.lookup(NAMES, drop.key)
            content = 0 if entry is None else entry.pointer
            summary = {_DROPPED_AT: str(drop.time)}
            self.record(
                state, prepared, drop.entity, drop.key, before=content, after=content, summary=summary
            )

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


def record(
    purged: Iterable[PendingPurge],
    commit: Callable[[str, RecordPurges], None],
    context: Context,
    principal: str,
) -> None:
    """Record in the log that the files of dropped tables have been deleted, with one commit for each branch.

    Args:
        purged: the tables whose files have been deleted.
        commit: makes a commit, given the name of the branch's reference and the change.
    """
    by_reference: dict[str, list[Drop]] = {}
    for one in purged:
        by_reference.setdefault(one.head.reference, []).append(one.drop)
    for reference, drops in by_reference.items():
        commit(reference, RecordPurges(context, Operation(b"", principal), drops))
