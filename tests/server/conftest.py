"""A server for all tests that can share it, with its own store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.certificates import self_signed
from tests.rest.client import Client
from tests.server.servers import Server, client, token_file

TOKENS = {"ann": "aaaaaaaaaaaaaaaa", "bob": "b.b-b_b~b+b/bbbb==", "Zoë: the admin": "cccccccccccccccc"}
ADMINISTRATOR = "dddddddddddddddd"
"""The token of an administrator, whose principal is `root`."""

_numbers = count(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the shared server's files."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    """A server on loopback that needs a token."""
    options = ["--warehouse", str(folder / "warehouse"), "--allow-location", str(folder / "allowed")]
    tokens = token_file(folder, {**TOKENS, "root": f"{ADMINISTRATOR} administrator"})
    with Server(f"sqlite://{folder / 'store.db'}", "--token-file", str(tokens), *options) as started:
        yield started


@pytest.fixture(scope="session")
def ann(server: Server) -> Client:
    """A client with a valid token, as the principal `ann`."""
    return client(server, TOKENS["ann"])


@pytest.fixture
def namespace(ann: Client) -> str:
    """A new namespace."""
    name = f"ns{next(_numbers)}"
    ann.namespace(name)
    return name


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))
