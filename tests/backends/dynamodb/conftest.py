"""A store on DynamoDB Local, and the same one behind a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from tests.backends.dynamodb.gateway import Gateway
from tests.servers.dynamodb import DynamoDBLocal
from tests.stores import ServerOf


@pytest.fixture
def server(server_of: ServerOf) -> DynamoDBLocal:
    return cast("DynamoDBLocal", server_of("dynamodb"))


@pytest.fixture
def gateway(server: DynamoDBLocal) -> Iterator[Gateway]:
    gateway = Gateway(server.port)
    yield gateway
    gateway.close()


@pytest.fixture
def far_uri(uri: str, server: DynamoDBLocal, gateway: Gateway) -> str:
    """URI of the same store through the gateway."""
    return uri.replace(f":{server.port}", f":{gateway.port}")


@pytest.fixture
def far(backend: Backend, far_uri: str) -> Iterator[Backend]:
    """The same store as `backend`, through the gateway."""
    far = open_backend(far_uri)
    yield far
    far.close()
