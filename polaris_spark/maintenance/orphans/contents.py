"""Reading the tables and views of a branch's head, and the tables and views that were dropped from the branch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.drops.drops import Drop
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded, known_kind
from polaris_spark.catalog.tables.snapshot_expiry import Levels
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import decode_key
from polaris_spark.maintenance.needed_files import Content
from polaris_spark.store.objects import ObjectStore, read_each

_READ_TOGETHER = 128
"""Maximum number of tables and views that are read in one batch."""


def contents_of_drops(head: StoreHead, store: ObjectStore, drops: Iterable[Drop]) -> Iterator[Content]:
    """Yield the last versions of the tables and views that `drops` list, as dropped tables (`strict` is False)."""
    for content in _read(head, store, ((drop.key, drop.content) for drop in drops)):
        yield content._replace(strict=False)


def contents_of(
    head: StoreHead, store: ObjectStore, start: bytes = b"", end: bytes | None = None
) -> Iterator[Content]:
    """Yield the tables and views of a head whose keys in the index `names` are in a range.

    Args:
        start: first key of the range.
        end: key after the range; None if the range has no upper end.
    """
    names = head.reader(store).index(NAMES).range(start, end)
    kinds = (TABLE, VIEW)
    yield from _read(head, store, ((key, entry.pointer) for key, entry in names if known_kind(key) in kinds))


def _read(head: StoreHead, store: ObjectStore, named: Iterator[tuple[bytes, int]]) -> Iterator[Content]:
    levels = Levels(head.reader(store), head.properties)
    while run := list(islice(named, _READ_TOGETHER)):
        found = read_each([id for _, id in run], store.read)
        for key, id in run:
            read = found[id]
            if isinstance(read, CorruptionError):
                yield Content(head.owner(key), None, problem=str(read))
                continue
            value = read.value
            known = value if isinstance(value, (Table, View, Unloaded)) else None
            above = levels.of(decode_key(key).path)
            yield Content(head.owner(key), known, levels=above, moved=head.moved)
