"""Stores on every database for tests; a server is started when a test first asks for it, one of each for a run.

A test that needs a server which cannot be had here is skipped by name, or fails where the environment variable
POLARIS_SPARK_REQUIRE_SERVERS is set, as in continuous integration.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count, product
from pathlib import Path
from typing import TypeVar, cast

import pytest
from _pytest.mark import ParameterSet

from polaris_spark.backends import open_backend
from polaris_spark.databases import BUILT_IN, FILE_SCHEMES
from polaris_spark.errors import StateError
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.server import Server
from tests.servers import SERVERS, server_class
from tests.servers.postgresql import PostgreSQL
from tests.servers.versitygw import VersityGateway

S = TypeVar("S", bound=Server)

EMBEDDED = [scheme for scheme, database in BUILT_IN.items() if database.address != "host"]
"""Schemes of the stores that need no server."""
NETWORKED = list(SERVERS)
"""Schemes of the stores on servers."""
DATABASES = [*EMBEDDED, *NETWORKED]
"""Every database that there is a backend for, by its scheme."""
SHARED = [*(s for s in FILE_SCHEMES if open_backend(f"{s}:store").scope == "machine"), *NETWORKED]
"""Those that several processes can write to at the same time."""
ORDINARY = ("memory", "sqlite", "postgresql", "s3")
"""The databases of an ordinary run; tests on the others have the marker `databases`."""

ServerOf = Callable[[str], Server]
StoreOn = Callable[[str], str]

_numbers = count(1)


def unavailable(problem: str) -> None:
    """Skip the test because a server is missing, or fail it where servers are required."""
    if os.environ.get("POLARIS_SPARK_REQUIRE_SERVERS"):
        pytest.fail(problem)
    pytest.skip(problem)


def databases(among: Sequence[str] = DATABASES, ordinary: Sequence[str] = ORDINARY) -> list[ParameterSet]:
    """Return parameters for tests on several databases. Those not in `ordinary` run with the marker `databases`."""
    return [
        pytest.param(scheme, marks=() if scheme in ordinary else pytest.mark.databases) for scheme in among
    ]


def in_turn(among: Sequence[str] = DATABASES, ordinary: Sequence[str] = ORDINARY) -> list[ParameterSet]:
    """Parameters for tests of layers above the backends: each test runs on some databases, the next one on others.

    Each test runs on one database of `ordinary` (and in memory, if that is one of them), and with the marker
    `databases` on one of the others. With the marker `exhaustive` it runs on all the rest.
    """
    found = []
    for scheme in among:
        group = [one for one in among if one != "memory" and (one in ordinary) == (scheme in ordinary)]
        marks = [] if scheme == "memory" else [pytest.mark.in_turn(scheme, group)]
        found.append(
            pytest.param(scheme, marks=[*marks, *([] if scheme in ordinary else [pytest.mark.databases])])
        )
    return found


def shared_out(
    cases: Sequence[str], among: Sequence[str] = DATABASES, ordinary: Sequence[str] = ORDINARY
) -> list[ParameterSet]:
    """Parameters (database, case) for tests whose cases take the same steps on every database.

    The databases of `ordinary` share out the cases, and so do the others, which have the marker `databases`: every case
    and every database occurs. With the marker `exhaustive` each case runs on every database.
    """
    found = []
    for group in ([s for s in among if s in ordinary], [s for s in among if s not in ordinary]):
        turns = {
            (group[turn % len(group)], cases[turn % len(cases)])
            for turn in range(max(len(group), len(cases)))
        }
        marks = () if group[0] in ordinary else (pytest.mark.databases,)
        for pair in product(group, cases):
            others = () if pair in turns else (pytest.mark.exhaustive,)
            found.append(pytest.param(*pair, marks=(*marks, *others)))
    return found


def takes_its_turn(item: pytest.Item) -> bool:
    """Whether a test of `in_turn` runs on this database without the marker `exhaustive`."""
    marker = item.get_closest_marker("in_turn")
    if marker is None:
        return True
    scheme, group = marker.args
    test = zlib.crc32(item.nodeid.replace(scheme, "").encode())
    return bool(scheme == group[test % len(group)])


def start(kind: type[S]) -> S:
    """Start a server for one test, which closes it. Skip or fail the test if there is no such server."""
    try:
        return kind()
    except StateError as error:
        unavailable(f"this test needs {kind.name}: {error}")
        raise


def configured(uri: str) -> dict[str, str]:
    """Return the properties for a store whose URI must not contain a password, as in Spark's configuration."""
    parsed = StoreURI.parse(uri)
    secret = {} if parsed.password is None else {"store.password": parsed.password.reveal()}
    return {"store": str(parsed), **secret}


@pytest.fixture(scope="session")
def server_of() -> Iterator[ServerOf]:
    """Returns the shared server of a scheme, which runs until the end of the test run."""
    running: dict[str, Server] = {}
    with ExitStack() as ends:

        def server(scheme: str) -> Server:
            if scheme not in running:
                running[scheme] = ends.enter_context(start(server_class(scheme)))
            return running[scheme]

        yield server


@pytest.fixture
def store_on(server_of: ServerOf, tmp_path: Path) -> StoreOn:
    """Returns the URI of a new store on a database, by its scheme. Each call returns another URI."""

    def uri(scheme: str) -> str:
        name = f"test_{next(_numbers)}"
        if scheme in FILE_SCHEMES:
            return f"{scheme}://{tmp_path}/{name}"
        if scheme in EMBEDDED:
            return f"{scheme}:{name}"
        return server_of(scheme).uri(name)

    return uri


@pytest.fixture
def postgresql(server_of: ServerOf) -> PostgreSQL:
    """A PostgreSQL server with its default durability."""
    return cast("PostgreSQL", server_of("postgresql"))


@pytest.fixture
def postgresql_uri(store_on: StoreOn) -> str:
    """URI of a store that does not exist yet, in a schema of its own."""
    return store_on("postgresql")


@pytest.fixture
def versitygw(server_of: ServerOf) -> VersityGateway:
    """An S3 server."""
    return cast("VersityGateway", server_of("s3"))


@pytest.fixture
def s3_uri(store_on: StoreOn) -> str:
    """URI of a store that does not exist yet, under a prefix of its own."""
    return store_on("s3")
