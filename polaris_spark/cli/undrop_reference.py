"""`polaris-spark undrop-reference`: restore a dropped reference, such as a catalog's branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.options import AsJSON, Password, Realm, Store, with_store
from polaris_spark.cli.output import hexadecimal, plain, print_json, screen
from polaris_spark.errors import PolarisError

if TYPE_CHECKING:
    from polaris_spark.system.registry import References


def undrop_reference(
    store: Store,
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="REFERENCE",
            help="Name of the reference, as `info` lists it with the state dropped.",
            show_default=False,
        ),
    ] = None,
    realm: Realm = "default",
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Restore a dropped reference, such as a branch of a catalog, before its grace period ends."""
    from polaris_spark.cli.stores import open_store
    from polaris_spark.commits.change import Operation
    from polaris_spark.rest.opening import os_user

    store, name = with_store(store, reference, "REFERENCE")
    with open_store(store, password) as opened:
        place = opened.writable_realm(realm)
        place.undrop(name, Operation(b"", os_user()))
        _bind(place, store, name)
        head = place.read(name).head
    if as_json:
        print_json({"name": name, "commit": head.number, "id": hexadecimal(head.commit)})
    else:
        screen().print(
            f"{plain(name)} was restored at commit {head.number:,} {head.commit:x}", soft_wrap=True
        )


def _bind(references: References, store: str, name: str) -> None:
    """Write a copy of the catalog's row, with the current properties, to a restored branch.

    Sessions that opened the branch before it was dropped may still be running, and they read the properties from this
    copy.

    Raises:
        PolarisError: the branch was restored, but the copy could not be written.
    """
    from polaris_spark.catalog.catalogs.catalogs import list_catalogs
    from polaris_spark.catalog.catalogs.property_changes import bind_branch
    from polaris_spark.catalog.catalogs.references import heads_prefix
    from polaris_spark.catalog.entities.entities import Context
    from polaris_spark.commits.change import Operation
    from polaris_spark.config import Properties
    from polaris_spark.rest.opening import os_user

    properties = Properties.parse({"store": store})
    context = Context.of_realm(references.clock, properties)
    try:
        for row in list_catalogs(references):
            if name.startswith(heads_prefix(row)):
                bind_branch(references, context, Operation(b"", os_user()), row, name)
    except PolarisError as error:
        error.args = (
            f"{name!r} was restored, but the properties of its catalog do not apply to it yet: {error}; open the "
            "branch to complete this",
        )
        raise
