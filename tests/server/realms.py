"""Realms with access control, for tests of logins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import polaris_spark
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.changes import Assign, CreateRole, RoleName
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import CreatePrincipal
from polaris_spark.access.rows import ACCESS, SERVICE_ADMIN
from polaris_spark.commits.change import Operation
from polaris_spark.rest.session import Session
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References
from tests.server.servers import Remote, Server

KEY = "0123456789abcdef0123456789abcdef"
"""A server key."""

CREDENTIALS = {
    name: Credentials(f"{name}-id", Secret(f"{name}-secret-{'x' * 20}")) for name in ("root", "ann", "bob")
}

_DONE = Operation(b"", "root")


class Realm(NamedTuple):
    """A store whose realm has the principals `root`, `ann` and `bob`. All are administrators; `ann` also has the roles
    `reader` and `writer`."""

    folder: Path
    store: str
    name: str = "default"
    properties: Mapping[str, str] = {}
    """Further properties of sessions, such as those of S3; `warehouse` replaces the folder of the tables."""

    def session(self) -> Session:
        """Open the realm's catalog in this process, as `root`."""
        return polaris_spark.connect(
            **{"warehouse": str(self.folder / f"w-{self.name}"), **self.properties},
            store=self.store,
            realm=self.name,
            catalog="polaris",
            credential=CREDENTIALS["root"].text(),
        )

    @contextmanager
    def references(self) -> Iterator[References]:
        """The references of the realm, in this process."""
        with self.session() as session:
            yield session.catalog.references

    def change(self, cls: Any, *arguments: Any, **more: Any) -> Any:
        """Commit a change of access control."""
        with self.references() as references:
            return references.commit(ACCESS, cls(references.clock, _DONE, *arguments, **more))

    def server(
        self, *more: str, key: str | None = KEY, environment: Mapping[str, str] | None = None
    ) -> Server:
        """Start a server of the realm."""
        options = ["--realm", self.name, "--property", "credential=env:CREDENTIAL"]
        env = {"CREDENTIAL": CREDENTIALS["root"].text(), **(environment or {})}
        if key is not None:
            options += ["--token-key", "env:SERVER_KEY"]
            env["SERVER_KEY"] = key
        return Server(self.store, *options, *more, env=env)


def new_realm(folder: Path, name: str = "default", properties: Mapping[str, str] | None = None) -> Realm:
    """Make a store with a realm with access control, or such a realm in an existing store."""
    realm = Realm(folder, f"sqlite://{folder / 'store.db'}", name, properties or {})
    with realm.references() as references:
        bootstrap(references, _DONE, "root", CREDENTIALS["root"])

        def change(cls: Any, *arguments: Any, **more: Any) -> None:
            references.commit(ACCESS, cls(references.clock, _DONE, *arguments, **more))

        for who in ("ann", "bob"):
            change(CreatePrincipal, who, CREDENTIALS[who])
            change(Assign, RoleName(SERVICE_ADMIN), principal=who)
        for role in ("reader", "writer"):
            change(CreateRole, RoleName(role))
            change(Assign, RoleName(role), principal="ann")
    return realm


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def ask(
    server: Server | str, form: Mapping[str, str] | bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Send a request for a token, and return status, headers and the parsed body."""
    uri = server if isinstance(server, str) else server.uri
    body = form if isinstance(form, bytes) else urlencode(form).encode()
    status, answered, text = Remote(uri).raw("POST", "/v1/oauth/tokens", body, {**FORM, **(headers or {})})
    return status, answered, json.loads(text)


def credentials_form(who: str, **more: str) -> dict[str, str]:
    """Return the form of a request by client credentials."""
    own = CREDENTIALS[who]
    given = {"client_id": own.client_id, "client_secret": own.secret.reveal(), "scope": "PRINCIPAL_ROLE:ALL"}
    return {"grant_type": "client_credentials", **given, **more}


def exchange_form(token: str, **more: str) -> dict[str, str]:
    """Return the form of a token exchange."""
    kind = "urn:ietf:params:oauth:token-type:access_token"
    grant = "urn:ietf:params:oauth:grant-type:token-exchange"
    return {"grant_type": grant, "subject_token": token, "subject_token_type": kind, **more}


def token_of(server: Server, who: str = "ann", **more: str) -> str:
    """Log in, and return the token."""
    status, _, answer = ask(server, credentials_form(who, **more))
    assert status == 200, answer
    token: str = answer["access_token"]
    return token


def status_of(server: Server, token: str) -> int:
    """Return the status of a request that needs a valid token, and no privileges."""
    return Remote(server.uri).raw("GET", "/openapi.json", None, {"Authorization": f"Bearer {token}"})[0]


def counted(server: Server, method: str) -> float:
    """Return how many logins by this method have succeeded."""
    metrics = Remote(server.uri).raw("GET", "/metrics")[2]
    found = re.search(rf'polaris_spark_logins_total{{method="{method}",outcome="succeeded"}} (\S+)', metrics)
    return float(found[1]) if found else 0.0
