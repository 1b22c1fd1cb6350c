"""Real database servers for tests: one of each for the whole run, started when a test first asks for it.

A test that needs a server which cannot be had here is skipped by name, or fails where the environment variable
POLARIS_SPARK_REQUIRE_SERVERS is set, as in continuous integration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from polaris_spark.errors import StateError
from polaris_spark.testing.postgresql import PostgreSQL
from polaris_spark.testing.versitygw import VersityGateway

_numbers = count(1)


def unavailable(problem: str) -> None:
    """Skip the test for want of a server, or fail it where servers are required."""
    if os.environ.get("POLARIS_SPARK_REQUIRE_SERVERS"):
        pytest.fail(problem)
    pytest.skip(problem)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL server with its default durability, shared by all tests of the run."""
    try:
        server = PostgreSQL()
    except StateError as error:
        unavailable(f"these tests need PostgreSQL: {error}")
        raise
    with server:
        yield server


@pytest.fixture
def postgresql_uri(postgresql: PostgreSQL) -> str:
    """URI of a store that does not exist yet, in a schema of its own."""
    return f"{postgresql.uri}?schema=test_{next(_numbers)}"


@pytest.fixture(scope="session")
def versitygw() -> Iterator[VersityGateway]:
    """An S3 server, shared by all tests of the run."""
    try:
        server = VersityGateway()
    except StateError as error:
        unavailable(f"these tests need versitygw: {error}")
        raise
    with server:
        yield server


@pytest.fixture
def s3_uri(versitygw: VersityGateway) -> str:
    """URI of a store that does not exist yet, under a prefix of its own."""
    return versitygw.uri(f"test-{next(_numbers)}")
