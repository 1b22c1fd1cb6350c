"""Division of keys, rows and ranges into parts. Each part is sent in one request, or becomes one split of a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from polaris_spark.backends.base import ObjectRow

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Divide items into consecutive chunks of `size` items, and return the chunks. The last chunk may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def runs(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Divide items into at most `most` consecutive runs of about equal length, and return the runs."""
    return chunks(items, max(1, -(-len(items) // max(1, most))))


def sized(
    items: Iterable[T], bytes_of: Callable[[T], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[T]]:
    """Divide items into consecutive chunks that are not empty, and yield the chunks.

    Args:
        bytes_of: returns the size of an item, in bytes.
        most_bytes: maximum total size of a chunk, in bytes; a single item that is larger gets its own chunk.
        most: maximum number of items in a chunk.
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
    """Return the size of a row's value, in bytes."""
    return len(row.value)
