"""The measured catalogs, each with the same small interface."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Protocol

from benchmarks.findings import Durability
from polaris_spark.rest.opening import connect
from polaris_spark.rest.session import Session

NAMESPACE = "bench"

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "carrier", "required": False, "type": "string"},
        {"id": 3, "name": "time_hour", "required": False, "type": "timestamptz"},
    ],
}


class Measured(Protocol):
    """A measured catalog. A handle is the value that `create` returned for a table."""

    def create(self, table: str) -> Any:
        """Create a table."""
        ...

    def load(self, handle: Any) -> None:
        """Load a table, as a new reader would."""
        ...

    def set_property(self, handle: Any, value: str) -> None:
        """Commit one property of a table; raises if the commit fails."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def properties_of(folder: Path, metadata_files: str, store: str | None = None) -> dict[str, Any]:
    """Create a folder if it is missing, and return the properties of a catalog in it."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "store": store or f"sqlite:///{folder}/polaris.db",
        "warehouse": str(folder / "warehouse"),
        "metadata_files": metadata_files,
        "catalog": "bench",
    }


class Ours:
    """polaris_spark, called in process."""

    DURABILITY = "write-ahead log, synchronous=FULL"
    """Durability settings of `sqlite:` stores."""

    def __init__(
        self,
        folder: Path,
        *,
        metadata_files: str,
        store: str | None = None,
        session: Session | None = None,
    ) -> None:
        """
        Args:
            store: URI of the store; by default a new one in `folder`.
            session: an open catalog to use instead of opening one.
        """
        self.session = session or connect(**properties_of(folder, metadata_files, store))
        body = json.dumps({"namespace": [NAMESPACE]})
        status, _, answer = self.session.request("POST", "v1/namespaces", body=body)
        if status not in (200, 409):  # 409: another process, or an earlier round, was first
            raise RuntimeError(answer)

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Make a request that must succeed; return its decoded response."""
        text = None if body is None else json.dumps(body)
        status, _, answer = self.session.request(method, path, query=query, body=text)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer}")
        return json.loads(answer) if answer else None

    def create(self, table: str) -> Any:
        body = {"name": table, "schema": SCHEMA}
        created = self.request("POST", f"v1/namespaces/{NAMESPACE}/tables", body)
        return table, created["metadata"]["table-uuid"]

    def load(self, handle: Any) -> None:
        self.request("GET", f"v1/namespaces/{NAMESPACE}/tables/{handle[0]}")

    def set_property(self, handle: Any, value: str) -> None:
        table, uuid = handle
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": [{"action": "set-properties", "updates": {"round": value}}],
        }
        path = f"v1/namespaces/{NAMESPACE}/tables/{table}"
        status, _, answer = self.session.request("POST", path, body=json.dumps(body))
        if status != 200:
            raise RuntimeError(answer)

    def close(self) -> None:
        self.session.close()


class PyIceberg:
    """pyiceberg's SqlCatalog, on SQLite unless `uri` names another database."""

    def __init__(self, folder: Path, uri: str | None = None) -> None:
        """
        Args:
            uri: SQLAlchemy URL of the database.
        """
        (folder / "peer").mkdir(parents=True, exist_ok=True)
        self._uri = uri or f"sqlite:///{folder}/peer/catalog.db"
        self.catalog = self.open(folder / "peer")
        self.catalog.create_namespace(NAMESPACE)
        self._tables = threading.local()

    @staticmethod
    def durability() -> Durability:
        """Return the durability settings on SQLite, which pyiceberg uses with SQLite's defaults."""
        return Durability(
            "pyiceberg SqlCatalog on SQLite", "rollback journal, synchronous=FULL (its defaults)"
        )

    def open(self, folder: Path) -> Any:
        """Open a new catalog in an empty folder."""
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("peer", uri=self._uri, warehouse=f"file://{folder}")

    def create(self, table: str) -> Any:
        from pyiceberg.schema import Schema

        self.catalog.create_table((NAMESPACE, table), Schema.model_validate(SCHEMA))
        return (NAMESPACE, table)

    def load(self, handle: Any) -> None:
        self.catalog.load_table(handle)

    def set_property(self, handle: Any, value: str) -> None:
        """Commit one property. Each thread keeps its loaded table between commits, and reloads it after a failure."""
        if getattr(self._tables, "handle", None) != handle:
            self._tables.handle, self._tables.table = handle, self.catalog.load_table(handle)
        try:
            with self._tables.table.transaction() as transaction:
                transaction.set_properties(round=value)
        except Exception:
            self._tables.handle = None
            raise

    def close(self) -> None:
        self.catalog.close()
