"""A realm with access control, and a server with all kinds of authenticators."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.server.issuers import AUDIENCE, Issuer
from tests.server.logins.tokens import STATIC
from tests.server.realms import Realm, new_realm
from tests.server.servers import Server, token_file


@pytest.fixture(scope="package")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="package")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return new_realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="package")
def server(realm: Realm, issuer: Issuer) -> Iterator[Server]:
    """A server with all kinds of authenticators and no limit on failures from one address."""
    tokens = token_file(realm.folder, {"ann": STATIC, "nobody": "static-token-of-nobody"})
    settings = realm.folder / "authentication.json"
    oidc = {
        "type": "oidc",
        "issuer": issuer.uri,
        "audience": AUDIENCE,
        "roles-claim": "groups",
        "roles": {"readers": "reader", "writers": "writer", "others": "unassigned"},
    }
    settings.write_text(json.dumps({"authenticators": [oidc]}))
    options = ["--token-file", str(tokens), "--authentication", str(settings)]
    with realm.server(*options, "--max-failures-per-address", "0") as started:
        yield started
