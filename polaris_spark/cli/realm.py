"""`polaris-spark realm`: export a realm to one file, and import such a file into any database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark import __version__
from polaris_spark.cli.options import AsJSON, Password, Realm, Store, with_store
from polaris_spark.cli.output import plain, print_json, screen
from polaris_spark.cli.progress import steps
from polaris_spark.errors import InputError, NoStoreError

if TYPE_CHECKING:
    from polaris_spark.system.connections import StoreConnection

app = typer.Typer(
    name="realm",
    help="Export a realm to one file, and import such a file into any database.",
    no_args_is_help=True,
    add_completion=False,
)


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
    with _connected(store, password, create=False) as connection, steps() as watch:
        done = Export(connection, realm, __version__, watch).write(Path(name), overwrite=overwrite)
    trailer = done.trailer
    if as_json:
        print_json(
            {
                "file": name,
                "realm": done.header.realm,
                "references": trailer.references,
                "objects": trailer.objects,
                "rows": trailer.rows,
                "bytes": done.bytes,
                "sha256": trailer.sha256.hex(),
                "attempts": done.attempts,
            }
        )
        return
    again = f" It began {done.attempts} times, because sweeps deleted rows." if done.attempts > 1 else ""
    screen().print(
        f"{plain(name)}: {trailer.references:,} references and {trailer.objects:,} objects of realm "
        f"{plain(done.header.realm)} in {done.bytes:,} bytes.{again}",
        soft_wrap=True,
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
            with _connected(store, password, create=create) as connection, steps() as watch:
                new_name = checked.header.realm if realm is None else realm
                record = Import(connection, checked, new_name, watch).run()
        except NoStoreError as error:
            raise InputError(f"{error}; --create creates one here") from error
    if as_json:
        print_json(
            {
                "file": name,
                "realm": record.name,
                "instance": record.instance,
                "state": record.state.value,
                "references": trailer.references,
                "objects": trailer.objects,
                "rows": trailer.rows,
            }
        )
        return
    screen().print(
        f"realm {plain(record.name)} is {record.state.value}, with {trailer.references:,} references and "
        f"{trailer.objects:,} objects from {plain(name)}",
        soft_wrap=True,
    )


@contextmanager
def _connected(uri: str, password: str | None, *, create: bool) -> Iterator[StoreConnection]:
    """Open a store for the duration of a `with` block.

    Args:
        create: whether to create a store in a database that contains none.
    Raises:
        InputError: the URI or the password cannot be used.
        NoStoreError: the database contains no store, and `create` is false.
        NewerFormatError: a newer release created the store.
    """
    from polaris_spark.cli.stores import store_options
    from polaris_spark.config import StoreURI
    from polaris_spark.spark.options import refuse_memory
    from polaris_spark.system.connections import connect_store

    parsed = StoreURI.parse(uri)
    refuse_memory(parsed)
    connection = connect_store(parsed, store_options(parsed, password), create=create)
    try:
        yield connection
    finally:
        connection.close()
