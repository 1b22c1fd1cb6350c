"""Tables and views that were dropped or replaced in a history of commits, and whether their files are still kept.

A table that was dropped without PURGE can be restored (`catalog.drops.undrop`) or registered again, so its files are
kept until its drop is trimmed from history. The same is true of a table that was replaced because another table was
registered under its name. A table that was dropped with PURGE can be neither restored nor registered again; its files
are kept only for the grace period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.tables.contents import holdings_of
from polaris_spark.commits.log import ancestor, commits
from polaris_spark.commits.rows import Entries, LogEntry
from polaris_spark.errors import CorruptionError
from polaris_spark.store.objects import ObjectStore, read_each

_READ_TOGETHER = 128
"""Number of commits, or of contents of tables and views, that are read together."""

_TAKES_AWAY = ("drop-table", "drop-view", "register-table", "register-view")


class Drop(NamedTuple):
    """A table or view that was dropped or replaced, according to the log."""

    owner: str
    """Full name of the table or view, for messages."""
    content: int
    time: int
    """Time of the drop, in milliseconds since 1970."""
    purge: bool
    """Whether the table or view was dropped with PURGE, which deletes its files as well."""
    commit: int
    """Number of the commit that dropped or replaced it."""
    entity: int
    key: bytes

    def keeps_files(self, oldest_purge_ms: int) -> bool:
        """Whether the files of the table or view must still be kept.

        Args:
            oldest_purge_ms: milliseconds since 1970; after a drop with PURGE, files are kept only if the drop is newer
                than this time.
        """
        return not self.purge or self.time > oldest_purge_ms


class Damage(NamedTuple):
    """A part of a log that cannot be read."""

    owner: str
    """The catalog and the part of its log, for messages."""
    problem: str
    """Message of the error, which names the damaged row."""


def drops_of(
    store: ObjectStore, at: StoreHead, low: int | None = None, high: int | None = None
) -> Iterator[Drop | Damage]:
    """Yield the tables and views that were dropped in a history, or replaced because another table or view was
    registered under their name. Also yield a `Damage` for each part of the log that cannot be read.

    Args:
        low: number of the oldest commit to read; by default the history floor, the oldest commit that is kept.
        high: number of the newest commit to read, by default the head.
    """
    head = at.head
    low = head.floor_number if low is None else low
    if high is not None and high < head.number:
        head = msgspec.structs.replace(head, commit=ancestor(store, head, high), number=high)
    for found in logged(store, at._replace(head=msgspec.structs.replace(head, floor_number=low))):
        if isinstance(found, Damage):
            yield found
            continue
        number, entry = found
        if entry.before and entry.action in _TAKES_AWAY:
            purge = entry.summary.get("purge") == "true"
            yield Drop(at.owner(entry.key), entry.before, entry.time, purge, number, entry.entity, entry.key)


def logged(store: ObjectStore, at: StoreHead) -> Iterator[tuple[int, LogEntry] | Damage]:
    """Yield the log entries of a history, each with the number of its commit, from the newest to the oldest commit that
    is kept. Yield a `Damage` for each part that cannot be read. The entries of many commits are read together."""
    found = (commit for _, commit in commits(store, at.head))
    while True:
        try:
            run = list(islice(found, _READ_TOGETHER))
        except CorruptionError as error:
            yield Damage(f"the history of {at.catalog}", str(error))
            return
        if not run:
            return
        ids = [commit.entries for commit in run if commit.entries]
        entries = read_each(ids, lambda some: store.get_many(some, Entries)) if ids else {}
        for commit in run:
            listed = entries.get(commit.entries)
            if isinstance(listed, CorruptionError):
                yield Damage(f"the log of {at.catalog}, commit number {commit.number}", str(listed))
            elif listed is not None:
                yield from ((commit.number, entry) for entry in reversed(listed.entries))


def kept_places(
    heads: Iterable[StoreHead],
    objects: Callable[[str], ObjectStore],
    *,
    but: tuple[str, int],
    most_commits: int,
) -> set[tuple[str, ...]] | None:
    """Return the locations of dropped and replaced tables and views, except tables and views dropped with PURGE.

    Args:
        objects: returns the object store of a realm, given the realm's instance id.
        but: the table to leave out, given as the instance id of its realm and its entity id.
        most_commits: maximum number of commits to read, over all heads together.
    Returns:
        the locations; None if they cannot be determined, because the histories have more than `most_commits` commits or
        a row is damaged.
    """
    heads = list(heads)
    if sum(head.head.number - head.head.floor_number + 1 for head in heads) > most_commits:
        return None
    found: set[tuple[str, ...]] = set()
    for head in heads:
        store = objects(head.realm)
        drops = list(drops_of(store, head))
        kept = [drop for drop in drops if isinstance(drop, Drop) and not drop.purge]
        contents = [drop.content for drop in kept if (head.realm, drop.entity) != but]
        for owned in places_of(store, contents).values():
            if owned is None:
                return None
            found |= owned
        if any(isinstance(drop, Damage) for drop in drops):
            return None
    return found


def places_of(store: ObjectStore, contents: Iterable[int]) -> dict[int, frozenset[tuple[str, ...]] | None]:
    """Return a dict from the object id of each content of a table or view to the locations that it uses. The value is
    None if the content cannot be read."""
    found: dict[int, frozenset[tuple[str, ...]] | None] = {}
    ids = iter(dict.fromkeys(contents))
    while run := list(islice(ids, _READ_TOGETHER)):
        for id, read in read_each(run, store.read).items():
            value = None if isinstance(read, CorruptionError) else read.value
            if isinstance(value, (Table, View, Unloaded)):
                held = holdings_of(value)
                found[id] = held.owned | held.unconfirmed
            else:
                found[id] = None
    return found
