"""Real database servers for tests and benchmarks, by the scheme of the stores they serve.

Each is installed by package name when it is first asked for and kept in the user's cache directory, listens on a
random port of the loopback address, keeps its files in a temporary directory, and is ended by its process id.
"""

from __future__ import annotations

import importlib
from typing import Final

from polaris_spark.testing.server import Server

SERVERS: Final = {
    "bigtable": "tests.servers.bigtable:BigtableEmulator",
    "cassandra": "tests.servers.cassandra:Cassandra",
    "dynamodb": "tests.servers.dynamodb:DynamoDBLocal",
    "mariadb": "tests.servers.mariadb:MariaDB",
    "mongodb": "tests.servers.mongodb:MongoJavaServer",
    "postgresql": "tests.servers.postgresql:PostgreSQL",
    "s3": "tests.servers.versitygw:VersityGateway",
}
"""Scheme to the class of its server, `module:class`."""


def server_class(scheme: str) -> type[Server]:
    """The server of a scheme's stores.

    Raises:
        LookupError: no server is known for it.
    """
    if scheme not in SERVERS:
        raise LookupError(f"there is no server for {scheme}: stores; name one in SERVERS of {__file__}")
    module, name = SERVERS[scheme].split(":")
    found: type[Server] = getattr(importlib.import_module(module), name)
    return found
