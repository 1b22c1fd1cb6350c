"""Observes every change of the simulated database when it takes effect, and checks it.

The model is derived from the rows alone, and not from the states of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.catalog.branches.archived_log import ARCHIVE
from polaris_spark.clock import AHEAD_MS, Clock
from polaris_spark.commits.rows import Commit, Entries, Head, LogEntry
from polaris_spark.ids import id_time_ms
from polaris_spark.system.registry import ROOT
from tests.simulation.changes import Box, decode_result
from tests.simulation.nodes import NodeWatch, TaskWatch
from tests.simulation.programs import DictView, Refused, State, Task
from tests.simulation.registry import Names, RegistryModel

S = TypeVar("S", bound=msgspec.Struct)

REALM = "simulated"

_INEXACT_MS = 20.0
"""Maximum difference between two correct clocks, in milliseconds."""

_decode_head = msgspec.msgpack.Decoder(Head).decode


class Content(NamedTuple):
    """The model of one commit."""

    state: State
    done: dict[int, int]
    """Operations in the history of the commit, each with the request that carried it out."""
    names: Names
    """Names in the registry; empty for other references."""


class Position(NamedTuple):
    """A state in the history of a row, valid from `tick` until the `tick` of the next position."""

    tick: int
    commit: int
    request: int
    """Number of the request that took effect at this position; 0 if there is none."""
    state: State


class Effect(NamedTuple):
    """The event that a client's request took effect."""

    tick: int
    row: str
    answer: int | None
    at_ms: float
    """Correct time, in milliseconds since 1970."""


class RowHistory:
    """The history of a reference row, from its insertion on."""

    def __init__(self, name: str, head: Head, tick: int) -> None:
        self.name = name
        self.head = head
        self.first = head
        self.positions: list[Position] = []
        self.born = tick
        self.sealed: int | None = tick if head.sealed else None
        self.gone: int | None = None


class Observer:
    """Observes the rows, maintains the model, and collects violations."""

    def __init__(self, tick: Callable[[], int]) -> None:
        self.tick = tick
        self.violations: list[str] = []
        self.rows: dict[str, RowHistory] = {}
        self.contents: dict[int, Content] = {}
        self.tasks: dict[int, tuple[int, Task]] = {}
        """Operation and task of each request of a client, by number of the request."""
        self.operations: dict[bytes, int] = {}
        """Number of the operation for each operation id of requests on the registry."""
        self.effects: dict[int, list[Effect]] = {}
        """Effects of each request, by number of the request."""
        self.files: dict[str, bytes] = {}
        self.gone: dict[int, int] = {}
        """Tick of the first deletion of each deleted object, by object id."""
        self.nodes = NodeWatch(self.blame)
        self.task_leases = TaskWatch(self.blame)
        self.registry = RegistryModel(self)
        self.age_of: Callable[[int], float] = lambda _: float("inf")
        """A function that returns the time since an id was generated, in milliseconds."""
        self.now_ms: Callable[[], float] = lambda: float("inf")
        """A function that returns the correct time, in milliseconds since 1970."""
        self.grace_ms = 0.0
        """Minimum age at which an object may be deleted, in milliseconds."""
        self._backend: Watched | None = None
        self._whole: set[int] = set()
        self._strong: dict[int, tuple[int, ...]] = {}

    def watch(self, backend: Watched) -> None:
        """Start to observe an empty database."""
        self._backend = backend

    def blame(self, what: str) -> None:
        """Record a violation."""
        self.violations.append(what)

    # Changes of rows

    def written(self, realm: str, rows: Iterable[tuple[ObjectRow, bytes | None]]) -> None:
        """Check rows that are written. Each row comes with its previous value, if it had one."""
        for row, before in rows:
            if before is not None and before != row.value:
                self.blame(f"id {row.id} was made twice: for two different rows")

    def deleted(self, realm: str, keys: Collection[ObjectKey]) -> None:
        """Check objects that are about to be deleted."""
        reachable = self.reachable()
        for key in keys:
            if key.id in reachable:
                self.blame(f"object {key.id} was deleted although it can be reached")
            if self.age_of(key.id) < self.grace_ms - _INEXACT_MS:
                self.blame(f"object {key.id} was deleted {self.age_of(key.id)} ms after its id was made")
            self._whole.discard(key.id)
            self.gone.setdefault(key.id, self.tick())

    def swapped(self, realm: str, name: str, before: ReferenceRow | None, after: ReferenceRow | None) -> None:
        """Check a reference that was inserted (`before` is None), swapped, or deleted (`after` is None)."""
        if realm != REALM:
            self.nodes.swapped(name, before, after)
            self.task_leases.swapped(name, before, after)
            return
        row = self.rows.get(name)
        if after is None:
            self.blame(
                f"row {name} was deleted: a process that stalled while it created the row brings it back"
            )
            return
        head = _decode_head(after.value)
        if before is None:
            self._inserted(name, head, row)
        else:
            assert row is not None
            self._moved(row, head)

    def _inserted(self, name: str, head: Head, row: RowHistory | None) -> None:
        assert row is None, f"{name} was inserted twice"
        self._complete(head.commit, 0)
        if head.commit not in self.contents:
            self.contents[head.commit] = Content({}, {}, {})
        self.rows[name] = row = RowHistory(name, head, self.tick())
        row.positions.append(Position(row.born, head.commit, 0, self.contents[head.commit].state))
        if name != ROOT:
            self.registry.row_inserted(row)

    def _moved(self, row: RowHistory, head: Head) -> None:
        if not head.commit:
            self._buried(row)
            return
        if row.gone is not None:
            self.blame(f"{row.name}: it has a head again after it was given up")
        before, row.head = row.head, head
        tick = self.tick()
        if (head.floor_number, head.fence) < (before.floor_number, before.fence):
            self.blame(f"{row.name}: floor or fence went back, {before} -> {head}")
        if before.sealed and not head.sealed:
            self.blame(f"{row.name}: the seal was broken")
        if head.sealed and row.sealed is None:
            row.sealed = tick
        if head.commit != before.commit:
            self._committed(row, before, head)

    def _buried(self, row: RowHistory) -> None:
        name, _, generation = row.name.partition("@")
        found = self.registry.names.get(name)
        if row.sealed is None or (found is not None and f"{found.generation:x}" == generation):
            self.blame(f"{row.name} was given up: sealed {row.sealed}, registered {found}")
        row.gone = self.tick()

    def _committed(self, row: RowHistory, before: Head, head: Head) -> None:
        name = f"{row.name} commit {head.number}"
        if before.sealed:
            self.blame(f"{name}: committed to a sealed reference")
        if not self._complete(head.commit, before.fence, f"{name}: "):
            self.contents[head.commit] = self.contents[before.commit]
            return
        commit = self.object(head.commit, Commit)
        if commit.number != before.number + 1 or head.number != commit.number:
            self.blame(f"{name}: number {commit.number} follows {before.number}")
        if not commit.parents or commit.parents[0] != before.commit:
            self.blame(f"{name}: its parent is {commit.parents[:1]}, not the head {before.commit}")
        is_reset = head.number in head.time_resets and before.time > commit.time + AHEAD_MS
        if (commit.time <= before.time and not is_reset) or head.time != commit.time:
            self.blame(f"{name}: its time {commit.time} does not follow {before.time}")
        if not head.recent or head.recent[0].commit != head.commit:
            self.blame(f"{name}: it is not the first of its recent heads")
        if (head.floor_number, head.fence) != (before.floor_number, before.fence):
            self.blame(f"{name}: it changed the floor or the fence")
        is_ahead = id_time_ms(before.commit) > self.now_ms() + AHEAD_MS
        least = before.fence if is_ahead else max(before.commit, before.fence)
        if head.commit < least:
            self.blame(f"{name}: its id {head.commit} is below {least}, which was read")
        content = self.contents[before.commit]
        if row.name.startswith(f"{ARCHIVE}@"):
            self.contents[head.commit] = content
            return
        entries = self.object(commit.entries, Entries).entries
        if row.name == ROOT:
            self.contents[head.commit] = self.registry.committed(content, entries, name)
        else:
            self.contents[head.commit] = self._replayed(row, content, entries, head.commit, name)

    def _replayed(
        self, row: RowHistory, content: Content, entries: Sequence[LogEntry], commit: int, name: str
    ) -> Content:
        state, done = content.state, dict(content.done)
        tick = self.tick()
        for request, group in groupby(entries, lambda entry: entry.entity):
            logged = list(group)
            operation, task = self.tasks[request]
            if operation in done:
                self.blame(
                    f"{name}: operation {operation} was done twice, by requests {done[operation]} and {request}"
                )
            done[operation] = request
            view = DictView(dict(state))
            try:
                answer: int | None = task.run(view)
            except Refused:
                answer = None
            if answer is None or decode_result(logged[0].result) != (request, answer):
                found = decode_result(logged[0].result)
                self.blame(f"{name}: {task} logged {found}, the model says {answer}")
            self._compare(name, request, logged, view)
            self.effects.setdefault(request, []).append(Effect(tick, row.name, answer, self.now_ms()))
            state = view.state
            row.positions.append(Position(tick, commit, request, state))
        return Content(state, done, {})

    def done_once(
        self, content: Content, entries: Sequence[LogEntry], commit: int, name: str
    ) -> dict[int, int]:
        """Return the operations in the history of a commit of a catalog; record those that were done before as
        violations.

        Args:
            content: the model of the commit before.
            entries: the log entries of the commit.
        """
        done = dict(content.done)
        for id, _ in groupby(entries, lambda entry: entry.operation):
            operation = int.from_bytes(id, "big")
            if operation and operation in done:
                self.blame(f"{name}: operation {id.hex()} was done twice")
            done[operation] = commit
        return done

    def _compare(self, name: str, request: int, logged: Sequence[LogEntry], view: DictView) -> None:
        found = {entry.key: self.object(entry.after, Box).number if entry.after else None for entry in logged}
        if found != view.changed:
            self.blame(f"{name}: request {request} left {found}, the model says {view.changed}")
        for entry in logged:
            location = entry.summary.get("file")
            if location is not None and self.files.get(location) != entry.result:
                self.blame(f"{name}: file {location} is not there as the commit needs it")

    # Objects

    def object(self, id: int, cls: type[S]) -> S:
        """Return an object from the database."""
        value = objects.decode(self._row(id), str(id)).value
        assert isinstance(value, cls), f"object {id} is {value}"
        return value

    def _row(self, id: int) -> bytes:
        assert self._backend is not None
        return self._backend.rows(REALM).get((id, 0), b"")

    def _complete(self, id: int, above: int, name: str = "") -> bool:
        """Whether all objects exist that are reachable from `id`.

        Objects that were not reachable before must have ids of at least `above`.
        """
        pending, fine = [id], True
        while pending:
            one = pending.pop()
            if one in self._whole or not one:
                continue
            strong = self._pointers(one)
            if strong is None:
                self.blame(f"{name}object {one} is missing, and can be reached")
                fine = False
                continue
            if one < above:
                self.blame(f"{name}new object {one} is older than the fence {above}")
            self._whole.add(one)
            pending.extend(strong)
        return fine

    def _pointers(self, id: int) -> tuple[int, ...] | None:
        row = self._row(id)
        if not row:
            return None
        strong = self._strong.get(id)
        if strong is None:
            strong = self._strong[id] = objects.decode_header(row, str(id)).strong
        return strong

    def reachable(self) -> set[int]:
        """Return every object that a history needs, from floor to head; record missing objects as violations.

        The histories are those of the registry and of the references that it lists.
        """
        assert self._backend is not None
        pending: list[int] = []
        listed = {f"{name}@{found.generation:x}" for name, found in self.registry.names.items()}
        for name, row in self._backend.references(REALM).items():
            if name == ROOT or name in listed:
                pending += self._history(_decode_head(row.value))
        found: set[int] = set()
        while pending:
            id = pending.pop()
            if not id or id in found:
                continue
            found.add(id)
            strong = self._pointers(id)
            if strong is None:
                self.blame(f"object {id} is missing, and can be reached")
            else:
                pending.extend(strong)
        return found

    def _history(self, head: Head) -> list[int]:
        found, id, number = [], head.commit, head.number
        while True:
            found.append(id)
            if number <= head.floor_number or not self._row(id):
                return found
            id, number = self.object(id, Commit).parents[0], number - 1


class Watched(MemoryBackend):
    """The simulated database."""

    def __init__(self, name: str, observer: Observer) -> None:
        super().__init__(name)
        self.clock: Clock | None = None
        """The database's own clock; None if the database has no clock."""
        self._observer = observer
        observer.watch(self)

    def now_ms(self) -> int | None:
        return None if self.clock is None else self.clock.now_ms()

    def rows(self, realm: str) -> dict[tuple[int, int], bytes]:
        """Return the object rows of a realm, by id and part."""
        return self._tables.objects.get(realm, {})

    def references(self, realm: str) -> dict[str, ReferenceRow]:
        """Return the reference rows of a realm, by name."""
        return self._tables.references.get(realm, {})

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        self._note_rows(realm, rows)
        super().write_objects(realm, rows)

    def delete_objects(self, realm: str, keys: Collection[ObjectKey]) -> None:
        self._observer.deleted(realm, keys)
        super().delete_objects(realm, keys)

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        outcome = super().insert_reference(realm, name, new)
        if isinstance(outcome, Swapped):
            self._observer.swapped(realm, name, None, new)
        return outcome

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        before = self.references(realm).get(name)
        outcome = super().delete_reference(realm, name, expected_version)
        if isinstance(outcome, Swapped):
            self._observer.swapped(realm, name, before, None)
        return outcome

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        before = self.references(realm).get(name)
        if before is not None and before.version == expected_version:
            self._note_rows(realm, rows)
        outcome = super().write_and_swap(realm, rows, name, expected_version, new)
        if isinstance(outcome, Swapped):
            self._observer.swapped(realm, name, before, new)
        return outcome

    def _note_rows(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        there = self.rows(realm)
        self._observer.written(realm, [(row, there.get((row.id, row.part))) for row in rows])
