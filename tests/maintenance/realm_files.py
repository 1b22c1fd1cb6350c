"""Realms that are exported to files, and programs that import them and are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.realm_file.exporter import Export, Exported
from polaris_spark.maintenance.realm_file.importer import Import
from polaris_spark.maintenance.realm_file.layout import RealmFile
from polaris_spark.rest.session import Session
from polaris_spark.system.connections import StoreConnection, connect_store
from polaris_spark.system.realms import RealmRecord
from tests.faults.killing import die_at
from tests.maintenance.movers import place, write
from tests.rest.client import Client

PERIODS = {"grace": "0s", "history_retention": "0s", "idempotency_key_lifetime": "0s"}
"""Properties by which a trim gives up all history, and a sweep deletes what it gave up."""


def connected(uri: str) -> StoreConnection:
    """The store of a URI, which is created if there is none."""
    return connect_store(*place(uri))


def exported(uri: str, path: Path) -> Exported:
    """Export the realm `default`."""
    connection = connected(uri)
    try:
        return Export(connection, "default", "test").write(path, overwrite=True)
    finally:
        connection.close()


def imported(uri: str, path: Path) -> RealmRecord:
    """Import a realm as `default`."""
    connection = connected(uri)
    try:
        with RealmFile(path) as file:
            return Import(connection, file, "default").run()
    finally:
        connection.close()


def export_and_die(uri: str, path: Path, when: str) -> None:
    """Export a realm, and be killed when a step is reported first. Called in another process."""

    def watch(doing: str, done: int, total: int) -> None:
        if doing == when:
            os.kill(os.getpid(), signal.SIGKILL)

    Export(connected(uri), "default", "test", watch).write(path)


def import_and_die(uri: str, path: Path, number: int) -> None:
    """Import a realm, and be killed before an operation on the database. Called in another process.

    Args:
        number: of the operation.
    """
    connection = connected(uri)
    die_at(number, [connection.backend])
    with RealmFile(path) as file:
        Import(connection, file, "default").run()


def fill(session: Session) -> None:
    """Make tables, views of the past whose history was trimmed, branches, a tag, and a branch that was dropped."""
    client = Client(session)
    client.namespace("db")
    for name in ("a", "b", "c"):
        client.create(name)
    client.set("a", colour="blue")
    call(session, "trim")
    for number in range(5):
        assert write(session, f"n{number}")
    for name in ("dev", "gone"):
        call(session, "create_branch", name=name)
    call(session, "create_tag", name="v1")
    assert write(session.derive(catalog=catalog_at(session.catalog, "dev")), "on_dev")
    call(session, "drop_branch", name="gone")


def contents(path: Path) -> tuple[Any, ...]:
    """What a file says of a realm, apart from what differs between two stores: rows, heads and their floors."""
    with RealmFile(path) as file:
        trailer = file.trailer
        heads = {
            held.row_name: (held.head.commit, held.head.number, held.head.floor_number, held.head.sealed)
            for held in file.heads
        }
        return trailer.sum, trailer.rows, trailer.objects, heads, file.header.revisions
