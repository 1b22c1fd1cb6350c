"""Finding and deleting orphan files: the order of steps.

Why no file goes that a live or recoverable head needs:

1. Folders are listed first, and heads read afterwards: a file that was committed before it could be listed is known.
2. A file counts only if it was changed last before a threshold, at least a day ago unless that is forced. Whoever
   writes files and commits them later, metadata files that are written ahead of a commit's swap among them, is
   protected by that alone.
3. Known is what any head of any realm and catalog of the store names: every branch, every dropped branch for grace,
   with every snapshot, branch and tag of each table, its statistics and its log of metadata files; besides what
   history lets be brought back (`known_files.kept_drops`). A table that cannot be read wholly might need any file:
   while there is one, files go only where other tables lie.
4. Right before files are deleted, a wave at a time, heads are read again, and what tables name that were changed or
   registered meanwhile is taken out. An old file that a table adopts in the very seconds in which it is deleted is
   lost; nothing but its age protects it.
5. A file that has been changed since it was listed stays.

Interrupted, it is simply run again: what was deleted is not listed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import Folders, Listed, repeated
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.maintenance.orphans.deciding import FileName, Mismatch, is_below
from polaris_spark.maintenance.orphans.known_files import Gathering, Known, Names, gather_changed
from polaris_spark.maintenance.orphans.needed_files import Drop
from polaris_spark.store.objects import ObjectStore

WAVE = 1_000
"""How many files are deleted between two looks at the heads."""

WOULD_DELETE, DELETED, FAILED, KEPT = "would delete", "deleted", "failed", "kept"


class Search(NamedTuple):
    """What to look for."""

    roots: tuple[str, ...]
    """Folders to list, none inside another."""
    before_ms: int
    """Files changed last before this time count, milliseconds since 1970."""
    names: Names
    mismatch: Mismatch
    own: tuple[str, ...]
    """What the normal paths of the store's own files begin with."""
    oldest_purge_ms: int
    """See `known_files.kept_drops`."""
    max_files: int

    def concerns(self, listed: Listed) -> bool:
        """Whether a file may be an orphan, as far as its name and age tell."""
        if listed.modified_ms >= self.before_ms:
            return False
        return not self.own or not self.names.of(listed.location).path.startswith(self.own)


class Orphan(NamedTuple):
    """A file that nothing needs."""

    location: str
    size: int
    modified_ms: int
    owner: str | None
    """The table or view whose location it lies in."""


class Broken(NamedTuple):
    """A table or view that cannot be read."""

    owner: str
    places: tuple[str, ...]
    problem: str


class Found(NamedTuple):
    """What a search found."""

    orphans: list[Orphan]
    broken: list[Broken]


class FoundDoomed(NamedTuple):
    """Files of dropped tables that may go."""

    phases: list[list[Orphan]]
    """Those of a phase go when all of the phases before are gone: they say where the others are."""
    broken: list[Broken]


class Outcome(NamedTuple):
    """What came of a file, or of a table that cannot be read."""

    location: str
    size: int | None
    modified_ms: int | None
    owner: str | None
    outcome: str
    error: str | None = None


Objects = Callable[[str], ObjectStore]
"""The objects of a realm, by its instance id."""


class Doomed(NamedTuple):
    """Tables that were dropped with PURGE, and whose files are to be deleted."""

    realm: str
    """Instance id of the realm."""
    drops: tuple[Drop, ...]
    places: tuple[tuple[str, str], ...]
    """Locations that they owned, each with its owner's name."""
    warehouse: str


class Engine(Protocol):
    """Where the work is done."""

    def list_files(self, search: Search) -> None:
        """List the folders of a search, and keep what was found."""

    def find(self, search: Search, heads: Sequence[StoreHead]) -> Found:
        """The orphans among what was listed."""

    def find_doomed(self, search: Search, heads: Sequence[StoreHead], doomed: Doomed) -> FoundDoomed:
        """The files of dropped tables that nothing needs."""

    def delete(self, orphans: Sequence[Orphan], before_ms: int) -> list[Outcome]:
        """Delete files that have not been changed since a time."""


Progress = Callable[[str, int, int], None]


class Record(Protocol):
    """Keeps a record of deletions, where others can read it."""

    def deleting(self, orphans: Sequence[Orphan]) -> None:
        """Files are about to be deleted."""

    def failed(self, outcomes: Sequence[Outcome]) -> None:
        """Some of them could not be."""


def remove(
    engine: Engine,
    search: Search,
    *,
    heads: Callable[[], list[StoreHead]],
    objects: Objects,
    files: Files,
    record: Record,
    dry_run: bool,
    progress: Progress,
) -> Iterator[Outcome]:
    """Find orphans, and delete them unless it is a dry run.

    Args:
        heads: reads the heads of the store.
        progress: is told the step, how much of it is done, and of how much; what it raises ends the run.
    Raises:
        InputError: files cannot be told from those of another scheme or authority.
        BadRequestError: a folder cannot be listed.
    """
    progress("listing files", 0, 0)
    engine.list_files(search)
    progress("reading what tables need", 0, 0)
    seen = heads()
    found = engine.find(search, seen)
    yield from broken_ones(found.broken)
    if dry_run:
        yield from (Outcome(*orphan, outcome=WOULD_DELETE) for orphan in found.orphans)
    else:
        yield from delete_in_waves(
            engine, search, found.orphans, seen, heads, objects, files, record, progress
        )


def broken_ones(found: Iterable[Broken]) -> Iterator[Outcome]:
    """What is said of tables that cannot be read."""
    for broken in found:
        for place in broken.places or ("",):
            why = f"{broken.problem}; nothing is deleted here, nor outside the locations of tables that can be read"
            yield Outcome(place, None, None, broken.owner, KEPT, why)


def delete_in_waves(
    engine: Engine,
    search: Search,
    orphans: Sequence[Orphan],
    seen: Iterable[StoreHead],
    heads: Callable[[], list[StoreHead]],
    objects: Objects,
    files: Files,
    record: Record,
    progress: Progress,
) -> Iterator[Outcome]:
    """Delete files; before each wave, those that tables have come to need since heads were seen are taken out."""
    watching = Watching(seen, objects, files, search.names)
    for start in range(0, len(orphans), WAVE):
        progress("deleting files", start, len(orphans))
        needed = watching.look(heads())
        yield from _deleted(engine, orphans[start : start + WAVE], needed, search, record)


def _deleted(
    engine: Engine, wave: Sequence[Orphan], needed: Known, search: Search, record: Record
) -> Iterator[Outcome]:
    if needed.broken:
        why = f"it may be needed by now: {next(iter(needed.broken.values()))}"
        yield from (Outcome(*orphan, outcome=KEPT, error=why) for orphan in wave)
        return
    going = []
    for orphan in wave:
        if is_known(search.names.of(orphan.location), needed.files):
            yield Outcome(*orphan, outcome=KEPT, error="a table has come to need it")
        else:
            going.append(orphan)
    record.deleting(going)
    outcomes = engine.delete(going, search.before_ms)
    record.failed([outcome for outcome in outcomes if outcome.outcome == FAILED])
    yield from outcomes


def is_known(name: FileName, known: set[FileName]) -> bool:
    """Whether a file is among those known, whatever scheme and authority these name."""
    return any(
        FileName(scheme, authority, name.path) in known
        for scheme in ("", name.scheme)
        for authority in ("", name.authority)
    )


class Watching:
    """What tables and views have come to name since heads were read."""

    def __init__(self, seen: Iterable[StoreHead], objects: Objects, files: Files, names: Names) -> None:
        self._seen = {(head.realm, head.reference): head for head in seen}
        self._objects = objects
        self._files = files
        self._names = names
        self._known = Known(set(), [], {})

    def look(self, heads: Iterable[StoreHead]) -> Known:
        """What they name by now, of the files that they did not name when heads were read first."""
        commits = {(head.realm, head.head.commit) for head in self._seen.values()}
        gathering = Gathering(self._files, self._names)
        for head in heads:
            key = (head.realm, head.reference)
            if (head.realm, head.head.commit) not in commits:
                gather_changed(gathering, self._seen.get(key), head, self._objects(head.realm))
            self._seen[key] = head
        found = gathering.finish()
        self._known.files.update(found.files)
        self._known.broken.update(found.broken)
        return self._known


def phases(ranked: Iterable[tuple[int, Orphan]]) -> list[list[Orphan]]:
    """Files in the order of their ranks, those of a rank together."""
    found: dict[int, list[Orphan]] = {}
    for rank, orphan in ranked:
        found.setdefault(rank, []).append(orphan)
    return [sorted(found[rank]) for rank in sorted(found)]


class DoomedJudge:
    """Which files of dropped tables may go: those in their own locations, or in the warehouse."""

    def __init__(self, doomed: Doomed, names: Names) -> None:
        self._places = [(names.of(place), owner) for place, owner in doomed.places]
        self._warehouse = names.of(doomed.warehouse)
        self._names = names

    def found(self, folders: Folders, location: str) -> Orphan | None:
        """A file that may go, if it is there."""
        name = self._names.of(location)
        owner = next((owner for place, owner in self._places if is_below(name, place)), None)
        if owner is None and not is_below(name, self._warehouse):
            return None
        try:
            there = repeated(lambda: folders.file(location))
        except (OSError, ValueError, BadRequestError):  # whoever deletes it will be told
            return Orphan(location, 0, 0, owner)
        return None if there is None else Orphan(*there, owner=owner)


def refuse_mismatches(found: Iterable[tuple[str, str]], mismatch: Mismatch) -> None:
    """Refuse to guess whether files are the same.

    Raises:
        InputError: there are conflicts, and the mode says that they are errors.
    """
    pairs = sorted(found)[:10]
    if pairs and mismatch is Mismatch.ERROR:
        told = ", ".join(f"{known} is known and {listed} was listed" for known, listed in pairs)
        raise InputError(
            f"nobody can say whether some files are orphans, nothing was deleted: {told}, with the same paths. Say by "
            "equal_schemes and equal_authorities which mean the same storage, or by prefix_mismatch_mode that such "
            "files are kept ('ignore') or orphans ('delete')"
        )


def delete_one(folders: Folders, orphan: Orphan, before_ms: int) -> Outcome:
    """Delete a file unless it has been changed since a time; one that is gone counts as deleted."""
    try:
        there = repeated(lambda: folders.file(orphan.location))
        if there is not None and there.modified_ms >= before_ms:
            return Outcome(*orphan, outcome=KEPT, error="it has been changed meanwhile")
        if there is not None:
            repeated(lambda: folders.delete(orphan.location))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, BadRequestError) as error:
        return Outcome(*orphan, outcome=FAILED, error=str(error))
    return Outcome(*orphan, outcome=DELETED)
