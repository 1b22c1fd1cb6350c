"""Options of a `mariadb://` or `mysql://` store, and their conversion to arguments of PyMySQL."""

from __future__ import annotations

import getpass
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given, hosts
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

MOST_CONNECTIONS: Final = 256

_OPTIONS: Final = (
    "connect_timeout", "password", "pool", "socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_mode", "timeout",
)  # fmt: skip  # reads better as one list
_SSL_MODES: Final = ("disabled", "preferred", "required", "verify-ca", "verify-identity")


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    where: str
    """The store's URI for error messages, without password."""
    database: str
    login: Mapping[str, object] = field(repr=False)
    """Arguments of PyMySQL's `Connection`, except the database and the password."""
    password: Secret | None = None
    timeout: int = 30_000
    """Maximum time that an operation waits for a free connection, for a lock, and for the end of each statement."""
    connect_timeout: int = 10_000
    pool: int = 8
    """Maximum number of connections of one process."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings from a store URI and options, which include the options of the URI.

        Raises:
            StoreURIError: an option or its value is not valid, or the URI names no database.
        """
        given = Given(uri.scheme, options, _OPTIONS)
        return cls(
            where=str(uri),
            database=_database(uri),
            login={**_place(uri, given), **_encryption(uri, given), "user": uri.user or getpass.getuser()},
            password=given.password,
            timeout=given.duration_ms("timeout", "30 s"),
            connect_timeout=given.duration_ms("connect_timeout", "10 s"),
            pool=given.count("pool", 8, MOST_CONNECTIONS),
        )


def _database(uri: StoreURI) -> str:
    if not uri.path:
        raise StoreURIError(f"{uri} names no database; write {uri.scheme}://user@host:3306/database")
    if len(uri.path) > 64 or "/" in uri.path or "\x00" in uri.path or uri.path.endswith(" "):
        raise StoreURIError(
            f"{uri}: {uri.path!r} is not a valid database name; it must have 1 to 64 characters, no '/' or NUL, and no "
            "space at its end"
        )
    return uri.path


def _place(uri: StoreURI, given: Given) -> dict[str, object]:
    if "socket" in given.texts:
        if uri.authority not in ("", "localhost"):
            raise StoreURIError(
                f"{uri} names both a host and a socket; remove the option 'socket', or use localhost as the host"
            )
        return {"unix_socket": given.texts["socket"]}
    found = hosts(uri, 3306)
    if len(found) > 1:
        raise StoreURIError(
            f"{uri} names several hosts; write one host, or the address of a proxy in front of them"
        )
    return {"host": found[0].name, "port": found[0].port}


def _encryption(uri: StoreURI, given: Given) -> dict[str, object]:
    """Return PyMySQL's arguments for TLS. The values of `ssl_mode` have the same meaning as in MySQL's own clients. If
    `ssl_mode` is missing, its value depends on the other options: `verify-identity` if `ssl_ca` is given, else
    `required` if `ssl_cert` or `ssl_key` is given, else `preferred`."""
    files = {name: given.texts[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in given.texts}
    usual = "verify-identity" if "ssl_ca" in files else "required" if files else "preferred"
    mode = given.one_of("ssl_mode", _SSL_MODES) or usual
    for name, path in files.items():
        if not Path(path).is_file():
            raise StoreURIError(
                f"{name}={path!r} of a {uri.scheme}: store is not a file; give the path of an existing file"
            )
    if mode in ("disabled", "preferred"):
        if files:
            raise StoreURIError(
                f"{next(iter(files))} of a {uri.scheme}: store cannot be combined with ssl_mode={mode}; leave one "
                "of them out"
            )
        return {"ssl_disabled": True} if mode == "disabled" else {}
    try:
        context = ssl.create_default_context(cafile=files.get("ssl_ca"))
        context.check_hostname = mode == "verify-identity"
        if mode == "required":
            context.verify_mode = ssl.CERT_NONE
        if "ssl_cert" in files:
            context.load_cert_chain(files["ssl_cert"], files.get("ssl_key"))
    except (ssl.SSLError, ValueError) as error:
        raise StoreURIError(f"the certificates of a {uri.scheme}: store cannot be used: {error}") from None
    return {"ssl": context}
