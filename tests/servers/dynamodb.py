"""DynamoDB Local: Amazon's own DynamoDB for development, on an SQLite file.

Each row of a batch is a transaction of its own there, with a flush of the file, so the file lies in memory where there
is a file system for that: it outlives the server, not the machine.

It decides conditions, limits and sizes as the service does. It takes any access key of letters and digits, and any
secret; it never throttles, and leaves nothing of a batch unprocessed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from typing import Final

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import maven_jars

VERSION: Final = "3.3.1"

_MEMORY: Final = "/dev/shm"

# Its own POM asks for a version of these that Maven Central does not have.
_PINNED: Final = ("pinpoint", "cognitoidentity", "cognitoidentityprovider", "dynamodb-enhanced")
_PIN: Final = "2.25.50"
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_POM: Final = "\n".join(
    (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>',
        "<groupId>local</groupId><artifactId>dynamodb-local</artifactId><version>1</version>",
        "<packaging>pom</packaging><dependencies>",
        *(_DEPENDENCY.format("software.amazon.awssdk", name, _PIN) for name in _PINNED),
        _DEPENDENCY.format("software.amazon.dynamodb", "DynamoDBLocal", VERSION),
        "</dependencies></project>",
    )
)

# The server has no option for the address to listen on, and takes all of them.
_MAIN: Final = """
import java.lang.reflect.Field;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

public class Loopback {
  public static void main(String[] options) throws Exception {
    DynamoDBProxyServer local = ServerRunner.createServerFromCommandLineArgs(options);
    Field jetty = DynamoDBProxyServer.class.getDeclaredField("server");
    jetty.setAccessible(true);
    for (Connector each : ((Server) jetty.get(local)).getConnectors()) {
      ((ServerConnector) each).setHost("127.0.0.1");
    }
    local.start();
    local.join();
  }
}
"""


class DynamoDBLocal(ProcessServer):
    """A server that keeps its tables in a file."""

    name = "DynamoDB Local"
    durability = "an SQLite file in /dev/shm, if there is one, flushed at each write"

    _data = ""

    def prepare(self) -> None:
        self._installed = maven_jars(f"dynamodb-local-{VERSION}", _POM, {"Loopback.java": _MAIN})
        self._secret = secrets.token_hex(16)
        self._data = tempfile.mkdtemp(
            prefix="polaris-dynamodb-", dir=_MEMORY if os.path.isdir(_MEMORY) else None
        )

    def command(self) -> Sequence[str]:
        libraries = self._installed / "lib"
        return [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Djava.library.path={libraries}",
            f"-Dsqlite4java.library.path={libraries}",
            "-cp",
            f"{libraries}/*:{self._installed}/classes",
            "Loopback",
            "-sharedDb",
            "-dbPath",
            self._data,
            "-disableTelemetry",
            "-port",
            str(self.port),
        ]

    def close(self) -> None:
        super().close()
        if self._data:  # `prepare` may have failed before it
            shutil.rmtree(self._data, ignore_errors=True)

    def uri(self, store: str, *, port: int | None = None) -> str:
        """Store URI of tables with a prefix of their own."""
        return self._uri("polaris", store, port)

    def wrong_credentials(self, store: str) -> str:
        """The URI with an access key that the service would never issue."""
        return self._uri("no-such-key", store, None)

    def _uri(self, user: str, store: str, port: int | None) -> str:
        return f"dynamodb://{user}:{self._secret}@us-east-1/{store}?endpoint=http://127.0.0.1:{port or self.port}"
