"""`polaris-spark export`: write the metadata files of tables and views from their rows."""

from __future__ import annotations

from typing import Annotated

import typer

from polaris_spark.cli.options import AsJSON, Password, Realm, Store
from polaris_spark.cli.output import NOTHING_TO_DO, as_sql, grid, plain, print_json, screen
from polaris_spark.names import MAIN

_COLUMNS = ("table", "kind", "metadata-location", "outcome")


def export(
    store: Store,
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
    as_json: AsJSON = False,
) -> None:
    """Write the metadata.json of tables and views, as it is in the newest commit."""
    from polaris_spark.catalog.exporting import Exporter
    from polaris_spark.catalog.files import Files
    from polaris_spark.cli.opening import open_store
    from polaris_spark.commits.state import StoredObjects
    from polaris_spark.jobs.export_metadata import rows, select

    with open_store(store, password) as opened:
        place = opened.realm(realm)
        row = place.catalog(catalog)
        head = place.catalog_head(row, branch)
        items = select(head, row.name, table=table, namespace=namespace)
        exporter = Exporter(StoredObjects(head.store), Files({}), directory=location, overwrite=overwrite)
        done = rows(list(exporter.all(items)))
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
