"""Options of a `mariadb://` or `mysql://` store, and how PyMySQL is told of them."""

from __future__ import annotations

import getpass
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polaris_spark.backends import Options
from polaris_spark.config import Secret, StoreURI, duration_ms, refuse_unknown_options
from polaris_spark.errors import InputError, StoreURIError

MOST_CONNECTIONS: Final = 256

_HOST: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\],]+)(:(?P<port>[0-9]{1,5}))?")
_OPTIONS: Final = (
    "connect_timeout", "password", "pool", "socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_mode", "timeout",
)  # fmt: skip  # names that read as one list
_SSL_MODES: Final = ("disabled", "preferred", "required", "verify-ca", "verify-identity")


@dataclass(frozen=True, slots=True)
class Settings:
    """A store's place on a server. Durations are in milliseconds."""

    where: str
    """The URI, without password, as errors show it."""
    database: str
    login: Mapping[str, object] = field(repr=False)
    """Arguments of PyMySQL's `Connection`; database and password are not among them."""
    password: Secret | None = None
    timeout: int = 30_000
    """How long an operation waits for a connection, for a lock, and for each statement."""
    connect_timeout: int = 10_000
    pool: int = 8
    """Most connections of one process."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Settings from a store URI and options, which hold the URI's own, too.

        Raises:
            StoreURIError: an option or its value is unknown, or the URI names no database.
        """
        refuse_unknown_options(uri.scheme, options, _OPTIONS)
        password = options.get("password")
        texts = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in options.items()
            if name != "password"
        }
        return cls(
            where=str(uri),
            database=_database(uri),
            login={**_place(uri, texts), **_encryption(uri, texts), "user": uri.user or getpass.getuser()},
            password=Secret(password) if isinstance(password, str) else password,
            timeout=_duration("timeout", texts.get("timeout", "30 s")),
            connect_timeout=_duration("connect_timeout", texts.get("connect_timeout", "10 s")),
            pool=_pool(texts.get("pool", "8")),
        )


def _database(uri: StoreURI) -> str:
    if not uri.path:
        raise StoreURIError(f"{uri} names no database; write {uri.scheme}://user@host:3306/database")
    if len(uri.path) > 64 or "/" in uri.path or "\x00" in uri.path or uri.path.endswith(" "):
        raise StoreURIError(f"{uri}: {uri.path!r} is no name of a database: 1 to 64 characters, no '/'")
    return uri.path


def _place(uri: StoreURI, texts: Mapping[str, str]) -> dict[str, object]:
    if "socket" in texts:
        if uri.authority not in ("", "localhost"):
            raise StoreURIError(
                f"{uri} names a host and a socket; write {uri.scheme}://user@localhost/database"
            )
        return {"unix_socket": texts["socket"]}
    found = _HOST.fullmatch(uri.authority)
    if found is None or not 0 < int(found["port"] or "3306") < 65_536:
        raise StoreURIError(f"{uri}: {uri.authority!r} is no host:port (one host)")
    host = found["host"].removeprefix("[").removesuffix("]")
    return {"host": host, "port": int(found["port"] or "3306")}


def _encryption(uri: StoreURI, texts: Mapping[str, str]) -> dict[str, object]:
    """TLS by the modes of MySQL's own clients; a CA without a mode asks for all checks."""
    files = {name: texts[name] for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in texts}
    mode = texts.get(
        "ssl_mode", "verify-identity" if "ssl_ca" in files else "required" if files else "preferred"
    )
    if mode not in _SSL_MODES:
        raise StoreURIError(f"ssl_mode={mode!r} of a {uri.scheme}: store; it is {', '.join(_SSL_MODES)}")
    for name, path in files.items():
        if not Path(path).is_file():
            raise StoreURIError(f"{name}={path!r} of a {uri.scheme}: store is no file")
    if mode in ("disabled", "preferred"):
        if files:
            raise StoreURIError(
                f"{next(iter(files))} of a {uri.scheme}: store has no use with ssl_mode={mode}"
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


def _duration(name: str, text: str) -> int:
    try:
        found = duration_ms(name, text)
    except InputError as error:
        raise StoreURIError(str(error)) from None
    if not 0 < found < 2**31:
        raise StoreURIError(f"{name} is {text!r}; it is longer than nothing, and shorter than 24 days")
    return found


def _pool(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_CONNECTIONS):
        raise StoreURIError(f"pool={text!r}; it is the number of connections, 1 to {MOST_CONNECTIONS}")
    return int(text)
