"""Bare swaps on Cassandra, by the driver's prepared statements."""

from __future__ import annotations

import socket
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import DCAwareRoundRobinPolicy, FallthroughRetryPolicy, TokenAwarePolicy
from cassandra.query import tuple_factory

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.store_uris import StoreURI

_SWAP = (
    'UPDATE "{0}".references SET version = ?, value = ? WHERE realm = ? AND name = ? '
    "IF version = ? AND value != null"
)
_READ = 'SELECT version FROM "{0}".references WHERE realm = ? AND name = ?'


def open_bare(uri: str) -> BareCassandra:
    """Open the store of a URI with one host."""
    return BareCassandra(StoreURI.parse(uri))


class BareCassandra:
    """A store with one session for all threads, as the driver's manual recommends."""

    def __init__(self, uri: StoreURI) -> None:
        host, _, port = uri.authority.partition(":")
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=ConsistencyLevel.QUORUM,
            serial_consistency_level=ConsistencyLevel.SERIAL,
            row_factory=tuple_factory,
        )
        credentials = uri.user and PlainTextAuthProvider(
            uri.user, uri.password.reveal() if uri.password else ""
        )
        self._cluster = Cluster(
            [host],
            int(port),
            auth_provider=credentials or None,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=4,
            sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        session = self._cluster.connect()
        swap, read = (session.prepare(text.format(uri.path)) for text in (_SWAP, _READ))
        read.consistency_level = ConsistencyLevel.SERIAL
        self._client = _Client(session, swap, read)

    def client(self) -> _Client:
        """Return the client on the shared session, whose connection sends the requests of all threads."""
        return self._client

    def close(self) -> None:
        """Close all connections."""
        self._cluster.shutdown()


class _Client:
    def __init__(self, session: Any, swap: Any, read: Any) -> None:
        self._session, self._swap, self._read = session, swap, read

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        return bool(self._session.execute(self._swap, (*new, REALM, name, expected)).one()[0])

    def version(self, name: str) -> bytes:
        found: bytes = self._session.execute(self._read, (REALM, name)).one()[0]
        return found
