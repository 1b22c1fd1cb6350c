"""The storage contract on an emulator of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polaris_spark.testing.conformance import ServerConformance
from polaris_spark.testing.server import Server
from tests.servers.azurite import Azurite
from tests.stores import start


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    server = start(Azurite)
    yield server
    server.close()


class TestAzure(ServerConformance):
    bad_uris = (("az://user:correct-horse@bucket/p", "cannot be opened.*Access Key"),)

    @pytest.fixture
    def server(self, azurite: Azurite) -> Server:
        return azurite
