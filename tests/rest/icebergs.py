"""Tables of pyiceberg: in a catalog of this package, and of another catalog, to be registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table, TableIdentifier

from tests.rest.client import Client, table

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": pa.array(["x", "y", "z"], pa.string())})


class _Committing:
    """The methods of a catalog that pyiceberg's `Table` calls."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def commit_table(self, table_: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        *namespace, name = table_.name()
        request = CommitTableRequest(
            identifier=TableIdentifier(namespace=namespace, name=name),
            requirements=requirements,
            updates=updates,
        )
        answer = self.client.ok("POST", table(name, tuple(namespace)), request.model_dump_json())
        return CommitTableResponse.model_validate(answer)

    def _delete_old_metadata(self, *_: object) -> None:
        pass

    def supports_server_side_planning(self) -> bool:
        return False


def open_table(client: Client, name: str = "t") -> Table:
    """Return a table of the namespace `db` as a pyiceberg table."""
    loaded = TableResponse.model_validate_json(json.dumps(client.load(name)))
    location = loaded.metadata_location or ""
    io = load_file_io({}, location)
    return Table(("db", name), loaded.metadata, location, io, _Committing(client))  # type: ignore[arg-type]  # enough of a catalog


def elsewhere(folder: Path, name: str = "t", *, appends: int = 2, **properties: str) -> Table:
    """Create a table with data in another catalog, below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog("other", uri=f"sqlite:///{folder}/other.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("db")
    made = catalog.create_table(("db", name), ROWS.schema, properties=properties)
    for _ in range(appends):
        made.append(ROWS)
    catalog.engine.dispose()
    return made
