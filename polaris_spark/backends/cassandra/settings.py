"""Options of a `cassandra://` store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polaris_spark.backends import Options
from polaris_spark.config import Secret, StoreURI, duration_ms, refuse_unknown_options
from polaris_spark.errors import InputError, StoreURIError

PORT: Final = 9042
LEVELS: Final = ("SERIAL", "LOCAL_SERIAL")
VERIFICATIONS: Final = ("verify-ca", "verify-full")
EVERYWHERE: Final = "replication_factor"
"""The datacenter of `replication` that stands for each of them, as `NetworkTopologyStrategy` calls it."""

_KNOWN: Final = (
    "concurrency", "connect_timeout", "datacenter", "password", "replication", "serial", "timeout", "tls", "tls_ca"
)  # fmt: skip  # names that read as one list
_HOST: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]]+)(:(?P<port>[0-9]{1,5}))?")
_KEYSPACE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}", re.ASCII)
_DATACENTER: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_REPLICAS: Final = re.compile(r"(?:(?P<datacenter>[^:]+):)?(?P<factor>[1-9][0-9]{0,2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """A store's place in a cluster. Durations are in milliseconds."""

    where: str
    """The URI, without password, as errors show it."""
    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    user: str | None = None
    password: Secret | None = None
    datacenter: str | None = None
    """Whose nodes are asked; None for that of the hosts."""
    serial: str | None = None
    """One of `LEVELS`; None for that of the store, and for `SERIAL` where there is none yet."""
    replication: Mapping[str, int] = field(default_factory=dict)
    """Datacenter or `EVERYWHERE`, to copies: of a keyspace that is created."""
    timeout: int = 30_000
    """How long an operation may take."""
    connect_timeout: int = 10_000
    """How long one connection may take to be made."""
    concurrency: int = 128
    """Most requests under way at once."""
    tls: str | None = None
    """One of `VERIFICATIONS`; None for connections in the clear."""
    tls_ca: str | None = None
    """File of the certificates to trust; None for those of the machine."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Settings from a store URI and options, which hold the URI's own, too.

        Raises:
            StoreURIError: the URI names no host or keyspace, or an option is unknown or its value is.
        """
        refuse_unknown_options(uri.scheme, options, _KNOWN)
        if not _KEYSPACE.fullmatch(uri.path) or uri.path.lower().startswith("system"):
            raise StoreURIError(
                f"{uri} names no keyspace that could be a store: {uri.path!r}; write {uri.scheme}://host:9042/keyspace "
                "with up to 48 letters, digits and underscores, and none of those of the system"
            )
        password = options.get("password")
        texts = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in options.items()
            if name != "password"
        }
        tls = _one_of("tls", texts.get("tls"), VERIFICATIONS)
        if tls is None and "tls_ca" in texts:
            raise StoreURIError(f"tls_ca is given without tls; set tls to {' or '.join(VERIFICATIONS)}")
        return cls(
            where=str(uri),
            hosts=_hosts(uri),
            keyspace=uri.path,
            user=uri.user,
            password=Secret(password) if isinstance(password, str) else password,
            datacenter=None if "datacenter" not in texts else _datacenter(texts["datacenter"]),
            serial=_one_of("serial", texts.get("serial"), LEVELS),
            replication=_replication(texts["replication"]) if "replication" in texts else {},
            timeout=_duration("timeout", texts.get("timeout", "30 s")),
            connect_timeout=_duration("connect_timeout", texts.get("connect_timeout", "10 s")),
            concurrency=_concurrency(texts.get("concurrency", "128")),
            tls=tls,
            tls_ca=texts.get("tls_ca"),
        )


def _hosts(uri: StoreURI) -> tuple[tuple[str, int], ...]:
    hosts = []
    for one in uri.authority.split(","):
        found = _HOST.fullmatch(one)
        if found is None or not 0 < int(found["port"] or PORT) < 65_536:
            raise StoreURIError(f"{uri}: {one!r} is no host:port")
        hosts.append((found["host"].removeprefix("[").removesuffix("]"), int(found["port"] or PORT)))
    return tuple(hosts)


def _one_of(name: str, text: str | None, known: tuple[str, ...]) -> str | None:
    if text is not None and text not in known:
        raise StoreURIError(f"{name}={text!r} of a cassandra: store; it is {' or '.join(known)}")
    return text


def _datacenter(text: str) -> str:
    if not _DATACENTER.fullmatch(text):
        raise StoreURIError(f"datacenter={text!r} is no name of a datacenter")
    return text


def _replication(text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for one in text.split(","):
        match = _REPLICAS.fullmatch(one.strip())
        datacenter = EVERYWHERE if match is None or match["datacenter"] is None else match["datacenter"]
        if match is None or not _DATACENTER.fullmatch(datacenter) or datacenter in found:
            raise StoreURIError(
                f"replication={text!r}; it is the number of copies, such as 3, or that of each datacenter: dc1:3,dc2:3"
            )
        found[datacenter] = int(match["factor"])
    return found


def _duration(name: str, text: str) -> int:
    try:
        found = duration_ms(name, text)
    except InputError as error:
        raise StoreURIError(str(error)) from None
    if not 0 < found < 2**31:
        raise StoreURIError(f"{name} is {text!r}; it is longer than nothing, and shorter than 24 days")
    return found


def _concurrency(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise StoreURIError(f"concurrency={text!r}; it is the number of requests under way, 1 to 9999")
    return int(text)
