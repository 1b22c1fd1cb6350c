"""Options of a `cassandra://` store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given, Host, account, hosts
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

PORT: Final = 9042
LEVELS: Final = ("SERIAL", "LOCAL_SERIAL")
VERIFICATIONS: Final = ("verify-ca", "verify-full")
EVERYWHERE: Final = "replication_factor"
"""Name that stands for every datacenter in `replication`. Cassandra's `NetworkTopologyStrategy` uses the same name."""

_KNOWN: Final = (
    "concurrency", "connect_timeout", "datacenter", "password", "replication", "serial", "timeout", "tls", "tls_ca"
)  # fmt: skip  # reads better as one list
_KEYSPACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}", re.ASCII)
_DATACENTER: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_REPLICAS: Final = re.compile(r"(?:(?P<datacenter>[^:]+):)?(?P<factor>[1-9][0-9]{0,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    where: str
    """The store's URI for error messages, without password."""
    hosts: tuple[Host, ...]
    keyspace: str
    user: str | None = None
    password: Secret | None = None
    datacenter: str | None = None
    """The datacenter whose nodes receive the requests. None: the datacenter of the hosts."""
    serial: str | None = None
    """Serial consistency level, one of `LEVELS`. None: the level of the existing store, or `SERIAL` for a new store."""
    replication: Mapping[str, int] = field(default_factory=dict)
    """Replication factor of a new keyspace for each datacenter. The key `EVERYWHERE` stands for every datacenter."""
    timeout: int = 30_000
    """Maximum duration of an operation."""
    connect_timeout: int = 10_000
    """Maximum time to open one connection."""
    concurrency: int = 128
    """Maximum number of requests in flight."""
    tls: str | None = None
    """How TLS verifies the server, one of `VERIFICATIONS`. None: connections without TLS."""
    tls_ca: str | None = None
    """Path of a file with the trusted certificates. None: the machine's default certificates."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings from a store URI and options, which include the options of the URI.

        Raises:
            StoreURIError: the URI names no host or keyspace, or an option or its value is not valid.
        """
        given = Given(uri.scheme, options, _KNOWN)
        if not _KEYSPACE.fullmatch(uri.path) or uri.path.lower().startswith("system"):
            raise StoreURIError(
                f"{uri} names a keyspace that cannot be used for a store: {uri.path!r}; write "
                f"{uri.scheme}://host:9042/keyspace, where keyspace has at most 48 letters, digits and underscores, "
                "begins with a letter, and does not begin with 'system'"
            )
        tls = given.one_of("tls", VERIFICATIONS)
        if tls is None and "tls_ca" in given.texts:
            raise StoreURIError(f"tls_ca is given without tls; set tls to {' or '.join(VERIFICATIONS)}")
        user, password = account(uri, given)
        return cls(
            where=str(uri),
            hosts=tuple(hosts(uri, PORT)),
            keyspace=uri.path,
            user=user,
            password=password,
            datacenter=given.matching("datacenter", _DATACENTER, "the name of a datacenter"),
            serial=given.one_of("serial", LEVELS),
            replication=_replication(given),
            timeout=given.duration_ms("timeout", "30 s"),
            connect_timeout=given.duration_ms("connect_timeout", "10 s"),
            concurrency=given.count("concurrency", 128, 9_999),
            tls=tls,
            tls_ca=given.texts.get("tls_ca"),
        )


def _replication(given: Given) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for one in given.texts["replication"].split(",") if "replication" in given.texts else ():
        match = _REPLICAS.fullmatch(one.strip())
        datacenter = EVERYWHERE if match is None or match["datacenter"] is None else match["datacenter"]
        if match is None or not _DATACENTER.fullmatch(datacenter) or datacenter in found:
            raise given.refused(
                "replication",
                "the number of replicas, such as 3, or the number for each datacenter, such as dc1:3,dc2:3",
            )
        found[datacenter] = int(match["factor"])
    return found
