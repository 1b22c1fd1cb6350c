"""Apache Cassandra, one node on loopback that holds the whole ring."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ProcessServer, answers
from tests.servers.installing import maven_jars, run

VERSION: Final = "5.0.9"
_PATIENCE_S: Final = 30.0  # with a server that has much else to do; one that is not ready refuses at once
_KEYS_PASSWORD: Final = "changeit"  # as safe as the file that it stands in
_POM: Final = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>polaris</groupId><artifactId>cassandra-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
_LOGBACK: Final = """
<configuration>
  <appender name="STDOUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{ISO8601} %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDOUT"/></root>
</configuration>
"""
# Sized for a laptop that runs tests, save what durability and LWTs depend on: `group` flushes the commit log before
# anything is acknowledged, for all writes of a millisecond at once, so that they survive the machine, too.
_SETTINGS: Final[Mapping[str, str]] = {
    "cluster_name": "polaris",
    "num_tokens": "1",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "dynamic_snitch": "false",
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "paxos_variant": "v2",
    "paxos_state_purging": "repaired",
    "commitlog_sync": "group",
    "commitlog_sync_group_window": "1ms",
    "commitlog_segment_size": "8MiB",
    "commitlog_total_space": "256MiB",
    "memtable_heap_space": "64MiB",
    "memtable_offheap_space": "64MiB",
    "file_cache_size": "32MiB",
    "key_cache_size": "4MiB",
    "auto_snapshot": "false",
    "listen_address": "127.0.0.1",
    "rpc_address": "127.0.0.1",
    "start_native_transport": "true",
    "concurrent_reads": "8",
    "concurrent_writes": "16",
    "concurrent_compactors": "1",
    "native_transport_max_threads": "32",
    "cas_contention_timeout": "5s",
    "read_request_timeout": "10s",
    "write_request_timeout": "10s",
    "range_request_timeout": "20s",
    "request_timeout": "20s",
}
# What `conf/jvm17-server.options` of a distribution opens to the server.
_OPENS: Final = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.math "
    "java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent "
    "java.base/java.util.concurrent.atomic java.base/jdk.internal.loader java.base/jdk.internal.math "
    "java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect "
    "java.base/jdk.internal.util.jar java.base/jdk.internal.vm java.base/sun.nio.ch "
    "jdk.management/com.sun.management.internal jdk.compiler/com.sun.tools.javac.file"
)
_EXPORTS: Final = (
    "java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/java.lang.ref java.base/sun.nio.ch "
    "java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server "
    "java.rmi/sun.rmi.transport.tcp java.sql/java.sql jdk.unsupported/sun.misc jdk.attach/sun.tools.attach"
)


class Cassandra(ProcessServer):
    """A node that flushes before it acknowledges, with passwords and optional TLS. Each store is a keyspace with one
    replica."""

    name = "Apache Cassandra"
    durability = "commitlog_sync: group (1 ms)"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """
        Args:
            settings: of `cassandra.yaml`, over those of a small node.
        Raises:
            StateError: there is no Java 11 or 17, the server cannot be installed, or it does not start.
        """
        self._settings = dict(settings or {})
        super().__init__()

    def prepare(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise StateError(f"{self.name} needs Java 17: install 'java'")
        self._java = java
        self.user, self.password = "polaris", secrets.token_hex(16)
        self._guest, self._user_made = "", False
        self._certify()
        self._jars = maven_jars(f"cassandra-{VERSION}", _POM) / "lib"
        self._storage_port = self.reserve_port()
        (self.directory / "logback.xml").write_text(_LOGBACK)
        places = {
            "data_file_directories": f'["{self.directory}/data"]',
            **{
                f"{kind}_directory": f"{self.directory}/{kind}"
                for kind in ("commitlog", "saved_caches", "hints", "cdc_raw")
            },
            "client_encryption_options": f'{{enabled: true, optional: true, keystore: "{self.directory}/keys", '
            f"keystore_password: {_KEYS_PASSWORD}}}",
            "storage_port": str(self._storage_port),
            "native_transport_port": str(self.port),
            "seed_provider": "[{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: "
            f'[{{seeds: "127.0.0.1:{self._storage_port}"}}]}}]',
        }
        lines = [f"{name}: {value}" for name, value in {**_SETTINGS, **places, **self._settings}.items()]
        (self.directory / "cassandra.yaml").write_text("\n".join(lines))

    def command(self) -> Sequence[str]:
        agent = next(path for path in Path(self._jars).iterdir() if re.fullmatch(r"jamm-.*\.jar", path.name))
        properties = {
            "cassandra.config": f"file://{self.directory}/cassandra.yaml",
            "cassandra.storagedir": str(self.directory),
            "cassandra-foreground": "yes",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.ring_delay_ms": "0",
            "cassandra.superuser_setup_delay_ms": "0",
            "cassandra.initial_token": "0",
            "cassandra.auth_bcrypt_gensalt_log2_rounds": "4",
            "logback.configurationFile": f"{self.directory}/logback.xml",
            "java.io.tmpdir": str(self.directory),
            "java.net.preferIPv4Stack": "true",
            "jdk.attach.allowAttachSelf": "true",
            "io.netty.tryReflectionSetAccessible": "true",
        }
        return [
            self._java,
            *("-Xms384m", "-Xmx1g", "-Xss512k", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
            f"-javaagent:{agent}",
            *(f"--add-opens={each}=ALL-UNNAMED" for each in _OPENS.split()),
            *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTS.split()),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", f"{self._jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def close(self) -> None:
        self.kill()  # there is nothing to be kept, so nothing to wait for
        super().close()

    def ready(self) -> bool:
        return answers(self.port) and (self._user_made or self._make_user())

    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of a keyspace with one replica, with the name and password of a superuser."""
        return self._uri(self.user, self.password, store, port)

    def wrong_credentials(self, store: str) -> str:
        return self._uri(self.user, "wrong battery", store)

    def unprivileged(self, store: str) -> str:
        if not self._guest:
            self._guest = secrets.token_hex(16)
            self.run(f"CREATE ROLE guest WITH LOGIN = true AND PASSWORD = '{self._guest}'")
        return self._uri("guest", self._guest, store)

    @property
    def certificate(self) -> Path:
        """File of the certificate that its clients should trust."""
        return self.directory / "certificate.pem"

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Return the rows of a statement, executed as the superuser."""
        return self._run(statement, self.user, self.password)

    def _uri(self, user: str, password: str, store: str, port: int | None = None) -> str:
        return f"cassandra://{user}:{password.replace(' ', '%20')}@127.0.0.1:{port or self.port}/{store}?replication=1"

    def _make_user(self) -> bool:
        """Create the superuser, logged in as the node's default user. Return False if the default user does not exist
        yet."""
        try:
            self._run(
                f"CREATE ROLE {self.user} WITH SUPERUSER = true AND LOGIN = true AND PASSWORD = '{self.password}'",
                "cassandra",
                "cassandra",
            )
        except OSError:
            return False
        self._user_made = True
        return True

    def _run(self, statement: str, user: str, password: str) -> list[tuple[object, ...]]:
        from cassandra import DriverException, RequestExecutionException
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster, NoHostAvailable
        from cassandra.query import tuple_factory

        cluster = Cluster(
            ["127.0.0.1"],
            self.port,
            auth_provider=PlainTextAuthProvider(user, password),
            protocol_version=4,
            connect_timeout=_PATIENCE_S,
            control_connection_timeout=_PATIENCE_S,
        )
        try:
            session = cluster.connect()
            session.row_factory = tuple_factory
            return list(session.execute(statement, timeout=_PATIENCE_S).current_rows)
        except (NoHostAvailable, DriverException, RequestExecutionException) as error:
            raise OSError(f"{self.name}: {error}") from None
        finally:
            cluster.shutdown()

    def _certify(self) -> None:
        """Create the server's key and a self-signed certificate."""
        keytool = shutil.which("keytool") or str(Path(self._java).resolve().parent / "keytool")
        of_keys = [
            *("-alias", "server", "-keystore", "keys", "-storetype", "PKCS12", "-storepass", _KEYS_PASSWORD)
        ]
        name = ["-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1", "-validity", "3650"]
        run([keytool, "-genkeypair", "-keyalg", "EC", *of_keys, *name], self.directory)
        run([keytool, "-exportcert", "-rfc", "-file", self.certificate.name, *of_keys], self.directory)
