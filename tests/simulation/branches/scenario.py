"""The scenario of branches: its beginning, its actors, and the checks at its end."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast
from unittest.mock import patch

from polaris_spark.catalog.branches import branches
from polaris_spark.catalog.catalogs.catalogs import heads_prefix, initialize
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.catalogs.references import catalog_prefix
from polaris_spark.catalog.manifests.manifest_files import ManifestFiles
from polaris_spark.commits.change import Operation
from polaris_spark.config import Properties
from polaris_spark.rest.session import Session
from tests.rest.client import Client, tables
from tests.rest.materialized import SCHEMA
from tests.simulation.branches.actors import NAMED, PROPERTIES, BranchActor
from tests.simulation.branches.lake import ALL, TOKEN, properties_of
from tests.simulation.branches.rules import BranchObserver
from tests.simulation.clients import operation_id
from tests.simulation.last import sweep_everything
from tests.simulation.plan import HOUR, draw
from tests.simulation.refreshes.requests import context_of, session_of
from tests.simulation.run import Verdict, simulate_plan
from tests.simulation.world import Process, World

_DAY = 24 * HOUR


class Branches:
    """Clients write to branches, merge them, and carry out transactions."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} branches")
        files = rng.choice(("every-commit", "never"))
        self.properties = Properties.parse({"store": "memory:simulated", "metadata-files": files})
        self.told: Counter[str] = Counter()
        self.acknowledged: dict[str, str] = {}
        """Tokens that clients were told are written, with the name of their branch."""
        self._expires = rng.random() < 0.6
        self._sessions: dict[str, Session] = {}

    def observer(self, tick: Callable[[], int]) -> BranchObserver:
        self._observer = BranchObserver(tick)
        return self._observer

    def found(self, world: World, process: Process) -> None:
        """Create the catalog, a namespace and tables."""
        first, second = (operation_id(process, process.rng) for _ in range(2))
        self._observer.operations.update({first: 0, second: -1})
        context = context_of(process, self.properties, {})
        initialize(process.references, Operation(first, "founder"))
        catalogs = RealmCatalogs(process.references, context, Operation(second, "founder"))
        self._row = catalogs.create("polaris", {"warehouse": context.warehouse}).row
        self._observer.prefix = heads_prefix(self._row)
        self._observer.catalog = catalog_prefix(self._row)
        session = self._session(process)
        Client(session).namespace("db")
        for name in ALL:
            body = {"name": name, "schema": SCHEMA, "properties": PROPERTIES}
            Client(session).ok("POST", tables("db"), body)
        third = operation_id(process, process.rng)
        self._observer.operations[third] = -2
        branches.create(session.catalog, "branch", NAMED[0], Operation(third, "founder"))

    def actor(self, world: World, process: Process, rng: Random) -> BranchActor:
        return BranchActor(
            world,
            process,
            self._session(process),
            rng,
            self.told,
            self.acknowledged,
            expires=self._expires or "expire" in dict(world.plan.weights),
        )

    def _session(self, process: Process) -> Session:
        found = self._sessions.get(process.name)
        if found is None:
            manifests = ManifestFiles(cast("Any", self._observer.storage))
            found = session_of(process, self._row, self.properties, manifests)
            self._sessions[process.name] = found
        return found

    def finish(self, world: World, process: Process) -> None:
        """Check what is stored in the end, and delete everything that is not needed."""
        observer, session = self._observer, self._session(process)
        catalog = session.catalog
        process.clock.sleep_ms(_DAY)  # until no dead process has a lease
        Client(session).namespace("end")  # also carries out what others published
        for branch in branches.branches(catalog):
            modelled = observer.tokens(branch.head.commit)
            found = set(properties_of(catalog.on_branch(branch.name).view()))
            if found != {one for one in modelled if one.startswith(TOKEN)}:
                observer.blame(
                    f"at the end, {branch.name} shows {sorted(found ^ modelled)} in the wrong place"
                )
        for token, name in self.acknowledged.items():
            observer.acknowledged(token, name, "at the end, a client")
        sweep_everything(world, process)
        for tag in branches.tags(catalog):
            wanted = observer.kept.get(f"{tag.registration.generation}")
            have = observer.tokens(branches.tag_of(catalog, tag.name).head.commit)
            shown = set(properties_of(catalog.at(branches.tag_of(catalog, tag.name), tag.name).view()))
            if wanted is not None and (
                have != wanted or shown != {one for one in wanted if one.startswith(TOKEN)}
            ):
                observer.blame(f"at the end, tag {tag.name} has {sorted(have)} instead of {sorted(wanted)}")
        process.ids.release()

    def judge(self, world: World) -> None:
        self._observer.nodes.check()


@contextlib.contextmanager
def _seeded_ids(seed: int) -> Iterator[None]:
    """Make random ids depend on the seed only."""
    rng = Random(f"{seed} ids")
    with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4)):
        yield


def simulate_branches(seed: int, *, traced: bool = False, **changes: object) -> Verdict:
    """Run the simulation of a seed.

    Args:
        traced: whether the trace contains every operation of every process.
        changes: fields of the plan to replace.
    """
    scenario, plan = Branches(seed), draw(seed)
    plan = plan._replace(
        actions=2 * plan.actions,
        gaps=plan.gaps[:3],
        skews=plan.skews if Random(seed).random() < 0.2 else (0.0, 0.0, 5.0, -5.0),
    )
    with _seeded_ids(seed):
        verdict = simulate_plan(plan._replace(**changes), traced=traced, scenario=scenario)  # type: ignore[arg-type]
    return verdict._replace(requests=dict(scenario.told))
