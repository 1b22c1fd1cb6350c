"""The lifecycle of a realm as a state machine: random transitions, of which each is interrupted before one of its
operations on the database, agree with a model. Another realm of the store keeps all its rows."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.catalog.catalogs.catalogs import create_realm, list_catalogs
from polaris_spark.commits.change import Operation
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.errors import RealmStateError
from polaris_spark.maintenance.realm_file.exporter import Export
from polaris_spark.maintenance.realm_file.importer import Import
from polaris_spark.maintenance.realm_file.layout import RealmFile
from polaris_spark.maintenance.realm_purge import Purge
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.realms import FOLLOWING, RealmState
from tests.faults.killing import OPERATIONS
from tests.maintenance.realm_files import connected
from tests.rest.client import connect
from tests.stores import StoreOn, databases

S = RealmState
ME = Operation(b"", "me")


class Died(BaseException):
    """The process died."""


def let_die(backend: Backend, left: int) -> None:
    """Let the `left`-th operation from now on fail before it does anything, and all later ones."""

    def dying(once: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Died
            return once(*arguments)

        return call

    for name in (*OPERATIONS, "drop_realm"):
        vars(backend)[name] = dying(getattr(backend, name))


class Model(NamedTuple):
    """What is known of the realm `r`."""

    state: RealmState | None = None
    """None if there is no realm."""
    catalogs: tuple[str, ...] = ()
    owner: str | None = None
    """The property that users set."""


def after(model: Model, action: str, step: int) -> Model | None:
    """Return what an action leads to; None if it must be refused."""
    state = model.state
    if action == "create":
        return Model(S.ACTIVE) if state is None else None
    if action == "import":
        return Model(S.ACTIVE, ("polaris",)) if state is None else None
    if state is None:
        return None
    if action == "set":
        return model._replace(owner=str(step))
    if action == "purge":
        return Model() if state is S.INACTIVE else None
    wanted = S.INACTIVE if action == "deactivate" else S.ACTIVE
    return model._replace(state=wanted) if wanted is state or wanted in FOLLOWING[state] else None


ACTIONS = ("create", "import", "set", "deactivate", "reactivate", "purge")


class World:
    """A store with the realms `r` and `kept`."""

    def __init__(self, uri: str, file: Path) -> None:
        self.uri, self.file = uri, file
        with self.opened() as there:
            create_realm(there, "kept", ME)
            self.kept = self.rows(there, "kept")

    def opened(self) -> _Opened:
        return _Opened(self.uri)

    def rows(self, there: StoreConnection, name: str) -> list[Any]:
        found = there.realms.find(name)
        assert found is not None
        return rows_of(there.backend, found.instance)

    def act(self, there: StoreConnection, action: str, step: int) -> None:
        if action == "create":
            create_realm(there, "r", ME)
        elif action == "import":
            with RealmFile(self.file) as file:
                Import(there, file, "r").run()
        elif action == "set":
            there.realms.set_properties("r", {"owner": str(step)})
        elif action == "deactivate":
            there.realms.move("r", S.INACTIVE)
        elif action == "reactivate":
            there.realms.reactivate("r")
        else:
            Purge(there.backend, there.clock).realm("r")

    def seen(self, there: StoreConnection) -> Model:
        record = there.realms.find("r")
        if record is None:
            return Model()
        references = there.references(record, CommitSettings({}), None, "seen")
        names = tuple(row.name for row in list_catalogs(references))
        return Model(record.state, names, record.properties.get("owner"))


class _Opened:
    """A connection to a store, which is closed as if its process had died if the `with` block dies."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> StoreConnection:
        self._connection = connected(self._uri)
        return self._connection

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Died):
            self._connection.close()


def rows_of(backend: Backend, instance: str) -> list[Any]:
    """Return all rows of a realm."""
    return sorted(
        str(row) for table in ("references", "objects") for row in _scanned(backend, table, instance)
    )


def _scanned(backend: Backend, table: Any, instance: str) -> list[Any]:
    splits = backend.splits(table, [instance], 1)
    return [row for split in splits for batch in backend.scan(split) for row in batch.to_pylist()]


EVERY_STEP = ("memory", "sqlite", "rocksdb", "file")
"""Databases on which each transition dies before each of its operations. On the others, a few are tried."""


@pytest.mark.parametrize("scheme", databases())
def test_the_lifecycle_of_a_realm_agrees_with_a_model_though_every_step_dies(
    scheme: str, store_on: StoreOn, tmp_path: Path
) -> None:
    source, file = store_on("sqlite"), tmp_path / "r.realm"
    connect(source, tmp_path / "warehouse").session.close()
    with _Opened(source) as there:
        Export(there, "default", "test").write(file)
    uri = store_on(scheme)
    anchor = open_backend(uri) if scheme == "memory" else None  # a store in memory lives while it is open
    world, model = World(uri, file), Model()
    seed = 7
    rng = random.Random(seed)
    print(f"seed {seed}")
    crashes: Counter[str] = Counter()
    complete: set[str] = set()
    instances: set[str] = set()
    for step in range(1_500 if scheme in EVERY_STEP else 24):
        legal = [one for one in ACTIONS if after(model, one, step) is not None]
        refused = [one for one in ACTIONS if one not in legal]
        with world.opened() as there:
            for action in rng.sample(refused, min(1, len(refused))):
                with pytest.raises(RealmStateError):
                    world.act(there, action, step)
                assert world.seen(there) == model, action
        # Prefer the actions whose operations have not all been tried.
        weights = [1 if one in complete else 4 for one in legal]
        action = rng.choices(legal, weights)[0]
        wanted = after(model, action, step)
        assert wanted is not None
        if action not in complete:
            crashes[action] += 1 if scheme in EVERY_STEP else rng.randint(1, 6)
        died = False
        with world.opened() as there:
            if action not in complete:
                let_die(there.backend, crashes[action])
            try:
                world.act(there, action, step)
            except Died:
                died = True
        if not died:
            complete.add(action)
        with world.opened() as there:
            record = there.realms.find("r")
            state = None if record is None else record.state
            if died and not (action in ("create", "purge") and state is wanted.state):
                world.act(there, action, step)  # finish it
            assert world.seen(there) == wanted, (step, action, crashes[action])
            found = there.realms.find("r")
            if found is not None:
                assert not [name for name in found.properties if name.startswith("importing-")]
                instances.add(found.instance)
            for one in instances - ({found.instance} if found is not None else set()):
                assert rows_of(there.backend, one) == []
            assert world.rows(there, "kept") == world.kept
        model = wanted
        if complete == set(ACTIONS):
            break
    assert set(crashes) == set(ACTIONS)
    if scheme in EVERY_STEP:
        assert complete == set(ACTIONS), (crashes, complete)
    if anchor is not None:
        anchor.close()
