"""`polaris-spark serve`: the catalogs of a realm over HTTP."""

from __future__ import annotations

import dataclasses
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.catalog.locations import segments
from polaris_spark.cli.opening import named_properties, store_options
from polaris_spark.cli.options import Password, Property, Realm, Store
from polaris_spark.cli.output import plain
from polaris_spark.clock import SystemClock
from polaris_spark.config import Properties, size_bytes
from polaris_spark.errors import InputError, MissingLibraryError
from polaris_spark.rest.session import open_session, principal_of
from polaris_spark.store.cache import collect_seldom

if TYPE_CHECKING:
    from polaris_spark.server import Tokens


def serve(
    store: Store,
    realm: Realm = "default",
    catalog: Annotated[str, typer.Option(help="Catalog that clients get who name none.")] = "polaris",
    warehouse: Annotated[
        str | None,
        typer.Option(
            help="Where tables are put that name no location; the catalog's own if not given. "
            "Store, realm and catalog are created if it is given and they are missing.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for one that is free.")] = 8_181,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME", help="Environment variable with the token of clients.", show_default=False
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with tokens, a line each: principal:token.", show_default=False),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            help="Who stands in the log, with --token or --insecure; the OS user if not given.",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Need no token; on loopback only.")] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain for TLS, PEM.", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.", show_default=False)] = None,
    allow_location: Annotated[
        list[str] | None,
        typer.Option(
            help="Location below which clients may put or register tables, besides the warehouse; repeatable.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads that handle requests.")] = 16,
    max_body: Annotated[str, typer.Option(help="Largest body of a request.")] = "16 MiB",
    metadata_files: Annotated[
        str, typer.Option(help="every-commit or never: whether commits write metadata.json files, too.")
    ] = "every-commit",
    property: Property = None,
    password: Password = None,
) -> None:
    """Serve the catalogs of a realm to clients of the Iceberg REST protocol."""
    try:
        from polaris_spark import server
    except ImportError as error:
        raise MissingLibraryError(
            f"the HTTP server needs libraries that are not installed ({error.name}): "
            "pip install 'polaris-spark[server]'"
        ) from error
    _log_to_standard_error()
    given = {"store": store, "realm": realm, "catalog": catalog, "metadata-files": metadata_files}
    given |= {name: text for name, text in (("warehouse", warehouse), ("principal", principal)) if text}
    parsed = Properties.parse({**named_properties(property or ()), **given})
    parsed = dataclasses.replace(parsed, store_options=store_options(parsed.store, password))
    endpoint = server.Endpoint(
        host,
        port,
        tokens=_tokens(server.Tokens, token, token_file, principal_of(parsed)),
        insecure=insecure,
        certificate=str(tls_cert) if tls_cert else None,
        key=str(tls_key) if tls_key else None,
        threads=threads,
        max_body=size_bytes("--max-body", max_body),
    )
    endpoint.check()
    allowed = allow_location or []
    for place in allowed:
        segments(place)
    collect_seldom()
    session = open_session(parsed, SystemClock())
    server.serve(server.ServedCatalogs(session, allowed=allowed), endpoint, _announce)


def _tokens(kind: type[Tokens], token: str | None, file: Path | None, principal: str) -> Tokens | None:
    if token is not None and file is not None:
        raise InputError("tokens come from --token or from --token-file, not from both")
    if token is not None:
        return kind.from_environment(token, principal)
    return kind.from_file(file) if file is not None else None


def _announce(uri: str) -> None:
    print(f"polaris-spark serves {uri}", flush=True)


class _OneLine(logging.Formatter):
    """Log lines that hold names of others' choosing stay lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return plain(super().formatMessage(record))


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
