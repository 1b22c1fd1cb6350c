"""`polaris-spark watch`: print or send the changes of a branch as CloudEvents."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    required_store,
)
from polaris_spark.errors import InputError
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.cli.change_sources import ChangeBatch, ChangeSource
    from polaris_spark.cli.log import ChangeFilter
    from polaris_spark.cli.webhooks import Settings

MAX_BATCH = 1_000


def watch(
    store: StoreOrServer = None,
    server: Server = None,
    token: ServerToken = None,
    realm: Realm = "default",
    catalog: Annotated[
        str | None, typer.Option(help="Catalog whose changes are shown; required if there are several.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            help="Begin after this commit number or event id, or with the 'oldest' change; by default, with new "
            "changes.",
            show_default=False,
        ),
    ] = None,
    table: ChangedNames = None,
    principal: ChangedBy = None,
    action: ChangeActions = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Attribute 'source' of the events; by default /catalogs/NAME/branches/NAME.",
            show_default=False,
        ),
    ] = None,
    post: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send the events to this webhook instead of printing them.",
            show_default=False,
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME",
            help="Environment variable with the secret for signatures; needed with --post.",
            show_default=False,
        ),
    ] = None,
    cursor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps the position up to which events were delivered; needed with --post. If it exists, "
            "begin there.",
            show_default=False,
        ),
    ] = None,
    dead_letters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for events that are given up; without it, an event is sent until the webhook accepts it.",
            show_default=False,
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Attempts before an event goes to --dead-letters.")
    ] = 10,
    batch: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_BATCH,
            help="Maximum number of events in a request; above 1, events are sent in batches.",
        ),
    ] = 1,
    timeout: Annotated[str, typer.Option(help="Time limit of a request to the webhook.")] = "30s",
    max_backoff: Annotated[str, typer.Option(help="Longest pause between two attempts.")] = "5min",
    password: Password = None,
) -> None:
    """Print the changes of a branch as CloudEvents, as they happen, or send them to a webhook."""
    from polaris_spark.cli.change_sources import begun_at
    from polaris_spark.cli.cloud_events import require_libraries
    from polaris_spark.cli.log import ChangeFilter

    begin = None if after is None else begun_at(after)
    wanted = ChangeFilter(tuple(table or ()), tuple(principal or ()), tuple(action or ()))
    require_libraries()
    if post is None:
        if not (secret is None and cursor is None and dead_letters is None):
            raise InputError("--secret, --cursor and --dead-letters need --post")
        settings = None
    else:
        if cursor is None:
            raise InputError("--post needs --cursor, the file that keeps what was delivered")
        settings = _settings(post, secret, timeout, max_backoff, attempts, batched=batch > 1)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _opened(store, server, token, realm, catalog, branch, password) as opened,
    ):
        if settings is None:
            _print(opened, begin, wanted, source)
        else:
            assert cursor is not None
            _send(opened, begin, wanted, source, settings, cursor, dead_letters, batch)


def _settings(
    url: str, secret: str | None, timeout: str, max_backoff: str, attempts: int, *, batched: bool
) -> Settings:
    from polaris_spark.cli.webhooks import Settings, checked_url, secrets_of
    from polaris_spark.property_values import duration_ms

    seconds = {}
    for name, text in (("--timeout", timeout), ("--max-backoff", max_backoff)):
        seconds[name] = duration_ms(name, text) / 1_000
        if not 0 < seconds[name] <= 86_400:
            raise InputError(f"{name} is {text!r}; it must be more than 0 and at most a day")
    return Settings(
        checked_url(url),
        secrets_of(secret),
        seconds["--timeout"],
        seconds["--max-backoff"],
        attempts,
        batched,
    )


@contextlib.contextmanager
def _opened(
    store: str | None,
    server: str | None,
    token: str | None,
    realm: str,
    catalog: str | None,
    branch: str,
    password: str | None,
) -> Iterator[ChangeSource]:
    from polaris_spark.cli.change_sources import ServerSource, StoreSource

    if server is not None:
        from polaris_spark.cli.remote import chosen_server

        yield ServerSource(
            chosen_server(server, token, catalog, store=store, realm=realm, branch=branch, password=password)
        )
        return
    from polaris_spark.cli.stores import open_store

    with open_store(required_store(store, token), password) as opened:
        place = opened.realm(realm)
        row = place.catalog(catalog)
        yield StoreSource(row.name, branch, lambda: place.branch_log(place.catalog(row.name), branch))


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
    settings: Settings,
    cursor: Path,
    dead_letters: Path | None,
    batch: int,
) -> None:
    from polaris_spark.cli.change_sources import follow
    from polaris_spark.cli.cloud_events import event_of
    from polaris_spark.cli.cursor import Cursor, DeadLetters
    from polaris_spark.cli.webhooks import Sender

    first = next(follow(opened, begin))
    source = _source(source, first)
    kept = Cursor(cursor, source)
    sender = Sender(settings, None if dead_letters is None else DeadLetters(dead_letters))
    with kept.held():
        position = kept.read()
        if position is None:
            # Without `--after`, the position of now is kept at once, so that no event is lost if this process dies.
            position = begin if begin is not None else first.position
            if begin is None:
                kept.write(position)
        for found in follow(opened, position):
            events = [event_of(change, source) for change in found.changes if wanted.allows(change)]
            for start in range(0, len(events), batch):
                part = events[start : start + batch]
                sender.deliver(part)
                position = part[-1].id
                kept.write(position)
            if position != found.position:
                position = found.position
                kept.write(position)


def _source(given: str | None, found: ChangeBatch) -> str:
    from polaris_spark.cli.cloud_events import source_of

    return source_of(found.catalog, found.branch) if given is None else given
