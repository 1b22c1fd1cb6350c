"""The keyspace and the two tables of a store.

- `objects`: a partition holds what one process made within about four seconds (`bucket`), so that the rows of a commit
  are one mutation of one partition and come back with one request, while writers do not meet in a partition and the
  next seconds go to other nodes. At 10 MB/s, more than a process writes, a partition grows to 40 MB; 100 MB is where
  Cassandra's operators begin to worry. Ids that are no snowflakes work, too.
- `references`: a partition each, and so a Paxos state each: swaps of two references never meet.
- Both are compacted by levels: reads find a row in one file or two, though references are written over and over, and
  a deletion soon meets what it deletes.
- `gc_grace_seconds` of `objects` is a day: a deletion that a replica missed for longer may be forgotten and its rows
  come back. They are rows that nothing points to, which the next sweep deletes again. `references` keep Cassandra's ten
  days: repair more often than that.

The mark of a store, and the level that all its clients share, stand in the comments of both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from polaris_spark.backends.cassandra.settings import EVERYWHERE, Settings
from polaris_spark.errors import NewerFormatError, NoStoreError, StateError, StoreURIError, TryAgainError

FORMAT: Final = 1
"""Version of the two tables."""

_MARK: Final = "polaris_spark store, format "
_TABLES: Final = {
    "references": "(realm text, name text, version blob, value blob, PRIMARY KEY ((realm, name)))"
    " WITH gc_grace_seconds = 864000",
    "objects": "(realm text, bucket bigint, id bigint, part int, value blob, PRIMARY KEY ((realm, bucket), id, part))"
    " WITH gc_grace_seconds = 86400",
}


class Level(NamedTuple):
    """How far all clients of a store agree with each other: `SERIAL`, or `LOCAL_SERIAL` within a datacenter."""

    serial: str
    datacenter: str

    @property
    def rows(self) -> str:
        """The consistency of rows that a swap at this level makes visible."""
        return "QUORUM" if self.serial == "SERIAL" else "LOCAL_QUORUM"


class Ask(Protocol):
    """Runs a statement that needs no preparation."""

    def __call__(self, query: str, *arguments: object) -> list[tuple[object, ...]]: ...


def check(ask: Ask, settings: Settings, datacenter: str) -> Level:
    """The level of the store in a keyspace.

    Raises:
        StoreURIError: it holds no store, or tables of another program.
        NewerFormatError: a newer release made it.
        StateError: its clients agree in another way than the options say.
    """
    found = _levels(ask, settings, datacenter)
    if len(found) < len(_TABLES):
        raise NoStoreError(settings.where)
    return found[0]


def create(ask: Ask, settings: Settings, datacenter: str, nodes: Iterable[str]) -> Level:
    """Create what is missing; the level of the store.

    Args:
        datacenter: that of this client.
        nodes: the datacenter of each node.
    Raises:
        StoreURIError, NewerFormatError, StateError: as `check`, or the keyspace is missing and not to be replicated
            as asked.
    """
    found = _levels(ask, settings, datacenter)
    if len(found) < len(_TABLES):
        if not ask(
            "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s", settings.keyspace
        ):
            ask(_keyspace(settings, list(nodes)))
        for name in _TABLES:
            ask(_table(name, settings, datacenter))
        found = _levels(ask, settings, datacenter)
    _wait_until_usable(ask, settings)
    return found[0]


def _wait_until_usable(ask: Ask, settings: Settings) -> None:
    """A table that another client just created is listed a moment before statements may name it, and may be named a
    moment before the node can read it."""
    end = time.monotonic() + settings.timeout / 1_000
    for name, key in (("references", "name = 'none'"), ("objects", "bucket = 0")):
        while True:
            try:
                ask(
                    f"SELECT value FROM \"{settings.keyspace}\".{name} WHERE realm = 'none' AND {key} LIMIT 1"
                )
                break
            except (NoStoreError, TryAgainError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def _levels(ask: Ask, settings: Settings, datacenter: str) -> list[Level]:
    """What the marks of those tables say that are there."""
    query = "SELECT table_name, comment FROM system_schema.tables WHERE keyspace_name = %s"
    rows = ask(query, settings.keyspace)
    return [_level(str(mark or ""), settings, datacenter) for name, mark in rows if name in _TABLES]


def _keyspace(settings: Settings, nodes: Sequence[str]) -> str:
    wanted = settings.replication
    if not wanted:
        raise StoreURIError(
            f"{settings.where}: there is no keyspace {settings.keyspace!r}, and how it is to be replicated is not "
            "said: add replication=3, or copies by datacenter such as replication=dc1:3,dc2:3 (1 on a single node)"
        )
    for place, copies in wanted.items():
        for each in sorted(set(nodes)) if place == EVERYWHERE else [place]:
            if nodes.count(each) < copies:
                raise StoreURIError(
                    f"{settings.where}: replication={copies} needs as many nodes, and datacenter {each!r} has "
                    f"{nodes.count(each)}; the datacenters are: {', '.join(sorted(set(nodes)))}"
                )
    copies_of = ", ".join(f"'{place}': {copies}" for place, copies in wanted.items())
    return (
        f'CREATE KEYSPACE IF NOT EXISTS "{settings.keyspace}"'
        f" WITH replication = {{'class': 'NetworkTopologyStrategy', {copies_of}}}"
    )


def _table(name: str, settings: Settings, datacenter: str) -> str:
    serial = settings.serial or "SERIAL"
    mark = f"{_MARK}{FORMAT}, {serial}" + (f" in {datacenter}" if serial == "LOCAL_SERIAL" else "")
    return (
        f'CREATE TABLE IF NOT EXISTS "{settings.keyspace}".{name} {_TABLES[name]}'
        f" AND compaction = {{'class': 'LeveledCompactionStrategy'}} AND comment = '{mark}'"
    )


def _level(mark: str, settings: Settings, datacenter: str) -> Level:
    number, _, serial = mark.removeprefix(_MARK).partition(", ")
    if not mark.startswith(_MARK) or not number.isdigit():
        raise StoreURIError(f"{settings.where}: the keyspace holds tables of another program")
    if int(number) > FORMAT:
        raise NewerFormatError(
            f"{settings.where} has tables of format {number}; this release knows format {FORMAT}: "
            "use the release that made it, or a later one"
        )
    serial, _, home = serial.partition(" in ")
    if settings.serial not in (None, serial):
        raise StateError(
            f"{settings.where}: the clients of this store agree at {serial}, and serial={settings.serial} would not "
            "see their swaps: leave the option out, or change the mark in the comments of its tables while "
            "nobody uses the store"
        )
    if home not in ("", datacenter):
        raise StateError(
            f"{settings.where}: the clients of this store agree at {serial} within the datacenter {home!r}, and this "
            f"one is in {datacenter!r}: set datacenter={home}"
        )
    return Level(serial, datacenter)
