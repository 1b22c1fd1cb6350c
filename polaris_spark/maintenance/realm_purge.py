"""Purge of realms (tenants of a store): deletes every row of an inactive realm, and rows that belong to no realm.

| step | state after a crash right after the step |
| --- | --- |
| the realm record becomes PURGING | a realm that cannot be opened; a second purge continues |
| delete reference rows, the registry's first, then object rows; repeat until none is left | a second purge continues |
| the realm record becomes PURGED, then GONE, which frees the name | the purge is complete |

If a writer opened the realm before it was deactivated, none of its commits can take effect any more, because the
reference row that it would change is deleted. Rows that it was writing may still arrive after the purge. Their instance
id (the key of a realm's rows) is never used again, and no process reads them. `fsck` reports them as problems of the
kind `leftover`, and a purge of this instance id deletes them. Files of tables are not deleted: drop the tables with
PURGE before, or delete the warehouse's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from polaris_spark.backends.base import Backend, ObjectKey, Split, Table
from polaris_spark.catalog.engine import Progress
from polaris_spark.clock import Clock
from polaris_spark.errors import InputError, RealmStateError, TryAgainError
from polaris_spark.maintenance.migration.run import MOVING_FROM, MOVING_FROM_INSTANCE
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.realms import FOLLOWING, RealmRecord, Realms, RealmState
from polaris_spark.system.registry import ROOT
from polaris_spark.system.stores import SYSTEM_REALM

INSTANCE = re.compile(r"[1-9a-f][0-9a-f]{0,15}")
"""Pattern of instance ids, which are 63-bit ids in hexadecimal."""

BATCH = 1_000
"""Maximum number of object rows that are deleted in one batch."""

_PASSES = 10
"""Maximum number of passes over the rows of a realm. Several are needed if other processes still write rows."""

ENDED = frozenset({RealmState.PURGED, RealmState.GONE})
"""States in which a realm has no rows."""


_UNFINISHED = frozenset({RealmState.CREATED, RealmState.LOADING})


class Purged(NamedTuple):
    """A realm that was purged or can be purged, or an instance id that belongs to no realm, with its number of rows."""

    realm: str | None
    """Name of the realm; None if the rows belong to no realm."""
    instance: str
    state: str | None
    """Current state of the realm; None if the rows belong to no realm."""
    references: int
    """Number of reference rows found."""
    objects: int
    """Number of object rows found; -1 if the database deleted them all at once without counting them."""
    deleted: bool
    """Whether the rows were deleted; False if they were only counted."""


class Purge:
    """Purge of realms in one store."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        *,
        progress: Progress = lambda _what, _done, _total: None,
    ) -> None:
        self._backend = backend
        self._realms = Realms(backend, clock)
        self._progress = progress

    def candidates(self) -> list[Purged]:
        """Return the realms that can be purged, and the instance ids that occur in rows but belong to no realm.

        This reads the keys of all rows of the store.
        """
        references = self._instances("references")
        objects = self._instances("objects")
        records = self._realms.records()  # read last: a realm has a record before it has rows
        found = [
            _purged(record, references.get(record.instance, 0), objects.get(record.instance, 0))
            for record in records
            if RealmState.PURGING in FOLLOWING[record.state] or record.state is RealmState.PURGING
        ]
        known = {record.instance for record in records if record.state not in ENDED} | {SYSTEM_REALM}
        found += [
            Purged(None, instance, None, references.get(instance, 0), objects.get(instance, 0), deleted=False)
            for instance in sorted((references.keys() | objects.keys()) - known)
        ]
        return found

    def realm(self, name: str, *, deactivate: bool = False) -> Purged:
        """Delete a realm with all its rows, or continue such a purge that was interrupted.

        Args:
            deactivate: True to deactivate the realm first if it is ACTIVE, and to purge it even if it is the unfinished
                target of a migration.
        Raises:
            RealmStateError: no realm has that name. Or `deactivate` is false, and the realm is ACTIVE or is the
                unfinished target of a migration.
            TryAgainError: other processes are still writing rows of the realm.
        """
        record = self._realms.find(name)
        if record is None:
            raise self._realms.missing(name)
        if record.state is RealmState.ACTIVE:
            if not deactivate:
                raise RealmStateError(
                    f"realm {name!r} is ACTIVE: deactivate it first, so that no process opens it"
                )
            self._realms.move(name, RealmState.INACTIVE, instance=record.instance)
        if record.state in _UNFINISHED and MOVING_FROM_INSTANCE in record.properties and not deactivate:
            raise RealmStateError(
                f"realm {name!r} is being moved here from {record.properties.get(MOVING_FROM)}, and clients may "
                "already use this copy: abort the migration first; if the store that it is moved from is lost, call "
                "the procedure purge_realm with 'deactivate'"
            )
        references = objects = 0
        if record.state is not RealmState.PURGED:
            self._move(record, RealmState.PURGING)
            references, objects = self._delete_rows(record.instance)
            self._move(record, RealmState.PURGED)
        record = self._move(record, RealmState.GONE)
        return _purged(record, references, objects)._replace(deleted=True)

    def _move(self, record: RealmRecord, state: RealmState) -> RealmRecord:
        """Change the state of a realm, and return its record. If another process has completed the purge of the realm
        meanwhile, return a record in the state GONE."""
        try:
            return self._realms.move(record.name, state, instance=record.instance)
        except RealmStateError:
            now = next((one for one in self._realms.records() if one.name == record.name), None)
            if now is None or (now.instance == record.instance and now.state not in ENDED):
                raise
            return msgspec.structs.replace(record, state=RealmState.GONE)

    def instance(self, instance: str) -> Purged:
        """Delete all rows with an instance id that belongs to no realm: rows that arrived after a realm was purged.

        Raises:
            InputError: the instance id belongs to a realm or to the store itself, or is malformed.
            TryAgainError: other processes are still writing rows with this instance id.
        """
        owner = next((r for r in self._realms.records() if r.instance == instance), None)
        if instance == SYSTEM_REALM:
            raise InputError(
                f"instance {instance!r} belongs to the store itself, whose rows cannot be purged"
            )
        if owner is not None and owner.state not in ENDED:
            raise InputError(
                f"instance {instance!r} belongs to realm {owner.name!r}, which is {owner.state.value}: only rows that "
                "belong to no realm can be purged by instance id; purge the realm by its name"
            )
        if not INSTANCE.fullmatch(instance):
            raise InputError(f"{instance!r} is not the instance id of a realm, such as 5c3f0a12b4d6e000")
        references, objects = self._delete_rows(instance)
        return Purged(None, instance, None, references, objects, deleted=True)

    def _instances(self, table: Table) -> dict[str, int]:
        found: dict[str, int] = {}
        for split in self._backend.splits(table, None, 1):
            for batch in self._backend.scan(split):
                for realm in batch.column("realm").to_pylist():
                    found[realm] = found.get(realm, 0) + 1
            self._progress(f"looking for {table} of realms", sum(found.values()), 0)
        return found

    def _delete_rows(self, instance: str) -> tuple[int, int]:
        """Delete all rows with an instance id.

        Returns:
            the number of reference rows, and the number of object rows (-1 if the database does not count them).
        Raises:
            TryAgainError: other processes are still writing rows.
        """
        references = self._delete_references(instance)
        if self._backend.drop_realm(instance) and not self._has_rows(instance):
            return references, -1
        objects = 0
        for _ in range(_PASSES):
            splits = self._backend.splits("objects", [instance], 1)
            for count in _delete_objects(self._backend, splits):
                objects += count
                self._progress(f"deleting objects of {instance}", objects, 0)
            references += self._delete_references(instance)
            if not self._has_rows(instance):
                return references, objects
        raise TryAgainError(
            f"rows of instance {instance} are still being written after {_PASSES} passes: "
            "end the processes that write them, and purge again"
        )

    def _delete_references(self, instance: str) -> int:
        """Delete all reference rows with an instance id, and return their number.

        The registry's row is deleted first. Without this row, no process can find or create another reference.
        """
        deleted = 0
        names = ReferenceStore(self._backend, instance).names()
        for name in sorted(names, key=lambda name: (name != ROOT, name)):
            while (row := self._backend.read_reference(instance, name)) is not None:
                self._backend.delete_reference(instance, name, row.version)
            deleted += 1
            self._progress(f"deleting references of {instance}", deleted, len(names))
        return deleted

    def _has_rows(self, instance: str) -> bool:
        tables: tuple[Table, ...] = ("references", "objects")
        return any(
            batch.num_rows
            for table in tables
            for split in self._backend.splits(table, [instance], 1)
            for batch in self._backend.scan(split)
        )


def _delete_objects(backend: Backend, splits: Sequence[Split]) -> Iterable[int]:
    """Delete the object rows in the given ranges, in batches. After each batch, yield the number of its rows."""
    for split in splits:
        for batch in backend.scan(split):
            by_realm: dict[str, list[ObjectKey]] = {}
            columns = (batch.column(name).to_pylist() for name in ("realm", "id", "part"))
            for realm, id, part in zip(*columns, strict=True):
                by_realm.setdefault(realm, []).append(ObjectKey(id, part))
            for realm, keys in by_realm.items():
                for start in range(0, len(keys), BATCH):
                    backend.delete_objects(realm, keys[start : start + BATCH])
            yield batch.num_rows


def _purged(record: RealmRecord, references: int, objects: int) -> Purged:
    return Purged(record.name, record.instance, record.state.value, references, objects, deleted=False)
