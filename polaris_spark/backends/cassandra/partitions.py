"""Which partition a row is in, and where that lies on the ring."""

from __future__ import annotations

from typing import Any

from cassandra.metadata import Murmur3Token

Partition = tuple[str, "str | int"]
"""A realm, and a bucket of objects or the name of a reference."""


def bucket(id: int) -> int:
    """What ids of one node, made within the same 4,096 milliseconds, have in common (`polaris_spark.ids`)."""
    return id >> 34 << 10 | id >> 12 & 1_023


def partition(title: str, row: tuple[Any, ...]) -> Partition:
    """That of a row which the statement of a title that scans gave."""
    return row[0], bucket(row[1]) if title == "objects" else row[1]


def token(partition: Partition) -> int:
    """That of a partition, as Murmur3Partitioner has it of its serialized key."""
    key = b""
    for each in partition:
        data = each.encode() if isinstance(each, str) else each.to_bytes(8, "big", signed=True)
        key += len(data).to_bytes(2, "big") + data + b"\0"
    return int(Murmur3Token.hash_fn(key))
