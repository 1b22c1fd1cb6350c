"""`polaris-spark realms`: list the realms of a store, and change their states."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import grid, plain, print_json, screen, utc
from polaris_spark.clock import SystemClock, iso_text
from polaris_spark.errors import InputError, RealmStateError

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenStore
    from polaris_spark.system.realms import Realms


def realms(
    store: Store,
    activate: Annotated[
        str | None, typer.Option(metavar="REALM", help="Activate this realm, so that it can be opened again.")
    ] = None,
    deactivate: Annotated[
        str | None,
        typer.Option(metavar="REALM", help="Deactivate this realm, so that it can no longer be opened."),
    ] = None,
    purge: Annotated[
        str | None,
        typer.Option(
            metavar="REALM",
            help="Delete all rows of this realm, which must be deactivated. Table files are not deleted.",
        ),
    ] = None,
    upgrade: Annotated[
        str | None,
        typer.Option(
            metavar="REALM",
            help="Allow formats in this realm that earlier releases cannot read. Use it only after every process has "
            "this release. Earlier releases must not use an upgraded realm, nor any realm that this release creates: "
            "their answers would lack the refs and properties that are stored in an index.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Purge without confirmation; required without a terminal.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """List the realms (tenants) of a store; with an option, activate, deactivate, purge or upgrade a realm first."""
    from polaris_spark.cli.stores import open_store
    from polaris_spark.objects import known_types
    from polaris_spark.system.realms import Realms, RealmState

    if sum(name is not None for name in (activate, deactivate, purge, upgrade)) > 1:
        raise InputError(
            "--activate, --deactivate, --purge and --upgrade exclude each other: give only one of them"
        )
    with open_store(store, password) as opened:
        records = Realms(opened.backend, SystemClock())
        if activate is not None:
            _activate(records, activate)
        if deactivate is not None:
            records.move(deactivate, RealmState.INACTIVE)
        if purge is not None:
            _purge(opened, records, purge, confirmed=yes)
        if upgrade is not None:
            records.upgrade(upgrade, known_types())
        listed = [realm.record for realm in opened.realms()]
    if as_json:
        print_json(
            [
                {
                    "name": r.name,
                    "state": r.state.value,
                    "instance": r.instance,
                    "created": iso_text(r.created_ms),
                }
                for r in listed
            ]
        )
        return
    table = grid(None, "realm", "state", "instance", "created")
    for record in listed:
        table.add_row(plain(record.name), record.state.value, record.instance, utc(record.created_ms))
    screen().print(table)


def _purge(opened: OpenStore, records: Realms, name: str, *, confirmed: bool) -> None:
    from polaris_spark.maintenance.realm_purge import Purge
    from polaris_spark.system.tasks import Tasks

    if not confirmed:
        _require_inactive(records, name)
        _confirm(opened, name)
    clock = SystemClock()
    with Tasks(opened.backend, clock).running("purge_realm", "store"):
        Purge(opened.backend, clock).realm(name)


def _confirm(opened: OpenStore, name: str) -> None:
    """Ask the user to confirm the purge of a realm.

    Raises:
        InputError: standard input or standard error is not a terminal, or the answer is no.
    """
    what = f"all rows of realm {plain(name)!r} in {opened.uri}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"--purge deletes {what} permanently; add --yes to confirm")
    if not typer.confirm(f"Delete {what} permanently?", err=True):
        raise InputError(f"realm {name!r} was not purged, because the purge was not confirmed")


def _require_inactive(records: Realms, name: str) -> None:
    """Refuse the purge of a realm that does not exist or is ACTIVE. This is checked before the user is asked to
    confirm.

    Raises:
        RealmStateError: the realm does not exist, or is ACTIVE.
    """
    from polaris_spark.system.realms import RealmState

    record = records.find(name)
    if record is None:
        raise RealmStateError(f"there is no realm {name!r} in this store")
    if record.state is RealmState.ACTIVE:
        raise RealmStateError(
            f"realm {name!r} is ACTIVE: deactivate it first (--deactivate), so that no process opens it"
        )


def _activate(records: Realms, name: str) -> None:
    """Set the state of a realm to ACTIVE, so that it can be opened.

    Raises:
        RealmStateError: the store has no realm of that name; the realm was moved to another store; a migration or
            `create=true` has not finished creating the realm; or the realm was purged or is being purged.
    """
    from polaris_spark.system.realms import RealmState

    record = records.find(name)
    if record is not None and record.state is RealmState.LOADING:
        raise RealmStateError(
            f"realm {name!r} is LOADING: a migration or an import is writing rows to it; finish or "
            "abort the migration, or import the file again, which continues"
        )
    if record is not None and record.state is RealmState.INITIALIZING:
        raise RealmStateError(
            f"realm {name!r} is INITIALIZING: open it with create=true to finish its creation"
        )
    records.move(name, RealmState.ACTIVE, instance=None if record is None else record.instance)
