"""Partition keys of rows, and their tokens on the ring."""

from __future__ import annotations

from typing import Any

from cassandra.metadata import Murmur3Token

Partition = tuple[str, "str | int"]
"""A partition key: a realm, and a bucket of objects or the name of a reference."""


def bucket(id: int) -> int:
    """Return the bucket of an id. Ids that one node makes within the same 4,096 milliseconds share a bucket
    (`polaris_spark.ids`)."""
    return id >> 34 << 10 | id >> 12 & 1_023


def partition(title: str, row: tuple[Any, ...]) -> Partition:
    """Return the partition key of a row. `title` names the scanning statement that returned the row."""
    return row[0], bucket(row[1]) if title == "objects" else row[1]


def token(partition: Partition) -> int:
    """Return the token of a partition: Murmur3Partitioner's hash of the serialized key."""
    key = b""
    for each in partition:
        data = each.encode() if isinstance(each, str) else each.to_bytes(8, "big", signed=True)
        key += len(data).to_bytes(2, "big") + data + b"\0"
    return int(Murmur3Token.hash_fn(key))
