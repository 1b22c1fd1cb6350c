"""Executors on a standalone cluster of two workers read rows directly from each database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.backends.base import ObjectKey, ObjectRow
from tests.spark.cluster import Cluster, ClusterDriver
from tests.stores import EMBEDDED, NETWORKED, StoreOn, configured

pytestmark = pytest.mark.databases

NAMESPACES, COPIES = 60, 400
APART = 28
"""Bits of 64 milliseconds in an id: an object store keeps rows of that time in one object, and reads a few in one
piece."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterDriver]:
    """A driver program on a cluster of two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder)
    try:
        driver = ClusterDriver(cluster.master, folder)
        yield driver
        driver.close()
    finally:
        cluster.close()


@pytest.mark.parametrize("database", NETWORKED)
def test_two_executors_read_every_object_once(
    driver: ClusterDriver, store_on: StoreOn, tmp_path: Path, database: str
) -> None:
    uri = store_on(database)
    _fill(uri, tmp_path)
    properties = configured(uri)
    assert driver.ask("fill", uri, {**properties, "catalog": "polaris"}) == [[1, "tea"], [2, "coffee"]]
    found = driver.ask("read", uri, {**properties, "catalog": "polaris"})
    print(database, found)
    assert found["stored"] == found["sql"] == sum(found["by executor"].values()) > COPIES
    assert len([rows for rows in found["by executor"].values() if rows]) == 2, found


@pytest.mark.parametrize("database", ["postgresql", pytest.param("s3", marks=pytest.mark.exhaustive)])
def test_executors_carry_out_maintenance(
    driver: ClusterDriver, store_on: StoreOn, tmp_path: Path, database: str
) -> None:
    uri = store_on(database)
    properties = configured(uri)
    _fill(uri, tmp_path)
    driver.ask("fill", uri, {**properties, "catalog": "polaris"})
    done = driver.ask("maintain", uri, {**properties, "catalog": "polaris"})
    print(database, done)
    (expired,) = done["expire"]
    assert (expired["table"], expired["snapshots"], expired["failed"]) == ("db.t0", 2, 0)
    assert expired["data_files"] > 0
    assert done["fsck"] == []
    assert done["rows"] == [[3, "milk"], [4, "salt"]]
    assert (
        sum(row["rows"] for row in done["sweep"]) == COPIES - 1
    )  # the copies are old, and nothing names them


def _fill(uri: str, folder: Path) -> None:
    """Create a catalog with many objects."""
    with polaris_spark.connect(store=uri, warehouse=str(folder / "warehouse")) as catalog:

        def create(first: int) -> None:
            for number in range(first, NAMESPACES, 8):
                body = f'{{"namespace": ["n{number:03}"]}}'
                assert catalog.request("POST", "v1/namespaces", body=body)[0] == 200

        threads = [threading.Thread(target=create, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _copy(catalog)


def _copy(session: polaris_spark.Session) -> None:
    """Write copies of a row, with ids as if they were created over half a minute."""
    backend, realm = session.connection.backend, session.catalog.references.store.realm
    id = session.catalog.head().head.commit
    value = backend.read_objects(realm, [ObjectKey(id)])[ObjectKey(id)]
    backend.write_objects(realm, [ObjectRow(copy << APART, 0, value) for copy in range(1, COPIES)])


@pytest.mark.parametrize("database", EMBEDDED)
def test_a_store_that_other_machines_cannot_read_is_refused_by_name(
    driver: ClusterDriver, store_on: StoreOn, database: str
) -> None:
    uri = store_on(database)
    with pytest.raises(RuntimeError, match=r"one (machine|process) only"):
        driver.ask("fill", uri, configured(uri))
