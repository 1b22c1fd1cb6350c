"""Append-only logs of JSON items. The row of a table or view holds the newest items. Pieces (separate immutable
objects) hold the older items.

An append writes at most one piece, and a log of n items has O(log n) pieces. When the row has more than `TAIL` items,
all but the newest item become a new piece. Then earlier pieces are merged into the new piece, from the newest to the
oldest, until one has more items than the new piece (the logarithmic method of Bentley and Saxe, 1980). Only the oldest
items can be removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.catalog.metadata.rows import Log, LogItems, LogSegment, NewId, NewRows, ObjectReader

SEPARATOR = b",\n"
"""Separator between the items of a log in one piece (a stored object). An item is compact JSON without line feeds."""

TAIL = 8
"""Maximum number of items of a log that a row holds. If there are more, all but the newest item move into a piece (a
separate stored object)."""


def count(log: Log) -> int:
    """Return the number of items in a log."""
    return sum([segment.items for segment in log.segments]) - log.skip + len(log.tail)


def append(log: Log, items: Sequence[bytes], reader: ObjectReader, new_id: NewId) -> tuple[Log, NewRows]:
    """Return the log with `items` appended, and the new piece if one is needed. Each item is a compact JSON text."""
    tail = (*log.tail, *items)
    if len(tail) <= TAIL:
        return Log(log.segments, log.skip, tail), []
    return _fold(Log(log.segments, log.skip, tail), reader, new_id)


def drop_first(log: Log, items: int) -> Log:
    """Return a log without its oldest `items` items. This reads and writes no stored objects."""
    segments, skip = log.segments, log.skip + items
    while segments and segments[0].items <= skip:
        skip -= segments[0].items
        segments = segments[1:]
    return Log(segments, skip, log.tail) if segments else Log((), 0, log.tail[skip:])


def keep_last(log: Log, items: int) -> Log:
    """Return a log with only its newest `items` items, or all if there are fewer. This accesses no stored objects."""
    excess = count(log) - items
    return drop_first(log, excess) if excess > 0 else log


def texts(log: Log, reader: ObjectReader) -> list[bytes]:
    """Return texts that, joined by commas, are the content of a JSON array of all items, the oldest first.

    One text can hold several items.
    """
    stored = reader.get_many([segment.piece for segment in log.segments], LogItems) if log.segments else {}
    parts = [_text_of(log, position, stored[one.piece].text) for position, one in enumerate(log.segments)]
    parts += log.tail
    return parts


def first(log: Log, most: int, reader: ObjectReader) -> list[bytes]:
    """Return the oldest `most` items, or all if there are fewer, the oldest first.

    Only the pieces that hold these items are read.
    """
    found: list[bytes] = []
    for position in range(len(log.segments)):
        if len(found) >= most:
            break
        found += _segment_text(log, position, reader).split(SEPARATOR, most - len(found))[: most - len(found)]
    return [*found, *log.tail][:most]


def text(log: Log, reader: ObjectReader) -> bytes:
    """Return all items as the content of a JSON array, without the brackets."""
    return b",".join(texts(log, reader))


def items(log: Log, reader: ObjectReader) -> list[bytes]:
    """Return all items, the oldest first."""
    found: list[bytes] = []
    for position in range(len(log.segments)):
        found += _segment_text(log, position, reader).split(SEPARATOR)
    return [*found, *log.tail]


def _fold(log: Log, reader: ObjectReader, new_id: NewId) -> tuple[Log, NewRows]:
    folded, newest = log.tail[:-1], log.tail[-1:]
    texts, items, first = [SEPARATOR.join(folded)], len(folded), len(log.segments)
    while first and log.segments[first - 1].items <= items:
        first -= 1
        texts.insert(0, _segment_text(log, first, reader))
        items += log.segments[first].items - (0 if first else log.skip)
    id = new_id()
    segments = (*log.segments[:first], LogSegment(items, id))
    return Log(segments, log.skip if first else 0, newest), [(id, LogItems(SEPARATOR.join(texts)))]


def _segment_text(log: Log, position: int, reader: ObjectReader) -> bytes:
    return _text_of(log, position, reader.get(log.segments[position].piece, LogItems).text)


def _text_of(log: Log, position: int, found: bytes) -> bytes:
    """Return the items of a piece that still belong to the log. `found` is the piece's text."""
    segment = log.segments[position]
    if position or not log.skip:
        return found
    left = segment.items - log.skip
    if left > log.skip:
        return found.split(SEPARATOR, log.skip)[-1]
    return found[len(found.rsplit(SEPARATOR, left)[0]) + len(SEPARATOR) :]
