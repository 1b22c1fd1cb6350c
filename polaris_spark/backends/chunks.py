"""Cuts sequences of keys, rows and ranges into parts: requests, or the splits of a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from polaris_spark.backends.base import ObjectRow

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Items in runs of `size`; the last one may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def runs(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Items in at most `most` runs of about equal length."""
    return chunks(items, max(1, -(-len(items) // max(1, most))))


def sized(
    items: Iterable[T], bytes_of: Callable[[T], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[T]]:
    """Items in lists that are written together, none of them empty.

    Args:
        most_bytes: of all items of a list together; one that alone is larger has a list of its own.
        most: items in a list.
    """
    chunk: list[T] = []
    size = 0
    for item in items:
        further = bytes_of(item)
        if chunk and (size + further > most_bytes or len(chunk) == most):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += further
    if chunk:
        yield chunk


def value_bytes(row: ObjectRow) -> int:
    """Bytes of a row's value."""
    return len(row.value)
