"""Requests in the form that both sides accept, and the requirements of commits to tables."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from tests.differential.schemas import Json

LOCATION = "s3://warehouse/ns/t"
START = 1_700_000_000_000
"""When sequences start, milliseconds since 1970."""


class Request(NamedTuple):
    """One request to a table or view, in the form that both sides accept."""

    verb: str
    """`create` or `commit`."""
    requirements: list[Json]
    updates: list[Json]
    body: Json
    """Of a creation."""
    now: int
    """Milliseconds since 1970 UTC."""
    where: str
    """The location of the new metadata file."""


def random_requirements(rng: Random, metadata: Json, hostile: float) -> list[Json]:
    """Return requirements that hold, and sometimes one that does not."""
    refs = metadata.get("refs", {})
    main = metadata.get("current-snapshot-id")
    name = rng.choice(["main", *refs])
    known: list[Json] = [
        {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
        {
            "type": "assert-ref-snapshot-id",
            "ref": "main",
            "snapshot-id": None if main in (-1, None) else main,
        },
        {
            "type": "assert-ref-snapshot-id",
            "ref": name,
            "snapshot-id": refs.get(name, {}).get("snapshot-id"),
        },
        {"type": "assert-ref-snapshot-id", "ref": "nothing", "snapshot-id": None},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata["last-column-id"]},
        {"type": "assert-current-schema-id", "current-schema-id": metadata.get("current-schema-id", 0)},
        {
            "type": "assert-last-assigned-partition-id",
            "last-assigned-partition-id": metadata.get("last-partition-id", 999),
        },
        {"type": "assert-default-spec-id", "default-spec-id": metadata.get("default-spec-id", 0)},
        {
            "type": "assert-default-sort-order-id",
            "default-sort-order-id": metadata.get("default-sort-order-id", 0),
        },
    ]
    chosen = rng.sample(known, rng.choice([0, 0, 1, 2, 3]))
    if rng.random() < hostile:
        chosen.append(_failing(rng))
    return chosen


def _failing(rng: Random) -> Json:
    """Return a requirement that rarely holds, or that does not exist for tables."""
    wrong: list[Json] = [
        {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4242},
        {"type": "assert-ref-snapshot-id", "ref": "nothing", "snapshot-id": 1},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
        {"type": "assert-ref-snapshot-id", "ref": "main"},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4242},
        {"type": "assert-current-schema-id", "current-schema-id": 4242},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 4242},
        {"type": "assert-default-spec-id", "default-spec-id": 4242},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 4242},
        {"type": "assert-create"},
        {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
        {"type": "assert-nonsense"},
        {"type": "ASSERT-TABLE-UUID", "uuid": "00000000-0000-0000-0000-000000000000"},
        {"type": "assert-current-schema-id"},
        {"type": "assert-current-schema-id", "current-schema-id": "0"},
        {},
    ]
    return rng.choice(wrong)
