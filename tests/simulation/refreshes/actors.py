"""Clients of the simulated catalog: they refresh and change materialized views, and change the tables below them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from polaris_spark.catalog.engine import LocalEngine, Reach
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.errors import ClockError, CorruptionError, PolarisError
from polaris_spark.jobs import expire
from polaris_spark.jobs.export_metadata import select
from polaris_spark.jobs.materialized_views.refresh import refresh
from polaris_spark.jobs.procedure import Call
from polaris_spark.maintenance.expiry.run import ExpiryRun, Limits
from polaris_spark.rest.session import Session
from tests.rest.client import path, table, view
from tests.rest.materialized import SCHEMA, create_materialized_view
from tests.simulation.plan import HOUR
from tests.simulation.refreshes.lake import NOTHING, Json, Query, Rows
from tests.simulation.refreshes.requests import Requests, UnavailableError, storage
from tests.simulation.refreshes.rules import Refresh
from tests.simulation.refreshes.spark import SimulatedSpark, SparkError
from tests.simulation.world import Process, World

TABLES = ("t0", "t1", "t2")
VIEWS = ("v0", "v1", "v2")
TIME_ZONE = "spark.sql.session.timeZone"
SESSIONS = ({TIME_ZONE: "UTC"}, {TIME_ZONE: "Asia/Tokyo"})
"""Settings of Spark sessions. Most refreshes have the first."""
ORPHAN_AGE_MS = 24 * HOUR
"""The least age of files that `remove_orphans` deletes, unless it is forced."""
RETENTIONS = ("1 s", "1 min", "1 h", "7 d")


class RefreshActor:
    """The actions of one thread."""

    def __init__(
        self, world: World, process: Process, session: Session, rng: Random, refreshes: list[Refresh]
    ) -> None:
        """
        Args:
            refreshes: all refreshes of the simulation.
        """
        self._process = process
        self._rng = rng
        self._refreshes = refreshes
        self._session = session
        self._requests = Requests(world, process, session, rng)
        self._world = world
        self._observer = self._requests.observer
        self._actions: tuple[tuple[int, Callable[[], object]], ...] = (
            (30, self._refresh_one),
            (22, self._write),
            (7, self._create_view),
            (4, self._replace_view),
            (2, self._rename_view),
            (1, self._drop_view),
            (2, self._change_columns),
            (1, self._rename_table),
            (1, self._drop_table),
            (6, self._create_table),
            (8, self._expire),
            (4, self._change_storage),
            (4, self._misuse_storage),
            (2, self._set_strategy),
            (2, self._remove_orphans),
        )

    def act(self) -> None:
        """Do one action. An error of the product ends the action early."""
        weights = [weight for weight, _ in self._actions]
        [(_, action)] = self._rng.choices(self._actions, weights)
        began = self._world.tick()
        try:
            action()
        except CorruptionError as error:
            self._excuse(error, began)
        except (PolarisError, UnavailableError, SparkError) as error:
            if isinstance(error, ClockError):
                self._process.refused(error)
            self._world.note(self._process.name, "gave up", action.__name__, type(error).__name__, str(error))

    def _excuse(self, error: CorruptionError, began: int) -> None:
        """Record a violation unless a missing row was deleted after the action began."""
        gone = self._observer.gone
        if not any(str(id) in str(error) for id, when in gone.items() if when > began):
            self._observer.blame(f"{self._process.name} found the store corrupt: {error}")

    # Refreshes

    def _refresh_one(self) -> None:
        name = self._rng.choice(VIEWS)
        settings = SESSIONS[self._rng.random() < 0.05]
        self.refresh(name, full=self._rng.random() < 0.1, settings=settings)

    def refresh(self, name: str, *, full: bool = False, settings: dict[str, str] = SESSIONS[0]) -> str:
        """Refresh a view by the product's procedure; return the strategy that was used.

        Raises:
            PolarisError, SparkError: as the procedure reports it.
        """
        one = Refresh(name, self._process.name, self._world.tick())
        self._refreshes.append(one)
        spark = SimulatedSpark(self._requests, one, settings)
        call = Call(self._session, lambda: spark)  # type: ignore[arg-type,return-value]  # a simulated session
        try:
            one.outcome = refresh(call, TableName(("db",), name), full=full).strategy
        except Exception as error:
            one.outcome = type(error).__name__
            raise
        finally:
            if not self._process.clock.dead:
                one.responded = self._world.tick()
                self._world.note(self._process.name, "refreshed", name, one.outcome)
        return one.outcome

    # Tables

    def _write(self) -> None:
        """Add or remove rows of a table, or compact it."""
        where = table(self._rng.choice(TABLES))
        before = self._requests.load(where)
        if before is None:
            return
        rows = dict(self._rows(before))
        kind = self._rng.choice(("append", "append", "append", "delete", "replace"))
        if kind == "append":
            rows[self._rng.getrandbits(40)] = 1
        elif kind == "delete" and rows:
            del rows[self._rng.choice(sorted(rows))]
        elif not rows:
            return
        self._requests.write(where, before, rows, kind)

    def _rows(self, metadata: Json) -> Rows:
        return self._observer.rows_of.get(metadata.get("current-snapshot-id", -1), NOTHING)

    def _change_columns(self) -> None:
        where = table(self._rng.choice(TABLES))
        before = self._requests.load(where)
        if before is not None:
            self._requests.add_column(where, before, f"c{before['last-column-id']}")

    def _create_table(self) -> None:
        body = {"name": self._rng.choice(TABLES), "schema": SCHEMA}
        self._requests.change("POST", f"{path('db')}/tables", body)

    def _drop_table(self) -> None:
        self._requests.change("DELETE", table(self._rng.choice(TABLES)))

    def _rename_table(self) -> None:
        self._rename("tables", TABLES)

    def _rename(self, kind: str, names: tuple[str, ...]) -> None:
        source, target = self._rng.sample(names, 2)
        body = {
            "source": {"namespace": ["db"], "name": source},
            "destination": {"namespace": ["db"], "name": target},
        }
        self._requests.change("POST", f"v1/{kind}/rename", body)

    # Views

    def _create_view(self) -> None:
        self.create_view(self._rng.choice(VIEWS))

    def _replace_view(self) -> None:
        self.create_view(self._rng.choice(VIEWS), replace=True)

    def create_view(self, name: str, *, replace: bool = False) -> None:
        """Create or replace a view with a random query."""
        rng = self._rng
        below = VIEWS[: VIEWS.index(name)] if rng.random() < 0.9 else VIEWS
        sources = rng.sample((*TABLES, *below), rng.choice((1, 1, 2)))
        query = Query(tuple(sources), rng.randrange(6))
        properties = {"refresh-retention": rng.choice(RETENTIONS)}
        if rng.random() < 0.7:
            properties["refresh-strategy"] = "incremental"
        if rng.random() < 0.2:
            properties["time-travel"] = "true"
        create_materialized_view(
            self._session.catalog, name, query.sql, replace=replace, properties=properties
        )

    def _rename_view(self) -> None:
        self._rename("views", VIEWS)

    def _drop_view(self) -> None:
        self._requests.change("DELETE", view(self._rng.choice(VIEWS)))

    def _set_strategy(self) -> None:
        update = {
            "action": "set-properties",
            "updates": {"refresh-strategy": self._rng.choice(("full", "incremental"))},
        }
        self._requests.commit(view(self._rng.choice(VIEWS)), [], [update])

    # Storage tables

    def _change_storage(self) -> None:
        """Compact a storage table, roll it back, or set a property."""
        where = storage(self._rng.choice(VIEWS))
        before = self._requests.load(where)
        if before is None or before.get("current-snapshot-id", -1) == -1:
            return
        kind = self._rng.choice(("compact", "roll back", "set"))
        if kind == "compact":
            self._requests.write(where, before, self._rows(before), "replace")
        elif kind == "roll back":
            id = self._rng.choice([one["snapshot-id"] for one in before["snapshots"]])
            back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
            self._requests.commit(where, [], [back])
        else:
            update = {"action": "set-properties", "updates": {"write.x": str(self._rng.random())}}
            self._requests.commit(where, [], [update])

    def _misuse_storage(self) -> None:
        """Try what only refreshes, or only statements for the view, may do."""
        name = self._rng.choice(VIEWS)
        where = storage(name)
        before = self._requests.load(where)
        if before is None:
            return
        kind = self._rng.choice(("write", "columns", "drop", "rename", "document"))
        if kind == "write":
            outcome = self._requests.write(where, before, {self._rng.getrandbits(40): 1}, "append")
        elif kind == "columns":
            outcome = self._requests.add_column(where, before, f"c{before['last-column-id']}")
        elif kind == "drop":
            outcome = self._requests.change("DELETE", where)
        elif kind == "rename":
            body = {
                "source": {"namespace": ["db", name], "name": "storage"},
                "destination": {"namespace": ["db"], "name": "t0"},
            }
            outcome = self._requests.change("POST", "v1/tables/rename", body)
        else:
            update = {"action": "set-properties", "updates": {"materialized_view_metadata": "{}"}}
            outcome = self._requests.commit(where, [], [update])
        if outcome == "done":
            self._observer.blame(f"{kind} of the storage table of {name} was not refused")

    # Upkeep

    def _expire(self) -> None:
        """Remove the snapshots of a table, and delete their files, as the procedure `expire` does."""
        rng, catalog = self._rng, self._session.catalog
        name = rng.choice((*TABLES, *(f"{one}.storage" for one in VIEWS)))
        call = Call(self._session)
        asked = expire._asked(call, {"older_than": rng.choice(("0 s", "1 s", "10 min")), "retain_last": 1})
        reach = Reach(catalog.references.store, catalog.files, self._process.clock)
        run = ExpiryRun(
            catalog,
            "me",
            LocalEngine(reach),
            asked,
            limits=Limits(),
            grace_ms=0,
            keep_records_ms=0,
        )
        chosen = select(catalog.head(), catalog.name, table=f"db.{name}", namespace=None)
        table = self._observer.newest.tables.get(("db", *name.split(".")))
        before = {one["manifest-list"] for one in table.snapshots.values()} if table else set[str]()
        run._remove(run._decide(chosen))
        self._process.clock.check()
        self._observer.delete_files(0.0, before)

    def _remove_orphans(self) -> None:
        """Delete files that no table or view needs, unless they are so new that a commit may still bring them."""
        self._observer.delete_files(ORPHAN_AGE_MS)
