"""The smallest logical commit: it changes one small entry of one index, and writes a log entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.commits.state import State
from polaris_spark.index import Entry
from polaris_spark.objects import object_type
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store

_REALM = "smallest"


@object_type("bench-number", revision=1)
class Number(msgspec.Struct, frozen=True, array_like=True):
    """The object to which an index entry points."""

    value: int


class Move(Change[None, int]):
    """Set the number at a name."""

    def __init__(self, name: bytes, value: int) -> None:
        self.operation = Operation(b"", "bench")
        self._name = name
        self._value = value

    def prepare(self, view: State) -> None:
        return None

    def apply(self, state: State, prepared: None) -> int:
        found = state.lookup("names", self._name)
        before = found.pointer if found else 0
        after = state.add(Number(self._value))
        state.put("names", self._name, Entry(after))
        state.log(LogEntry(b"", "bench", 1, "move", 1, self._name, before, after))
        return self._value

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        return state.get(entries[-1].after, Number).value


@contextmanager
def committer(store: str) -> Iterator[Committer]:
    """Open a reference in a separate realm of the store."""
    connection = connect_store(StoreURI.parse(store))
    try:
        realm = connection.realm(_REALM, create=True, initialize=lambda references: references.initialize())
        yield connection.references(realm, CommitSettings({}), None, key=_REALM).root
    finally:
        connection.close()


@contextmanager
def mover(store: str, process: int) -> Iterator[Callable[[int, int], None]]:
    """Return a function that makes smallest commits; each thread changes a different entry."""
    with committer(store) as reference:

        def move(thread: int, number: int) -> None:
            reference.commit(Move(f"{process}-{thread}".encode(), number))

        yield move
