"""Two stores in memory, programs that write to the active one, and migrations whose processes die or sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from polaris_spark.backends import open_backend
from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.errors import RealmMovedError, RealmStateError, TryAgainError
from polaris_spark.maintenance.migration.marks import SourceRealm
from polaris_spark.maintenance.migration.run import Migration, start_purge_of_target
from polaris_spark.maintenance.migration.steps import MigrationStep
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.realms import RealmState
from polaris_spark.system.registry import References
from polaris_spark.system.stores import open_store
from polaris_spark.testing.faults import FaultyBackend, Network
from polaris_spark.testing.schedules import Fault, Schedule
from tests.commits.support import Add, number

MAIN, DEV = "cat/1/heads/main", "cat/1/heads/dev"
ME = Operation(b"", "me")
CHANGES = ("write_objects", "insert_reference", "swap_reference", "delete_reference", "write_and_swap")
_numbers = count()


class OneThread(LocalEngine):
    """An engine that processes items one after the other, so that a schedule has the same effect in each run."""

    def _results(self, function: Any, items: Sequence[Any]) -> Iterator[Any]:
        return (function(self.reach, item) for item in items)


class AtChange:
    """A schedule, shared by all backends of one process, by which something happens at its n-th change."""

    def __init__(self, n: int, fault: Fault | None = None, then: Callable[[], None] | None = None) -> None:
        """
        Args:
            fault: of that operation; a process that died asks nothing any more.
            then: done before that operation.
        """
        self.reached = False
        self._left = n
        self._fault = fault or Fault()
        self._then = then

    def next(self, operation: str) -> Fault:
        if self.reached and self._fault.kind.startswith("dies"):
            return Fault("dies before")
        if operation not in CHANGES or self.reached:
            return Fault()
        self._left -= 1
        if self._left:
            return Fault()
        self.reached = True
        if self._then is not None:
            self._then()
        return self._fault


class Never:
    """A schedule without faults."""

    def next(self, operation: str) -> Fault:
        return Fault()


class World:
    """A source store with a realm, a target store without one, and the number of acknowledged commits of each
    reference."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        name = f"moving-{next(_numbers)}"
        self.uris = {side: StoreURI.parse(f"memory:{name}-{side}") for side in ("source", "target")}
        self.inner = {side: open_backend(uri, {}) for side, uri in self.uris.items()}
        for backend in self.inner.values():
            open_store(backend, self.clock)
        self.source = self.process("source")
        self.target = self.process("target")
        self.record = self.source.realm("r", create=True, initialize=lambda found: found.initialize())
        self.here = self.references(self.source)
        self.acknowledged: dict[str, int] = {}
        self.writer = Writer(self)

    def process(self, side: str, schedule: Schedule | None = None) -> StoreConnection:
        """Return the connection of a new process to one of the stores."""
        network = Network(self.inner[side], self.clock)
        return StoreConnection(
            self.uris[side], FaultyBackend(network, schedule or Never(), self.clock), self.clock
        )

    def references(self, connection: StoreConnection) -> References:
        """The references of the realm, as a new process sees them."""
        record = connection.realms.find("r")
        assert record is not None
        return connection.references(record, CommitSettings({}, deadline_ms=2_000), None, None)

    def migration(self, schedule: Schedule | None = None, **given: object) -> Migration:
        """A migration by another process."""
        source, target = self.process("source", schedule), self.process("target", schedule)
        realm = SourceRealm(source.realms, "r", self.references(source))
        reach = Reach(realm.store, Files({}), self.clock)
        engine = OneThread(reach, given.pop("watch")) if "watch" in given else OneThread(reach)  # type: ignore[arg-type]  # whatever a test gives
        return Migration(realm, str(self.uris["source"]), target, "r", engine=engine, **given)  # type: ignore[arg-type]  # whatever a test gives

    def migrate(self, schedule: Schedule | None = None, **given: object) -> list[MigrationStep]:
        """Move the realm, by another process."""
        return list(self.migration(schedule, **given).run())

    def abort(self) -> None:
        """Abort the migration, by another process."""
        source, target = self.process("source"), self.process("target")
        realm = SourceRealm(source.realms, "r", self.references(source))
        realm.abort()
        start_purge_of_target(target, "r", realm.store.realm)

    def states(self) -> tuple[RealmState | None, RealmState | None]:
        """Return the states of the realm in the source and in the target."""
        found = [one.realms.find("r") for one in (self.process("source"), self.process("target"))]
        return tuple(None if one is None else one.state for one in found)  # type: ignore[return-value]  # they are two

    def check(self) -> None:
        """Check that exactly one store is active, that it has all acknowledged commits, and that the other store
        refuses commits."""
        here, there = self.states()
        assert (here is RealmState.ACTIVE) != (there is RealmState.ACTIVE), (here, there)
        found = self.source.realms.find("r")
        assert found is not None
        assert ("moved-to" in found.properties) == (there is RealmState.ACTIVE)
        serving = self.references(self.process("source" if here is RealmState.ACTIVE else "target"))
        for name, acknowledged in self.acknowledged.items():
            assert number(serving.open(name), "n") == acknowledged, name
        if there is RealmState.ACTIVE:
            old = self.references(self.process("source"))
            for name in self.acknowledged:
                try:
                    old.commit(name, Add("n"))
                except RealmMovedError:
                    continue
                raise AssertionError(f"{name} takes commits in the source")


class Writer:
    """A program that increments a number, in the store where its realm is active."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._references = world.references(world.process("source"))
        self._moved = False

    def create(self, name: str, source: str | None = None) -> None:
        """Create a reference."""
        snapshot = self._references.read(source) if source else None
        self._references.create(name, ME, source=snapshot)
        self._world.acknowledged[name] = self._world.acknowledged.get(source or "", 0)

    def add(self, name: str) -> bool:
        """Increment the number. Return whether this was acknowledged."""
        for _ in range(2):
            try:
                self._references.commit(name, Add("n"))
            except RealmMovedError:
                self._follow()
            except (TryAgainError, RealmStateError):
                return False
            else:
                self._world.acknowledged[name] += 1
                return True
        return False

    def _follow(self) -> None:
        connection = self._world.process("target")
        connection.realms.active("r")
        self._references = self._world.references(connection)


DECIDED = (RealmState.INACTIVE, RealmState.ACTIVE)
"""States of a realm in the store that it left, and in the other one, when it has moved."""


def a_world() -> World:
    """Two references with some history, a dropped branch of one of them, and a reference that was dropped and
    restored."""
    world = World()
    world.writer.create(MAIN)
    for _ in range(25):
        world.writer.add(MAIN)
    world.writer.create(DEV, MAIN)
    for name in (DEV, MAIN, DEV):
        world.writer.add(name)
    for name in ("gone", "back"):
        world.writer.create(name, MAIN)
        world.writer.add(name)
        world.here.drop(name, ME)
    world.here.undrop("back", ME)
    del world.acknowledged["gone"]
    return world
