"""The model of the registry: a name is live or dropped, and undrop restores a reference as it was when dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from polaris_spark.catalog.branches.archived_log import ARCHIVE
from polaris_spark.commits.rows import LogEntry
from polaris_spark.system.registry_changes import ENDED

if TYPE_CHECKING:
    from tests.simulation.observer import Content, Observer, RowHistory


class Name(NamedTuple):
    """A registration in the model."""

    generation: int
    live: bool
    source: int


Names = dict[str, Name]

_LIVE_AFTER = {"create-reference": True, "drop-reference": False, "undrop-reference": True}


class RegistryModel:
    """Follows the commits on `root`, and checks them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.names: Names = {}
        """Registrations after the newest commit."""
        self.effects: list[tuple[int, int]] = []
        """(tick, operation) of each operation that took effect."""

    def committed(self, content: Content, entries: Sequence[LogEntry], where: str) -> Content:
        """Return the content after a commit on `root`, and check the commit's log entries."""
        observer = self._observer
        names, done = dict(content.names), dict(content.done)
        for entry in entries:
            if entry.action == ENDED:
                self._end(names, entry, where)
                continue
            if entry.key == ARCHIVE.encode():  # created by a trim
                self._apply(names, entry, where)
                continue
            operation = observer.operations[entry.operation]
            if operation in done:
                observer.blame(f"{where}: operation {operation} was done twice")
            done[operation] = 0
            self.effects.append((observer.tick(), operation))
            self._apply(names, entry, where)
        self.names = names
        return content._replace(names=names, done=done)

    def _apply(self, names: Names, entry: LogEntry, where: str) -> None:
        name = entry.key.decode()
        found = names.get(name)
        live = _LIVE_AFTER[entry.action]
        expected = {"create-reference": found is None or not found.live}.get(
            entry.action, found is not None and found.live is not live
        )
        if not expected:
            self._observer.blame(f"{where}: {entry.action} of {name}, which is {found}")
        if entry.action == "undrop-reference" and found is not None:
            self._nothing_lost(name, found, entry.after, where)
        names[name] = Name(entry.entity, live, entry.after or entry.before)

    def _end(self, names: Names, entry: LogEntry, where: str) -> None:
        name = entry.key.decode()
        found = names.pop(name, None)
        if found is None or found.live or found.generation != entry.entity:
            self._observer.blame(f"{where}: ended {name}@{entry.entity:x}, which is {found}")
        row = self._observer.rows.get(f"{name}@{entry.entity:x}")
        if row is None or row.sealed is None:
            self._observer.blame(f"{where}: ended {name}, whose row is not sealed")

    def _nothing_lost(self, name: str, dropped: Name, source: int, where: str) -> None:
        row = self._observer.rows.get(f"{name}@{dropped.generation:x}")
        if row is None or row.sealed is None or row.head.commit != source:
            self._observer.blame(
                f"{where}: {name} came back from {source}, which is not where it was dropped"
            )

    def row_inserted(self, row: RowHistory) -> None:
        """Check the row of a registration when it is inserted."""
        name, _, generation = row.name.partition("@")
        found = self.names.get(name)
        if found is not None and found.generation == int(generation, 16) and found.source != row.head.commit:
            self._observer.blame(f"row {row.name} begins at {row.head.commit}, registered was {found.source}")
