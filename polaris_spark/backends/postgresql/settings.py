"""Options of a `postgresql://` store, and their conversion to parameters of libpq."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from psycopg.conninfo import make_conninfo

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given, hosts
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

SCHEMA: Final = "polaris_spark"
"""Default name of the PostgreSQL schema that holds a store."""

MOST_CONNECTIONS: Final = 256

_PRIMARY: Final = ("read-write", "primary")
_COMMITS: Final = ("on", "off", "local", "remote_write", "remote_apply")
_OF_LIBPQ: Final = (
    "application_name", "channel_binding", "gssencmode", "krbsrvname", "passfile", "require_auth", "sslcert",
    "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs",
)  # fmt: skip  # reads better as one list
_OURS: Final = ("connect_timeout", "password", "pool", "schema", "synchronous_commit", "timeout")
# A key selects few rows, whatever the statistics say. With these settings, plans made for empty tables stay good.
_PLANS: Final = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    where: str
    """The store's URI for error messages, without password."""
    connection: str
    """Parameters of libpq as one string, without the password."""
    password: Secret | None = None
    schema: str = SCHEMA
    timeout: int = 30_000
    """Maximum wait for a free connection, and maximum duration of each statement."""
    pool: int = 8
    """Maximum number of connections of one process."""
    session: Mapping[str, str] = field(default_factory=dict)
    """PostgreSQL settings that are applied to each session, by name."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings from a store URI and options, which include the options of the URI.

        Raises:
            StoreURIError: an option or its value is not valid, or the URI names no database.
        """
        given = Given(uri.scheme, options, (*_OURS, *_OF_LIBPQ))
        timeout = given.duration_ms("timeout", "30 s")
        patience = given.duration_ms("connect_timeout", "10 s")
        commit = given.one_of("synchronous_commit", _COMMITS)
        return cls(
            where=str(uri),
            connection=make_conninfo("", **_of_libpq(uri, given.texts, timeout, patience)),
            password=given.password,
            schema=_schema(given.texts.get("schema", SCHEMA)),
            timeout=timeout,
            pool=given.count("pool", 8, MOST_CONNECTIONS),
            session={
                **_PLANS,
                "default_transaction_isolation": "read committed",
                "statement_timeout": str(timeout),
                **({} if commit is None else {"synchronous_commit": commit}),
            },
        )


def _of_libpq(uri: StoreURI, texts: Mapping[str, str], timeout: int, patience: int) -> dict[str, str | int]:
    given = {name: texts[name] for name in _OF_LIBPQ if name in texts}
    kind = given.setdefault("target_session_attrs", "read-write")
    if kind not in _PRIMARY:
        raise StoreURIError(
            f"target_session_attrs of a {uri.scheme}: store is {kind!r}; it must be {' or '.join(_PRIMARY)}, because "
            "a standby can return outdated rows"
        )
    parameters: dict[str, str | int] = {
        **_place(uri),
        **_liveliness(timeout, patience),
        "application_name": "polaris_spark",
        "client_encoding": "UTF8",
        **given,
    }
    for name, value in parameters.items():
        if "\x00" in str(value):  # libpq would ignore the rest of the value
            raise StoreURIError(f"the {name} of a {uri.scheme}: store contains the character NUL: {value!r}")
    return parameters


def _place(uri: StoreURI) -> dict[str, str | int]:
    """Return libpq's parameters for hosts, ports, database and user. If the URI has no host, libpq uses its default."""
    if not uri.path:
        raise StoreURIError(f"{uri} names no database; write {uri.scheme}://user@host:5432/database")
    place: dict[str, str | int] = {"dbname": uri.path, "user": uri.user or getpass.getuser()}
    if uri.authority:
        found = hosts(uri, 5432)
        place.update(
            host=",".join(host.name for host in found), port=",".join(str(host.port) for host in found)
        )
    return place


def _liveliness(timeout: int, patience: int) -> dict[str, str | int]:
    """Return libpq's parameters for time-outs and TCP keepalives. With these, libpq detects a dead server while it
    waits for an answer, and firewalls do not drop idle connections. `timeout` and `patience` (the maximum time to
    connect) are in milliseconds."""
    return {
        "connect_timeout": max(2, -(-patience // 1_000)),  # libpq's minimum is two seconds
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": timeout,
    }


def _schema(text: str) -> str:
    if not text or "\x00" in text or len(text.encode()) > 63:
        raise StoreURIError(
            f"schema={text!r} is not a valid name of a PostgreSQL schema; it must have 1 to 63 bytes, and no NUL"
        )
    return text
