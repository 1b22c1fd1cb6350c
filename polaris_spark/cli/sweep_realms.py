"""`polaris-spark maintain sweep-realms`: sweep all realms of a store in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.options import AsJSON, Password, Property, Store
from polaris_spark.cli.output import NOTHING_TO_DO, grid, plain, print_json, screen
from polaris_spark.cli.progress import steps
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError, PolarisError
from polaris_spark.property_values import duration_ms

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenStore
    from polaris_spark.config import Properties
    from polaris_spark.maintenance.periods import Policy
    from polaris_spark.maintenance.sweep_realms import RealmToSweep, SweptRealm

_KIND = "sweep-realms"
"""Kind of the task whose lease a pass holds."""
_MOST_SHOWN = 10
"""Maximum number of realms whose errors are shown."""

Rows = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of rows that are read and deleted in a second, on average.",
        show_default=False,
    ),
]


def sweep_realms(
    store: Store,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be deleted, and change nothing.")
    ] = False,
    retention: Annotated[
        str | None,
        typer.Option(help="Time for which history is kept; default: the property history-retention."),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            help="Time for which unreachable rows and dropped references are kept; default: the property grace."
        ),
    ] = None,
    max_rows_per_second: Rows = None,
    clock_is_right: Annotated[
        bool,
        typer.Option(
            "--clock-is-right",
            help="Confirm that this machine's clock is right, although the newest time in the store is old.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait while another process sweeps all realms, instead of failing.")
    ] = False,
    property: Property = None,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Sweep all active realms of a store. The rows of the store are read once, in this process."""
    from polaris_spark.cli.stores import open_store, properties_of
    from polaris_spark.jobs.maintenance import STORE
    from polaris_spark.maintenance.sweep import Rate
    from polaris_spark.maintenance.sweep_realms import sweep_realms as sweep
    from polaris_spark.system.clocks import StoreClock
    from polaris_spark.system.tasks import Tasks

    properties = properties_of({"store": store, "create": "false"}, property, password)
    given = (("retention", retention), ("grace", grace))
    periods = {f"{name}_ms": duration_ms(f"--{name}", text) for name, text in given if text is not None}
    clock = SystemClock()
    with open_store(store, password, properties.store_options) as opened, ExitStack() as stack:
        if not dry_run:
            StoreClock(opened.backend, clock).refuse_deleting(clock_is_right=clock_is_right)
        watch = stack.enter_context(steps())
        waiting = partial(watch, f"waiting for another run of {_KIND} to end", 0, 0) if wait else None
        held = stack.enter_context(Tasks(opened.backend, clock).running(_KIND, STORE, waiting=waiting))

        def progress(doing: str, done: int, total: int) -> None:
            held.tell(doing, done, total)
            watch(doing, done, total)

        realms, found = _active_realms(stack, opened, properties, periods, progress)
        rate = None if max_rows_per_second is None else Rate(max_rows_per_second, clock)
        found += sweep(realms, dry_run=dry_run, rate=rate, progress=progress)
    _print(found, dry_run=dry_run, as_json=as_json)


def _active_realms(
    stack: ExitStack,
    opened: OpenStore,
    properties: Properties,
    periods: Mapping[str, int],
    progress: Callable[[str, int, int], None],
) -> tuple[list[RealmToSweep], list[SweptRealm]]:
    """Open the active realms until the stack ends. Return them, and the others: those that have no catalog, and
    those that cannot be opened."""
    from polaris_spark.maintenance.sweep_realms import SweptRealm
    from polaris_spark.system.realms import RealmState

    realms, found = [], []
    names = opened.realm_names()
    for number, name in enumerate(names):
        progress("opening realms", number, len(names))
        try:
            if opened.state(name) is not RealmState.ACTIVE:
                continue
            if not opened.active_realm(name).catalogs():  # it was just created
                found.append(SweptRealm(name, None, note="no catalog"))
            else:
                realms.append(_to_sweep(stack, opened, dataclasses.replace(properties, realm=name), periods))
        except PolarisError as error:
            found.append(SweptRealm(name, None, error))
    return realms, found


def _to_sweep(
    stack: ExitStack, opened: OpenStore, properties: Properties, periods: Mapping[str, int]
) -> RealmToSweep:
    """Open a realm until the stack ends.

    Raises:
        PolarisError: the realm cannot be opened, has no catalog, or its periods do not fit together.
    """
    from polaris_spark.maintenance.periods import realm_policy
    from polaris_spark.maintenance.sweep_realms import RealmToSweep
    from polaris_spark.maintenance.trim import check_retention
    from polaris_spark.rest.opening import open_session

    name = properties.realm
    catalogs = opened.active_realm(name).catalogs()
    if not catalogs:
        raise InputError(f"realm {name!r} has no catalog")
    properties = dataclasses.replace(properties, catalog=catalogs[0].name, credential=None)
    session = stack.enter_context(open_session(properties, SystemClock(), logs_in=False))
    lifetime = session.properties.idempotency_key_lifetime

    def policy() -> Policy:
        found = realm_policy(session.catalog, **periods)
        check_retention(found.retention_ms, grace_ms=found.grace_ms, operation_lifetime_ms=lifetime)
        return found

    policy()  # refuse wrong periods before anything is changed
    references = session.catalog.references
    return RealmToSweep(name, references, policy, session.operation(), session.serving.require)


def _print(found: Sequence[SweptRealm], *, dry_run: bool, as_json: bool) -> None:
    """Print what was deleted in each realm.

    Raises:
        InputError: a realm could not be swept.
    """
    rows = [
        {"realm": one.name, **count._asdict(), "deleted": not dry_run}
        for one in sorted(found, key=lambda one: one.name)
        for count in (() if one.swept is None else one.swept.counts)
    ]
    notes = [
        {"realm": one.name, "note": one.note} for one in sorted(found, key=lambda one: one.name) if one.note
    ]
    if as_json:
        print_json([*rows, *notes])
    elif rows or notes:
        table = grid(None, "realm", "type", "objects", "rows", "bytes", right=("objects", "rows", "bytes"))
        for row in rows:
            numbers = (f"{row[name]:,}" for name in ("objects", "rows", "bytes"))
            table.add_row(plain(row["realm"]), plain(row["type"] or ""), *numbers)
        for note in notes:
            table.add_row(plain(note["realm"]), note["note"], "", "", "")
        screen().print(table)
    else:
        screen().print(NOTHING_TO_DO)
    failed = [one for one in found if one.error is not None]
    if failed:
        listed = "; ".join(f"{one.name}: {one.error}" for one in failed[:_MOST_SHOWN])
        raise InputError(
            f"{len(failed)} of {len(found)} realms were not swept; sweep again after correcting this: {listed}"
        )
