"""`polaris-spark properties`: show and set the properties of a catalog, which apply to all sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from polaris_spark.cli.options import (
    AsJSON,
    Password,
    Realm,
    Server,
    ServerToken,
    SetProperties,
    StoreOrServer,
    UnsetProperties,
    required_store,
)
from polaris_spark.cli.output import grid, plain, print_json, screen
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError


def properties(
    store: StoreOrServer = None,
    catalog: Annotated[
        str | None,
        typer.Option(help="Catalog; required if there are several.", show_default=False),
    ] = None,
    set: SetProperties = None,
    unset: UnsetProperties = None,
    message: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Reason for the change, which the log keeps.", show_default=False),
    ] = None,
    realm: Realm = "default",
    password: Password = None,
    server: Server = None,
    token: ServerToken = None,
    as_json: AsJSON = False,
) -> None:
    """Show the properties of a catalog, which apply to all sessions; with --set or --unset, change them first."""
    from polaris_spark.catalog.entities.properties import checked, require_settable
    from polaris_spark.cli.stores import named_texts

    names = Counter(one.partition("=")[0] for one in set or ())
    repeated = sorted(name for name, times in names.items() if times > 1)
    if repeated:
        raise InputError(
            f"--set must name each property only once; set more than once: {', '.join(repeated)}"
        )
    updates = checked(named_texts(set or ()))
    require_settable(unset or ())
    if server is None:
        found = _changed(
            required_store(store, token), realm, catalog, password, updates, unset or (), message
        )
    else:
        from polaris_spark.cli.remote import chosen_server
        from polaris_spark.jobs.set_catalog_properties import PROCEDURE

        remote = chosen_server(server, token, catalog, store=store, realm=realm, password=password)
        remote.message = message
        rows = remote.call(PROCEDURE, {"properties": updates, "unset": list(unset or ())})
        found = {name: text for name, text, _ in rows if text is not None}
    if as_json:
        print_json(dict(sorted(found.items())))
        return
    table = grid(None, "property", "value")
    for name, text in sorted(found.items()):
        table.add_row(plain(name), plain(text))
    screen().print(table)


def _changed(
    store: str,
    realm: str,
    catalog: str | None,
    password: str | None,
    updates: Mapping[str, str],
    removals: Sequence[str],
    message: str | None,
) -> Mapping[str, str]:
    """Change the properties of a catalog without a server, and return all its properties."""
    from polaris_spark.cli.stores import open_store, properties_of

    with open_store(store, password) as opened:
        row = opened.realm(realm).catalog(catalog)
    if not updates and not removals:
        return row.properties
    from polaris_spark.rest.opening import open_session
    from polaris_spark.spark.options import refuse_memory

    given = {"store": store, "realm": realm, "catalog": row.name, "create": "false"}
    if message is not None:
        given["polaris.commit.message"] = message
    parsed = properties_of(given, None, password)
    refuse_memory(parsed.store)
    with open_session(parsed, SystemClock()) as session:
        return session.set_catalog_properties(updates, removals=removals)
