"""Options of a `mongodb://` store, and their conversion to arguments of PyMongo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given, account, hosts
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

MOST_CONNECTIONS: Final = 1_000

_OURS: Final = ("connect_timeout", "password", "pool", "timeout")
_OF_MONGODB: Final = (
    "appName", "authMechanism", "authMechanismProperties", "authSource", "compressors", "directConnection",
    "loadBalanced", "replicaSet", "srvMaxHosts", "srvServiceName", "tls", "tlsCAFile", "tlsCRLFile",
    "tlsCertificateKeyFile",
)  # fmt: skip  # reads better as one list
_DECIDED: Final = {
    "w": "writes wait for a majority",
    "journal": "writes wait for the journal",
    "wtimeoutMS": "the option 'timeout' bounds the wait",
    "readConcernLevel": "the store sets the read concern of each operation",
    "readPreference": "a secondary may return outdated rows",
    "retryWrites": "a repeated swap cannot tell its own first attempt from another client's swap",
    "ssl": "the option is 'tls'",
}
_PORT: Final = 27017
_DATABASE: Final = re.compile(r"[^/\\. \"$*<>:|?\x00]{1,63}")
_TAKEN: Final = ("admin", "config", "local")


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    where: str
    """The store's URI for error messages, without password."""
    address: str
    """URI that is passed to PyMongo: scheme, hosts and database."""
    database: str
    user: str | None = None
    password: Secret | None = None
    timeout: int = 30_000
    """Maximum duration of an operation, including waits for a primary, a connection and the majority."""
    connect_timeout: int = 10_000
    """Maximum time for the first operation to find a primary, and maximum time to open a connection."""
    pool: int = 32
    """Maximum number of connections of one process to one server."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Options that MongoDB itself defines, as the user wrote them."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings from a store URI and options, which include the options of the URI.

        Raises:
            StoreURIError: an option or its value is not valid, or the URI names no host or database.
        """
        for name, reason in _DECIDED.items():
            if name in options:
                raise StoreURIError(f"a {uri.scheme}: store has no option {name!r}: {reason}; remove it")
        given = Given(uri.scheme, options, (*_OURS, *_OF_MONGODB))
        database = _database(uri)
        hosts(uri, _PORT)
        user, password = account(uri, given)
        return cls(
            where=str(uri),
            address=f"{uri.scheme}://{uri.authority}/{quote(database, safe='')}",
            database=database,
            user=user,
            password=password,
            timeout=given.duration_ms("timeout", "30 s"),
            connect_timeout=given.duration_ms("connect_timeout", "10 s"),
            pool=given.count("pool", 32, MOST_CONNECTIONS),
            given={name: given.texts[name] for name in _OF_MONGODB if name in given.texts},
        )

    def driver(self) -> dict[str, Any]:
        """Return the arguments of a `MongoClient`, including the password."""
        account = {"username": self.user} if self.user else {}
        if self.password is not None:
            account["password"] = self.password.reveal()
        return {
            "host": self.address,
            "appName": "polaris_spark",
            "timeoutMS": self.timeout,
            "connectTimeoutMS": self.connect_timeout,
            "maxPoolSize": self.pool,
            "retryWrites": False,
            "connect": False,
            **account,
            **self.given,
        }


def _database(uri: StoreURI) -> str:
    if not uri.path:
        raise StoreURIError(f"{uri} names no database; write {uri.scheme}://user@host:27017/database")
    if not _DATABASE.fullmatch(uri.path) or len(uri.path.encode()) > 63 or uri.path in _TAKEN:
        raise StoreURIError(
            f"a store cannot use a MongoDB database named {uri.path!r}: the name must have 1 to 63 bytes, none of the "
            f'characters /\\. "$*<>:|?, and must not be one of {", ".join(_TAKEN)}'
        )
    return uri.path
