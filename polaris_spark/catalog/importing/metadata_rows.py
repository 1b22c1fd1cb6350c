"""Reads metadata files and writes them as rows without names: the work of executors or threads in an import.

Only the driver has a lease, so the driver assigns blocks of ids. If a portion runs out of ids, nothing is written for
its remaining tables, and their results say how many ids they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.contents import holdings_of
from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.locations import Holdings
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata_files import read_rows
from polaris_spark.errors import PolarisError
from polaris_spark.store.objects import ObjectStore

BATCH_BYTES = 4 * 2**20
"""Approximate size of a batch of rows that are written together, in bytes."""


class FileToRead(NamedTuple):
    """A metadata file to be read."""

    position: int
    """Position of the item in the driver's wave."""
    kind: bytes | None
    """`TABLE` or `VIEW`; None to take the kind from the file."""
    location: str
    entity_id: int


class Portion(NamedTuple):
    """Files for one task, and ids for their rows. Small and picklable."""

    wanted: Sequence[FileToRead]
    ids: Sequence[range]
    now_ms: int
    """Time of the import, in milliseconds since 1970."""
    write: bool = True
    """True writes the rows; False only checks the files."""


class ReadResult(NamedTuple):
    """Result of reading a metadata file."""

    position: int
    kind: bytes = b""
    content: int = 0
    """Id of the row of the table or view."""
    first_id: int = 0
    """The lowest id of the rows of the table or view."""
    ids: int = 0
    """Number of ids that the rows use or, if `unfinished`, need."""
    held: Holdings = Holdings()  # immutable
    """Locations that the table or view uses."""
    error: str = ""
    """Why the file cannot be imported; empty if it can."""

    @property
    def unfinished(self) -> bool:
        """Whether the file was not imported because its rows need more ids than the portion has left."""
        return not self.content and not self.error


class _Block:
    """Returns ids one by one and counts them. It continues to count when none are left, to find how many are needed."""

    def __init__(self, ranges: Sequence[range]) -> None:
        self._ids = chain.from_iterable(ranges)
        self.first = self.used = 0
        self.short = False

    def begin(self) -> None:
        """Begin counting for the next file."""
        self.first = self.used = 0

    def next_id(self) -> int:
        """Return the next id; 0 if none are left."""
        self.used += 1
        id = next(self._ids, 0)
        self.first = self.first or id
        self.short = not id
        return id


class WritePortion(MapFunction[Portion, list[ReadResult]]):
    """Function that reads the files of a portion and writes their rows durably."""

    result = list[ReadResult]
    few = 0

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, reach: Reach, item: Portion) -> list[ReadResult]:
        return list(write_portion(reach.writable(), reach.files, item))


def write_portion(store: ObjectStore, files: Files, portion: Portion) -> Iterator[ReadResult]:
    """Read the files of a portion and write their rows durably. Yield the result of each file.

    Raises:
        TryAgainError, OutcomeUnknownError: the database failed. Rows that were already written do no harm.
    """
    block = _Block(portion.ids)
    written: list[tuple[int, msgspec.Struct]] = []
    finished: list[ReadResult] = []
    size = 0
    for wanted in portion.wanted:
        result, rows, weight = _read(files, portion, wanted, block, allows_overflow=store.allows(Table))
        finished.append(result)
        if not portion.write or result.error or result.unfinished:
            continue
        written += rows
        size += weight
        if size >= BATCH_BYTES:
            _write(store, written)
            yield from finished
            written, finished, size = [], [], 0
    _write(store, written)
    yield from finished


def _write(store: ObjectStore, objects: list[tuple[int, msgspec.Struct]]) -> None:
    """Write rows durably. They are not added to the cache, because this process does not read them again."""
    if objects:
        store.backend.write_objects(store.realm, store.rows(objects))


def _read(
    files: Files, portion: Portion, wanted: FileToRead, block: _Block, *, allows_overflow: bool
) -> tuple[ReadResult, list[tuple[int, msgspec.Struct]], int]:
    block.begin()
    try:
        found = read_rows(
            files,
            wanted.location,
            wanted.kind,
            block.next_id,
            entity_id=wanted.entity_id,
            now_ms=portion.now_ms,
            allows_overflow=allows_overflow,
        )
        content = block.next_id()
        held = holdings_of(found.value)
    except PolarisError as error:
        return ReadResult(wanted.position, error=str(error)), [], 0
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, OSError) as error:  # a hostile file
        message = f"metadata file {wanted.location!r} cannot be read: {type(error).__name__}: {error}"
        return ReadResult(wanted.position, error=message), [], 0
    if block.short:
        return ReadResult(wanted.position, found.kind, ids=block.used), [], 0
    rows = [*found.pieces, (content, found.value)]
    result = ReadResult(wanted.position, found.kind, content, block.first, block.used, held)
    return result, rows, sum(len(getattr(piece, "text", b"")) for _, piece in found.pieces) + 1_024
