"""`polaris-spark realms`: the realms of a store, and moving them from one state to another."""

from __future__ import annotations

from typing import Annotated

import typer

from polaris_spark.cli.opening import OpenStore, open_store
from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import grid, iso, plain, print_json, screen, utc
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError, RealmStateError
from polaris_spark.maintenance.purging import Purge
from polaris_spark.system.realms import Realms, RealmState
from polaris_spark.system.tasks import Tasks


def realms(
    store: Store,
    activate: Annotated[str | None, typer.Option(metavar="REALM", help="Let this realm serve again.")] = None,
    deactivate: Annotated[
        str | None, typer.Option(metavar="REALM", help="Let nobody open this realm any more.")
    ] = None,
    purge: Annotated[
        str | None,
        typer.Option(
            metavar="REALM", help="Delete all rows of this realm, which does not serve; not its files."
        ),
    ] = None,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """List the realms of a store; or activate, deactivate or purge one first."""
    if sum(name is not None for name in (activate, deactivate, purge)) > 1:
        raise InputError("--activate, --deactivate and --purge are asked for one at a time")
    with open_store(store, password) as opened:
        _change(opened, activate, deactivate, purge)
        listed = [realm.record for realm in opened.realms()]
    if as_json:
        print_json(
            [
                {"name": r.name, "state": r.state.value, "instance": r.instance, "created": iso(r.created_ms)}
                for r in listed
            ]
        )
        return
    table = grid(None, "realm", "state", "instance", "created")
    for record in listed:
        table.add_row(plain(record.name), record.state.value, record.instance, utc(record.created_ms))
    screen().print(table)


def _change(opened: OpenStore, activate: str | None, deactivate: str | None, purge: str | None) -> None:
    clock = SystemClock()
    records = Realms(opened.backend, clock)
    if activate is not None:
        _activate(records, activate)
    if deactivate is not None:
        records.move(deactivate, RealmState.INACTIVE)
    if purge is not None:
        with Tasks(opened.backend, clock).running("purge_realm", "store"):
            Purge(opened.backend, clock).realm(purge)


def _activate(records: Realms, name: str) -> None:
    """Let a realm serve again.

    Raises:
        RealmStateError: there is none of that name, it was moved away, or it never served: who fills it makes it serve.
    """
    record = records.find(name)
    if record is not None and record.state is RealmState.LOADING:
        raise RealmStateError(f"realm {name!r} is LOADING: a migration fills it; finish or abort it")
    if record is not None and record.state is RealmState.INITIALIZING:
        raise RealmStateError(f"realm {name!r} is INITIALIZING: open it with create=true, which finishes it")
    records.move(name, RealmState.ACTIVE, instance=None if record is None else record.instance)
