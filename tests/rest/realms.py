"""A realm of which sessions open several catalogs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polaris_spark import Session
from polaris_spark.commits.change import Operation
from tests.rest.client import Client, connect

WHO = Operation(b"", "ann")
HOUR_MS = 3_600_000


class Realm:
    """A realm with the catalog `polaris`, which sessions of several processes could have open."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = f"sqlite://{folder}/store.db", folder
        self.sessions: list[Session] = []
        self.main = self.open("polaris", warehouse=folder / "polaris").session

    def open(self, name: str, **properties: Any) -> Client:
        """Open a catalog with connections of its own."""
        timeout = (
            f"{60 + len(self.sessions)} s"  # processes share the references of sessions with equal settings
        )
        warehouse = properties.pop("warehouse", None)
        create = {} if warehouse else {"create": False}
        opened = connect(self.store, warehouse, catalog=name, commit_timeout=timeout, **create, **properties)
        self.sessions.append(opened.session)
        return opened

    def create(self, name: str, folder: str | None = None, **properties: str) -> int:
        """Create a catalog, and return its id."""
        where = str(self.folder / (folder or name))
        return self.main.catalogs.create(name, {"warehouse": where, **properties}).row.entity_id

    def names(self) -> dict[str, int]:
        """The ids of the catalogs by name."""
        return {one.row.name: one.row.entity_id for one in self.main.catalogs.all()}


def namespaces(client: Client) -> list[str]:
    return [name for (name,) in client.ok("GET", "v1/namespaces")["namespaces"]]
