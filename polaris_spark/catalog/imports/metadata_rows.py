"""Reads metadata files and writes their content as rows. Executors or threads do this part of an import. The rows have
no effect until the driver adds their names to the index of names.

New ids require the lease of a node number, which only the driver (the process that runs the import) has. So the driver
reserves ids for each portion (a group of metadata files). If a portion has too few ids, nothing is written for its
remaining tables, and their results contain the number of ids that they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.engine import MapFunction, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.tables.contents import holdings_of
from polaris_spark.catalog.tables.metadata_files import read_rows
from polaris_spark.errors import PolarisError
from polaris_spark.store.objects import ObjectStore

BATCH_BYTES = 4 * 2**20
"""Approximate size of a batch of rows that are written together, in bytes."""


class FileToRead(NamedTuple):
    """A metadata file to be read."""

    position: int
    """Number by which the driver matches the result to the table or view."""
    kind: bytes | None
    """`TABLE` or `VIEW`; None to take the kind from the file."""
    location: str
    entity_id: int


class Portion(NamedTuple):
    """Metadata files that one task reads, and the object ids that are reserved for their rows. Small and picklable."""

    wanted: Sequence[FileToRead]
    ids: Sequence[range]
    now_ms: int
    """Time of the import, in milliseconds since 1970."""
    write: bool = True
    """Whether to write the rows. If False, the files are only read and checked."""


class ReadResult(NamedTuple):
    """Result of reading a metadata file."""

    position: int
    kind: bytes = b""
    content: int = 0
    """Object id of the row of the table or view; 0 if it was not imported."""
    first_id: int = 0
    """Lowest object id of the rows of the table or view."""
    ids: int = 0
    """Number of object ids that the rows use. If `unfinished` is true, the number that they need."""
    held: Holdings = Holdings()  # immutable
    """Locations that the table or view uses."""
    error: str = ""
    """Why the file cannot be imported; empty if it can."""

    @property
    def unfinished(self) -> bool:
        """Whether the file was not imported because its rows need more ids than the portion has left."""
        return not self.content and not self.error


class _Block:
    """Returns reserved object ids one by one and counts how many a file needs. When no ids are left, it continues to
    count, so that the number of ids that the file needs becomes known."""

    def __init__(self, ranges: Sequence[range]) -> None:
        self._ids = chain.from_iterable(ranges)
        self.first = self.used = 0
        self.short = False

    def begin(self) -> None:
        """Set the count to zero for the next file."""
        self.first = self.used = 0

    def next_id(self) -> int:
        """Return the next id; 0 if none are left."""
        self.used += 1
        id = next(self._ids, 0)
        self.first = self.first or id
        self.short = not id
        return id


class WritePortion(MapFunction[Portion, list[ReadResult]]):
    """Function for `Engine.map` that reads the metadata files of a portion and writes their rows to the database."""

    result = list[ReadResult]
    few = 0

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, reach: Reach, item: Portion) -> list[ReadResult]:
        return list(write_portion(reach.writable(), reach.files, item))


def write_portion(store: ObjectStore, files: Files, portion: Portion) -> Iterator[ReadResult]:
    """Read the metadata files of a portion and write their rows to the database. Yield the result of each file after
    its rows are written.

    Raises:
        TryAgainError, OutcomeUnknownError: the database failed. Rows that were already written are unreachable, so they
            have no effect.
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
    """Write rows to the database. They are not cached, because this process does not read them again."""
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
