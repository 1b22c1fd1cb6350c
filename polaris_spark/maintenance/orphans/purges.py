"""Purges that were left to maintenance: files of tables that were dropped with PURGE.

`DROP TABLE ... PURGE` deletes a table's files at once where it is soon known that nothing else may need them. Else, and
if that was interrupted, the drop's log entry says that they are to go. They go once the drop is older than grace and no
live or recoverable head of the store needs them; a log entry of its own then says that they are gone: of the entity
that was dropped, and when. A drop that is trimmed away from history before that leaves orphans, which `search`
finds.

The argument for safety is that of `search`, but for age: what a table named when it was dropped with PURGE is
not young. Files go in the order of their ranks, so that an interrupted run finds the rest again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from polaris_spark.catalog.drops import Damage, Drop, drops_of, logged
from polaris_spark.catalog.entities import CatalogChange, Context
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import Folders, repeated
from polaris_spark.catalog.rows import NAMES
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State, StoredObjects
from polaris_spark.errors import BadRequestError
from polaris_spark.maintenance.needs import EVERYWHERE, needs_of
from polaris_spark.maintenance.orphans.contents import contents_of_drops
from polaris_spark.store.objects import ObjectStore

PURGED = "purge-table"
"""Action of the log entry which says that the files of a dropped table are gone."""

_DROPPED_AT = "dropped-at"
"""In the summary of such an entry: time of the drop, milliseconds since 1970. Branches may drop one table each."""

_LOOKS = 16
"""How many files are looked for at once."""


class Pending(NamedTuple):
    """A drop whose files are still to be deleted."""

    head: StoreHead
    """Of a branch whose history has it."""
    drop: Drop
    places: tuple[str, ...]
    """Locations that the table owned."""


class Kept(NamedTuple):
    """A drop whose files stay, or a part of the log that cannot be read: it may have others."""

    owner: str
    places: tuple[str, ...]
    why: str


class Purges(NamedTuple):
    """What is to be done about drops."""

    there: list[Pending]
    """Those whose files are to be deleted."""
    gone: list[Pending]
    """Those of whose metadata nothing is left: only a record is missing."""
    kept: list[Kept]


def pending(heads: Iterable[StoreHead], store: ObjectStore, files: Files, *, oldest_ms: int) -> Purges:
    """Drops with PURGE that are older than a time and not yet recorded as carried out.

    Args:
        heads: branches of one catalog.
        oldest_ms: milliseconds since 1970; later drops have to wait.
    """
    found: dict[tuple[int, int], tuple[StoreHead, Drop]] = {}
    done: set[tuple[int, int]] = set()
    purges = Purges([], [], [])
    for head in heads:
        done |= _recorded(store, head)
        for drop in drops_of(store, head):
            if isinstance(drop, Damage):
                purges.kept.append(Kept(drop.owner, (), drop.problem))
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
                purges.kept.append(Kept(drop.owner, places, needs.problem or "gc.enabled is false"))
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
    except (OSError, ValueError, BadRequestError):  # nobody can say: whoever deletes it will
        return True


class RecordPurges(CatalogChange[None]):
    """Say in the log that the files of dropped tables are gone."""

    action = PURGED

    def __init__(self, context: Context, operation: Operation, drops: Sequence[Drop]) -> None:
        super().__init__(context, operation)
        self._drops = drops

    def apply(self, state: State, prepared: object) -> None:
        assert isinstance(prepared, int)
        for drop in self._drops:
            # Another table may have the name by now; nothing changes of it.
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
