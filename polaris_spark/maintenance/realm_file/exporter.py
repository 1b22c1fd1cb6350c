"""Export of a realm to one file, as it was at one instant, while other processes use the realm.

The export only reads the store. It takes these steps:

1. Read the heads of all references twice. If no head changed between the two reads, all of them were in force at the
   same time, namely between the reads. Otherwise, read again.
2. Read the headers of all rows, and follow pointers from all commits between the floors and the heads, as a sweep does.
3. Write the rows of these objects. Objects never change, so it does not matter when they are read.

A sweep may delete objects of this state meanwhile, but only if history was trimmed after step 1. The export then finds
that an object is missing, and begins again with new heads. So a file that is complete has every object.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from polaris_spark.backends.chunks import sized
from polaris_spark.backends.directories import flush_directory
from polaris_spark.catalog.branches.store_heads import refuse_unlisted
from polaris_spark.catalog.engine import LocalEngine, Progress, Reach, Row
from polaris_spark.catalog.files.files import Files, unwritable
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.errors import (
    CorruptionError,
    InputError,
    RealmMovedError,
    RealmStateError,
    TryAgainError,
)
from polaris_spark.maintenance.migration.copy import TOGETHER, RealmRows, read_whole
from polaris_spark.maintenance.migration.marks import (
    MOVING_TO,
    MOVING_TO_INSTANCE,
    PAUSE,
    Held,
    SourceRealm,
)
from polaris_spark.maintenance.migration.steps import floors_raised
from polaris_spark.maintenance.realm_file.importer import (
    IMPORTED,
    IMPORTED_FROM,
    IMPORTING,
    IMPORTING_RUN,
    commits_of,
)
from polaris_spark.maintenance.realm_file.layout import FORMAT, OBJECT_BYTES, FileHeader, Trailer, Writer
from polaris_spark.maintenance.sweep import reachable
from polaris_spark.secret_options import is_secret
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.lost_rows import strict_reader
from polaris_spark.system.realms import MOVED_TO, RealmRecord, RealmState

_ATTEMPTS: Final = 5
"""Maximum number of times that an export begins, if sweeps delete what it reads."""
_INSTANT_MS: Final = 60_000.0
"""Time for which the heads are read again until none changes between two reads, in milliseconds."""

_OWN_TO_A_STORE: Final = frozenset(
    {MOVING_TO, MOVING_TO_INSTANCE, PAUSE, IMPORTING, IMPORTING_RUN, IMPORTED, IMPORTED_FROM}
)
"""Properties of a realm's record that are not exported."""


class Exported(NamedTuple):
    """What an export wrote."""

    header: FileHeader
    trailer: Trailer
    bytes: int
    """Size of the file, in bytes."""
    attempts: int
    """Number of times that the export began. It begins again if a sweep deletes objects that it has yet to read."""


class Export:
    """Export of one realm."""

    def __init__(
        self,
        connection: StoreConnection,
        name: str,
        release: str,
        progress: Progress = lambda _step, _done, _total: None,
    ) -> None:
        """
        Args:
            name: name of the realm, which must be ACTIVE or INACTIVE.
            release: version of polaris_spark, which the file names.
            progress: called with the progress. If it raises an error, the export ends.
        Raises:
            RealmStateError: the realm does not exist, or is neither ACTIVE nor INACTIVE.
            RealmMovedError: the realm was moved to another store.
            InputError: the name is not a valid realm name.
        """
        self._record = record = exportable(connection, name)
        references = connection.references(record, CommitSettings({}), None, "exporting")
        self._store = connection.store(record)
        self._clock = connection.clock
        self._source = SourceRealm(
            connection.realms, name, references, strict_reader(self._store, self._clock)
        )
        self._connection = connection
        self._release = release
        self._progress = progress

    def write(self, path: Path, *, overwrite: bool = False) -> Exported:
        """Write the realm to a file. The file appears under its name only when it is complete and synced.

        Args:
            overwrite: whether an existing file is replaced.
        Raises:
            InputError: the file exists, and `overwrite` is false.
            CorruptionError: an object that a reference needs is missing or unreadable, or a reference was lost.
            TryAgainError: heads changed too often, or sweeps deleted objects in every attempt.
            FileStorageFullError: the disk is full.
            PolarisError: the file cannot be written for another reason.
        """
        if path.exists() and not overwrite:
            raise _exists(path)
        refuse_unlisted(self._record, self._store)
        for attempt in range(1, _ATTEMPTS + 1):
            heads = self._heads_at_one_instant()
            try:
                return self._written(path, heads, attempt, overwrite=overwrite)
            except CorruptionError as error:
                if not floors_raised(heads, self._heads()):
                    raise
                problem = error
        raise TryAgainError(
            f"sweeps deleted objects of realm {self._record.name!r} while it was exported, {_ATTEMPTS} times "
            f"({problem}): export it while no sweep runs"
        )

    def _heads_at_one_instant(self) -> list[Held]:
        """Return the heads of all references at one instant.

        Raises:
            TryAgainError: a head changed between every two reads.
        """
        end = self._clock.monotonic_ms() + _INSTANT_MS
        before = self._heads()
        while True:
            now = self._heads()
            if _commits(before) == _commits(now) and all(held.head.commit for held in now):
                return now
            if self._clock.monotonic_ms() > end:
                raise TryAgainError(
                    f"commits to realm {self._record.name!r} are so frequent that no instant between two commits was "
                    f"found in {_INSTANT_MS / 1_000:.0f} s: export it when there are fewer commits, or deactivate it"
                )
            self._progress("waiting for an instant between two commits", 0, 0)
            before = now

    def _heads(self) -> list[Held]:
        try:
            return self._source.heads()
        except CorruptionError:
            # A sweep may have deleted the commit of the registry that was just read.
            return self._source.heads()

    def _written(self, path: Path, heads: list[Held], attempt: int, *, overwrite: bool) -> Exported:
        # The record is read after the heads: commits of newer revisions are made only after the record allows them.
        store, record = self._store, exportable(self._connection, self._record.name, self._record.instance)
        engine = LocalEngine(Reach(store, Files({}), self._clock), self._progress)
        rows, marked = reachable(engine, store, array("q", commits_of(store, heads)))
        sizes = engine.query(
            "SELECT rows.id AS id, sum(rows.bytes) AS bytes FROM {rows} rows "
            "JOIN {marked} marked ON rows.id = marked.id GROUP BY rows.id",
            rows=rows,
            marked=marked,
        ).fixed("id")
        [(total,)] = engine.query("SELECT count(*) FROM {sizes}", sizes=sizes).collect()
        header = FileHeader(
            format=FORMAT,
            release=self._release,
            realm=record.name,
            instance=record.instance,
            exported_ms=self._clock.now_ms(),
            store_format=record.format,
            revisions=record.revisions,
            features=record.features,
            properties={
                name: value
                for name, value in record.properties.items()
                if name not in _OWN_TO_A_STORE and not is_secret(name, value)
            },
        )
        with _renamed_when_complete(path, overwrite=overwrite) as writer:
            writer.header(header)
            writer.references(heads)
            write = partial(self._write_objects, writer=writer, total=total)
            engine.apply(write, sizes, "objects bigint", by=("id",)).collect()
            trailer = writer.finish()
            exportable(self._connection, record.name, record.instance)
        return Exported(header, trailer, writer.size, attempt)

    def _write_objects(self, _: Reach, sizes: Iterator[Row], *, writer: Writer, total: int) -> Iterator[Row]:
        place = RealmRows(self._store.backend, self._store.realm, self._clock)
        done = 0
        for some in sized(sizes, lambda row: row[1], most_bytes=OBJECT_BYTES, most=TOGETHER):
            self._progress("writing objects", done, total)
            found = read_whole(place, [id for id, _ in some])
            writer.objects(row for id, _ in some for row in found[id])
            done += len(some)
            yield (len(some),)


def exportable(connection: StoreConnection, name: str, instance: str | None = None) -> RealmRecord:
    """Return the record of a realm that can be exported.

    Args:
        instance: instance id that the realm must have; None accepts any.
    Raises:
        RealmStateError: the realm does not exist, or is neither ACTIVE nor INACTIVE.
        RealmMovedError: the realm was moved to another store.
    """
    record = connection.realms.find(name)
    if record is None or instance not in (None, record.instance):
        known = ", ".join(repr(one.name) for one in connection.realms.all()) or "none"
        raise RealmStateError(f"there is no realm {name!r} in {connection.uri}; it has: {known}")
    if MOVED_TO in record.properties:
        raise RealmMovedError(f"realm {name!r} was moved to {record.properties[MOVED_TO]}: export it there")
    if record.state not in (RealmState.ACTIVE, RealmState.INACTIVE):
        raise RealmStateError(
            f"realm {name!r} is {record.state.value}; only a realm that is ACTIVE or INACTIVE can be exported"
        )
    return record


def _commits(heads: list[Held]) -> dict[str, tuple[int, int, bool]]:
    return {held.row_name: (held.head.commit, held.head.floor_number, held.head.sealed) for held in heads}


@contextlib.contextmanager
def _renamed_when_complete(path: Path, *, overwrite: bool) -> Iterator[Writer]:
    """Yield the writer of a new file, which only this user can read.

    The file has a temporary name in the same directory. At the end of the `with` block, it is synced and renamed to
    `path`. After an error it is removed.

    Raises:
        InputError: `overwrite` is false, and the file exists by now.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise unwritable(str(path), error) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield Writer(file, path)
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise unwritable(str(path), error) from error
        try:
            if overwrite:
                temporary.replace(path)
            else:
                _rename_to_new(temporary, path)
            flush_directory(path.parent)
        except OSError as error:
            raise unwritable(str(path), error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename a file, unless a file of the new name exists.

    Raises:
        InputError: a file of the new name exists.
    """
    try:
        os.link(temporary, path)  # in contrast to a rename, it replaces no file
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise _exists(path) from None
        temporary.replace(path)


def _exists(path: Path) -> InputError:
    return InputError(f"{str(path)!r} already exists: choose another name, or give --overwrite to replace it")
