"""The keyspace and the two tables of a store.

- `objects`: a partition holds the rows that one process made within about four seconds (`bucket`). So the rows of a
  commit are one mutation of one partition, and one request reads them. Writers do not share partitions. The rows of the
  next seconds go to other nodes. At 10 MB/s, which is more than a process writes, a partition grows to 40 MB; a common
  recommendation is at most 100 MB. Ids that are not snowflakes work, too.
- `references`: each reference has its own partition and so its own Paxos state: swaps of two references never conflict.
- Both tables use leveled compaction: reads find a row in one or two files, although references are overwritten again
  and again, and a tombstone is soon merged with the rows that it deletes.
- `gc_grace_seconds` of `objects` is one day: if a replica misses a deletion for longer, the deletion may be lost and
  its rows come back. Nothing refers to these rows, and the next sweep of unreachable rows deletes them again.
  `references` keep Cassandra's default of ten days: run repairs more often than that.

The comment of each table marks the table as part of a store, and contains the version of the format and the serial
consistency level that all clients of the store use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from polaris_spark.backends.cassandra.settings import EVERYWHERE, Settings
from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.errors import NoStoreError, StateError, StoreURIError, TryAgainError

FORMAT: Final = 1
"""Version of the format of the two tables, in their comments."""

_MARK: Final = "polaris_spark store, format "
_TABLES: Final = {
    "references": "(realm text, name text, version blob, value blob, PRIMARY KEY ((realm, name)))"
    " WITH gc_grace_seconds = 864000",
    "objects": "(realm text, bucket bigint, id bigint, part int, value blob, PRIMARY KEY ((realm, bucket), id, part))"
    " WITH gc_grace_seconds = 86400",
}


class Level(NamedTuple):
    """The serial consistency level that all clients of a store use: `SERIAL`, or `LOCAL_SERIAL` within one
    datacenter."""

    serial: str
    datacenter: str

    @property
    def rows(self) -> str:
        """The consistency level for reads and writes of rows: `QUORUM` or `LOCAL_QUORUM`, to match the serial level."""
        return "QUORUM" if self.serial == "SERIAL" else "LOCAL_QUORUM"


class Ask(Protocol):
    """A function that runs an unprepared statement and returns its rows."""

    def __call__(self, query: str, *arguments: object) -> list[tuple[object, ...]]: ...


def check(ask: Ask, settings: Settings, datacenter: str) -> Level:
    """Return the serial consistency level that all clients of the store in the keyspace use.

    Raises:
        StoreURIError: the keyspace holds no store, or tables of another program.
        NewerFormatError: a newer release made the store.
        StateError: the store's level differs from the option `serial`, or is limited to a datacenter other than
            `datacenter`.
    """
    found = _levels(ask, settings, datacenter)
    if len(found) < len(_TABLES):
        raise NoStoreError(settings.where)
    return found[0]


def create(ask: Ask, settings: Settings, datacenter: str, nodes: Iterable[str]) -> Level:
    """Create the keyspace and the tables if they are missing, and return the store's serial consistency level.

    Args:
        datacenter: this client's datacenter.
        nodes: the datacenter of each node of the cluster.
    Raises:
        StoreURIError: the keyspace holds tables of another program; or the keyspace is missing, and the option
            `replication` is missing or needs more nodes than there are.
        NewerFormatError: a newer release made the store.
        StateError: the store's level differs from the option `serial`, or is limited to a datacenter other than
            `datacenter`.
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
    """Wait until the tables can be read. A table that another client has just created is listed in the schema shortly
    before statements can refer to it, and statements can refer to it shortly before the node can read it."""
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
    """Return the serial consistency levels in the comments of the store's tables that exist."""
    query = "SELECT table_name, comment FROM system_schema.tables WHERE keyspace_name = %s"
    rows = ask(query, settings.keyspace)
    return [_level(str(mark or ""), settings, datacenter) for name, mark in rows if name in _TABLES]


def _keyspace(settings: Settings, nodes: Sequence[str]) -> str:
    wanted = settings.replication
    if not wanted:
        raise StoreURIError(
            f"{settings.where}: there is no keyspace {settings.keyspace!r}, and it cannot be created without the "
            "option 'replication': add replication=3, or a number for each datacenter, such as "
            "replication=dc1:3,dc2:3; for a cluster of a single node, add replication=1"
        )
    for place, copies in wanted.items():
        for each in sorted(set(nodes)) if place == EVERYWHERE else [place]:
            if nodes.count(each) < copies:
                raise StoreURIError(
                    f"{settings.where}: replication={copies} is more than the number of nodes: datacenter "
                    f"{each!r} has "
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
        raise StoreURIError(
            f"{settings.where}: the keyspace holds tables of another program; choose another keyspace"
        )
    refuse_newer_format(settings.where, int(number), FORMAT)
    serial, _, home = serial.partition(" in ")
    if settings.serial not in (None, serial):
        raise StateError(
            f"{settings.where}: the clients of this store use the serial consistency level {serial}, and a client "
            f"with serial={settings.serial} would not see their swaps: remove the option 'serial', or change the "
            "level in the comments of the store's two tables while no process uses the store"
        )
    if home not in ("", datacenter):
        raise StateError(
            f"{settings.where}: the clients of this store use the serial consistency level {serial} within the "
            f"datacenter {home!r}, and this client uses the datacenter {datacenter!r}: set datacenter={home}"
        )
    return Level(serial, datacenter)
