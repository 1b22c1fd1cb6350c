"""Requests about the materialized view `db.v`, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.materialized.view_freshness import freshness
from tests.rest.client import Client, path, view
from tests.rest.materialized import SCHEMA, create_materialized_view

STORAGE = f"{path('db', 'v')}/tables/storage"


PROPERTY = "materialized_view_metadata"


def create(
    catalog: Client, sql: str = "SELECT a FROM t", *, replace: bool = False, **properties: str
) -> dict[str, Any]:
    """Create the materialized view `db.v`, and return its metadata."""
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    create_materialized_view(catalog.session.catalog, "v", sql, replace=replace, properties=named)
    return loaded(catalog)


def loaded(catalog: Client) -> dict[str, Any]:
    """Load the view `db.v`. Return its metadata, with its location in the field `at`."""
    answer = catalog.ok("GET", view("v"))
    return {**answer["metadata"], "at": answer["metadata-location"]}


def document(properties: Mapping[str, str]) -> dict[str, Any]:
    """The document of the draft specification in properties."""
    found: dict[str, Any] = json.loads(properties[PROPERTY])
    return found


def rows(catalog: Client, body: dict[str, Any]) -> dict[str, Any]:
    """Commit to the storage table, and return its properties."""
    found: dict[str, Any] = catalog.ok("POST", STORAGE, body)["metadata"]["properties"]
    return found


def table(catalog: Client, name: str = "t") -> str:
    """Create a table in `db`, and return its path."""
    catalog.ok("POST", f"{path('db')}/tables", {"name": name, "schema": SCHEMA})
    return f"{path('db')}/tables/{name}"


def state(catalog: Client) -> tuple[bool, str]:
    """Whether `db.v` is fresh, and why not."""
    found = freshness(catalog.session.catalog.view(), TableName(("db",), "v"))
    return found.fresh, found.reason


def how(
    catalog: Client, uuid: str, version: int = 1, outside: Sequence[dict[str, Any]] = (), **session: str
) -> dict[str, Any]:
    """Return how an engine that has loaded this version of the view reads it."""
    body = {"uuid": uuid, "version-id": version, "session": session, "catalog": "c", "outside": list(outside)}
    path = "polaris-spark/v1/namespaces/db/materialized-views/v/read"
    found: dict[str, Any] = catalog.ok("POST", path, body)
    return found
