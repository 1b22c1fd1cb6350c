"""A server of many realms has a bounded number of them open."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import polaris_spark
from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.catalog.catalogs.catalogs import create_realm
from polaris_spark.cli.many_realms import warn_of_unserved
from polaris_spark.cli.stores import open_store
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.commits.change import Operation
from polaris_spark.config import Properties
from polaris_spark.errors import RealmStateError, TryAgainError
from polaris_spark.extension.runs import Runs
from polaris_spark.rest.opening import open_session
from polaris_spark.server import RealmNames, ServedCatalogs
from polaris_spark.server import metrics as metrics_module
from polaris_spark.server.metrics import Metrics
from polaris_spark.server.served_realms import Logins, ManyRealms
from polaris_spark.store.cache import process_cache
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import connect_store
from polaris_spark.system.realms import REALM_FORMAT, SERVING_MS, RealmRecord, RealmState
from polaris_spark.system.stores import system_references
from polaris_spark.testing.waiting import PATIENCE_S, wait_until

REALMS = ("a", "b", "c", "d")


class Opening:
    """Opens the realms of a store, and remembers what it opened."""

    def __init__(self, folder: Path) -> None:
        self.store = f"sqlite://{folder / 'store.db'}"
        for realm in REALMS:
            polaris_spark.connect(store=self.store, warehouse=str(folder / realm), realm=realm).close()
        self.opened: list[tuple[str, ServedCatalogs]] = []
        self.clock = ManualClock(SystemClock().now_ms())

    def __call__(self, realm: str) -> ServedCatalogs:
        given = {"store": self.store, "realm": realm, "create": "false"}
        session = open_session(Properties.parse(given), self.clock, logs_in=False)
        self.opened.append((realm, ServedCatalogs(session, logs_in=False)))
        return self.opened[-1][1]

    def closed(self) -> list[str]:
        """Return the names of the realms that were closed again."""
        return [realm for realm, served in self.opened if served.session._closed.is_set()]


def with_realms(folder: Path, most: int, test: Callable[[ManyRealms, Opening], Awaitable[None]]) -> Opening:
    """Run a test with realms of which at most `most` are open."""
    opening = Opening(folder)
    held = connect_store(StoreURI.parse(opening.store), clock=opening.clock, create=False)
    logins = Logins(None, Metrics(), has_many_realms=True)
    realms = ManyRealms(opening, logins, RealmNames(), check=lambda: None, most=most, needs_no_token=True)
    try:
        asyncio.run(asyncio.wait_for(test(realms, opening), PATIENCE_S))
    finally:
        realms.close()
        logins.close()
        held.close()
    return opening


async def use(realms: ManyRealms, name: str) -> bool:
    """Use a realm, and return whether it is served."""
    async with realms.using(name) as found:
        return found.catalogs is not None


def test_the_realm_that_was_used_least_recently_is_closed(tmp_path: Path) -> None:
    async def test(realms: ManyRealms, opening: Opening) -> None:
        for name in ("a", "b", "a", "c"):  # b is the oldest
            assert await use(realms, name)
            assert len(realms) <= 2
        await asyncio.to_thread(wait_until, lambda: opening.closed() == ["b"], "b is closed")
        assert await use(realms, "b")
        assert [name for name, _ in opening.opened] == ["a", "b", "c", "b"]

    opening = with_realms(tmp_path, 2, test)
    assert sorted(opening.closed()) == ["a", "b", "b", "c"]


def test_a_realm_in_use_stays_open(tmp_path: Path) -> None:
    async def test(realms: ManyRealms, opening: Opening) -> None:
        async with realms.using("a"), realms.using("b") as b:
            with pytest.raises(TryAgainError, match="max-open-realms"):
                await use(realms, "c")
            assert b.catalogs is not None
            b.catalogs.default.catalog.head()
            assert not {"a", "b"} & set(opening.closed())
        assert await use(realms, "c")

    with_realms(tmp_path, 2, test)


def test_a_realm_with_a_run_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(realms: ManyRealms, opening: Opening) -> None:
        assert await use(realms, "a")
        runs = opening.opened[0][1].session.resource(Runs)
        monkeypatch.setattr(runs, "is_busy", lambda: True)
        for name in ("b", "c", "d"):
            assert await use(realms, name)
        assert "a" not in opening.closed()
        monkeypatch.undo()
        for name in ("b", "c"):
            await use(realms, name)
        await asyncio.to_thread(wait_until, lambda: "a" in opening.closed(), "a is closed")

    with_realms(tmp_path, 2, test)


def test_a_closed_realm_leaves_nothing_in_the_store_that_stays_open(tmp_path: Path) -> None:
    kept: list[weakref.ref[object]] = []

    async def test(realms: ManyRealms, opening: Opening) -> None:
        assert await use(realms, "a")
        session = opening.opened.pop()[1].session
        kept.extend(weakref.ref(one) for one in (session.catalog.references, session.access, session.serving))
        del session
        assert await use(realms, "b")

        def is_gone() -> bool:
            gc.collect()
            return all(one() is None for one in kept)

        await asyncio.to_thread(wait_until, is_gone, "the realm is freed")

    with_realms(tmp_path, 1, test)
    assert len(kept) == 3


def test_a_realm_that_was_refused_is_opened_again(tmp_path: Path) -> None:
    def refuse(opening: Opening) -> None:
        session = opening.opened[-1][1].session
        session.connection.realms.move("a", RealmState.INACTIVE)
        opening.clock.advance(SERVING_MS)
        with pytest.raises(RealmStateError):  # as requests do
            session.serving.require()

    async def test(realms: ManyRealms, opening: Opening) -> None:
        assert await use(realms, "a")
        refuse(opening)
        opening.opened[0][1].session.connection.realms.move("a", RealmState.ACTIVE)
        assert await use(realms, "a")
        assert [name for name, _ in opening.opened] == ["a", "a"]
        await asyncio.to_thread(wait_until, lambda: opening.closed() == ["a"], "the first one is closed")
        assert await use(realms, "a")
        refuse(opening)
        assert not await use(realms, "a")

    with_realms(tmp_path, 2, test)


def test_an_unknown_name_costs_no_look_at_the_other_realms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Opening(tmp_path)
    with open_store(opening.store) as opened:
        assert opened.active_realm("a").record.name == "a"
        monkeypatch.setattr(type(opened), "realms", lambda _: pytest.fail("all realms were read"))
        with pytest.raises(RealmStateError, match="there is no realm 'x'"):
            opened.active_realm("x")


def test_simultaneous_requests_open_a_realm_once(tmp_path: Path) -> None:
    async def test(realms: ManyRealms, opening: Opening) -> None:
        assert await asyncio.gather(*(use(realms, name) for name in ("a", "b") * 20)) == [True] * 40
        assert sorted(name for name, _ in opening.opened) == ["a", "b"]
        assert await asyncio.gather(*(use(realms, f"x{i}") for i in range(40))) == [False] * 40
        assert len(realms) == 2  # names that clients invent close no realm

    with_realms(tmp_path, 2, test)


@contextmanager
def with_record(backend: Backend, realm: str, **changes: object) -> Iterator[None]:
    """Change the record of a realm during a `with` block."""
    references, name = system_references(backend), f"realm/{realm}"
    found = references.read(name, RealmRecord)
    assert found is not None
    changed = references.row(msgspec.structs.replace(found.value, **changes))
    assert references.put(name, found.version, changed)
    yield
    assert references.put(name, changed.version, references.row(found.value))


def test_a_realm_that_this_release_cannot_read_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(realms: ManyRealms, opening: Opening) -> None:
        connection = connect_store(StoreURI.parse(opening.store), clock=opening.clock, create=False)
        backend = connection.backend
        damaged = connection.realms.active("b").instance
        for split in backend.splits("objects", [damaged], 1):
            for batch in backend.scan(split):
                keys = zip(batch.column("id").to_pylist(), batch.column("part").to_pylist(), strict=True)
                backend.delete_objects(damaged, [ObjectKey(*key) for key in keys])
        process_cache().clear()
        with with_record(backend, "a", format=REALM_FORMAT + 1):
            assert [await use(realms, name) for name in ("a", "b", "c")] == [False, False, True]
        connection.close()

    with_realms(tmp_path, 4, test)
    assert all(f"the realm '{name}' cannot be served" in caplog.text for name in ("a", "b"))


def test_realms_that_are_slow_to_close_delay_no_other_realm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_close = threading.Event()
    close = ServedCatalogs.close

    def slow(served: ServedCatalogs) -> None:
        may_close.wait(PATIENCE_S)
        close(served)

    async def test(realms: ManyRealms, opening: Opening) -> None:
        monkeypatch.setattr(ServedCatalogs, "close", slow)
        try:
            for name in (*REALMS, *REALMS):  # each opening closes the realm before
                assert await asyncio.wait_for(use(realms, name), PATIENCE_S / 2)
            assert not opening.closed()
        finally:
            may_close.set()

    with_realms(tmp_path, 1, test)


def test_a_realm_cannot_get_the_metrics_of_realms_that_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "_MOST_REALMS", 1)
    metrics = Metrics()
    for realm in ("other", "b", "c"):
        metrics.record("GET", None, 200, 0.1, realm)
    assert metrics.text_of_realm("other").decode().count("polaris_spark_realm_requests_total{") == 1
    assert 'realm="other",status="2xx"} 1.0' in metrics.text_of_realm("other").decode()
    assert 'realm="::other",status="2xx"} 2.0' in metrics.text().decode()


def test_names_of_realms_that_do_not_exist_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Opening(tmp_path).store
    connection = connect_store(StoreURI.parse(store), create=False)
    create_realm(connection, "empty", Operation(b"", "root"))
    connection.close()
    with open_store(store) as opened:
        warn_of_unserved(opened, ("a", "A", "b", "empty"))
    assert [one.partition(" is not served")[0] for one in caplog.messages] == [
        "the realm 'A'",
        "the realm 'empty'",
    ]


def test_an_open_realm_that_a_newer_release_has_changed_is_refused_before_the_login(tmp_path: Path) -> None:
    opening = Opening(tmp_path)
    logins = Logins(lambda _: (), Metrics(), has_many_realms=True)
    catalogs = opening("a")
    try:
        authentication = logins.realm(catalogs).authentication
        assert authentication is not None
        assert authentication.is_served()
        with with_record(catalogs.session.connection.backend, "a", format=REALM_FORMAT + 1):
            opening.clock.advance(SERVING_MS)
            assert not authentication.is_served()
        assert authentication.is_served()
    finally:
        catalogs.close()
        logins.close()
