"""`polaris-spark fsck`: find damage in a store, even if the store is too damaged to be opened by other commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.exit_codes import PROBLEMS_FOUND
from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import NO_PROBLEMS, errors, plain, print_json, screen, utc
from polaris_spark.cli.progress import steps
from polaris_spark.clock import SystemClock

if TYPE_CHECKING:
    from polaris_spark.backends.base import Backend
    from polaris_spark.maintenance.fsck.ahead import Repaired


def fsck(
    store: Store,
    realm: Annotated[
        str | None,
        typer.Option(help="Check only this realm; by default, the whole store.", show_default=False),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First set the store's time to this machine's clock, which must be right. Use it if a process "
            "whose clock was ahead has written to the store.",
        ),
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Find all rows that are damaged, missing or inconsistent with other rows; exit code 1 if there are any."""
    from polaris_spark.cli.stores import store_options
    from polaris_spark.maintenance.fsck.ahead import repair as repair_clock
    from polaris_spark.maintenance.fsck.checker import RealmCheck
    from polaris_spark.spark.options import refuse_memory
    from polaris_spark.store_uris import StoreURI
    from polaris_spark.system.stores import check_store, open_checked, system_references

    def check(backend: Backend) -> None:
        if (
            repair or not system_references(backend).names()
        ):  # otherwise there is a store, which is checked even if it is damaged
            check_store(backend)

    uri = StoreURI.parse(store)
    refuse_memory(uri)
    backend = open_checked(uri, store_options(uri, password), check=check)
    try:
        if repair:
            _tell(repair_clock(backend, SystemClock()))
        with steps() as watch:
            found = RealmCheck(backend, SystemClock(), realm=realm, progress=watch).run()
    finally:
        backend.close()
    if as_json:
        print_json([problem._asdict() for problem in found])
    else:
        for one in found:
            where = f"{plain(one.realm)} {plain(one.key)}"
            way = f" ({plain(one.path)})" if one.path else ""
            screen().print(
                f"{one.severity} {one.kind}: {where}: {plain(one.message)}{way}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        screen().print(
            f"{len(found):,} {'problem' if len(found) == 1 else 'problems'}" if found else NO_PROBLEMS
        )
    if found:
        raise typer.Exit(PROBLEMS_FOUND)


def _tell(repaired: Repaired) -> None:
    """Print the result of setting the store's time."""
    accepted = "no time in the store is later"
    if repaired.ahead_ms is not None:
        accepted = f"later times, up to {utc(repaired.ahead_ms)}, are accepted"
    errors().print(
        f"The store's time is now that of this machine's clock, {utc(repaired.now_ms)}; {accepted}.",
        soft_wrap=True,
    )
