"""A session with a Cassandra cluster, opened by the driver's `Cluster` with the store's settings."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.auth import PlainTextAuthProvider
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import SimpleStatement, tuple_factory

from polaris_spark.backends.cassandra import failures
from polaris_spark.backends.cassandra.driver import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    UnresolvableContactPoints,
)
from polaris_spark.backends.cassandra.schema import Level
from polaris_spark.backends.cassandra.settings import Settings
from polaris_spark.errors import StoreURIError, TryAgainError

_RECONNECT_S: Final = 1.0
_HEARTBEAT_S: Final = 10.0


class ClusterSession:
    """Connections to a cluster. Thread-safe."""

    def __init__(self, cluster: Any, session: Any, policy: Any) -> None:
        self._cluster, self._session, self._policy = cluster, session, policy

    @property
    def datacenter(self) -> str:
        """The datacenter whose nodes receive the requests."""
        return str(self._policy.local_dc)

    @property
    def nodes(self) -> list[str]:
        """The datacenter of each node of the cluster."""
        return [str(host.datacenter) for host in self._cluster.metadata.all_hosts()]

    def agree(self, level: Level) -> None:
        """Set the consistency levels of later statements to the level of the store, which all its clients use."""
        profile = self._cluster.profile_manager.default
        profile.consistency_level = ConsistencyLevel.name_to_value[level.rows]
        profile.serial_consistency_level = ConsistencyLevel.name_to_value[level.serial]

    def learn(self, keyspace: str) -> None:
        """Load the replica placement of a keyspace, so that the driver sends each request to a replica of its
        partition."""
        self._cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=-1)

    def prepare(self, text: str) -> Any:
        """Prepare a statement, and return it. If a node has evicted the prepared statement, the driver prepares it
        again."""
        return self._session.prepare(text)

    def send(self, statement: Any, timeout: float, paging_state: bytes | None) -> Any:
        """Send a statement, and return the driver's future for the answer. The future fails after `timeout` seconds."""
        return self._session.execute_async(statement, timeout=timeout, paging_state=paging_state)

    def ask(self, query: str, arguments: Sequence[object], timeout: float) -> list[tuple[Any, ...]]:
        """Run a statement that reads or changes the schema, and return its rows. `timeout` is in seconds.

        All clients of a datacenter that see the same nodes send schema statements to the same node. If two nodes
        created a table concurrently, the result would be two tables that Cassandra cannot merge.
        """
        near = [host for host in self._cluster.metadata.all_hosts() if host.datacenter == self.datacenter]
        hosts = sorted((host for host in near if host.is_up is not False), key=str)
        statement = SimpleStatement(query, consistency_level=ConsistencyLevel.ONE)
        result = self._session.execute(
            statement, tuple(arguments) or None, timeout=timeout, host=hosts[0] if hosts else None
        )
        return list(result.current_rows)

    def close(self) -> None:
        """Close all connections, and end the driver's threads."""
        self._cluster.shutdown()


def open_session(settings: Settings) -> ClusterSession:
    """Connect to a cluster.

    Raises:
        StoreURIError: the cluster refuses the user, or does not have the datacenter of the settings.
        TryAgainError: the cluster cannot be reached.
    """
    policy = DCAwareRoundRobinPolicy(settings.datacenter or "")
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(policy),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.QUORUM,
        request_timeout=settings.timeout / 1_000,
        row_factory=tuple_factory,
    )
    patience, silence = settings.connect_timeout / 1_000, min(_HEARTBEAT_S, settings.timeout / 1_000)
    cluster = _cluster(
        settings,
        contact_points=list(settings.hosts),
        port=settings.hosts[0][1],
        # The version that Cassandra 3 to 5 share; without it, the driver would try other versions first.
        protocol_version=ProtocolVersion.V4,
        auth_provider=_credentials(settings),
        ssl_context=_tls(settings),
        # Otherwise a request waits until the previous one is acknowledged, which takes 40 ms with the driver's default.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, None),
        connect_timeout=patience,
        control_connection_timeout=patience,
        idle_heartbeat_interval=silence,
        idle_heartbeat_timeout=silence,
        schema_metadata_enabled=False,  # it would load the schemas of all keyspaces
        monitor_reporting_enabled=False,
    )
    try:
        return ClusterSession(cluster, cluster.connect(), policy)
    except Exception as error:
        known = sorted({str(host.datacenter) for host in cluster.metadata.all_hosts()} - {"None"})
        cluster.shutdown()
        if known and settings.datacenter not in (None, *known):
            raise StoreURIError(
                f"{settings.where}: the cluster has no datacenter {settings.datacenter!r}; "
                f"its datacenters are: {', '.join(known)}"
            ) from None
        raise failures.connecting(settings.where, error) from error


def _cluster(settings: Settings, **arguments: object) -> Any:
    try:
        return Cluster(**arguments)
    except UnresolvableContactPoints:
        names = ", ".join(host.name for host in settings.hosts)
        raise TryAgainError(
            f"{settings.where} cannot be reached: the host names cannot be resolved: {names}; nothing was changed"
        ) from None


def _credentials(settings: Settings) -> Any:
    if settings.user is None:
        return None
    password = "" if settings.password is None else settings.password.reveal()
    return PlainTextAuthProvider(settings.user, password)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except OSError as error:
        raise StoreURIError(f"{settings.where}: tls_ca={settings.tls_ca!r} cannot be read: {error}") from None
    context.check_hostname = settings.tls == "verify-full"
    return context
