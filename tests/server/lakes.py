"""A server with access control whose tables are on a server of S3, for tests of access to storage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polaris_spark
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.changes import Assign, CreateRole, RoleName
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.places import place_of
from polaris_spark.access.principal_changes import CreatePrincipal
from polaris_spark.access.rows import ACCESS
from polaris_spark.catalog.rows import NAMESPACE
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import Secret
from tests.rest.client import Client
from tests.server.realms import KEY
from tests.server.servers import Server, client
from tests.servers.sts import TestSts
from tests.servers.versitygw import VersityGateway
from tests.stores import start

ROLE = "arn:aws:iam::123456789012:role/lake"
TENANT = "arn:aws:iam::123456789012:role/tenant"
BUCKET = "lake"
GRANTS = {
    "writer": ("NAMESPACE_LIST", "NAMESPACE_READ_PROPERTIES", "TABLE_CREATE", "TABLE_WRITE_DATA"),
    "reader": ("TABLE_READ_DATA",),
    "guest": ("TABLE_READ_DATA",),
    "clerk": ("TABLE_READ_PROPERTIES",),
    "creator": ("TABLE_CREATE",),
}
"""Privileges of each principal on the namespace `db`."""

EXPIRES = {"guest": 4_102_444_800_000}
"""When principals expire, in milliseconds since 1970. The others never expire."""

_DONE = Operation(b"", "root")


class Lake:
    """A server of S3 with the bucket `lake`, a service that issues credentials, and a catalog with the warehouse
    `s3://lake/wh` and the namespaces `db` and `hidden`. The principals are `root` and those in `GRANTS`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite://{folder / 'store.db'}"
        self.credentials = {
            name: Credentials(f"{name}-id", Secret(f"{name}-secret-{'x' * 20}")) for name in ("root", *GRANTS)
        }
        with ExitStack() as stack:
            self.s3 = stack.enter_context(start(VersityGateway))
            self.s3.make_bucket(BUCKET)
            self.sts = stack.enter_context(TestSts())
            self._fill()
            self.server = stack.enter_context(self.start())
            self._stack = stack.pop_all()

    @property
    def files(self) -> dict[str, str]:
        """Properties with which the catalog's own process reads and writes files."""
        return {
            "s3.endpoint": self.s3.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": self.s3.user,
            "s3.secret-access-key": self.s3.secret,
        }

    def _fill(self) -> None:
        options: dict[str, Any] = {"store": self.store, "warehouse": f"s3://{BUCKET}/wh", **self.files}
        with polaris_spark.connect(**options) as session:
            references = session.catalog.references

            def change(cls: Any, *arguments: Any, **more: Any) -> None:
                references.commit(ACCESS, cls(references.clock, _DONE, *arguments, **more))

            for name in ("db", "hidden"):
                session.request("POST", "v1/namespaces", None, json.dumps({"namespace": [name]}))
            bootstrap(references, _DONE, "root", self.credentials["root"])
            catalog = session.catalog
            db = place_of(catalog, catalog.head(), ("db",), "", NAMESPACE).chain[0]
            for name, privileges in GRANTS.items():
                change(CreatePrincipal, name, self.credentials[name], expires=EXPIRES.get(name, 0))
                change(CreateRole, RoleName(name))
                change(Assign, RoleName(name), principal=name)
                change(Grant, RoleName(name), db, list(privileges), described="it")

    def settings(self) -> list[dict[str, Any]]:
        """The storages of the server."""
        place = {"region": "us-east-1", "endpoint": self.s3.endpoint, "path-style-access": True}
        roles = {
            "role-arn": ROLE,
            "catalog-role-arns": [TENANT],
            "sts-endpoint": self.sts.url,
            "access-key-id": "env:STS_KEY",
            "secret-access-key": "env:STS_SECRET",
        }
        keys = {"access-key-id": "env:LAKE_KEY", "secret-access-key": "env:LAKE_SECRET"}
        return [
            {"locations": [f"s3://{BUCKET}/wh/vended"], **place, **roles},
            {"locations": [f"s3://{BUCKET}/wh"], **place, **keys, "remote-signing": True},
        ]

    def start(self, *more: str) -> Server:
        """Start another server of the same store."""
        file = self.folder / "storages.json"
        file.write_text(json.dumps({"storages": self.settings()}))
        files = {**self.files, "s3.access-key-id": "env:LAKE_KEY", "s3.secret-access-key": "env:LAKE_SECRET"}
        options = [f"--property={name}={text}" for name, text in files.items()]
        options += ["--property", "credential=env:CREDENTIAL", "--token-key", "env:SERVER_KEY"]
        return Server(
            self.store, *options, "--allow-location", f"s3://{BUCKET}/elsewhere", "--storages", str(file), *more,
            env=self.environment,
        )  # fmt: skip  # options in one line

    @property
    def environment(self) -> Mapping[str, str]:
        """Secrets of the server."""
        return {
            "CREDENTIAL": self.credentials["root"].text(),
            "SERVER_KEY": KEY,
            "LAKE_KEY": self.s3.user,
            "LAKE_SECRET": self.s3.secret,
            "STS_KEY": self.sts.key,
            "STS_SECRET": self.sts.secret,
        }

    def call(self, procedure: str, **arguments: Any) -> None:
        """Call a procedure in this process, as `root`."""
        options: dict[str, Any] = {
            "store": self.store,
            **self.files,
            "credential": self.credentials["root"].text(),
        }
        with polaris_spark.connect(**options) as session:
            call(session, procedure, **arguments)

    def token(self, who: str) -> str:
        """Log in, and return the token."""
        from tests.server.realms import ask

        own = self.credentials[who]
        form = {"grant_type": "client_credentials", "scope": "PRINCIPAL_ROLE:ALL", "client_id": own.client_id}
        status, _, answer = ask(self.server, {**form, "client_secret": own.secret.reveal()})
        assert status == 200, answer
        token: str = answer["access_token"]
        return token

    def client(self, who: str) -> Client:
        """A client that has logged in."""
        return client(self.server, self.token(who))

    def close(self) -> None:
        """Stop all servers."""
        self._stack.close()


def without_keys() -> dict[str, str]:
    """Return this process's environment, without anything from which a program could take keys of S3."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
