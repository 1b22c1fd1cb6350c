"""The scenario of refreshes: its beginning, its actors, and the checks at its end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from polaris_spark.catalog.catalogs.catalogs import initialize
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized import view_freshness
from polaris_spark.commits.change import Operation
from polaris_spark.config import Properties
from polaris_spark.errors import BadRequestError
from polaris_spark.rest.session import Session
from tests.rest.client import path
from tests.rest.materialized import SCHEMA
from tests.simulation.clients import operation_id
from tests.simulation.last import sweep_everything
from tests.simulation.plan import HOUR, draw
from tests.simulation.refreshes.actors import TABLES, VIEWS, RefreshActor
from tests.simulation.refreshes.lake import Sources
from tests.simulation.refreshes.requests import Requests, context_of, session_of
from tests.simulation.refreshes.rules import CatalogObserver, Refresh, judge_refreshes
from tests.simulation.refreshes.spark import simulated_spark
from tests.simulation.run import Actor, Verdict, simulate_plan
from tests.simulation.world import Process, World

_DAY = 24 * HOUR
_CLOSE = 1_000.0
"""Largest difference of clocks with which it is checked what expiry keeps, in milliseconds."""


class Refreshes:
    """Clients refresh and change materialized views, and change the tables below them."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"{seed} refreshes")
        files = rng.choice(("every-commit", "never"))
        self.properties = Properties.parse({"store": "memory:simulated", "metadata-files": files})
        self.refreshes: list[Refresh] = []
        self._sessions: dict[str, Session] = {}

    def observer(self, tick: Callable[[], int]) -> CatalogObserver:
        self._observer = CatalogObserver(tick)
        return self._observer

    def found(self, world: World, process: Process) -> None:
        """Create the catalog, a namespace, tables and views."""
        observer = self._observer
        observer.retentions = max(map(abs, world.plan.skews)) <= _CLOSE and not world.plan.ahead
        observer.writes_files = self.properties.metadata_files == "every-commit"
        first, second = (operation_id(process, process.rng) for _ in range(2))
        observer.operations.update({first: 0, second: -1})
        context = context_of(process, self.properties, {})
        initialize(process.references, Operation(first, "founder"))
        catalogs = RealmCatalogs(process.references, context, Operation(second, "founder"))
        self._row = catalogs.create("polaris", {"warehouse": context.warehouse}).row
        observer.opened(self._row)
        actor = self._new_actor(world, process, process.rng)
        requests = Requests(world, process, self._session(process), process.rng)
        requests.change("POST", "v1/namespaces", {"namespace": ["db"]})
        for name in TABLES:
            requests.change("POST", f"{path('db')}/tables", {"name": name, "schema": SCHEMA})
        for name in VIEWS:
            actor.create_view(name)

    def actor(self, world: World, process: Process, rng: Random) -> Actor:
        return self._new_actor(world, process, rng)

    def _new_actor(self, world: World, process: Process, rng: Random) -> RefreshActor:
        return RefreshActor(world, process, self._session(process), rng, self.refreshes)

    def _session(self, process: Process) -> Session:
        found = self._sessions.get(process.name)
        if found is None:
            found = self._sessions[process.name] = session_of(process, self._row, self.properties)
        return found

    def finish(self, world: World, process: Process) -> None:
        """Refresh every view, and check that its rows are fresh then; then delete everything that is not needed."""
        observer, actor = self._observer, self._new_actor(world, process, process.rng)
        catalog = self._session(process).catalog
        process.clock.sleep_ms(_DAY)  # until no dead process has a lease
        requests = Requests(world, process, self._session(process), process.rng)
        requests.change(
            "POST", "v1/namespaces", {"namespace": ["end"]}
        )  # also carries out what others published
        for name in [name[-1] for name in observer.newest.views]:
            blame = lambda what, name=name: observer.blame(f"at the end, {name} {what}")  # noqa: E731
            try:
                Sources(observer.newest, observer.rows_of, ("db", name))
            except LookupError:
                try:
                    actor.refresh(name)
                except BadRequestError:
                    continue
                blame("was refreshed, although a source is missing")
                continue
            actor.refresh(name)
            if not view_freshness.freshness(catalog.view(), TableName(("db",), name)).fresh:
                blame("is not fresh after its refresh")
            if actor.refresh(name) != "none":
                blame("was refreshed twice")
        process.clock.sleep_ms(_DAY)
        actor._remove_orphans()
        if left := {one for one in observer.files if one.endswith(".avro")} - observer.needed_files():
            observer.blame(f"at the end, files are left that nothing needs: {sorted(left)}")
        requests.change("POST", "v1/namespaces", {"namespace": ["last"]})  # checks the files
        sweep_everything(world, process)
        process.ids.release()

    @property
    def deleted_files(self) -> int:
        """Number of files that expiry and the removal of orphans have deleted."""
        return self._observer.deleted_files

    def judge(self, world: World) -> None:
        judge_refreshes(self._observer, self.refreshes)
        self._observer.nodes.check()


def simulate_refreshes(seed: int, *, traced: bool = False, **changes: object) -> Verdict:
    """Run the simulation of a seed.

    Args:
        traced: whether the trace contains every operation of every process.
        changes: fields of the plan to replace.
    """
    scenario, plan = Refreshes(seed), draw(seed)
    plan = plan._replace(
        actions=3 * plan.actions,
        gaps=plan.gaps[:3],
        skews=plan.skews if Random(seed).random() < 0.2 else (0.0, 0.0, 5.0, -5.0),
    )
    with simulated_spark(seed):
        verdict = simulate_plan(plan._replace(**changes), traced=traced, scenario=scenario)  # type: ignore[arg-type]
    told: dict[str, int] = {}
    for one in scenario.refreshes:
        told[one.outcome or "died"] = told.get(one.outcome or "died", 0) + 1
    if scenario.deleted_files:
        told["deleted files"] = scenario.deleted_files
    return verdict._replace(requests=told)
