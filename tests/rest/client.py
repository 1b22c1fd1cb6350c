"""A client of the REST protocol for tests. It sends and receives JSON, checks statuses, and sends requests like
Iceberg's clients."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import polaris_spark
from polaris_spark import Session
from polaris_spark.testing.waiting import PATIENCE_S

T = TypeVar("T")
Json = dict[str, Any]

_LONGEST_S = 3 * PATIENCE_S
"""How long threads of requests may take, seconds: each may send hundreds."""

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "a", "required": False, "type": "long"},
        {"id": 2, "name": "b", "required": False, "type": "string"},
    ],
}
VIEW_VERSION: Json = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "default-namespace": ["db"],
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
}


class Answer(NamedTuple):
    """An answer with its body parsed."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> Json:
        """The error model of a refusal."""
        assert set(self.body) == {"error"}, self.body
        error: Json = self.body["error"]
        assert error["code"] == self.status
        assert error["message"]
        return error

    @property
    def kind(self) -> tuple[int, str]:
        """Status and error type of a refusal."""
        return self.status, self.error["type"]


class Client:
    """Requests to one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, and return the answer with any status. `body` is JSON text, or a value to be encoded."""
        sent = {**(headers or {}), **({"Idempotency-Key": key} if key else {})}
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        status, answered, out = self.session.request(method, path, query, text, sent)
        return Answer(status, answered, json.loads(out) if out else None)

    def stored_properties(self, *namespace: str) -> dict[str, str]:
        """The properties of a namespace, without its location, which the answer computes if none was set."""
        properties: dict[str, str] = self.ok("GET", path(*namespace))["properties"]
        del properties["location"]
        return properties

    def ok(self, method: str, path: str, body: Any = None, **rest: Any) -> Any:
        """Send a request that must succeed, and return the body of the answer."""
        answer = self.send(method, path, body, **rest)
        assert answer.status < 300, answer
        return answer.body

    def namespace(self, *name: str, properties: Mapping[str, str] | None = None) -> Any:
        """Create a namespace."""
        return self.ok("POST", "v1/namespaces", {"namespace": name, "properties": dict(properties or {})})

    def create(self, name: str = "t", namespace: tuple[str, ...] = ("db",), **rest: Any) -> Any:
        """Create a table."""
        return self.ok("POST", tables(*namespace), table_request(name, **rest))

    def load(self, name: str = "t", namespace: tuple[str, ...] = ("db",), **query: str) -> Any:
        """Load a table."""
        return self.ok("GET", table(name, namespace), query=query)

    def commit(self, name: str, *updates: Json, requirements: tuple[Json, ...] = (), **rest: Any) -> Answer:
        """Commit updates to a table of the namespace `db`."""
        body = {"requirements": list(requirements), "updates": list(updates)}
        return self.send("POST", table(name), body, **rest)

    def set(self, name: str, **properties: str) -> Any:
        """Set properties of a table of the namespace `db`."""
        answer = self.commit(name, set_properties(**properties))
        assert answer.status == 200, answer
        return answer.body

    def names(self, *namespace: str, kind: str = "tables") -> list[str]:
        """Names of the tables (or views) of a namespace."""
        listed = self.ok("GET", f"{path(*namespace)}/{kind}")
        return [identifier["name"] for identifier in listed["identifiers"]]


def set_properties(**properties: str) -> Json:
    """The update that sets properties."""
    return {"action": "set-properties", "updates": properties}


def path(*namespace: str) -> str:
    """The path of a namespace."""
    return "v1/namespaces/" + "%1F".join(quote(part, safe="") for part in namespace)


def tables(*namespace: str) -> str:
    """The path of a namespace's tables."""
    return f"{path(*namespace)}/tables"


def table(name: str, namespace: tuple[str, ...] = ("db",)) -> str:
    """The path of a table."""
    return f"{tables(*namespace)}/{quote(name, safe='')}"


def view(name: str, namespace: tuple[str, ...] = ("db",)) -> str:
    """The path of a view."""
    return f"{path(*namespace)}/views/{quote(name, safe='')}"


def table_request(name: str, **rest: Any) -> Json:
    """A CreateTableRequest; keyword arguments are its other fields."""
    return {"name": name, "schema": SCHEMA, **{key.replace("_", "-"): value for key, value in rest.items()}}


def view_request(name: str, **rest: Any) -> Json:
    """A CreateViewRequest."""
    return {"name": name, "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {}, **rest}


def rename(source: str, target: str, to: tuple[str, ...] = ("db",)) -> Json:
    """A RenameTableRequest, from the namespace `db`."""
    return {
        "source": {"namespace": ["db"], "name": source},
        "destination": {"namespace": list(to), "name": target},
    }


def identifier(name: str, namespace: tuple[str, ...] = ("db",)) -> Json:
    """A TableIdentifier."""
    return {"namespace": list(namespace), "name": name}


def new_key() -> str:
    """A new idempotency key, a UUIDv7 (RFC 9562, 5.7)."""
    milliseconds = time.time_ns() // 1_000_000
    number = milliseconds << 80 | 0x7 << 76 | 0b10 << 62 | (uuid.uuid4().int & ((1 << 62) - 1))
    number |= (uuid.uuid4().int & 0xFFF) << 64
    return str(uuid.UUID(int=number))


def connect(store: str, warehouse: Path | str | None, **properties: Any) -> Client:
    """Open a catalog, and return a client of it."""
    where = None if warehouse is None else str(warehouse)
    return Client(polaris_spark.connect(store=store, warehouse=where, **properties))


def files_below(folder: Path) -> set[str]:
    """All files below a folder, as relative paths."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def at_once(works: list[Callable[[], T]]) -> list[T]:
    """Call functions at the same time, each in its own thread, and return their results."""
    barrier = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(position: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            results[position] = works[position]()
        except BaseException as error:
            results[position] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONGEST_S)
        assert not thread.is_alive(), "a request blocks"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
