"""versitygw, a server that speaks S3, on the files of a directory."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import go_program

VERSION: Final = "v1.8.0"
_PACKAGE: Final = "github.com/versity/versitygw/cmd/versitygw"
_BUCKET: Final = "catalogs"
_STRANGER: Final = "stranger"


def program() -> Path:
    """Path of the server's program, built now if this machine has not built it yet; the build takes minutes.

    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """
    return go_program(_PACKAGE, VERSION)


class VersityGateway(ProcessServer):
    """A server with one bucket."""

    name = "versitygw"
    durability = "files of a directory, not synced (the server has no such option)"

    def prepare(self) -> None:
        self._program = program()
        self._data = self.directory / "data"
        (self._data / _BUCKET).mkdir(parents=True)
        self.user, self.secret = "polaris", secrets.token_hex(16)
        self._users = self.directory / "users"
        self._users.mkdir()
        account = {"access": _STRANGER, "secret": self.secret, "role": "user"}
        (self._users / "users.json").write_text(json.dumps({"accessAccounts": {_STRANGER: account}}))

    def command(self) -> Sequence[str]:
        return [
            str(self._program),
            "--port",
            f"127.0.0.1:{self.port}",
            "--quiet",
            "--iam-dir",
            str(self._users),
            "posix",
            str(self._data),
        ]

    def environment(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": self.user, "ROOT_SECRET_KEY": self.secret}

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> None:
        """Make a bucket: each folder of the data is one."""
        (self._data / name).mkdir()

    def keys(self, bucket: str) -> list[str]:
        """Keys of all objects of a bucket."""
        top = self._data / bucket
        return sorted(str(one.relative_to(top)) for one in top.rglob("*") if one.is_file())

    def uri(self, store: str, *, port: int | None = None) -> str:
        """Store URI of a prefix of the bucket, with the server's credentials."""
        return self._uri(self.user, self.secret, store, port)

    def wrong_credentials(self, store: str) -> str:
        return self._uri(self.user, "0" * len(self.secret), store, None)

    def unprivileged(self, store: str) -> str:
        """The URI of a user to whom the bucket's policy gives no permissions."""
        return self._uri(_STRANGER, self.secret, store, None)

    def _uri(self, user: str, secret: str, store: str, port: int | None) -> str:
        return (
            f"s3://{user}:{secret}@{_BUCKET}/{store}"
            f"?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"
        )
