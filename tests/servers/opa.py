"""Open Policy Agent, with the policies of a test."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import go_program

VERSION: Final = "v1.22.4"
_PACKAGE: Final = "github.com/open-policy-agent/opa"

_WHO_MAY_ASK: Final = """
package system.authz

default allow := false

allow if input.identity == "{token}"
"""
"""The server's own access control: only requests with the bearer token are answered."""


def program() -> Path:
    """Path of the server's program, built now if this machine has not built it yet; the build takes minutes.

    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """
    return go_program(_PACKAGE, VERSION)


class OpenPolicyAgent(ProcessServer):
    """A server with policies, which answers requests with a bearer token only."""

    name = "OPA"

    def __init__(self, policies: Mapping[str, str], tls: tuple[Path, Path] | None = None) -> None:
        """
        Args:
            policies: texts in Rego, by file name.
            tls: files of the server's certificate and private key; None for HTTP.
        """
        self._policies = dict(policies)
        self._tls = tls
        self.token = secrets.token_hex(16)
        super().__init__()

    def prepare(self) -> None:
        self._program = program()
        self._policies["system.rego"] = _WHO_MAY_ASK.replace("{token}", self.token)
        for name, text in self._policies.items():
            (self.directory / name).write_text(text)

    def command(self) -> Sequence[str]:
        certificate = (
            []
            if self._tls is None
            else [
                "--tls-cert-file",
                str(self._tls[0]),
                "--tls-private-key-file",
                str(self._tls[1]),
            ]
        )
        return [
            str(self._program),
            "run",
            "--server",
            "--disable-telemetry",
            "--addr",
            f"127.0.0.1:{self.port}",
            "--authentication",
            "token",
            "--authorization",
            "basic",
            *certificate,
            *self._policies,
        ]

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def uri(self, store: str, *, port: int | None = None) -> str:
        raise NotImplementedError("OPA holds no stores")
