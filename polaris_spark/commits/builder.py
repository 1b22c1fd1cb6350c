"""First part of step 5 of the commit protocol: build the commit object, and all rows to write, from applied changes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from polaris_spark.commits.applier import Applied
from polaris_spark.commits.change import made_ms
from polaris_spark.commits.heads import thin
from polaris_spark.commits.rows import Commit, Entries, RecentHead, child_pointers, next_time
from polaris_spark.commits.settings import OPERATIONS, CommitSettings
from polaris_spark.commits.state import NO_VERSION, CommitReader, StoredObjects
from polaris_spark.errors import CorruptionError, NewerFormatError
from polaris_spark.ids import IdGenerator
from polaris_spark.index import Index
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version


class Built(NamedTuple):
    """A commit that is ready to be written: a reader of the new head, and all new objects as (id, value)."""

    reader: CommitReader
    objects: list[tuple[int, msgspec.Struct]]


class Builder:
    """Builds the commits of one reference."""

    def __init__(self, store: ObjectStore, ids: IdGenerator, settings: CommitSettings) -> None:
        self._store = store
        self._ids = ids
        self._settings = settings

    def require_supported(self, base: CommitReader) -> None:
        """Refuse a commit that a newer release made, because its unknown fields would be lost in the next commit.

        Raises:
            NewerFormatError: a newer release made it.
        """
        if not base.ours:
            self._store.get_for_rewrite(base.head.commit, Commit)

    def build(self, applied: Applied) -> Built:
        """Build one commit of all applied changes and return it. Its parent is the head that the changes were applied
        to."""
        base = applied.base
        if base.version == NO_VERSION:
            raise ValueError(
                "no commit can follow a forecast of a head, because it lacks the changes of other processes"
            )
        self.require_supported(base)
        time, resets = next_time(base.head, base.commit, self._ids.now_ms())
        objects = [item for effects in applied.effects for item in effects.objects]
        objects.append((applied.entries_id, Entries(tuple(applied.entries))))
        roots = dict(zip(base.commit.index_names, base.commit.index_roots, strict=True))
        forgotten = base.commit.operations_floor
        indexes = base.open_indexes()
        read = StoredObjects(self._store).read_shards
        for name, index in applied.state.indexes.items():
            quota = self._settings.quotas.get(name, self._settings.default_quota)
            floor = None
            if name == OPERATIONS:
                floor = max(0, time - self._settings.operation_lifetime_ms).to_bytes(6, "big")
                forgotten = max(forgotten, _cut_off(index, quota, floor))
            roots[name], shards = index.freeze(quota, self._ids.next_id, floor=floor)
            indexes[name] = index.reopened(roots[name], read)
            objects += shards
        parents, skips = child_pointers(base.head.number, base.head.commit, base.commit)
        number, id = base.head.number + 1, self._ids.next_id()
        commit = Commit(
            number,
            time,
            applied.entries_id,
            parents,
            skips,
            tuple(id for effects in applied.effects for id in effects.merged),
            tuple(roots),
            tuple(roots.values()),
            forgotten,
        )
        objects.append((id, commit))
        recent = thin(base.head.recent, RecentHead(time, number, id))
        head = msgspec.structs.replace(
            base.head,
            commit=id,
            number=number,
            time=time,
            recent=recent,
            time_resets=resets,
            slots=() if applied.decision is None else applied.decision.slots,
        )
        reader = CommitReader(
            self._store, new_version(), head, commit, row_name=base.row_name, ours=True, indexes=indexes
        )
        return Built(reader, objects)


def _cut_off(operations: Index, quota: int, floor: bytes) -> int:
    """Return the time before which the index `operations` may lack operations, after `Index.freeze` has dropped keys
    below `floor`.

    The time is in milliseconds since 1970: just after the newest operation below `floor`, or 0 if `freeze` drops no
    operation. The time of `floor` itself would be wrong: if this process's clock is ahead, `floor` may be later than
    the keys that other processes make now.
    """
    if operations.embedded_bytes <= quota:
        return 0
    try:
        newest = next(operations.range(b"", floor, reverse=True), None)
    except (CorruptionError, NewerFormatError):  # freezing may not need this unreadable leaf
        return made_ms(floor)
    return 0 if newest is None else made_ms(newest[0]) + 1
