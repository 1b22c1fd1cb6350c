"""Roots of a sweep (an exact mark and sweep of a realm), and why a sweep never deletes a row that a commit needs.

A sweep deletes only unreachable rows that no commit can ever need again. It takes these steps, in this order:

1. *Trim*: raise history floors (the oldest commits that are kept). End the registrations of references that were
   dropped longer ago than the grace period.
2. *Look*: read the registry (the list of the realm's references), and the floor of every reference in it.
3. *Fence* every reference: a compare-and-swap gives its row a new version and a fence, which is an id. Rows of dropped
   references are sealed: they accept no commits. The registry is fenced last, then every reference that was created
   between the look and the registry's fence.
4. *List the roots*: for every reference that existed at any time between the look and the fence of the registry, the
   commits from the floor to the present head. The floor is the one that the look found, or the first floor of a
   reference that was created later.
5. *Mark* every object that can be reached from the roots by strong pointers. Pointers are read from headers alone, so
   pointers in objects whose type is not installed are followed, too. If a marked object is missing, or its header
   cannot be read, the sweep ends with an error.
6. *Delete* every row that is not marked, whose id is below the first fence, and that is older than the grace period.

Why this is safe
----------------
The claim: after the roots are listed, no commit that ever takes effect needs a row that step 6 deletes. An *attempt* is
one execution of the steps that make a commit. Its *target* is the reference that it commits to. Every process follows
these rules:

a. A process makes no id below a fence that it has read. It makes no id below a head that it has read either, unless the
   head lies so far ahead that a wrong clock made it (`ids.observe_head`). The rest of this argument needs only fences.
b. An attempt reads its target's row first. After that, it reads everything else again: for example, the source of a new
   branch, or the commits to merge. It takes effect by a compare-and-swap of exactly that version of the target's row.
c. An attempt points only to new rows, and to objects that it read according to (b). If the fence has changed since the
   change was prepared, the change is prepared again and its rows are written again (`Applier`). A transaction writes
   its objects under new ids if the fence has changed since it began (`catalog.merges.transactions`). Rows that were
   written before the attempt, as by an import, are refused if their ids are not above the target's fence
   (`PlaceImported`).
d. A new reference is created by a commit to the registry. It begins at a commit that was in the history of a live
   reference when that history was read, after the registry was read; or at a new commit that follows such a commit, and
   is written with the registration. The first fence of its row is its generation, an id that was made after the
   registry was read. Every process that opens a reference has read the registry, or the
   reference's row, after the reference was created.
e. A floor is never lowered. A sealed row accepts no commits. Rows of references are never deleted, only their content.

Call an object *kept* if it is marked, or if its id is not below the first fence F. Consider an attempt whose swap of
the row T takes effect after the roots were listed. No fence of this sweep came between the attempt's read of T and its
swap, because each fence changes the version of the row, whatever the clocks and ids of the processes are. So if T
existed when the registry was fenced, the attempt read T after T's fence. Its new ids are above that fence by (a), so
its new rows are kept. The head of T that it read is either between the floor and the head of step 4, and therefore
marked; or it is later, and its rows are kept because earlier attempts of this kind wrote them.

If the attempt read another reference S, it read S after T's fence, hence after the look. If S existed when the registry
was fenced, the history of S that was read is above the floor that the look found, even if another process has since
raised the floor, dropped S or created another reference of the same name. So this history is marked or later, hence
kept. If S (or T itself) was created afterwards, its creation is an attempt of this kind on the registry. Every commit
to it was made by a process that had read the registry or the row after the creation, with ids above its generation,
hence above F by (d). So everything that the attempt makes reachable is kept. By induction over all swaps after the
listing, no object that is not kept ever becomes reachable. Any process, including the sweep, may be suspended at any
point for any time. Attempts whose swap took effect before the roots were listed are in the heads of step 4.

The claim does not cover readers, or attempts that read an old head and fail in any case. A process that read a head
before a floor was raised above this head may find rows of the head missing. The rows are kept at least for the
retention period, which is not shorter than the grace period. A drop can be undone within the grace period, measured by
the clocks of the process that dropped the reference and of the process that sweeps. After the grace period the
registration has ended, and the drop cannot be undone. Only these periods depend on clocks. A process whose clock is far
behind the store's clock cannot sweep, and jobs refuse a clock that the store does not trust
(`StoreClock.refuse_deleting`).

Two sweeps may run at the same time without damage. While one sweep marks, the other may delete rows that only trimmed
history needs, and may end registrations. The first sweep then misses an object, or finds a row without its head, and
ends with an error. An interrupted sweep leaves no state behind: the next sweep does everything again.

If the database lost the registration of a reference, the reference's objects are kept. The reference cannot be opened
until `recover` registers it again. If the database lost a reference's row, it is not known which objects the reference
needs: nothing is deleted until `recover` has run.

Only an ACTIVE realm is swept. A realm that is being loaded has rows to which no reference leads yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalog_changes import end_dropped
from polaris_spark.catalog.engine import Progress
from polaris_spark.clock import EPOCH_MS
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import ancestor, entries
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError, HistoryTrimmedError, ReferenceGoneError, TryAgainError
from polaris_spark.ids import IdParts, pack
from polaris_spark.maintenance.log_archive import archive_sealed
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.trim import trim
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.clocks import StoreClock
from polaris_spark.system.lost_rows import strict_reader, unlisted
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, Registered, expired, listed_in, registered_by
from polaris_spark.system.registry import ROOT, References


class Roots(NamedTuple):
    """The roots of a sweep: the commits whose objects are kept. Also says which rows the sweep may delete."""

    commits: array[int]
    """Ids of all commits that are roots."""
    fence: int
    """The first fence that the sweep set: an id. New commits must not use unreferenced rows with lower ids. In a dry
    run, no fence is set, and this is the same as `limit`."""
    limit: int
    """An id. Rows with this id or a higher id are kept, even if they are unreachable."""
    floors: Mapping[str, int]
    """For each reference, by the name of its row, the number of its oldest commit that is a root."""


def trim_fence_and_list_roots(
    references: References, policy: Policy, operation: Operation, progress: Progress
) -> Roots:
    """Trim history, fence every reference, and return the roots. These are steps 1 to 4 of a sweep (see the module).

    A fence is an id: a commit to a fenced reference must not use unreferenced rows with lower ids. This function also
    ends the registrations of references that were dropped longer ago than the grace period, so that they cannot be
    restored any more. For a dry run, use `list_roots_only`, which changes nothing.

    Raises:
        ClockError: this machine's clock differs from the database's, or is too far behind the time noted in the store.
        TryAgainError: another sweep is running, or the registry was recovered meanwhile.
        CorruptionError: a commit that is needed is missing or unreadable.
    """
    StoreClock(references.store.backend, references.clock).refuse_behind()
    try:
        return _trim_fence_and_list_roots(references, policy, operation, progress)
    except CorruptionError:
        # Another sweep may have deleted the commit of a head that was just read. So read the heads again.
        return _trim_fence_and_list_roots(references, policy, operation, progress)


def _trim_fence_and_list_roots(
    references: References, policy: Policy, operation: Operation, progress: Progress
) -> Roots:
    now = references.ids.now_ms()
    trim(references, policy, operation, progress=lambda done, of: progress("trimming history", done, of))
    progress("removing dropped references", 0, 0)
    end_dropped(references, policy.grace_of, operation)
    try:
        lost = _replace_by_tombstones(references, policy, operation)
        fencing = _Fencing(references, progress, lost)
        fence = fencing.run()
        roots = fencing.roots()
    except (ReferenceGoneError, HistoryTrimmedError) as error:
        raise TryAgainError(
            f"another sweep of this realm is running: {error}; sweep again after the other sweep has ended"
        ) from error
    limit = min(fence, _id_at(now - policy.rows_ms))
    return Roots(roots, fence, limit, fencing.floors)


def list_roots_only(references: References, policy: Policy, progress: Progress) -> Roots:
    """Return the roots for a dry run of a sweep, as `trim_fence_and_list_roots` would return them. Change nothing.

    Rows that other processes write meanwhile are younger than the grace period, so they are not counted as unreachable.
    """
    now = references.ids.now_ms()
    trimmed = trim(references, policy, dry_run=True)
    after = {one.reference: one.after for one in trimmed}
    root = references.root.read()
    listed = listed_in(root.index(REFERENCES))
    ended = expired(listed, now, policy.grace_of)
    floors = {ROOT: after.get(ROOT, root.head.floor_number)}
    roots = history(references.store, root.head, floors[ROOT])
    reader = strict_reader(references.store, references.clock)
    for position, registered in enumerate(listed):
        progress("listing commits", position, len(listed))
        head = reader.head_of(registered)
        if registered in ended or not head.commit:
            continue
        live = registered.registration.state == "live"
        floors[registered.row_name] = floor = max(
            head.floor_number, after.get(registered.name, 0) if live else 0
        )
        roots += history(references.store, head, floor)
    for name, head in unlisted(references.store):
        if not head.sealed:
            floors[name] = head.floor_number
            roots += history(references.store, head, head.floor_number)
    limit = _id_at(now - policy.rows_ms)
    return Roots(roots, limit, limit, floors)


def was_overtaken(references: References, roots: Roots) -> bool:
    """Whether the history of a reference was trimmed, or replaced by a tombstone, since the roots were listed.

    Another sweep may then have deleted objects that only this history needed.
    """
    reader = ReferenceReader(references.store)
    for row_name, floor in roots.floors.items():
        head = reader.head(row_name)
        if head is not None and (not head.commit or head.floor_number > floor):
            return True
    return False


class _Fencing:
    """Steps 2 to 4 of a sweep: read the registry and all floors, fence every reference, list the roots."""

    def __init__(self, references: References, progress: Progress, unlisted: Mapping[str, int]) -> None:
        """
        Args:
            unlisted: numbers of the floor commits of references that the registry lost, by row name. The commits of
                these references are roots, so that a recovery can restore the references.
        """
        self._references = references
        self._progress = progress
        self._before = references.root.read()
        self.floors = {**unlisted, ROOT: self._before.head.floor_number}
        """For each reference, by row name, the number of its oldest commit that is a root."""
        self._present = listed_in(self._before.index(REFERENCES))
        for position, registered in enumerate(self._present):
            progress("looking at references", position, len(self._present))
            head = self._head(registered.row_name)
            floor = registered.registration.floor_number if head is None else head.floor_number
            self.floors[registered.row_name] = floor

    def run(self) -> int:
        """Write a new fence to the row of every reference. Return the first fence, which is an id.

        A commit to a fenced reference must not use unreferenced rows with lower ids.
        """
        references = self._references
        first = references.ids.next_id()
        for position, registered in enumerate(self._present):
            self._progress("fencing references", position, len(self._present))
            self._close(registered)
        self._progress("fencing the registry", 0, 0)
        references.fence(ROOT)
        after = references.root.read()
        born = self._born(after)
        for position, registered in enumerate(born):
            self._progress("fencing new references", position, len(born))
            self.floors.setdefault(registered.row_name, registered.registration.floor_number)
            self._close(registered)
        return first

    def roots(self) -> array[int]:
        """Return the ids of all root commits: the commits of each reference from its floor to its head."""
        found = array("q")
        for position, (row_name, floor) in enumerate(self.floors.items()):
            self._progress("listing commits", position, len(self.floors))
            head = self._head(row_name)
            if head is None or not head.commit:
                raise ReferenceGoneError(
                    f"reference {row_name!r} was permanently removed during the sweep; sweep again"
                )
            found += history(self._references.store, head, floor)
        return found

    def _close(self, registered: Registered) -> None:
        """Give the row of a live reference a new fence. Seal the row of a dropped reference, to stop commits to it."""
        references = self._references
        if registered.registration.state == "live":
            try:
                references.complete(registered)
            except ReferenceGoneError:  # dropped meanwhile, before its row was written
                references.sealed_head(registered)
            references.fence(registered.row_name)
        else:
            references.sealed_head(registered)

    def _born(self, after: CommitReader) -> list[Registered]:
        """Return the references that were created after this object was made and before the registry was fenced.

        They are read from the registry's log, which also has references that were dropped or replaced since.

        Args:
            after: the registry after it was fenced.
        """
        before, last = self._before.head, self._before.head.number
        if after.head.commit == before.commit:
            return []
        if after.head.number <= last or ancestor(after.store, after.head, last) != before.commit:
            raise TryAgainError("the registry of references was recovered during this sweep; sweep again")
        born: dict[str, Registered] = {}
        for _, commit, _, entry in entries(after.store, after.head):
            if commit.number <= last:
                break
            index = CommitReader(after.store, b"", after.head, commit).index(REFERENCES)
            listed = index.get(entry.key)
            if listed is not None:
                registered = registered_by(entry.key.decode(), listed)
                born[registered.row_name] = registered
        return [registered for name, registered in born.items() if name not in self.floors]

    def _head(self, row_name: str) -> Head | None:
        head = ReferenceReader(self._references.store).head(row_name)
        if head is not None:
            self._references.ids.observe_head(head.commit, head.fence)
        return head


def history(store: ObjectStore, head: Head, floor: int) -> array[int]:
    """Return the ids of the commits of a reference, from the head back to the commit with the number `floor`."""
    found = array("q", [head.commit])
    number = head.number
    while number > floor:
        commit = store.get(found[-1], Commit)
        some = commit.parents[: number - floor]
        found.extend(some)
        number -= len(some)
    return found


def _replace_by_tombstones(references: References, policy: Policy, operation: Operation) -> dict[str, int]:
    """Replace the sealed reference rows that the registry does not list by tombstones (rows without a commit), after
    archiving their logs. Their registrations have ended, or another reference has their names.

    Returns:
        for each row that the registry does not list and that is not sealed, the number of its floor commit, by row
        name. The registry has lost these references.
    """
    lost: dict[str, int] = {}
    for name, head in unlisted(references.store):
        if head.sealed:
            archive_sealed(references, policy, name, head, operation)
            references.make_tombstone(name)
        else:
            lost[name] = head.floor_number
    return lost


def _id_at(ms: int) -> int:
    """Return the lowest id that can be made at the time `ms`, in milliseconds since 1970."""
    return pack(IdParts(max(EPOCH_MS, ms), 0, 0))
