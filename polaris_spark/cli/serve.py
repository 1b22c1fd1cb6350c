"""`polaris-spark serve`: serve the catalogs of a realm over HTTP."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.bounded_log import OneLine, log_to_standard_error
from polaris_spark.cli.options import Password, Property, Store, refuse_with, require_with
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError, MissingLibraryError
from polaris_spark.property_values import duration_ms, size_bytes

if TYPE_CHECKING:
    from polaris_spark.server import Authenticator, Issuing, Tokens
    from polaris_spark.storage.access import StorageAccess


Warehouse = Annotated[
    str | None,
    typer.Option(
        help="Location for tables that have no location of their own; by default, the warehouse of the catalog. "
        "If it is given, the store, realm and catalog are created if they are missing.",
        show_default=False,
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 selects a free port.")]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME",
        help="Environment variable that contains the token of clients.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with one line for each token: principal:token, or principal:token administrator.",
        show_default=False,
    ),
]
AuthenticationFile = Annotated[
    Path | None,
    typer.Option(
        "--authentication",
        help="File with the authenticators of this server, such as OpenID Connect issuers, as JSON.",
        show_default=False,
    ),
]
TokenKey = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME",
        help="Environment variable that contains the server key. With it, the server issues tokens to the principals "
        "of a realm with access control. All servers of a realm need the same server key.",
        show_default=False,
    ),
]
TokenLifetime = Annotated[
    str, typer.Option(help="Time for which an issued token is valid, from 1 second to 24 hours.")
]
LoginLog = Annotated[
    Path | None,
    typer.Option(
        help="Log file with a line for each accepted or refused login. Replaced at 64 MiB; 4 older files are kept.",
        show_default=False,
    ),
]
Failures = Annotated[
    int,
    typer.Option(
        help="Maximum number of failed logins per minute from one IPv4 address or IPv6 network of 64 bits; 0 for no "
        "limit, as is needed behind a proxy."
    ),
]
Principal = Annotated[
    str | None,
    typer.Option(
        help="Principal in the log, with --token or --insecure. [default: the OS user]",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Accept requests without a token; on loopback only.")
]
Certificate = Annotated[Path | None, typer.Option(help="Certificate chain for TLS, PEM.", show_default=False)]
Key = Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.", show_default=False)]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        help="Location below which clients may put or register tables, besides the warehouse; repeatable.",
        show_default=False,
    ),
]
FollowLinks = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Follow symbolic links below the warehouse and the allowed locations, if the target is also below one of "
        "them. Without this option, access through such links is refused.",
    ),
]
StoragesFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the storages for which this server hands out credentials and signs requests, as JSON.",
        show_default=False,
    ),
]
MetadataFiles = Annotated[
    str | None,
    typer.Option(
        help="every-commit or never: whether commits also write metadata.json files; by default, as the "
        "catalog's properties say.",
        show_default=False,
    ),
]
Work = Annotated[
    bool,
    typer.Option(
        "--work", help="Also run the schedules and tasks of the realm, or of all served realms, that are due."
    ),
]
Concurrency = Annotated[
    int, typer.Option(min=1, max=64, help="Maximum number of simultaneous runs of --work.")
]


OneRealm = Annotated[
    str | None,
    typer.Option(
        help="Realm of the store; with --realms, the realm of requests that name none. [default: default; with "
        "--realms none]",
        show_default=False,
    ),
]
ManyRealms = Annotated[
    str | None,
    typer.Option(
        metavar="all|NAME,...",
        help="Serve many realms of the store: all, or those with these names. Requests name their realm.",
        show_default=False,
    ),
]
RealmDomain = Annotated[
    str | None,
    typer.Option(
        help="With --realms: domain below which host names name a realm, such as catalog.example.com.",
        show_default=False,
    ),
]
OpenRealms = Annotated[
    int, typer.Option(help="With --realms: maximum number of realms that are open at the same time.")
]


def serve(
    context: typer.Context,
    store: Store,
    realm: OneRealm = None,
    realms: ManyRealms = None,
    realm_domain: RealmDomain = None,
    max_open_realms: OpenRealms = 256,
    catalog: Annotated[str, typer.Option(help="Catalog for clients that do not name one.")] = "polaris",
    warehouse: Warehouse = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8_181,
    token: Token = None,
    token_file: TokenFile = None,
    authentication: AuthenticationFile = None,
    token_key: TokenKey = None,
    token_lifetime: TokenLifetime = "1 h",
    login_log: LoginLog = None,
    max_failures_per_address: Failures = 60,
    principal: Principal = None,
    insecure: Insecure = False,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    allow_location: Allowed = None,
    follow_links: FollowLinks = False,
    storages: StoragesFile = None,
    threads: Annotated[int, typer.Option(help="Threads that handle requests.")] = 16,
    max_body: Annotated[str, typer.Option(help="Maximum size of a request body.")] = "16 MiB",
    max_memory: Annotated[
        str,
        typer.Option(
            help="Maximum memory of all concurrent requests, including large answers until clients have read them."
        ),
    ] = "1 GiB",
    max_connections: Annotated[int, typer.Option(help="Maximum number of connections.")] = 1_000,
    max_connections_per_address: Annotated[
        int,
        typer.Option(help="Maximum number of connections from one IPv4 address or IPv6 network of 64 bits."),
    ] = 250,
    metadata_files: MetadataFiles = None,
    work: Work = False,
    concurrency: Concurrency = 2,
    property: Property = None,
    password: Password = None,
) -> None:
    """Serve the catalogs of one or many realms to clients of the Iceberg REST protocol."""
    from polaris_spark.catalog.files.locations import segments
    from polaris_spark.cli.many_realms import REALM_FIELD, ServedStore, check_options, served_realms
    from polaris_spark.cli.stores import properties_of
    from polaris_spark.cli.work import ServingWorker
    from polaris_spark.extension import ROUTER
    from polaris_spark.rest.opening import open_session, principal_of
    from polaris_spark.store.cache import collect_seldom

    require_with(context, "--realms", "realm_domain", "max_open_realms", is_given=realms is not None)
    require_with(context, "--work", "concurrency", is_given=work)
    require_with(context, "--token-key", "token_lifetime", is_given=token_key is not None)
    refuse_with(context, "--insecure", "login_log", "max_failures_per_address", is_given=insecure)
    server = _server()
    log_to_standard_error()
    if login_log is not None:
        _log_logins(login_log)
    allowed = allow_location or []
    if realms is not None:
        check_options(property, allowed, token=token, warehouse=warehouse)
    options = {"warehouse": warehouse, "principal": principal, "metadata-files": metadata_files}
    given = {"store": store, "realm": realm or "default", "catalog": catalog}
    given |= {name: text for name, text in options.items() if text}
    properties = properties_of(given, property, password)
    endpoint = server.Endpoint(
        host,
        port,
        tokens=None if realms else _tokens(server.Tokens, token, token_file, principal_of(properties)),
        authenticators=()
        if realms or authentication is None
        else tuple(server.authenticators_in(authentication)),
        by_realm=_by_realm(server, token_file, authentication) if realms else {},
        failures_per_address=max_failures_per_address,
        issuing=_issuing(token_key, token_lifetime),
        insecure=insecure,
        certificate=str(tls_cert) if tls_cert else None,
        key=str(tls_key) if tls_key else None,
        threads=threads,
        max_body=size_bytes("--max-body", max_body),
        max_memory=size_bytes("--max-memory", max_memory),
        connections=server.ConnectionBounds(max_connections, max_connections_per_address),
    )
    endpoint.check()
    for place in allowed:
        segments(place.replace(REALM_FIELD, "r") if realms else place)
    storage = None if storages is None else _storage(storages)
    collect_seldom()
    if realms is not None:
        many = ServedStore(store, properties, password, allowed, follow_links=follow_links, storage=storage)
        names = server.RealmNames(realm, realm_domain)
        workers = concurrency if work else 0
        many.serve(names, served_realms(realms), max_open_realms, endpoint, _announce, workers)
        return
    session = open_session(properties, SystemClock(), ROUTER)
    served = server.ServedCatalogs(session, allowed=allowed, follow_links=follow_links, storage=storage)
    with ServingWorker(properties, concurrency, allowed) if work else nullcontext():
        server.serve(served, endpoint, _announce)


def _server() -> ModuleType:
    """Return the module `polaris_spark.server`.

    Raises:
        MissingLibraryError: libraries that the module needs are not installed.
    """
    try:
        from polaris_spark import server
    except ImportError as error:
        raise MissingLibraryError(
            f"the HTTP server needs libraries that are not installed ({error.name}): "
            "pip install 'polaris-spark[server]'"
        ) from error
    return server


def _tokens(kind: type[Tokens], token: str | None, file: Path | None, principal: str) -> Tokens | None:
    if token is not None and file is not None:
        raise InputError(
            "tokens come from --token or from --token-file, not from both; give only one of them"
        )
    if token is not None:
        return kind.from_environment(token, principal)
    return kind.from_file(file) if file is not None else None


def _by_realm(
    server: ModuleType, token_file: Path | None, authentication: Path | None
) -> dict[str, list[Authenticator]]:
    """Return the authenticators of each realm, by its name.

    Raises:
        InputError: a file cannot be used, or a token has no realm.
    """
    found: dict[str, list[Authenticator]] = {}
    for name, tokens in ({} if token_file is None else server.Tokens.by_realm(token_file)).items():
        if not name:
            raise InputError(
                f"the token file {token_file} has a token without a realm; with --realms, each line ends with "
                "realm=NAME"
            )
        found[name] = [tokens]
    others = {} if authentication is None else server.authenticators_by_realm(authentication)
    for name, more in others.items():
        found.setdefault(name, []).extend(more)
    return found


def _issuing(token_key: str | None, lifetime: str) -> Issuing | None:
    if token_key is None:
        return None
    from polaris_spark.access.token_keys import ServerKey
    from polaris_spark.server import Issuing
    from polaris_spark.store_uris import Secret

    if not token_key.startswith("env:"):
        raise InputError(
            "--token-key takes env:NAME, where NAME is the environment variable that contains the server key: a key on "
            "the command line is visible to all users of this machine"
        )
    return Issuing(ServerKey(Secret(token_key)), duration_ms("--token-lifetime", lifetime) // 1_000)


def _storage(file: Path) -> StorageAccess:
    from polaris_spark.storage.access import StorageAccess
    from polaris_spark.storage.settings import storages_in
    from polaris_spark.storage.vending import require_boto3

    require_boto3()
    return StorageAccess(storages_in(file), SystemClock().now_ms)


def _announce(uri: str) -> None:
    print(f"polaris-spark serves {uri}", flush=True)


def _log_logins(path: Path) -> None:
    """Log all logins to a file, besides the log on standard error.

    Raises:
        OSError: the file cannot be written.
    """
    from polaris_spark.server.logins import LoginLog as File

    handler = File(path, maxBytes=_MAX_LOGIN_LOG, backupCount=4, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("polaris_spark.logins")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


_MAX_LOGIN_LOG = 64 * 2**20
"""Size at which the file of `--login-log` is replaced, in bytes."""
