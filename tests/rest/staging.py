"""Tables that are staged, and created by a later commit."""

from __future__ import annotations

from tests.rest.client import (
    Client,
    table_request,
    tables,
)


def staged(catalog: Client, name: str, **rest: object) -> dict:
    """Return the metadata of a staged creation."""
    body = catalog.ok("POST", tables("db"), {**table_request(name, **rest), "stage-create": True})
    assert "metadata-location" not in body
    return body["metadata"]


def creation(metadata: dict) -> list[dict]:
    """Return the updates by which Java's client commits a staged creation."""
    return [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": metadata["format-version"]},
        {
            "action": "add-schema",
            "schema": metadata["schemas"][0],
            "last-column-id": metadata["last-column-id"],
        },
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
        {"action": "set-properties", "updates": metadata["properties"]},
    ]


CREATE = ({"type": "assert-create"},)
