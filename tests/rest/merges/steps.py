"""Steps of tests of merges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polaris_spark.errors import MergeConflictError
from polaris_spark.jobs.registry import call, procedures
from tests.rest.appends import attempt, new_append, send, write_manifests
from tests.rest.client import Client, Json

Opened = Callable[..., Client]


DAY = 24 * 3_600_000


def make(client: Client, procedure: str, **arguments: Any) -> list[dict[str, Any]]:
    """Call a procedure, and return its rows as dicts."""
    names = [column.name for column in procedures()[procedure].columns]
    return [dict(zip(names, row, strict=True)) for row in call(client.session, procedure, **arguments)]


def merge(client: Client, source: str, **options: Any) -> dict[str, str]:
    """Merge, and return the action for each name."""
    return {row["name"]: row["action"] for row in make(client, "merge", source=source, **options)}


def conflict(client: Client, source: str, *parts: str, procedure: str = "merge", **options: Any) -> str:
    """Check that a merge conflicts and changes nothing, and return the message."""
    before = client.session.catalog.head().head
    arguments = {"source": source} if procedure == "merge" else {"commit": source}
    with pytest.raises(MergeConflictError) as raised:
        call(client.session, procedure, **arguments, **options)
    assert client.session.catalog.head().head == before
    for part in parts:
        assert part in str(raised.value)
    return str(raised.value)


def rename(client: Client, old: str, new: str) -> None:
    names = [{"namespace": ["db"], "name": one} for one in (old, new)]
    client.ok("POST", "v1/tables/rename", {"source": names[0], "destination": names[1]})


def append(client: Client, name: str, *rows: int) -> Json:
    """Append to a table as Iceberg does, and return its metadata."""
    metadata = client.load(name)["metadata"]
    made = attempt(metadata, new_append(*(rows or (1,))))
    write_manifests(made)
    answer = send(client, made, name)
    assert answer.status == 200, answer
    return dict(answer.body["metadata"])


def ids(client: Client, name: str) -> list[int]:
    """Return the snapshots of a table's branch main, oldest first. For a copied snapshot, return the id of the
    original."""
    metadata = client.load(name)["metadata"]
    by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    found, at = [], metadata.get("current-snapshot-id")
    while at in by_id:
        found.append(int(by_id[at]["summary"].get("source-snapshot-id", at)))
        at = by_id[at].get("parent-snapshot-id")
    return found[::-1]


def properties(client: Client, name: str) -> dict[str, str]:
    return {
        key: value
        for key, value in client.load(name)["metadata"]["properties"].items()
        if key.startswith("my.")
    }


def with_column(loaded: Json, name: str, type: str) -> Json:
    """Return the first schema of a loaded table with one more column."""
    schema = loaded["metadata"]["schemas"][0]
    id = loaded["metadata"]["last-column-id"] + 1
    field = {"id": id, "name": name, "required": False, "type": type}
    return {**schema, "fields": [*schema["fields"], field]}


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


def revert(client: Client, commit: int, **options: Any) -> dict[str, str]:
    return {row["name"]: row["action"] for row in make(client, "revert", commit=str(commit), **options)}
