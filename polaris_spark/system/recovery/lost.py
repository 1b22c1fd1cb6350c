"""References that the database lost, whole: their row, or their registration. Before `recover` brings them back nobody
may write such a row anew, nor delete what the reference needs."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.lineage import Known, lineage, named_by
from polaris_spark.commits.publishing import read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import CorruptionError
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.recovery.search import StoredCommits
from polaris_spark.system.registrations import REFERENCES, ROOT, Registered, listed_in

_GLANCES = 10
_GLANCE_MS = 50.0
"""Pause between two looks for the row of a reference that is being created, in milliseconds. After `_GLANCES` looks,
all rows of the realm are searched for its commits."""

_FORESEEN = 2
"""How many commits, one after the other, a process may have written before it knows that the first is in force."""


def refuse_lost(store: ObjectStore, registered: Registered, clock: Clock) -> None:
    """Refuse to go on with a live reference whose row is missing, unless nobody ever committed to it: then its creator
    is at work, or died before it wrote the row.

    Reads one row if that is there, else all rows of the realm.

    Raises:
        CorruptionError: its row was lost.
    """
    for _ in range(_GLANCES):
        if _has_row(store, registered):
            return
        clock.sleep_ms(_GLANCE_MS)
    newer = commits_of_missing(store, registered)
    if _show_loss(registered, newer) and not _has_row(store, registered):  # else it was written since
        raise CorruptionError(
            f"the row of reference {registered.name!r} is missing, and there are commits after commit "
            f"{registered.registration.number}, where it began, up to commit {newer[0].number} "
            f"({newer[0].id:x}): run recover first"
        )


def commits_of_missing(store: ObjectStore, registered: Registered) -> list[Known]:
    """The complete commits of a registered reference whose row is missing, newest first.

    They follow the one that it began from, have higher ids than its registration, and descend from no commit that
    another reference made since. An attempt on another reference that failed may look like one.
    """
    objects = Completeness(store.backend, store.realm)
    stored = StoredCommits(store.backend, store.realm, objects)
    found = stored.of_missing(
        registered.source,
        others=_made_by_others(store, registered, objects),
        above=registered.registration.generation,
    )
    objects.check([known.id for known in found])
    return [known for known in found if objects.complete(known.id)]


def _show_loss(registered: Registered, newer: list[Known]) -> bool:
    """Whether commits show that there was a row. One or two after a commit that others had, too, do not: that is what
    an attempt of theirs leaves behind that failed, and the next batch, which was written in the hope of it."""
    said = registered.registration
    is_own = (said.number, said.commit_time) == (0, said.time) and registered.source > said.generation
    return any(is_own or known.number > said.number + _FORESEEN for known in newer)


def unlisted(store: ObjectStore) -> Iterator[tuple[str, Head]]:
    """Rows that the registry does not list, and that are no tombstones, by name.

    Registrations come before rows, and go after rows are sealed: one that is not sealed is there because the registry
    lost its registration, which a recovery brings back.
    """
    found = [name for name, head in _rows(store) if name != ROOT and head.commit]
    listed = {one.row_name for one in _listed(store)}  # read after the rows
    for name in found:
        if name not in listed:
            row = store.backend.read_reference(store.realm, name)  # again: perhaps it was sealed since
            if row is not None and (head := read_head(row, name)).commit:
                yield name, head


def _rows(store: ObjectStore) -> Iterator[tuple[str, Head]]:
    """Every reference row of the realm."""
    for split in store.backend.splits("references", [store.realm], 1):
        for batch in store.backend.scan(split):
            names, versions, values = (
                batch.column(name).to_pylist() for name in ("name", "version", "value")
            )
            for name, version, value in zip(names, versions, values, strict=True):
                yield name, read_head(ReferenceRow(version, value), name)


def _listed(store: ObjectStore) -> list[Registered]:
    """What the registry lists now."""
    row = store.backend.read_reference(store.realm, ROOT)
    if row is None:
        return []
    head = read_head(row, ROOT)
    registry = Snapshot(store, row.version, head, store.get(head.commit, Commit))
    return listed_in(registry.index(REFERENCES))


def _made_by_others(store: ObjectStore, registered: Registered, objects: Completeness) -> set[int]:
    """Commits that the references beside this one made themselves, after the commit that this one began from: those
    with ids above their generations. What they forked from, and what the registry forgot, does not count: that may be
    this one's.
    """
    folder, made = registered.name.rpartition("/")[0], set[int]()
    rows = list(_rows(store))
    listed = {one.row_name for one in _listed(store)}
    for row_name, head in rows:
        name, _, generation = row_name.rpartition("@")
        known = row_name in listed or head.sealed
        if name and known and head.commit and name.rpartition("/")[0] == folder:
            history = lineage(objects, named_by(head), registered.registration.number + 1)
            made.update(commit.id for commit in history.values() if commit.id > int(generation, 16))
    return made


def _has_row(store: ObjectStore, registered: Registered) -> bool:
    return store.backend.read_reference(store.realm, registered.row_name) is not None
