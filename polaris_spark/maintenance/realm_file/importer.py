"""Import of a realm file: creates a realm from the file, in any database.

| step | state after a crash in the step |
| --- | --- |
| 1. read and check the whole file | nothing was changed |
| 2. create a realm in the state LOADING, whose record has the digest of the file | a new run with the file continues |
| 3. become the loader: write a new token to the record | the same |
| 4. write the rows of objects; note in the record which blocks are done | the same, after the last noted block |
| 5. check that all rows arrived, and that every object that a reference needs exists | the same |
| 6. write the rows of the references | the same |
| 7. the realm becomes ACTIVE | the realm can be used; a new run only removes the marks of the import |
| 8. remove the marks of the import from the record | the realm was imported |

Only the loader whose token is in the record notes blocks and makes the realm ACTIVE. A new run replaces the token, so
that an earlier run that still works ends at its next note. The two may write rows at the same time: these are the same
rows, and the heads of a realm that is ACTIVE are never overwritten (`migration.steps.write_references`).
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from polaris_spark.backends.base import ObjectRow
from polaris_spark.catalog.engine import Engine, LocalEngine, Progress, Reach, Row
from polaris_spark.catalog.files.files import Files
from polaris_spark.clock import iso_text
from polaris_spark.commits.retry import retried
from polaris_spark.errors import CorruptionError, RealmStateError, StateError, TaskLostError
from polaris_spark.maintenance.migration.check import DIGESTS, digests
from polaris_spark.maintenance.migration.copy import RealmRows, write_rows
from polaris_spark.maintenance.migration.marks import Held, concurrently
from polaris_spark.maintenance.migration.steps import write_references
from polaris_spark.maintenance.realm_file.layout import RealmFile, RowSum
from polaris_spark.maintenance.sweep import reachable
from polaris_spark.maintenance.sweep_roots import history
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.features import refuse_unknown_features
from polaris_spark.system.realms import REALM_FORMAT, RealmRecord, RealmState
from polaris_spark.system.stores import refuse_newer_format

IMPORTING: Final = "importing-file"
IMPORTING_RUN: Final = "importing-run"
IMPORTED: Final = "importing-blocks"
"""Properties of the realm's record during an import: the digest of the file, the token of the loader, and the number of
blocks of objects that have been written."""
IMPORTED_FROM: Final = "imported-from"
"""Property of an imported realm: the name and instance id of the exported realm, and the time of the export."""

_BLOCKS_TOGETHER: Final = 4
"""Number of blocks of objects that are written at a time, by one thread each."""


class Import:
    """Import of one realm file into one store. Not thread-safe."""

    def __init__(
        self,
        target: StoreConnection,
        file: RealmFile,
        name: str,
        progress: Progress = lambda _step, _done, _total: None,
    ) -> None:
        """
        Args:
            file: the file, which was read and checked.
            name: name of the new realm.
            progress: called with the progress. If it raises an error, the import ends.
        """
        self._target = target
        self._realms = target.realms
        self._file = file
        self._name = name
        self._progress = progress
        self._clock = target.clock
        self._token = secrets.token_hex(16)

    def run(self) -> RealmRecord:
        """Import the realm, or continue an import of the same file that was interrupted. Return the realm's record.

        Raises:
            RealmStateError: the store has another realm of that name.
            NewerFormatError: the realm's format is newer than this release can use.
            InputError: the name is not a valid realm name.
            TaskLostError: another run of the import was started, and became the loader.
            SourceError: the file was changed since it was checked.
            StateError: the imported rows differ from the rows in the file.
            CorruptionError: an object that a reference needs is not in the file.
            StorageFullError: the database has no space left. A new run continues.
        """
        record = retried(self._clock, self._realm)
        if record.state is RealmState.LOADING:
            record = self._describe(record.instance, self._begun)
        if record.state is RealmState.LOADING:
            self._load(record)
            self._check(record)
            write_references(
                self._target,
                record.instance,
                self._file.heads,
                self._file.trailer.highest,
                lambda _: self._refuse_other(self._realms.find(self._name)),
            )
            self._refuse_other(self._realms.find(self._name))
            move = partial(self._realms.move, self._name, RealmState.ACTIVE, instance=record.instance)
            retried(self._clock, move)
        return self._describe(record.instance, self._arrived)

    # The realm's record

    def _realm(self) -> RealmRecord:
        """Return the realm of this import: LOADING, or ACTIVE if an earlier run only had to remove its marks."""
        header, found = self._file.header, self._realms.find(self._name)
        what = f"the realm in {str(self._file.path)!r}"
        refuse_newer_format(header.store_format, what, newest=REALM_FORMAT)
        refuse_unknown_features(header.features, what)
        if found is None:
            return self._realms.create_for_loading(
                self._name,
                self._target.ids,
                revisions=header.revisions,
                features=header.features,
                properties={**header.properties, IMPORTING: self._file.digest},
            )
        if found.properties.get(IMPORTING) == self._file.digest:
            if found.state is RealmState.ACTIVE:
                return found
            if found.state in (RealmState.CREATED, RealmState.LOADING):
                return self._realms.move(self._name, RealmState.LOADING, instance=found.instance)
        unfinished = (
            " and belongs to the unfinished import of another file" if IMPORTING in found.properties else ""
        )
        raise RealmStateError(
            f"{self._target.uri} already has a realm {self._name!r}, which is {found.state.value}{unfinished}: choose "
            "another name for the imported realm, or purge that realm first"
        )

    def _describe(self, instance: str, change: Callable[[RealmRecord], Mapping[str, str]]) -> RealmRecord:
        return retried(self._clock, lambda: self._realms.describe(self._name, change, instance=instance))

    def _begun(self, record: RealmRecord) -> Mapping[str, str]:
        if record.state is not RealmState.LOADING:
            return record.properties
        return {**record.properties, IMPORTING_RUN: self._token}

    def _noted(self, record: RealmRecord, *, blocks: int) -> Mapping[str, str]:
        self._refuse_other(record)
        return {**record.properties, IMPORTED: str(blocks)}

    def _arrived(self, record: RealmRecord) -> Mapping[str, str]:
        kept = {
            name: value
            for name, value in record.properties.items()
            if name not in (IMPORTING, IMPORTING_RUN, IMPORTED)
        }
        header = self._file.header
        return {**kept, IMPORTED_FROM: f"{header.realm} {header.instance} {iso_text(header.exported_ms)}"}

    def _refuse_other(self, record: RealmRecord | None) -> None:
        """Raise an error unless this run is the loader of the realm, and the realm is LOADING.

        Raises:
            TaskLostError: another run became the loader or finished the import, or the realm was purged.
        """
        if record is None or record.properties.get(IMPORTING_RUN) != self._token:
            raise TaskLostError(
                f"another run of the import of realm {self._name!r} was started, or the realm was purged: this run "
                "ended"
            )
        if record.state is not RealmState.LOADING:
            raise TaskLostError(
                f"realm {self._name!r} is now {record.state.value}: this run of its import ended"
            )

    # Rows

    def _load(self, record: RealmRecord) -> None:
        """Write the rows of the file, except those in blocks that an earlier run of this import recorded as written."""
        place = RealmRows(self._target.backend, record.instance, self._clock)
        total = self._file.blocks
        numbers = iter(range(min(int(record.properties.get(IMPORTED, "0")), total), total))
        while some := list(islice(numbers, _BLOCKS_TOGETHER)):
            self._progress("writing rows", some[0], total)
            blocks: list[Sequence[ObjectRow]] = [self._file.rows(number) for number in some]
            concurrently(partial(write_rows, place), blocks)
            self._describe(record.instance, partial(self._noted, blocks=some[-1] + 1))

    def _check(self, record: RealmRecord) -> None:
        """Check that the imported rows are those of the file, and that all of them can be reached from the references.

        The rows are compared by their counts and by the sum of their digests.

        Raises:
            StateError: the realm is not a faithful copy of the file.
        """
        store = self._target.store(record)
        engine = LocalEngine(Reach(store, Files({}), self._clock), self._progress)
        trailer = self._file.trailer
        counts = "SELECT count(*), count(DISTINCT rows.id) FROM {rows} rows"
        rows, marked = reachable(engine, store, array("q", commits_of(store, self._file.heads)))
        [all_rows] = engine.query(counts, rows=rows).collect()
        needed = f"{counts} JOIN {{marked}} marked ON rows.id = marked.id"
        [needed_rows] = engine.query(needed, rows=rows, marked=marked).collect()
        expected = (trailer.rows, trailer.objects)
        if all_rows != expected or needed_rows != expected or sum_of(engine, store) != trailer.sum:
            # If another run finished the import meanwhile, clients may have committed.
            self._refuse_other(self._realms.find(self._name))
            same_counts = all_rows == expected == needed_rows
            raise StateError(
                f"realm {self._name!r} in {self._target.uri} is not a faithful copy of the file. Objects: "
                f"{expected[1]:,} in the file, {all_rows[1]:,} in the realm, {needed_rows[1]:,} of these reachable "
                f"from its references. Rows: {expected[0]:,} in the file, {all_rows[0]:,} in the realm. "
                f"{'The contents of rows differ. ' if same_counts else ''}Purge the realm, and import the file again"
            )


def commits_of(store: ObjectStore, heads: Sequence[Held]) -> Iterator[int]:
    """Yield the ids of all commits of references, from their heads back to their floors.

    Raises:
        CorruptionError: a commit is missing.
    """
    for held in heads:
        try:
            yield from history(store, held.head, held.head.floor_number)
        except CorruptionError as error:
            raise CorruptionError(
                f"the history of reference {held.row_name!r} is incomplete: {error}"
            ) from error


def sum_of(engine: Engine, store: ObjectStore) -> bytes:
    """Return the sum of all object rows of a realm (see `RowSum`)."""
    splits = store.backend.splits("objects", [store.realm], max(8, engine.parts))
    rows = engine.scan(partial(digests, opened=None), splits, DIGESTS, "comparing rows")
    total = RowSum()

    def added(_: Reach, found: Iterator[Row]) -> Iterator[Row]:
        for id, part, digest in found:
            total.add(id, part, digest)
        yield (0,)

    engine.apply(added, rows, "rows bigint").collect()
    return total.value()
