"""A small catalog for tests that read, and a function that runs the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

import polaris_spark
from polaris_spark.cli.app import app
from tests.names import unchecked_names

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "n", "type": "long", "required": False}],
}
HOSTILE = "[red]\x1b[31mtea"
"""A name that an earlier release accepted, with an escape sequence that would color a terminal."""


class Answer(NamedTuple):
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


def run(*arguments: str, **environment: str) -> Answer:
    """Run a command."""
    result = CliRunner().invoke(app, list(arguments), env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def make_catalog(directory: Path, store: str | None = None, **properties: Any) -> str:
    """A store whose catalog has nested namespaces, a renamed table, a view and a dropped table; its URI.

    Args:
        store: the store's URI; an SQLite file in `directory` unless given.
    """
    store = store or f"sqlite://{directory / 'catalog.db'}"
    with polaris_spark.connect(
        store=store, warehouse=str(directory / "warehouse"), principal="ada", **properties
    ) as catalog:
        fill(catalog)
    return store


def fill(catalog: polaris_spark.Session) -> None:
    """Create the history that the tests refer to."""
    send(catalog, "POST", "namespaces", {"namespace": ["db"]})
    send(catalog, "POST", "namespaces", {"namespace": ["db", "inner"]})
    send(catalog, "POST", "namespaces/db/tables", {"name": "old", "schema": SCHEMA})
    rename = {
        "source": {"namespace": ["db"], "name": "old"},
        "destination": {"namespace": ["db"], "name": "t"},
    }
    send(catalog, "POST", "tables/rename", rename)
    updates = [{"action": "set-properties", "updates": {"colour": "blue"}}]
    send(catalog, "POST", "namespaces/db/tables/t", {"requirements": [], "updates": updates})
    with unchecked_names():
        send(catalog, "POST", "namespaces/db%1Finner/tables", {"name": HOSTILE, "schema": SCHEMA})
    send(catalog, "POST", "namespaces/db/tables", {"name": "gone", "schema": SCHEMA})
    send(catalog, "DELETE", "namespaces/db/tables/gone", query={"purgeRequested": "true"})
    version = {
        "version-id": 1,
        "timestamp-ms": 1_790_000_000_000,
        "schema-id": 0,
        "summary": {},
        "default-namespace": ["db"],
        "representations": [{"type": "sql", "sql": "SELECT 1 AS n", "dialect": "spark"}],
    }
    view = {"name": "v", "schema": SCHEMA, "view-version": version, "properties": {}}
    send(catalog, "POST", "namespaces/db/views", view)


COMMITS = 9
"""Commits that `fill` makes, after the first, empty one."""


def send(
    catalog: polaris_spark.Session,
    method: str,
    path: str,
    body: object = None,
    query: dict[str, str] | None = None,
) -> Any:
    """Send a request that succeeds, and return the answer."""
    text = None if body is None else json.dumps(body)
    status, _, answer = catalog.request(method, f"v1/{path}", query=query, body=text)
    assert status < 300, answer
    return json.loads(answer) if answer else None
