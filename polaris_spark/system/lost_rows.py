"""Detection of references whose row or registration the database lost. Until the command `recover` restores them, no
process may write a new row for them or delete data that they need."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.clock import Clock
from polaris_spark.commits.completeness import Completeness
from polaris_spark.commits.lineage import Known, lineage, named_by
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.rows import Head
from polaris_spark.errors import CorruptionError
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import ROOT, Registered, group_of
from polaris_spark.system.stored_commits import StoredCommits

_GLANCES = 10
_GLANCE_MS = 50.0
"""Interval between reads of the row of a reference that is being created, in milliseconds. After `_GLANCES` reads,
all rows of the realm are searched for the reference's commits."""

_FORESEEN = 2
"""Maximum number of successive commits that a process writes before it knows whether the first of them took effect."""


def refuse_lost(store: ObjectStore, registered: Registered, clock: Clock) -> None:
    """Raise an error if the row of a live reference, or of a dropped one that can be restored, was lost.

    A missing row was not lost if no process has committed to the reference: then the process that created the reference
    has not written the row yet, or died before it wrote the row. This function reads one row if the row exists, else
    all rows of the realm.

    Raises:
        CorruptionError: the reference's row was lost.
    """
    for _ in range(_GLANCES):
        if _has_row(store, registered):
            return
        clock.sleep_ms(_GLANCE_MS)
    newer = commits_of_missing(store, registered)
    # Read again: the row may have been written since.
    if _show_loss(registered, newer) and not _has_row(store, registered):
        is_live = registered.registration.state == "live"
        advice = (
            "run polaris-spark recover to restore the row" if is_live else "restore the row from a backup"
        )
        raise CorruptionError(
            f"the row of reference {registered.name!r} was lost: the reference began at commit "
            f"{registered.registration.number}, and commits up to number {newer[0].number} (id {newer[0].id:x}) were "
            f"found; {advice}"
        )


def strict_reader(store: ObjectStore, clock: Clock) -> ReferenceReader:
    """Return a reader of a realm's references that raises CorruptionError for a live reference whose row was lost."""
    return ReferenceReader(store, missing=lambda registered: refuse_lost(store, registered, clock))


def commits_of_missing(store: ObjectStore, registered: Registered) -> list[Known]:
    """Return the commits that may have been made to a registered reference whose row is missing, newest first.

    The returned commits descend from the commit that the reference began from, which is called the base here. Their ids
    are above the reference's generation (an id made when the reference was created). Commits that were made to other
    references after the base are left out, and so are the descendants of these commits. Commits that need a missing or
    unreadable object are left out, too. The result may still contain commits that never took effect: failed attempts to
    commit to another reference.
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
    """Whether the commits in `newer` prove that the reference had a row.

    If the commit from which the reference began is shared with other references, one or two commits after it do not
    prove this. They may be attempts to commit to another reference: a failed attempt, and a second attempt that the
    same process wrote before it knew that the first had failed.
    """
    said = registered.registration
    begun = said.commit_time if said.state == "dropped" else said.time  # a drop replaces the time
    is_own = (said.number, said.commit_time) == (0, begun) and registered.source > said.generation
    return any(is_own or known.number > said.number + _FORESEEN for known in newer)


def unlisted(store: ObjectStore) -> Iterator[tuple[str, Head]]:
    """Yield (row name, head) of the rows that the registry does not list, sealed or not. The registry's own row and
    tombstones (sealed rows without a commit) are left out.

    A registration is written before its row, and ends only after its row is sealed. So if an unlisted row is not
    sealed, the registry lost the row's registration. A recovery restores it.
    """
    found = [name for name, head in _rows(store) if name != ROOT and head.commit]
    references = ReferenceReader(store)
    listed = {one.row_name for one in references.listed()}  # read after the rows
    for name in found:
        if name not in listed:
            head = references.head(name)  # read again: it may be a tombstone by now
            if head is not None and head.commit:
                yield name, head


def _rows(store: ObjectStore) -> Iterator[tuple[str, Head]]:
    """Yield (row name, head) of every reference row of the realm."""
    for name, row in ReferenceStore(store.backend, store.realm).rows():
        yield name, read_head(row, name)


def _made_by_others(store: ObjectStore, registered: Registered, objects: Completeness) -> set[int]:
    """Return the ids of the commits that were made to other references after `registered` began. Only references of the
    same group are considered.

    The numbers of these commits are above the number of the commit that `registered` began from, and their ids are
    above the generation of the reference that they were made to. Commits from which those references forked, and
    commits of references that the registry lost, are left out, because they may belong to `registered`.
    """
    group, made = group_of(registered.name), set[int]()
    rows = list(_rows(store))
    listed = {one.row_name for one in ReferenceReader(store).listed()}
    for row_name, head in rows:
        name, _, generation = row_name.rpartition("@")
        known = row_name in listed or head.sealed
        if name and known and head.commit and group_of(name) == group:
            history = lineage(objects, named_by(head), registered.registration.number + 1)
            made.update(commit.id for commit in history.values() if commit.id > int(generation, 16))
    return made


def _has_row(store: ObjectStore, registered: Registered) -> bool:
    return store.backend.read_reference(store.realm, registered.row_name) is not None
