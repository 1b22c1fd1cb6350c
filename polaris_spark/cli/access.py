"""`polaris-spark access`: the procedures of access control as commands, and export and apply of a document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.maintain import command_group
from polaris_spark.cli.options import Password, Property, Realm, Store, with_store
from polaris_spark.cli.output import plain, screen
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError
from polaris_spark.jobs.access import PROCEDURES
from polaris_spark.jobs.procedure import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

app = command_group(
    "access",
    "Manage principals, roles and grants of a realm with access control.",
    {one.name.replace("_", "-"): one for one in PROCEDURES},
)
Catalog = Annotated[str, typer.Option(help="Catalog of the roles and grants.")]


@app.command("export")
def export(
    store: Store,
    realm: Realm = "default",
    catalog: Catalog = "polaris",
    property: Property = None,
    password: Password = None,
) -> None:
    """Print principals, roles and grants as YAML, without secrets."""
    from polaris_spark.jobs.access_document import exported, text_of

    with _opened(store, {"realm": realm, "catalog": catalog}, property, password) as call:
        print(text_of(exported(call)), end="")


@app.command("apply")
def apply(
    store: Store,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Document in the format that `export` prints.", show_default=False
        ),
    ] = None,
    realm: Realm = "default",
    catalog: Catalog = "polaris",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be changed.")] = False,
    property: Property = None,
    password: Password = None,
) -> None:
    """Create and change principals, roles and grants as a document describes them. Others are not changed."""
    from polaris_spark.jobs.access_document import parse, steps

    store, name = with_store(store, file, "FILE")
    try:
        document = parse(Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8; save it as UTF-8") from None
    with _opened(store, {"realm": realm, "catalog": catalog}, property, password) as call:
        found = steps(call, document)
        for step in found:
            if not dry_run:
                call.session.access.change(step.change)
            screen().print(plain(step.words), soft_wrap=True)
    if not found:
        screen().print("nothing to change", soft_wrap=True)


@contextmanager
def _opened(
    store: str, given: Mapping[str, str], property: list[str] | None, password: str | None
) -> Iterator[Call]:
    from polaris_spark.cli.stores import properties_of
    from polaris_spark.rest.opening import open_session
    from polaris_spark.spark.options import refuse_memory

    properties = properties_of({"store": store, "create": "false", **given}, property, password)
    refuse_memory(properties.store)
    with open_session(properties, SystemClock()) as session:
        yield Call(session, by_operator=True)
