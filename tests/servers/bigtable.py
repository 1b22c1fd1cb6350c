"""Google's emulator of Bigtable. It keeps all data in memory, so this server adds a log that survives a restart."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import go_source

VERSION: Final = "v1.58.0"
_SOURCE: Final = "bigtable.go"
_REVISION: Final = 1
"""Of the source, whose builds are kept by it."""


def program() -> Path:
    """Path of the emulator's program, built now if this machine has not built it yet; the build takes a minute.

    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """
    return go_source(
        f"bigtable-emulator-{VERSION}-{_REVISION}",
        files(__package__).joinpath(_SOURCE).read_text(encoding="utf-8"),
        [f"cloud.google.com/go/bigtable@{VERSION}"],
    )


class BigtableEmulator(ProcessServer):
    """A server that accepts any project and instance, and has no users."""

    name = "Bigtable emulator"
    durability = "every change in a log of ours before it is answered, not synced: for the end of the process"

    def prepare(self) -> None:
        self._program = program()

    def command(self) -> Sequence[str]:
        log = str(self.directory / "changes")
        return [str(self._program), "-address", f"127.0.0.1:{self.port}", "-log", log]

    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of two tables of one instance."""
        return f"bigtable://project/instance/{store}?endpoint=http://127.0.0.1:{port or self.port}"
