"""Programs in other processes that write to a catalog, or move its realm."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection

import polaris_spark
from polaris_spark.config import Properties
from polaris_spark.maintenance.migration.marks import SourceRealm
from polaris_spark.maintenance.migration.run import Migration
from polaris_spark.rest.session import Session
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.system.connections import connect_store
from polaris_spark.system.realms import RealmState
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.killing import die_at
from tests.stores import configured


def opened(uri: str, **properties: str) -> Session:
    """Open the catalog of a store. The password is not in the URI, and procedures may use the variable
    `TARGET_PASSWORD`."""
    properties.setdefault("procedure_variables", "TARGET_PASSWORD")
    return polaris_spark.connect(**configured(uri), **properties)  # type: ignore[arg-type]  # text, all of it


def write(session: Session, name: str) -> bool | None:
    """Create a namespace. Return whether it was acknowledged; None if the realm has moved."""
    body = json.dumps({"namespace": [name]})
    status, _, answer = session.request("POST", "v1/namespaces", body=body)
    if status == 400 and "was moved to" in answer:
        return None
    return status == 200


def namespaces(session: Session) -> set[str]:
    """Return all namespaces of a catalog."""
    _, _, body = session.request("GET", "v1/namespaces")
    return {levels[0] for levels in json.loads(body)["namespaces"]}


_PAUSE_S = 0.05
"""Between two writes of a thread. A copy to a slow database never catches up with writers that do not rest."""


class Writers:
    """Threads that create namespaces until they are stopped: first in one store, then in the other.

    At the end of a `with` block, all threads have stopped, even if the test has failed.
    """

    def __init__(self, source: str, target: str, *, name: str, threads: int, enough: int) -> None:
        """
        Args:
            name: prefix of the namespaces' names, before a number.
            enough: number of namespaces that each thread creates in the target.
        """
        self.acknowledged: list[str] = []
        self._names = source, target
        self._session = opened(source)
        self._name = name
        self._enough = enough
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, thread: int) -> None:
        number, session, left = 0, self._session, self._enough
        while left and not self._over.is_set():
            number += 1
            name = f"{self._name}_{thread}_{number}"
            done = write(session, name)
            if done:
                self.acknowledged.append(name)
                left -= session is not self._session
            elif done is None:
                session = opened(self._names[1])
            self._over.wait(_PAUSE_S)

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def join(self, patience_s: float | None = PATIENCE_S) -> list[str]:
        """The names that were acknowledged, once everybody has gone over to the target.

        Args:
            patience_s: longest wait for each thread, in seconds; None to wait until all have gone over.
        """
        for thread in self._threads:
            thread.join(patience_s)
            assert not thread.is_alive()
        return self.acknowledged


def write_elsewhere(source: str, target: str, name: str, told: Connection) -> None:
    """Create namespaces until the realm has moved. Send `began` to the pipe, and at the end the names of the
    namespaces."""
    with Writers(source, target, name=name, threads=2, enough=5) as writers:
        told.send("began")
        # The parent process bounds this wait, from the end of the migration.
        told.send(writers.join(None))


def migrate_and_die(source: str, target: str, left: int) -> None:
    """Move a realm. This process is killed at the `left`-th change of a reference row."""
    session = opened(source)
    references = session.catalog.references
    there = connect_store(*place(target))
    die_at(left, (session.connection.backend, there.backend), ("swap_reference", "insert_reference"))
    realm = SourceRealm(session.connection.realms, "default", references)
    for _ in Migration(realm, source, there, "default", max_pause_ms=60_000.0).run():
        pass


def states(source: str, target: str) -> list[RealmState | None]:
    """Return the states of the realm in both stores."""
    found = []
    for uri in (source, target):
        connection = connect_store(*place(uri))
        record = connection.realms.find("default")
        found.append(None if record is None else record.state)
        connection.close()
    return found


def place(uri: str) -> tuple[StoreURI, Mapping[str, str | Secret]]:
    """The URI and the options of a store."""
    properties = Properties.parse(configured(uri))
    return properties.store, properties.store_options
