"""Fixtures of the tests of the Bigtable backend: each test has its own store, a relay in front of the emulator, and a
raw client."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.cloud.bigtable_admin_v2 import BigtableTableAdminClient
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports.grpc import (
    BigtableTableAdminGrpcTransport,
)
from google.cloud.bigtable_v2.services.bigtable import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports.grpc import BigtableGrpcTransport

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.stores import with_options
from polaris_spark.testing.waiting import until_it_works
from tests.backends.bigtable.relay import Relay
from tests.stores import ServerOf


@pytest.fixture
def relay(server_of: ServerOf) -> Iterator[Relay]:
    """The relay between the emulator and the clients of `far_uri`."""
    relay = Relay(server_of("bigtable").port)
    yield relay
    relay.close()


@pytest.fixture
def far_uri(uri: str, relay: Relay) -> str:
    """The same store through the relay."""
    return f"{uri.partition('?')[0]}?endpoint=http://127.0.0.1:{relay.port}"


@pytest.fixture
def far(backend: Backend, far_uri: str) -> Iterator[Backend]:
    """The same store as `backend` through the relay."""
    far = open_backend(far_uri)
    far.setup()
    yield far
    far.close()


@pytest.fixture
def hasty(backend: Backend, far_uri: str) -> Iterator[Backend]:
    """Like `far`, but with a short time-out. It is already connected, so a test measures only the requests."""
    hasty = open_backend(with_options(far_uri, "timeout=2s"))
    until_it_works(lambda: hasty.read_reference("realm", "name"))
    yield hasty
    hasty.close()


@pytest.fixture
def channel(server_of: ServerOf) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server_of('bigtable').port}") as channel:
        yield channel


@pytest.fixture
def client(channel: grpc.Channel) -> BigtableClient:
    """Google's client for rows."""
    return BigtableClient(transport=BigtableGrpcTransport(channel=channel))


@pytest.fixture
def admin(channel: grpc.Channel) -> BigtableTableAdminClient:
    """Google's client for tables."""
    return BigtableTableAdminClient(transport=BigtableTableAdminGrpcTransport(channel=channel))


@pytest.fixture
def instance() -> str:
    """Name of the instance of all stores in these tests, as the API spells it."""
    return "projects/project/instances/instance"


@pytest.fixture
def references(uri: str, instance: str) -> str:
    """Name of the table of references, as the API spells it."""
    return f"{instance}/tables/{StoreURI.parse(uri).path.partition('/')[2]}-references"
