"""`polaris-spark work`: run the schedules and tasks of a realm that are due."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polaris_spark.cli.options import Password, Property, Store, refuse_with
from polaris_spark.cli.output import screen
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError
from polaris_spark.property_values import duration_ms

if TYPE_CHECKING:
    from polaris_spark.config import Properties
    from polaris_spark.jobs.worker import Worker
    from polaris_spark.rest.session import Session

MAX_CONCURRENCY = 64

Concurrency = Annotated[
    int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Maximum number of simultaneous runs.")
]
Lease = Annotated[
    str,
    typer.Option(
        help="Time after which, plus one minute, another worker takes over the tasks of a dead one."
    ),
]


def work(
    context: typer.Context,
    store: Store,
    realm: Annotated[
        str | None, typer.Option(help="Realm of the store. [default: default]", show_default=False)
    ] = None,
    realms: Annotated[
        str | None,
        typer.Option(
            metavar="all|NAME,...",
            help="Work for many realms of the store: all, or those with these names.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run what is due now, and exit.")] = False,
    concurrency: Concurrency = 2,
    lease: Lease = "60 s",
    poll: Annotated[
        str, typer.Option(help="Interval between looks for tasks while there is nothing to do.")
    ] = "5 s",
    property: Property = None,
    password: Password = None,
) -> None:
    """Run the schedules and tasks of all catalogs of a realm that are due. Several workers can run at the same time."""
    from polaris_spark.cli.bounded_log import log_to_standard_error
    from polaris_spark.cli.many_realms import check_options, served_realms
    from polaris_spark.cli.realms_worker import RealmsWorker
    from polaris_spark.cli.stores import open_store, properties_of
    from polaris_spark.extension import ROUTER
    from polaris_spark.jobs.worker import Worker
    from polaris_spark.rest.opening import open_session
    from polaris_spark.spark.options import refuse_memory

    refuse_with(context, "--once", "poll", is_given=once)
    poll_ms, lease_ms = positive("--poll", poll), positive("--lease", lease)
    if realms is not None and realm is not None:
        raise InputError("give either --realm or --realms")
    realm = realm or "default"
    log_to_standard_error()
    given = {"store": store, "realm": realm, "create": "false"}
    properties = properties_of(given, property, password)
    refuse_memory(properties.store)
    if realms is not None:
        check_options(property, (), token=None, warehouse=None)
        stop = _until_signal()
        with open_store(store, options=properties.store_options) as opened:
            many = RealmsWorker(
                opened, properties, served_realms(realms), concurrency=concurrency, lease_ms=lease_ms
            )
            if once:
                screen().print(f"{many.run_due(stop)} runs", soft_wrap=True)
            else:
                many.run(stop, poll_ms / 1_000)
        return
    with open_store(store, options=properties.store_options) as opened:
        catalogs = opened.realm(realm).catalogs()
    if not catalogs:
        raise InputError(f"realm {realm!r} has no catalog; create one first")
    properties = properties_of({**given, "catalog": catalogs[0].name}, property, password)
    stop = _until_signal()
    with open_session(properties, SystemClock(), ROUTER) as session:
        worker = Worker(session, concurrency=concurrency, lease_ms=lease_ms)
        if once:
            begun = worker.run_due(stop)
            worker.stop()
            screen().print(f"{begun} runs", soft_wrap=True)
        else:
            worker.run(stop, poll_ms / 1_000)


def _until_signal() -> threading.Event:
    """Return an event that is set when the process receives SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def positive(name: str, text: str) -> int:
    """Return a duration in milliseconds.

    Raises:
        InputError: the text is not a duration, or the duration is 0.
    """
    found = duration_ms(name, text)
    if found <= 0:
        raise InputError(f"{name} is {text!r}; it must be more than 0")
    return found


class ServingWorker:
    """A worker in a thread of a server. Use it in a `with` block."""

    def __init__(self, properties: Properties, concurrency: int, allowed: list[str]) -> None:
        self._properties = properties
        self._concurrency = concurrency
        self._allowed = allowed
        self._stop = threading.Event()

    def __enter__(self) -> ServingWorker:
        from polaris_spark.extension import ROUTER
        from polaris_spark.jobs.worker import Worker
        from polaris_spark.rest.opening import open_session

        self._session = open_session(self._properties, SystemClock(), ROUTER)
        try:
            worker: Worker = Worker(self._session, concurrency=self._concurrency, restrict=self._restricted)
        except BaseException:
            self._session.close()
            raise
        self._thread = threading.Thread(
            target=worker.run, args=(self._stop,), name="polaris-worker", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._session.close()

    def _restricted(self, session: Session) -> Session:
        catalog = session.catalog.restricted(self._allowed, follow_links=False)
        return session.derive(catalog=catalog)
