"""Purges that were left to maintenance: files of tables that were dropped with PURGE.

`DROP TABLE ... PURGE` deletes a table's files at once if it is quickly known that no other table may need them.
Otherwise, or if this was interrupted, the drop's log entry says that the files are still to be deleted. Maintenance
deletes them once the drop is older than the grace period and no live or recoverable head of the store needs them. Then
a separate log entry records the dropped entity and the time of its drop. If a drop is trimmed away from history before
that, its files become orphans, which `search` finds.

The safety argument is that of `search`, except for the age of files: files that a table named when it was dropped with
PURGE are not young. Files are deleted in the order of their ranks, so that after an interruption the next run finds the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from polaris_spark.catalog.drops import Damage, Drop, drops_of, logged
from polaris_spark.catalog.entities import Context, TimedChange
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import Folders, repeated
from polaris_spark.catalog.rows import NAMES
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State, StoredObjects
from polaris_spark.errors import BadRequestError
from polaris_spark.maintenance.needed_files import EVERYWHERE, needs_of
from polaris_spark.maintenance.orphans.contents import contents_of_drops
from polaris_spark.store.objects import ObjectStore

PURGED = "purge-table"
"""Action of the log entry that records that the files of a dropped table are deleted."""

_DROPPED_AT = "dropped-at"
"""Summary key of that log entry: time of the drop, in milliseconds since 1970. Tells apart drops of one table on
several branches."""

_LOOKS = 16
"""Number of files whose existence is checked at a time."""


class Pending(NamedTuple):
    """A drop whose files are still to be deleted."""

    head: StoreHead
    """Head of a branch whose history contains the drop."""
    drop: Drop
    places: tuple[str, ...]
    """Locations that the table owned."""


class KeptDrop(NamedTuple):
    """A drop whose files stay, or an unreadable part of the log, which may contain more drops."""

    owner: str
    places: tuple[str, ...]
    why: str


class Purges(NamedTuple):
    """Drops with PURGE, by the work that is left for them."""

    there: list[Pending]
    """Drops whose files are to be deleted."""
    gone: list[Pending]
    """Drops whose metadata files, statistics files and manifest lists are all gone: only the record is missing."""
    kept: list[KeptDrop]
    """Drops whose files must stay, and unreadable parts of logs."""


def pending(heads: Iterable[StoreHead], store: ObjectStore, files: Files, *, oldest_ms: int) -> Purges:
    """Return the drops with PURGE that are older than a time and not yet recorded as carried out.

    Args:
        heads: heads of the branches of one catalog.
        oldest_ms: time up to which drops count, in milliseconds since 1970; later drops have to wait.
    """
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
            one = Pending(head, drop, needs.places)
            (purges.there if any(look) else purges.gone).append(one)
    return purges


def _recorded(store: ObjectStore, head: StoreHead) -> set[tuple[int, int]]:
    entries = (found[1] for found in logged(store, head) if not isinstance(found, Damage))
    return {(entry.entity, int(entry.summary[_DROPPED_AT])) for entry in entries if entry.action == PURGED}


def _is_there(folders: Folders, location: str) -> bool:
    try:
        return repeated(lambda: folders.file(location)) is not None
    except (OSError, ValueError, BadRequestError):  # unknown; deleting the file will show
        return True


class RecordPurges(TimedChange[None]):
    """Change that records in the log that the files of dropped tables are deleted."""

    action = PURGED

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
    purged: Iterable[Pending], commit: Callable[[str, RecordPurges], None], context: Context, principal: str
) -> None:
    """Record drops as carried out, in one commit for each branch."""
    by_reference: dict[str, list[Drop]] = {}
    for one in purged:
        by_reference.setdefault(one.head.reference, []).append(one.drop)
    for reference, drops in by_reference.items():
        commit(reference, RecordPurges(context, Operation(b"", principal), drops))
