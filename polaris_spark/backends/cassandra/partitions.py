"""Partition keys of rows, and their tokens (hash values that determine the nodes)."""

from __future__ import annotations

from typing import Any

from cassandra.metadata import Murmur3Token

Partition = tuple[str, "str | int"]
"""A partition key: a realm, and either a bucket (a group of ids of `objects`) or the name of a reference."""


def bucket(id: int) -> int:
    """Return the number of the bucket (the group of ids in one partition) that contains an id. A bucket contains the
    ids that one process makes within a period of 4,096 milliseconds (see `polaris_spark.ids`)."""
    return id >> 34 << 10 | id >> 12 & 1_023


def partition(title: str, row: tuple[Any, ...]) -> Partition:
    """Return the partition key of a row. `title` is the title of the statement that returned the row."""
    return row[0], bucket(row[1]) if title == "objects" else row[1]


def token(partition: Partition) -> int:
    """Return the token of a partition: Murmur3Partitioner's hash of the serialized key."""
    key = b""
    for each in partition:
        data = each.encode() if isinstance(each, str) else each.to_bytes(8, "big", signed=True)
        key += len(data).to_bytes(2, "big") + data + b"\0"
    return int(Murmur3Token.hash_fn(key))
