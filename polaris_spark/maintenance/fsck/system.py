"""Check of a store's own records: the store, clock, realm, node lease and task records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import iso_text
from polaris_spark.errors import CorruptionError
from polaris_spark.ids import NODES
from polaris_spark.maintenance.fsck.rows import AHEAD, MISSING, REPAIR, UNREADABLE, Problem
from polaris_spark.system.clocks import APART_MS, CLOCK, ClockRecord
from polaris_spark.system.leases import LEASE_MS, NodeRecord
from polaris_spark.system.realms import RealmRecord
from polaris_spark.system.stores import STORE, SYSTEM_REALM, StoreRecord, system_references
from polaris_spark.system.tasks import TaskRecord

WRONG_RECORD = "wrong-record"
R = TypeVar("R", bound=msgspec.Struct)

_NODE, _REALM, _TASK = "node", "realm", "task"


class System(NamedTuple):
    """The realm records of a store, and the problems found in all of the store's own records."""

    realms: list[RealmRecord]
    """The records of all realms, sorted by name, including realms in the state GONE."""
    latest_ms: int
    """The latest time at which an id can have been made, in milliseconds since 1970."""
    problems: list[Problem]


def system(backend: Backend, now_ms: int) -> System:
    """Check a store's own records. Return its realm records and the problems found.

    Records whose names have an unknown prefix are not checked.

    Args:
        now_ms: this machine's time, in milliseconds since 1970.
    """
    return _System(backend, now_ms).run()


class _System:
    def __init__(self, backend: Backend, now_ms: int) -> None:
        self._references = system_references(backend)
        self._now = now_ms
        self._latest = now_ms
        self._problems: list[Problem] = []
        self._realms: dict[str, RealmRecord] = {}

    def run(self) -> System:
        names = self._references.names()
        if self._read(STORE, StoreRecord) is None and STORE not in names:
            self._blame(MISSING, STORE, "the store's own record is missing")
        clock = self._read(CLOCK, ClockRecord)
        if clock is not None:
            self._latest = max(self._now, clock.floor_ms, clock.ahead_ms)
            if clock.time_ms <= self._now + APART_MS:
                self._latest = max(self._latest, clock.time_ms)
            else:
                self._blame(AHEAD, CLOCK, f"the last recorded time is {iso_text(clock.time_ms)}: {REPAIR}")
        for name in sorted(names):
            for message in self._faults(name):
                self._blame(WRONG_RECORD, name, message)
        for message, name in self._shared_instances():
            self._blame(WRONG_RECORD, name, message)
        latest = self._latest + LEASE_MS + APART_MS
        return System(list(self._realms.values()), latest, self._problems)

    def _faults(self, name: str) -> Iterator[str]:
        kind, _, rest = name.partition("/")
        if kind == _NODE:
            node = self._read(name, NodeRecord)
            if node is not None:
                yield from self._node_faults(rest, node)
        elif kind == _REALM:
            realm = self._read(name, RealmRecord)
            if realm is not None:
                if realm.name != rest:
                    yield f"its name is of realm {rest!r}, but it is the record of realm {realm.name!r}"
                if not realm.instance or realm.instance == SYSTEM_REALM:
                    yield f"its instance id {realm.instance!r} is not valid"
                self._realms[name] = realm
        elif kind == _TASK:
            task = self._read(name, TaskRecord)
            if task is not None and (task.duration_ms <= 0 or task.until_ms < task.started_ms):
                yield (
                    f"its run began at {task.started_ms}, its lease ends at {task.until_ms}, and each renewal lasts "
                    f"{task.duration_ms} ms; the end must not be before the beginning, and the duration must be "
                    "positive"
                )

    def _node_faults(self, number: str, node: NodeRecord) -> Iterator[str]:
        if not number.isdecimal() or int(number) >= NODES:
            yield f"{number!r} is not a node number: node numbers are 0 to {NODES - 1}"
        if node.end_ms < node.start_ms:
            yield f"its lease ends at {node.end_ms}, before it begins at {node.start_ms}"
        longest = max(self._latest, node.start_ms if node.start_ms <= self._latest + LEASE_MS else 0)
        if node.end_ms > longest + LEASE_MS + APART_MS:
            most = longest + LEASE_MS + APART_MS
            yield f"its lease ends at {node.end_ms}, later than the latest possible end, {most}: {REPAIR}"
        else:
            self._latest = max(self._latest, node.end_ms - LEASE_MS)

    def _shared_instances(self) -> Iterator[tuple[str, str]]:
        owners: dict[str, str] = {}
        for name, realm in self._realms.items():
            other = owners.setdefault(realm.instance, name)
            if other != name:
                yield (
                    f"its realm has the same instance id as {other}, and so the same rows: {realm.instance}",
                    name,
                )

    def _read(self, name: str, cls: type[R]) -> R | None:
        try:
            found = self._references.read(name, cls)
        except CorruptionError as error:
            if not any(problem.key == name for problem in self._problems):
                self._blame(UNREADABLE, name, str(error))
            return None
        return None if found is None else found.value

    def _blame(self, kind: str, name: str, message: str) -> None:
        self._problems.append(Problem("error", kind, SYSTEM_REALM, None, name, "", message))
