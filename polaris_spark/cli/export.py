"""`polaris-spark export`: write the metadata files of tables and views, which are computed from rows of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polaris_spark.cli.options import (
    AsJSON,
    Password,
    Realm,
    Server,
    ServerToken,
    StoreOrServer,
    required_store,
)
from polaris_spark.cli.output import NOTHING_TO_DO, as_sql, grid, plain, print_json, screen
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.commits.state import CommitReader

_COLUMNS = ("table", "kind", "metadata-location", "outcome")


def export(
    store: StoreOrServer = None,
    table: Annotated[str | None, typer.Option(help="A table or view, such as db.t.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option(help="A namespace, including the namespaces below it; by default, the whole catalog."),
    ] = None,
    location: Annotated[
        str | None, typer.Option(help="Directory for the files, instead of their own metadata locations.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that has other content, instead of refusing.")
    ] = False,
    realm: Realm = "default",
    catalog: Annotated[
        str | None, typer.Option(help="Catalog to export; required if there are several.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    password: Password = None,
    server: Server = None,
    token: ServerToken = None,
    as_json: AsJSON = False,
) -> None:
    """Write the metadata.json files of tables and views, as of the newest commit."""
    if server is None:
        from polaris_spark.cli.stores import open_store

        with open_store(required_store(store, token), password) as opened:
            place = opened.realm(realm)
            row = place.catalog(catalog)
            head = place.catalog_head(row, branch)
            done = _exported(head, row.name, table, namespace, location, overwrite=overwrite)
    else:
        from polaris_spark.cli.remote import chosen_server
        from polaris_spark.jobs.export_metadata import PROCEDURE

        remote = chosen_server(
            server, token, catalog, store=store, realm=realm, branch=branch, password=password
        )
        arguments = {"table": table, "namespace": namespace, "location": location, "overwrite": overwrite}
        done = remote.call(PROCEDURE, arguments)
    if as_json:
        print_json(
            [dict(zip(("name", *_COLUMNS[1:]), (as_sql(one[0]), *one[1:]), strict=True)) for one in done]
        )
        return
    if not done:
        screen().print(NOTHING_TO_DO)
        return
    shown = grid(None, *(name.replace("-", " ") for name in _COLUMNS))
    for one in done:
        shown.add_row(*(plain(cell) for cell in one))
    screen().print(shown)


def _exported(
    head: CommitReader,
    catalog: str,
    table: str | None,
    namespace: str | None,
    location: str | None,
    *,
    overwrite: bool,
) -> list[tuple[Any, ...]]:
    from polaris_spark.catalog.files.files import Files
    from polaris_spark.catalog.tables.metadata_export import Exporter
    from polaris_spark.commits.state import StoredObjects
    from polaris_spark.jobs.export_metadata import rows, select

    items = select(head, catalog, table=table, namespace=namespace)
    exporter = Exporter(StoredObjects(head.store), Files({}), directory=location, overwrite=overwrite)
    return list(rows([exporter.export(item) for item in items]))
