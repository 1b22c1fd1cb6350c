"""Views of a store's records: `realms`, `nodes` and `tasks`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from polaris_spark import objects
from polaris_spark.clock import SystemClock
from polaris_spark.errors import CorruptionError, InputError
from polaris_spark.ids import unpack
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.features import ALL_FEATURES
from polaris_spark.system.leases import LEASE_MS, NodeLeases
from polaris_spark.system.realms import Realms, RealmState
from polaris_spark.system.stores import SYSTEM_REALM
from polaris_spark.system.tasks import TASK_MS, Tasks
from tests.views.catalogs import Catalog, Row, rows


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog that uses the system's clock."""
    made = Catalog(tmp_path / "c.db")
    yield made
    made.session.close()


def _now() -> datetime:
    return datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1_000, timezone.utc)


def test_realms_are_all_those_of_the_store(catalog: Catalog, tmp_path: Path) -> None:
    before = _now()
    other = Catalog(tmp_path / "c.db", realm="ünï/côdé @1")
    realms = Realms(catalog.session.connection.backend, SystemClock())
    [row] = [row for row in rows("realms", store=catalog.store) if row["realm"] != "default"]
    record = realms.active("ünï/côdé @1")
    assert (row["realm"], row["instance"], row["state"], row["format"]) == (
        "ünï/côdé @1",
        record.instance,
        "ACTIVE",
        2,
    )
    assert row["instance"] == other.session.catalog.references.store.realm
    assert before <= row["created_at"] <= _now()
    assert row["properties"] == record.properties
    assert row["revisions"] == objects.known_types()
    assert row["features"] == dict(ALL_FEATURES) != {}
    other.session.close()


def test_realms_that_do_not_serve_are_shown_and_gone_ones_are_not(catalog: Catalog, tmp_path: Path) -> None:
    Catalog(tmp_path / "c.db", realm="other").session.close()
    realms = Realms(catalog.session.connection.backend, SystemClock())

    def states() -> dict[str, str]:
        return {row["realm"]: row["state"] for row in rows("realms", store=catalog.store, realm="other")}

    for state in (RealmState.INACTIVE, RealmState.PURGING, RealmState.PURGED):
        realms.move("other", state)
        assert states() == {"default": "ACTIVE", "other": state.value}
    realms.move("other", RealmState.GONE)
    assert states() == {"default": "ACTIVE"}


def test_nodes_show_the_processes_that_make_ids(catalog: Catalog) -> None:
    catalog.namespace("db")
    [mine] = rows("nodes", store=catalog.store)
    assert mine["node"] == unpack(catalog.head()).node
    assert (mine["released"], mine["in_force"]) == (False, True)
    assert mine["end_at"] - mine["start_at"] == timedelta(milliseconds=LEASE_MS)
    assert mine["start_at"] <= _now() < mine["end_at"]
    head = catalog.head()
    catalog.session.close()
    [released] = rows("nodes", store=catalog.store)
    assert (released["released"], released["in_force"]) == (True, False)
    assert (released["holder"], released["start_at"]) == (mine["holder"], mine["start_at"])
    last = datetime.fromtimestamp(unpack(head).ms / 1_000, timezone.utc)
    assert last < released["end_at"] <= _now() + timedelta(milliseconds=1)


def test_every_node_has_one_row(catalog: Catalog) -> None:
    backend = catalog.session.connection.backend
    leases = [NodeLeases(backend, SystemClock(), holder=f"host{n}:{n}").acquire(0) for n in range(12)]
    found = {row["node"]: row["holder"] for row in rows("nodes", store=catalog.store)}
    assert {lease.node: f"host{n}:{n}" for n, lease in enumerate(leases)}.items() <= found.items()


def test_an_expired_lease_is_shown_as_not_in_force(catalog: Catalog) -> None:
    class Yesterday(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 86_400_000

    backend = catalog.session.connection.backend
    store = ReferenceStore(backend, SYSTEM_REALM)
    clock = store.read("clock", dict)
    assert clock is not None
    assert store.put("clock", clock.version, store.row({**clock.value, "time_ms": 0}))
    lease = NodeLeases(backend, Yesterday(), holder="late").acquire(0)
    [row] = [row for row in rows("nodes", store=catalog.store) if row["holder"] == "late"]
    assert (row["node"], row["released"], row["in_force"]) == (lease.node, False, False)


def _task(catalog: Catalog, kind: str) -> Row:
    [row] = [row for row in rows("tasks", store=catalog.store) if row["kind"] == kind]
    return row


def test_a_task_shows_its_run_and_how_it_ended(catalog: Catalog) -> None:
    assert rows("tasks", store=catalog.store) == []
    tasks = Tasks(catalog.session.connection.backend, SystemClock())
    with tasks.running("sweep", "realm/of a kind", holder="me/1") as held:
        row = _task(catalog, "sweep")
        assert (row["scope"], row["holder"], row["run"]) == ("realm/of a kind", "me/1", held.record.run.hex())
        assert (row["released"], row["in_force"], row["outcome"]) == (False, True, None)
        assert (row["doing"], row["done"], row["total"]) == (None, 0, None)
        assert row["lease_ends_at"] - row["started_at"] >= timedelta(milliseconds=TASK_MS)
    ended = _task(catalog, "sweep")
    assert (ended["released"], ended["in_force"], ended["outcome"]) == (True, False, "done")
    assert ended["started_at"] <= ended["lease_ends_at"] <= _now()
    with pytest.raises(ZeroDivisionError), tasks.running("sweep", "realm/of a kind"):
        raise ZeroDivisionError
    assert _task(catalog, "sweep")["outcome"] == "failed: ZeroDivisionError"
    with tasks.running("import", "x"):
        assert len(rows("tasks", store=catalog.store)) == 2


@pytest.mark.parametrize("view", ["realms", "nodes", "tasks"])
def test_records_have_no_as_of(catalog: Catalog, view: str) -> None:
    with pytest.raises(
        InputError, match=f"view '{view}' does not support the option as-of: .* keep no history"
    ):
        catalog.read(view, as_of=str(catalog.head()))


def test_a_damaged_record_is_named(catalog: Catalog) -> None:
    store = ReferenceStore(catalog.session.connection.backend, SYSTEM_REALM)
    assert store.put("task/x/y", None, store.row({"holder": 5}))
    with pytest.raises(CorruptionError, match="task/x/y cannot be decoded as TaskRecord"):
        rows("tasks", store=catalog.store)
    assert rows("realms", store=catalog.store)
