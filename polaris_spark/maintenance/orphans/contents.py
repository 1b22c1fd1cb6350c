"""The tables and views of a head, and those that commits of its history took away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.expiring import Levels
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.log import ancestor, commits
from polaris_spark.commits.rows import Entries, LogEntry
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import decode_key
from polaris_spark.maintenance.needs import Content
from polaris_spark.store.objects import ObjectStore, read_each

_READ_TOGETHER = 128
"""How many contents are read in one batch."""

_TAKES_AWAY = ("drop-table", "drop-view", "register-table", "register-view")


class Drop(NamedTuple):
    """A table or view that was taken away, as the log says it."""

    owner: str
    content: int
    time: int
    """Milliseconds since 1970."""
    purge: bool
    """Whether its files were to go with it."""
    commit: int
    """Number of the commit."""
    entity: int
    key: bytes


class Damage(NamedTuple):
    """A part of a log that cannot be read."""

    owner: str
    """For messages: the catalog, and which part."""
    problem: str
    """Names the row."""


def drops_of(
    store: ObjectStore, at: StoreHead, low: int | None = None, high: int | None = None
) -> Iterator[Drop | Damage]:
    """The tables and views that commits of a history took away, or replaced by others that were registered.

    Args:
        low: number of the first commit to look at, by default the history floor.
        high: number of the last one, by default the head.
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
    """The log entries of a history from the newest back to its floor, each with its commit's number; those of many
    commits are read together."""
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


def contents_of_drops(head: StoreHead, store: ObjectStore, drops: Iterable[Drop]) -> Iterator[Content]:
    """The tables and views that drops took away from a head."""
    for content in _read(head, store, ((drop.key, drop.content) for drop in drops)):
        yield content._replace(strict=False)


def contents_of(
    head: StoreHead, store: ObjectStore, start: bytes = b"", end: bytes | None = None
) -> Iterator[Content]:
    """The tables and views of a head, whose keys in the index of names lie in a range."""
    names = head.snapshot(store).index(NAMES).range(start, end)
    kinds = (TABLE, VIEW)
    yield from _read(
        head, store, ((key, entry.pointer) for key, entry in names if decode_key(key).kind in kinds)
    )


def _read(head: StoreHead, store: ObjectStore, named: Iterator[tuple[bytes, int]]) -> Iterator[Content]:
    levels = Levels(head.snapshot(store), head.properties)
    while run := list(islice(named, _READ_TOGETHER)):
        found = read_each([id for _, id in run], store.read)
        for key, id in run:
            read = found[id]
            if isinstance(read, CorruptionError):
                yield Content(head.owner(key), None, problem=str(read))
                continue
            value = read.value
            known = value if isinstance(value, (Table, View, Unloaded)) else None
            yield Content(head.owner(key), known, levels=levels.of(decode_key(key).path))
