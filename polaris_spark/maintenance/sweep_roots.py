"""Exact mark and sweep of a realm: deletes only unreachable rows that no commit can ever need again.

A sweep takes these steps, in this order:

1. *trim*: raise history floors; end the registrations of references that were dropped longer ago than the grace period;
2. *look*: read the registry, and the floor of every reference in it;
3. *fence* every reference: a swap that gives its row a new version and a fence, which is an id. Rows of dropped
   references are sealed. The registry is fenced last, then every reference that was born between the look and the
   registry's fence;
4. *list the roots*: for every reference that existed at any time between the look and the fence of the registry, the
   commits from the floor that the look found (or that the reference was born with) to the head that its row has now;
5. *mark* every object that can be reached from the roots by strong pointers. Pointers are read from headers alone, so
   that types that are not installed are followed like all others. A marked object that is missing, or whose header
   cannot be read, ends the sweep;
6. *delete* every row that is not marked, and whose id is below the first fence, and below now minus the grace period.

Why that is safe
----------------
The claim: once the roots are listed, no commit that ever takes effect needs a row that step 6 deletes. The claim rests
on rules that every process follows:

a. A process makes no id below a fence that it has read. It makes no id below a head that it has read either, unless the
   head lies so far ahead that a wrong clock made it (`ids.observe_head`). The rest of this argument needs only fences.
b. An attempt reads its target's row first. Only then does it read everything else, and all of it anew: the source of a
   new branch, the commits to merge. It takes effect by a swap of exactly that version of the target's row.
c. An attempt points only to objects that it read in this way and to new rows. If the fence has changed since the change
   was prepared, the change is prepared anew and its rows are written anew (`Applier`). Rows that were written outside
   of an attempt, such as an import's, are refused if their ids are not above the target's fence (`Place`).
d. A new reference is born by a commit to the registry. It begins at a commit that was in the history of a live
   reference when that history was read, after the registry. The first fence of its row is its generation, an id that
   was made after the registry was read. Every process that opens a reference has read the registry, or the row, since
   the reference was born.
e. A floor never goes back. A sealed row takes no commits. Rows of references are never deleted, only their content is.

Call an object *kept* if it is marked, or its id is not below the first fence F. Consider an attempt whose swap of row T
takes effect after the roots were listed. No fence of this sweep came between the attempt's read of T and its swap,
because each fence changes the version, whatever any process's clock or ids are. So if T existed when the registry was
fenced, the attempt read T after T's fence. Its new ids are above that fence by (a), so its new rows are kept. The head
of T that it read comes after T's fence: it lies between the floor and the head of step 4, and is therefore marked, or
it is later, and its rows are kept because earlier attempts of this kind wrote them. If the attempt read another
reference S, it did so after T's fence, hence after the look. If S existed when the registry was fenced, S's history
lies above the floor of the look, even if another process has since raised the floor, dropped S or created another
reference of the same name. So the history is marked or later, hence kept. If S (or T itself) was born afterwards, its
birth is an attempt of this kind on the registry. Every commit to it was made by a process that has read of its birth,
with ids above its generation, hence above F by (d). So everything that the attempt makes reachable is kept. By
induction over all swaps after the listing, no object that is not kept ever becomes reachable. Any process, including
the sweep, may sleep at any point for any time. Attempts whose swap took effect before the roots were listed are in the
heads of step 4.

The claim does not cover readers, nor attempts that read an old base and fail in any case. A process that read a head
before floors were raised above it may find rows of that head missing. Such a process can rely on the rows for the
retention period, which is not shorter than the grace period. A drop can be undone within the grace period, by the
clocks of the process that dropped and of the process that sweeps. After the grace period the registration has ended,
and the drop cannot be undone. Only these periods depend on clocks. A clock that is far behind the store's is refused,
and jobs refuse a clock that the store does not trust (`StoreClock.refuse_deleting`).

Two sweeps may run at once without damage. While one sweep marks, the other may delete rows that only trimmed history
needs, and may end registrations. The first sweep then misses an object, or finds a row without its head, and ends with
an error. An interrupted sweep leaves no state behind: the next sweep does everything again.

A reference whose registration was lost with rows of the database is kept. It cannot be opened until `recover` registers
it again. If a reference's row was lost, it is not known which objects the reference needs: nothing is swept until
`recover` has run.

Only an ACTIVE realm is swept. A realm that is being loaded has rows that no reference leads to yet.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from polaris_spark.catalog.engine import Progress
from polaris_spark.clock import EPOCH_MS
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import ancestor, entries
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError, HistoryTrimmedError, ReferenceGoneError, TryAgainError
from polaris_spark.ids import IdParts, pack
from polaris_spark.maintenance.trim import trim
from polaris_spark.system.clocks import StoreClock
from polaris_spark.system.recovery.lost import strict_reader, unlisted
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, Registered, expired, listed_in, registered_by
from polaris_spark.system.registry import ROOT, References


class Policy(NamedTuple):
    """Periods for which data is kept although no reference needs it, in milliseconds."""

    retention_ms: int
    """Shortest time for which history is kept."""
    grace_ms: int
    """Grace period: shortest time for which unreachable rows and dropped references are kept."""
    catalogs: Mapping[str, tuple[int, int]] = {}
    """Retention and grace period of the catalogs that have their own, by the prefix of their references' names."""

    def retention_of(self, reference: str) -> int:
        """Return the retention of a reference, in milliseconds; the longest one for a reference of no catalog."""
        return self._of(reference, 0)

    def grace_of(self, reference: str) -> int:
        """Return how long a dropped reference is kept, in milliseconds; the longest period for one of no catalog."""
        return self._of(reference, 1)

    @property
    def rows_ms(self) -> int:
        """Grace period of unreachable rows, in milliseconds: the longest of all catalogs.

        It is not known which catalog an unreachable row belonged to.
        """
        return max([self.grace_ms, *(grace for _, grace in self.catalogs.values())])

    @property
    def shortest_grace_ms(self) -> int:
        """The shortest grace period of all catalogs, in milliseconds."""
        return min([self.grace_ms, *(grace for _, grace in self.catalogs.values())])

    def _of(self, reference: str, position: int) -> int:
        base = (self.retention_ms, self.grace_ms)[position]
        if not reference.startswith("cat/"):
            return max([base, *(own[position] for own in self.catalogs.values())])
        prefix = reference[: reference.index("/", 4) + 1]
        return self.catalogs.get(prefix, (self.retention_ms, self.grace_ms))[position]


class Roots(NamedTuple):
    """The commits that a sweep marks from, and the bounds of what it may delete."""

    commits: array[int]
    """Ids of all commits that are roots."""
    fence: int
    """The first fence that was set, an id."""
    limit: int
    """Rows with this id or a higher one are kept, marked or not."""
    ended: tuple[str, ...]
    """Names of the dropped references whose registrations were ended."""
    floors: Mapping[str, int]
    """Number of the first commit among the roots, by name of the reference's row."""


def trim_fence_and_list_roots(
    references: References, policy: Policy, operation: Operation, progress: Progress
) -> Roots:
    """Take steps 1 to 4 of a sweep (see the module), and return the roots.

    This trims history, ends the registrations of references that were dropped longer ago than the grace period, and
    fences every reference. `list_roots_only` changes nothing.

    Raises:
        ClockError: this machine's clock is too far behind the store's.
        TryAgainError: another sweep is running.
        CorruptionError: a commit that is needed is missing or unreadable.
    """
    StoreClock(references.store.backend, references.clock).refuse_behind()
    try:
        return _trim_fence_and_list_roots(references, policy, operation, progress)
    except CorruptionError:
        # Another sweep may have deleted the commit of a head that was just read. Read the heads, which are newer now.
        return _trim_fence_and_list_roots(references, policy, operation, progress)


def _trim_fence_and_list_roots(
    references: References, policy: Policy, operation: Operation, progress: Progress
) -> Roots:
    now = references.ids.now_ms()
    trim(
        references,
        retention_ms=policy.retention_of,
        progress=lambda done, of: progress("trimming history", done, of),
    )
    progress("giving up dropped references", 0, 0)
    ended = references.end_expired(policy.grace_of, operation)
    try:
        fencing = _Fencing(references, progress, _replace_by_tombstones(references))
        fence = fencing.run()
        roots = fencing.roots()
    except (ReferenceGoneError, HistoryTrimmedError) as error:
        raise TryAgainError(
            f"another sweep of this realm is running: {error}; sweep again after the other sweep has ended"
        ) from error
    limit = min(fence, _id_at(now - policy.rows_ms))
    return Roots(roots, fence, limit, tuple(one.name for one in ended), fencing.floors)


def list_roots_only(references: References, policy: Policy, progress: Progress) -> Roots:
    """Return what `trim_fence_and_list_roots` would return, without changing anything, for a dry run.

    Rows that other processes write during the call are younger than the grace period, so they do not count as garbage.
    """
    now = references.ids.now_ms()
    trimmed = trim(references, retention_ms=policy.retention_of, dry_run=True)
    after = {one.reference: one.after for one in trimmed}
    root = references.root.read()
    listed = listed_in(root.index(REFERENCES))
    ended = expired(listed, now, policy.grace_of)
    floors = {ROOT: after.get(ROOT, root.head.floor_number)}
    roots = _history(references, root.head, floors[ROOT])
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
        roots += _history(references, head, floor)
    for name, head in unlisted(references.store):
        if not head.sealed:
            floors[name] = head.floor_number
            roots += _history(references, head, head.floor_number)
    limit = _id_at(now - policy.rows_ms)
    return Roots(roots, limit, limit, tuple(one.name for one in ended), floors)


def was_overtaken(references: References, roots: Roots) -> bool:
    """Whether history of the roots was trimmed or given up since the roots were listed.

    If so, another sweep may have deleted objects that only this history needed.
    """
    reader = ReferenceReader(references.store)
    for row_name, floor in roots.floors.items():
        head = reader.head(row_name)
        if head is not None and (not head.commit or head.floor_number > floor):
            return True
    return False


class _Fencing:
    """Steps 2 to 4 of a sweep: look, fence, list the roots."""

    def __init__(self, references: References, progress: Progress, unlisted: Mapping[str, int]) -> None:
        """
        Args:
            unlisted: floors of references that the registry lost, by row name. They are roots, so that a recovery can
                restore the references.
        """
        self._references = references
        self._progress = progress
        self._before = references.root.read()
        self.floors = {**unlisted, ROOT: self._before.head.floor_number}
        """The lowest floor of each reference that an attempt on a fenced row may have read, by row name."""
        self._present = listed_in(self._before.index(REFERENCES))
        for position, registered in enumerate(self._present):
            progress("looking at references", position, len(self._present))
            head = self._head(registered.row_name)
            floor = registered.registration.floor_number if head is None else head.floor_number
            self.floors[registered.row_name] = floor

    def run(self) -> int:
        """Fence every reference, and return the first fence."""
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
        """Return the ids of all root commits."""
        found = array("q")
        for position, (row_name, floor) in enumerate(self.floors.items()):
            self._progress("listing commits", position, len(self.floors))
            head = self._head(row_name)
            if head is None or not head.commit:
                raise ReferenceGoneError(f"{row_name!r} was given up during the sweep")
            found += _history(self._references, head, floor)
        return found

    def _close(self, registered: Registered) -> None:
        """Fence the row of a live reference; seal the row of a dropped reference."""
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
        """Return the references that were registered between the look and the fence of the registry.

        The registry's log contains each reference as it was first registered, even if it was dropped or replaced since.
        """
        before, last = self._before.head, self._before.head.number
        if after.head.commit == before.commit:
            return []
        if after.head.number <= last or ancestor(after.store, after.head, last) != before.commit:
            raise ReferenceGoneError("the registry was recovered during the sweep")
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


def _history(references: References, head: Head, floor: int) -> array[int]:
    """Return the ids of the commits from number `floor` to the head."""
    found = array("q", [head.commit])
    number = head.number
    while number > floor:
        commit = references.store.get(found[-1], Commit)
        some = commit.parents[: number - floor]
        found.extend(some)
        number -= len(some)
    return found


def _replace_by_tombstones(references: References) -> dict[str, int]:
    """Replace sealed rows by tombstones if their registration ended, was replaced, or has another generation.

    Returns:
        the floor in each row that is not sealed although the registry does not list the reference, by row name.
    """
    lost: dict[str, int] = {}
    for name, head in unlisted(references.store):
        if head.sealed:
            references.make_tombstone(name)
        else:
            lost[name] = head.floor_number
    return lost


def _id_at(ms: int) -> int:
    """Return the lowest id that can be made at a time, given in milliseconds since 1970."""
    return pack(IdParts(max(EPOCH_MS, ms), 0, 0))
