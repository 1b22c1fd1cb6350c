"""Trino with its Iceberg connector: the server, and a client that runs SQL statements."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ProcessServer
from polaris_spark.testing.waiting import PATIENCE_S
from tests.servers.installing import maven_archives

VERSION = "476"
JAVA = 24
"""The oldest release of Java that runs it."""

_CONFIG = """
node.environment=test
node.internal-address=127.0.0.1
node.bind-ip=127.0.0.1
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
plugin.dir={plugins}
catalog.management=dynamic
"""
"""With static catalogs, the node takes no work until it has announced each catalog, seconds after the start."""


def messages(error: Mapping[str, Any]) -> str:
    """Return the messages of an error of Trino and of its causes, a line each."""
    found = [str(error["message"])]
    part = error.get("failureInfo", {}).get("cause")
    while part is not None:
        found.append(str(part.get("message")))
        part = part.get("cause")
    return "\n".join(found)


class Trino(ProcessServer):
    """One node. Its only plugin is the Iceberg connector."""

    name = "Trino"
    durability = "it has no data of its own"

    def __init__(self, catalogs: Mapping[str, Mapping[str, str]]) -> None:
        """
        Args:
            catalogs: properties of the connector, by the catalog's name in Trino.
        """
        self._catalogs = catalogs
        super().__init__()

    def prepare(self) -> None:
        self._java = java()
        self._installed = maven_archives(
            f"trino-{VERSION}",
            {
                f"io.trino:trino-server-core:{VERSION}:tar.gz": f"trino-server-core-{VERSION}/lib/**",
                f"io.trino:trino-iceberg:{VERSION}:zip": "**",
            },
        )
        plugins, catalogs = self.directory / "plugins", self.directory / "etc" / "catalog"
        plugins.mkdir()
        (plugins / "iceberg").symlink_to(self._installed / f"trino-iceberg-{VERSION}")
        catalogs.mkdir(parents=True)
        for name, properties in self._catalogs.items():
            text = {"connector.name": "iceberg", **properties}
            (catalogs / f"{name}.properties").write_text("".join(f"{k}={v}\n" for k, v in text.items()))
        self._config = self.directory / "config.properties"
        self._config.write_text(_CONFIG.format(port=self.port, plugins=plugins))

    def command(self) -> Sequence[str]:
        return [
            self._java,
            "-Xmx1g",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "--add-modules=jdk.incubator.vector",
            f"-Dconfig={self._config}",
            "-cp",
            f"{self._installed}/trino-server-core-{VERSION}/lib/*",
            "io.trino.server.TrinoServer",
        ]

    def ready(self) -> bool:
        if "SERVER STARTED" not in self._log.read_text(errors="replace"):
            return False
        # It finds itself as a node later.
        return self.execute("SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'") == [[1]]

    def uri(self, store: str, *, port: int | None = None) -> str:
        raise NotImplementedError("Trino stores nothing")

    def wrong_credentials(self, store: str) -> str:
        raise NotImplementedError("Trino stores nothing")

    def execute(self, statement: str) -> list[list[Any]]:
        """The rows of a statement; a change's one row holds the number of changed rows.

        Raises:
            AssertionError: Trino refuses the statement.
        """
        rows, error = self.run(statement)
        assert error is None, f"{statement}: {error}"
        return rows

    def refusal(self, statement: str) -> str:
        """Run a statement that must fail, and return the messages of the error and of its causes."""
        rows, error = self.run(statement)
        assert error is not None, f"{statement}: {rows}"
        return messages(error)

    def run(self, statement: str, user: str = "trino") -> tuple[list[list[Any]], Any]:
        """Run a statement as a user of Trino. Return its rows, and Trino's error or None."""
        answer = self._ask(f"http://127.0.0.1:{self.port}/v1/statement", statement.encode(), user)
        rows = list(answer.get("data", []))
        while "nextUri" in answer:
            answer = self._ask(answer["nextUri"], user=user)
            rows += answer.get("data", [])
        if answer.get("updateCount") is not None and not rows:
            rows = [[answer["updateCount"]]]
        return rows, answer.get("error")

    def _ask(self, uri: str, body: bytes | None = None, user: str = "trino") -> Any:
        request = urllib.request.Request(uri, body, {"X-Trino-User": user, "X-Trino-Time-Zone": "UTC"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


def java() -> str:
    """The path of a Java program that is new enough.

    Raises:
        StateError: there is none where Java is usually installed.
    """
    on_path = shutil.which("java")
    homes = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    homes += [Path(on_path).resolve().parents[1]] if on_path else []
    homes += sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)
    for home in homes:
        release = home / "release"
        text = release.read_text() if release.is_file() else ""
        found = re.search(r'JAVA_VERSION="(\d+)', text)
        if found and int(found[1]) >= JAVA:
            return str(home / "bin" / "java")
    raise StateError(f"Trino {VERSION} needs Java {JAVA} or newer; set JAVA_HOME to one")
