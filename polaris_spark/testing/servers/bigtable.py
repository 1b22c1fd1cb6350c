"""Google's emulator of Bigtable, which keeps everything in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polaris_spark.testing.servers.base import ProcessServer
from polaris_spark.testing.servers.installing import go_program

VERSION: Final = "v1.58.0"
_PACKAGE: Final = "cloud.google.com/go/bigtable/cmd/emulator"


class BigtableEmulator(ProcessServer):
    """A server that holds any project and instance that it is asked for; it knows no users."""

    name = "Bigtable emulator"
    durable = False
    durability = "none: everything is in memory"

    def prepare(self) -> None:
        self._program = go_program(_PACKAGE, VERSION, title="bigtable-emulator")

    def command(self) -> Sequence[str]:
        return [str(self._program), "-host", "127.0.0.1", "-port", str(self.port)]

    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of two tables of one instance."""
        return f"bigtable://project/instance/{store}?endpoint=http://127.0.0.1:{port or self.port}"
