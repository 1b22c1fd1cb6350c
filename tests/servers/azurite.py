"""Azurite, Microsoft's emulator of Azure Blob Storage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.utils import formatdate
from typing import Final
from urllib.parse import quote

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import node_program

VERSION: Final = "3.37.0"
_ACCOUNT: Final = "polaris"
_CONTAINER: Final = "catalogs"
_PROTOCOL: Final = "2021-08-06"


class Azurite(ProcessServer):
    """An emulator with one account, and one container."""

    name = "Azurite"
    durable = False
    durability = "none: the emulator saves what it holds every few seconds"

    def prepare(self) -> None:
        self._program = node_program("azurite", VERSION, "azurite-blob")
        self.secret = base64.b64encode(secrets.token_bytes(64)).decode()

    def command(self) -> Sequence[str]:
        return [
            str(self._program),
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(self.port),
            "--location",
            str(self.directory / "data"),
            "--silent",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{self.secret}"}

    def start(self) -> None:
        super().start()
        self._create_container()

    def uri(self, store: str, *, port: int | None = None) -> str:
        """Store URI of a prefix of the container, with the account's key."""
        return self._uri(self.secret, store, port)

    def wrong_credentials(self, store: str) -> str:
        return self._uri(base64.b64encode(bytes(64)).decode(), store, None)

    def _uri(self, secret: str, store: str, port: int | None) -> str:
        endpoint = f"http://127.0.0.1:{port or self.port}/{_ACCOUNT}"
        return f"az://{_ACCOUNT}:{quote(secret, safe='')}@{_CONTAINER}/{store}?endpoint={endpoint}"

    def _create_container(self) -> None:
        """Create the container, unless it is there: by a signed request, as obstore has none for it."""
        date = formatdate(usegmt=True)
        signed = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_PROTOCOL}\n"
            f"/{_ACCOUNT}/{_ACCOUNT}/{_CONTAINER}\nrestype:container"
        )
        digest = hmac.new(base64.b64decode(self.secret), signed.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{_ACCOUNT}/{_CONTAINER}?restype=container",
            method="PUT",
            headers={
                "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
                "Content-Length": "0",
                "x-ms-date": date,
                "x-ms-version": _PROTOCOL,
            },
        )
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
