"""`polaris-spark watch`: print or send the changes of a branch as CloudEvents, or send them as OpenLineage events."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from polaris_spark.cli.options import (
    ChangeActions,
    ChangedBy,
    ChangedNames,
    Password,
    Realm,
    Server,
    ServerToken,
    StoreOrServer,
    require_with,
    required_store,
)
from polaris_spark.errors import InputError
from polaris_spark.names import MAIN

Json = dict[str, Any]

if TYPE_CHECKING:
    from polaris_spark.cli.change_sources import ChangeBatch, ChangeSource
    from polaris_spark.cli.changed_datasets import DatasetReader
    from polaris_spark.cli.delivery import Event, MakeRequest
    from polaris_spark.cli.log import ChangeFilter

    Encode: TypeAlias = Callable[[list[Json], str], Iterator[Event]]

MAX_BATCH = 1_000

_OF_SENDING = ("secret", "cursor", "dead_letters", "attempts", "batch", "timeout", "max_backoff")
"""Parameters of the options that have no effect if events are printed."""


_Catalog = Annotated[
    str | None, typer.Option(help="Catalog whose changes are shown; required if there are several.")
]
_Branch = Annotated[str, typer.Option(help="Branch of the catalog.")]
_After = Annotated[
    str | None,
    typer.Option(
        metavar="POSITION",
        help="Begin after this commit number or event id, or with the 'oldest' change; by default, with new "
        "changes.",
        show_default=False,
    ),
]
_Source = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Attribute 'source' of CloudEvents, or namespace of OpenLineage's jobs; by default "
        "/catalogs/NAME/branches/NAME.",
        show_default=False,
    ),
]
_Post = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send the events to this webhook instead of printing them.",
        show_default=False,
    ),
]
_OpenLineage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send the changes of tables and views to this receiver as OpenLineage run events. An address without "
        "a path gets /api/v1/lineage. Needs STORE.",
        show_default=False,
    ),
]
_Secret = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME",
        help="Environment variable with the secret for signatures, which --post needs, or with the API key for "
        "--openlineage.",
        show_default=False,
    ),
]
_Cursor = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File that keeps the position up to which events were delivered; needed for sending. If it exists, "
        "begin there.",
        show_default=False,
    ),
]
_DeadLetters = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for events that are given up; without it, an event is sent until the receiver accepts it.",
        show_default=False,
    ),
]
_Attempts = Annotated[int, typer.Option(min=1, help="Attempts before an event goes to --dead-letters.")]
_Batch = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_BATCH,
        help="Maximum number of events in a request to a webhook; above 1, events are sent in batches.",
    ),
]
_Timeout = Annotated[str, typer.Option(help="Time limit of a request to the receiver.")]
_MaxBackoff = Annotated[str, typer.Option(help="Maximum pause between two attempts.")]


def watch(
    context: typer.Context,
    store: StoreOrServer = None,
    server: Server = None,
    token: ServerToken = None,
    realm: Realm = "default",
    catalog: _Catalog = None,
    branch: _Branch = MAIN,
    after: _After = None,
    table: ChangedNames = None,
    principal: ChangedBy = None,
    action: ChangeActions = None,
    source: _Source = None,
    post: _Post = None,
    openlineage: _OpenLineage = None,
    secret: _Secret = None,
    cursor: _Cursor = None,
    dead_letters: _DeadLetters = None,
    attempts: _Attempts = 10,
    batch: _Batch = 1,
    timeout: _Timeout = "30s",
    max_backoff: _MaxBackoff = "5min",
    password: Password = None,
) -> None:
    """Print the changes of a branch as CloudEvents, or send them to a webhook or as OpenLineage events."""
    from polaris_spark.cli.change_sources import begun_at
    from polaris_spark.cli.cloud_events import require_libraries
    from polaris_spark.cli.log import ChangeFilter

    sends = post is not None or openlineage is not None
    require_with(context, "--post or --openlineage", *_OF_SENDING, is_given=sends)
    require_with(context, "--post", "batch", is_given=post is not None)
    require_with(context, "--dead-letters", "attempts", is_given=dead_letters is not None)
    begin = None if after is None else begun_at(after)
    if source is not None and (not source.isprintable() or not source or " " in source):
        raise InputError(f"--source is {source!r}; it must be a URI without spaces, such as urn:shop")
    wanted = ChangeFilter(tuple(table or ()), tuple(principal or ()), tuple(action or ()))
    if openlineage is None:
        require_libraries()
    elif server is not None:
        raise InputError(
            "--openlineage reads schemas and lineage from the database; give STORE, not --server"
        )
    if post is not None and openlineage is not None:
        raise InputError(
            "give either --post or --openlineage; to send both, run two processes, each with its own --cursor"
        )
    option, url = ("--post", post) if openlineage is None else ("--openlineage", openlineage)
    if url is not None and cursor is None:
        raise InputError(
            f"{option} needs --cursor FILE, which records the position up to which events were delivered"
        )
    limits = _seconds("--timeout", timeout), _seconds("--max-backoff", max_backoff)
    delivery = None
    if url is not None and cursor is not None:
        delivery = _delivery(option, url, _Options(secret, cursor, dead_letters, batch, *limits, attempts))
    with (
        contextlib.suppress(KeyboardInterrupt),
        _opened(store, server, token, realm, catalog, branch, password) as (opened, datasets),
    ):
        if delivery is None:
            _print(opened, begin, wanted, source)
        else:
            encode = _cloud_events if openlineage is None or datasets is None else _open_lineage(datasets)
            _send(opened, begin, wanted, source, delivery, encode)


class _Options(NamedTuple):
    """The options of sending, which all receivers have."""

    secret: str | None
    cursor: Path
    dead_letters: Path | None
    batch: int
    timeout_seconds: float
    max_backoff_seconds: float
    attempts: int


class _Delivery(NamedTuple):
    """How events are sent to a webhook, or to a receiver of OpenLineage."""

    options: _Options
    url: str
    make_request: MakeRequest
    scheme: str = ""
    """What precedes the source in the cursor, so that a cursor is for one kind of events."""


def _delivery(option: str, url: str, options: _Options) -> _Delivery:
    """Return how events are sent to the receiver that `--post` or `--openlineage` names."""
    from polaris_spark.cli.delivery import checked_url, secret_in
    from polaris_spark.cli.openlineage import endpoint, openlineage_requests
    from polaris_spark.cli.webhooks import secrets_of, webhook_requests

    if options.dead_letters is not None and options.dead_letters.resolve() == options.cursor.resolve():
        raise InputError("--cursor and --dead-letters must be different files")
    url = checked_url(option, url)
    if option == "--post":
        requests = webhook_requests(secrets_of(options.secret), batched=options.batch > 1)
        return _Delivery(options, url, requests)
    secret = None if options.secret is None else secret_in(options.secret)
    return _Delivery(options, endpoint(url), openlineage_requests(secret), "openlineage:")


def _seconds(name: str, text: str) -> float:
    from polaris_spark.property_values import duration_ms

    seconds = duration_ms(name, text) / 1_000
    if not 0 < seconds <= 86_400:
        raise InputError(f"{name} is {text!r}; it must be more than 0 and at most a day")
    return seconds


@contextlib.contextmanager
def _opened(
    store: str | None,
    server: str | None,
    token: str | None,
    realm: str,
    catalog: str | None,
    branch: str,
    password: str | None,
) -> Iterator[tuple[ChangeSource, DatasetReader | None]]:
    """Open the source of changes, and a reader of the changed tables and views; None for a server."""
    from polaris_spark.cli.change_sources import ServerSource, StoreSource

    if server is not None:
        from polaris_spark.cli.remote import chosen_server

        chosen = chosen_server(
            server, token, catalog, store=store, realm=realm, branch=branch, password=password
        )
        yield ServerSource(chosen), None
        return
    from polaris_spark.cli.changed_datasets import DatasetReader
    from polaris_spark.cli.stores import open_store

    with open_store(required_store(store, token), password) as opened:
        place = opened.realm(realm)
        name = place.catalog(catalog).name
        yield (
            StoreSource(name, branch, lambda: place.branch_log(place.catalog(name), branch)),
            DatasetReader(name, lambda: place.catalog_head(place.catalog(name), branch)),
        )


def _cloud_events(changes: list[Json], source: str) -> Iterator[Event]:
    from polaris_spark.cli.cloud_events import event_of

    return (event_of(change, source) for change in changes)


def _open_lineage(datasets: DatasetReader) -> Encode:
    from polaris_spark.cli.openlineage import events_of

    return lambda changes, source: events_of(changes, source, datasets)


def _print(opened: ChangeSource, begin: str | None, wanted: ChangeFilter, source: str | None) -> None:
    from polaris_spark.cli.change_sources import follow
    from polaris_spark.cli.cloud_events import event_of

    for found in follow(opened, begin):
        for change in found.changes:
            if wanted.allows(change):
                sys.stdout.write(event_of(change, _source(source, found)).text.decode() + "\n")
                sys.stdout.flush()


def _send(
    opened: ChangeSource,
    begin: str | None,
    wanted: ChangeFilter,
    source: str | None,
    delivery: _Delivery,
    encode: Encode,
) -> None:
    from polaris_spark.cli.change_sources import follow
    from polaris_spark.cli.cursor import Cursor, DeadLetters
    from polaris_spark.cli.delivery import Sender, Settings
    from polaris_spark.cli.output import tell

    options = delivery.options
    newest = next(follow(opened, None))
    source = _source(source, newest)
    kept = Cursor(options.cursor, f"{delivery.scheme}{source}")
    letters = None if options.dead_letters is None else DeadLetters(options.dead_letters)
    settings = Settings(delivery.url, options.timeout_seconds, options.max_backoff_seconds, options.attempts)
    sender = Sender(settings, delivery.make_request, letters)
    with kept.held():
        if letters is not None:
            letters.add([])  # a file that cannot be written is an error now, not at the first dead letter
        position = kept.read()
        if position is None:
            # Without `--after`, the position of now is kept at once, so that no event is lost if this process dies.
            position = begin if begin is not None else newest.position
            if begin is None:
                kept.write(position)
        elif begin is not None:
            tell(f"going on after {position}, as {options.cursor} says; --after {begin} is for a new cursor")
        for found in follow(opened, position):
            events = encode([change for change in found.changes if wanted.allows(change)], source)
            while part := list(islice(events, options.batch)):
                sender.deliver(part)
                if part[-1].is_last:
                    position = part[-1].id
                    kept.write(position)
            if position != found.position:
                position = found.position
                kept.write(position)


def _source(given: str | None, found: ChangeBatch) -> str:
    from polaris_spark.cli.cloud_events import source_of

    return source_of(found.catalog, found.branch) if given is None else given
