"""`polaris-spark realm`: the realms (tenants) of a store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polaris_spark import __version__
from polaris_spark.cli.maintain import command_of
from polaris_spark.cli.options import (
    AsJSON,
    Password,
    Realm,
    SetProperties,
    Store,
    UnsetProperties,
    with_store,
)
from polaris_spark.cli.output import grid, plain, print_json, screen, utc
from polaris_spark.cli.progress import steps
from polaris_spark.clock import iso_text
from polaris_spark.errors import InputError, NoStoreError, RealmStateError
from polaris_spark.jobs import migrate_realm

if TYPE_CHECKING:
    from polaris_spark.system.connections import StoreConnection
    from polaris_spark.system.realms import RealmRecord, Realms

app = typer.Typer(
    name="realm",
    help="Manage the realms (tenants) of a store: create, list, deactivate, purge, export, import, migrate.",
    no_args_is_help=True,
    add_completion=False,
)


Name = Annotated[str | None, typer.Argument(metavar="REALM", help="Name of the realm.", show_default=False)]


@app.command("list")
def list_realms(store: Store, password: Password = None, as_json: AsJSON = False) -> None:
    """List the realms of a store."""
    with connected(store, password, create=False) as connection:
        listed = connection.realms.all()
    if as_json:
        print_json([_facts(record) for record in listed])
        return
    table = grid(None, "realm", "state", "instance", "created")
    for record in listed:
        table.add_row(plain(record.name), record.state.value, record.instance, utc(record.created_ms))
    screen().print(table)


@app.command("create")
def create(
    store: Store,
    realm: Name = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create a store if the database contains none.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Create a realm without catalogs. After an interruption, run this again."""
    from polaris_spark.catalog.catalogs.catalogs import create_realm
    from polaris_spark.commits.change import Operation
    from polaris_spark.rest.opening import os_user

    store, name = with_store(store, realm, "REALM")
    with connected(store, password, create=create) as connection:
        record = create_realm(connection, name, Operation(b"", os_user()))
    _show(record, as_json=as_json)


@app.command("describe")
def describe(store: Store, realm: Name = None, password: Password = None, as_json: AsJSON = False) -> None:
    """Show the state, the format, the features and the properties of a realm."""
    _change(store, realm, _found, password, as_json=as_json)


@app.command("set")
def set_properties(
    store: Store,
    realm: Name = None,
    set: SetProperties = None,
    unset: UnsetProperties = None,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Set and remove properties of a realm, such as a contact. They are notes for people, without any other effect."""
    from polaris_spark.cli.stores import named_texts

    updates = named_texts(set or ())
    if not updates and not unset:
        raise InputError("give at least one --set NAME=VALUE or --unset NAME")
    _change(
        store,
        realm,
        lambda realms, name: realms.set_properties(name, updates, unset or ()),
        password,
        as_json=as_json,
    )


@app.command("deactivate")
def deactivate(store: Store, realm: Name = None, password: Password = None, as_json: AsJSON = False) -> None:
    """Deactivate a realm, so that it can no longer be opened. Open sessions and servers refuse requests within 2 s."""
    from polaris_spark.system.realms import RealmState

    _change(
        store,
        realm,
        lambda realms, name: realms.move(name, RealmState.INACTIVE),
        password,
        as_json=as_json,
    )


@app.command("reactivate")
def reactivate(store: Store, realm: Name = None, password: Password = None, as_json: AsJSON = False) -> None:
    """Make a deactivated realm active again. Sessions and servers that are still open serve again."""
    _change(store, realm, lambda realms, name: realms.reactivate(name), password, as_json=as_json)


@app.command("purge")
def purge(
    store: Store,
    realm: Name = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Purge without confirmation; required without a terminal.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Delete all rows of a realm, which must be deactivated. Table files are not deleted."""
    from polaris_spark.maintenance.realm_purge import Purge
    from polaris_spark.system.tasks import Tasks

    store, name = with_store(store, realm, "REALM")
    with connected(store, password, create=False) as connection:
        if not yes:
            _require_inactive(connection.realms, name)
            _confirm(store, name)
        with Tasks(connection.backend, connection.clock).running("purge_realm", "store"):
            purged = Purge(connection.backend, connection.clock).realm(name)
    counted = None if purged.objects < 0 else purged.objects
    objects = "all objects" if counted is None else f"{counted:,} objects"
    _report(
        {
            "name": name,
            "instance": purged.instance,
            "references": purged.references,
            "objects": counted,
        },
        f"realm {plain(name)} was purged: {purged.references:,} references and {objects}",
        as_json=as_json,
    )


def _confirm(store: str, name: str) -> None:
    """Ask the user to confirm the purge of a realm.

    Raises:
        InputError: standard input or standard error is not a terminal, or the answer is no.
    """
    what = f"all rows of realm {plain(name)!r} in {store}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"purge deletes {what} permanently; add --yes to confirm")
    if not typer.confirm(f"Delete {what} permanently?", err=True):
        raise InputError(f"realm {name!r} was not purged, because the purge was not confirmed")


def _require_inactive(realms: Realms, name: str) -> None:
    """Refuse the purge of a realm that does not exist or is ACTIVE. This is checked before the user is asked to
    confirm.

    Raises:
        RealmStateError: the realm does not exist, or is ACTIVE.
    """
    from polaris_spark.system.realms import RealmState

    if _found(realms, name).state is RealmState.ACTIVE:
        raise RealmStateError(
            f"realm {name!r} is ACTIVE: deactivate it first (realm deactivate), so that no process opens it"
        )


def _found(realms: Realms, name: str) -> RealmRecord:
    """Return the record of a realm.

    Raises:
        RealmStateError: the realm does not exist.
    """
    record = realms.find(name)
    if record is None:
        raise realms.missing(name)
    return record


def _change(
    store: str,
    realm: str | None,
    change: Callable[[Realms, str], RealmRecord],
    password: str | None,
    *,
    as_json: bool,
) -> None:
    """Read or change the record of a realm, and print it."""
    store, name = with_store(store, realm, "REALM")
    with connected(store, password, create=False) as connection:
        record = change(connection.realms, name)
    _show(record, as_json=as_json)


def _show(record: RealmRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(_facts(record))
        return
    table = grid(None, "property", "value")
    table.add_row("realm", plain(record.name))
    for name in ("state", "instance", "created", "format"):
        table.add_row(name, str(_facts(record)[name]))
    table.add_row("features", plain(", ".join(sorted(record.features)) or "none"))
    for name, text in sorted(record.properties.items()):
        table.add_row(plain(name), plain(text))
    screen().print(table)


def _report(facts: dict[str, Any], sentence: str, *, as_json: bool) -> None:
    """Print what a command has done: the facts as JSON, or a sentence."""
    if as_json:
        print_json(facts)
    else:
        screen().print(sentence, soft_wrap=True)


def _facts(record: RealmRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": record.state.value,
        "instance": record.instance,
        "created": iso_text(record.created_ms),
        "format": record.format,
        "features": record.features,
        "properties": record.properties,
    }


@app.command("export")
def export_realm(
    store: Store,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="File to write.", show_default=False)
    ] = None,
    realm: Realm = "default",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Export a realm to one file, as it was at one instant. Table files are not in it."""
    from polaris_spark.maintenance.realm_file.exporter import Export

    store, name = with_store(store, file, "FILE")
    with connected(store, password, create=False) as connection, steps() as watch:
        done = Export(connection, realm, __version__, watch).write(Path(name), overwrite=overwrite)
    trailer = done.trailer
    again = f" It began {done.attempts} times, because sweeps deleted rows." if done.attempts > 1 else ""
    _report(
        {
            "file": name,
            "realm": done.header.realm,
            "references": trailer.references,
            "objects": trailer.objects,
            "rows": trailer.rows,
            "bytes": done.bytes,
            "sha256": trailer.sha256.hex(),
            "attempts": done.attempts,
        },
        f"{plain(name)}: {trailer.references:,} references and {trailer.objects:,} objects of realm "
        f"{plain(done.header.realm)} in {done.bytes:,} bytes.{again}",
        as_json=as_json,
    )


@app.command("import")
def import_realm(
    store: Store,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="File that `realm export` wrote.", show_default=False)
    ] = None,
    realm: Annotated[
        str | None,
        typer.Option(help="Name of the new realm; by default, as in the file.", show_default=False),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create a store if the database contains none.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Create a realm from a file. After an interruption, run this again with the same file."""
    from polaris_spark.maintenance.realm_file.importer import Import
    from polaris_spark.maintenance.realm_file.layout import RealmFile

    store, name = with_store(store, file, "FILE")
    with RealmFile(Path(name)) as checked:
        trailer = checked.trailer
        try:
            with connected(store, password, create=create) as connection, steps() as watch:
                new_name = checked.header.realm if realm is None else realm
                record = Import(connection, checked, new_name, watch).run()
        except NoStoreError as error:
            raise InputError(f"{error}; --create creates one here") from error
    _report(
        {
            "file": name,
            "realm": record.name,
            "instance": record.instance,
            "state": record.state.value,
            "references": trailer.references,
            "objects": trailer.objects,
            "rows": trailer.rows,
        },
        f"realm {plain(record.name)} is {record.state.value}, with {trailer.references:,} references and "
        f"{trailer.objects:,} objects from {plain(name)}. Its tables have the same files as those of realm "
        f"{plain(checked.header.realm)} from which the file was exported: if that realm is still in use, delete files "
        "in only one of the two.",
        as_json=as_json,
    )


app.command("migrate")(command_of(migrate_realm.PROCEDURE, "migrate"))


@contextmanager
def connected(uri: str, password: str | None, *, create: bool) -> Iterator[StoreConnection]:
    """Open a store for the duration of a `with` block.

    Args:
        create: whether to create a store in a database that contains none.
    Raises:
        InputError: the URI or the password cannot be used.
        NoStoreError: the database contains no store, and `create` is false.
        NewerFormatError: a newer release created the store.
    """
    from polaris_spark.cli.stores import store_options
    from polaris_spark.spark.options import refuse_memory
    from polaris_spark.store_uris import StoreURI
    from polaris_spark.system.connections import connect_store

    parsed = StoreURI.parse(uri)
    refuse_memory(parsed)
    connection = connect_store(parsed, store_options(parsed, password), create=create)
    try:
        yield connection
    finally:
        connection.close()
