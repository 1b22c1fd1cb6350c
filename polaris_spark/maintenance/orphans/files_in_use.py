"""Search for those files of a given set that at least one table of a store names. Jobs check this before they delete
any file.

The search covers every table of every live or recoverable head, with all its snapshots, whatever the table's location.
It also covers dropped tables that can be restored (`catalog.drops.drops`), as far as their files still exist. If
several branches have the same version of a table, that version is read only once. If several tables name the same
manifest, that manifest is read only once.

The driver reads the indexes. Functions that an `Engine` runs read the rows of tables and views, the manifest lists and
the manifests. They return the locations of manifests, for up to 20,000 tables at a time, and the files of the given set
that were found.

If a manifest list or manifest does not exist, all files in the locations of the tables that name it are kept, but no
other files (`orphans.search` says why). If a table, manifest list or manifest cannot be read for another reason, all
files of the given set are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.engine import Engine, MapFunction, Reach
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.tables.contents import content_of
from polaris_spark.errors import MissingFileError, PolarisError
from polaris_spark.maintenance.needed_files import (
    EVERYWHERE,
    Content,
    Needs,
    manifests_of_list,
    named_by_manifest,
    needs_of,
)
from polaris_spark.maintenance.orphans.decisions import Comparison, FileName, folders_of
from polaris_spark.maintenance.orphans.known_files import Names, digest, place_name
from polaris_spark.maintenance.store_tables import Holder, Objects, changed_since

TABLES_OF_AN_ITEM = 10
TABLES_OF_A_WAVE = 20_000
"""Maximum number of tables whose manifest locations the driver holds in memory at a time."""
MANIFESTS_OF_AN_ITEM = 20

T = TypeVar("T")


class Holders(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Up to `TABLES_OF_AN_ITEM` table and view versions of one realm, whose files one call of `ListManifests` looks
    up."""

    realm: str
    """Instance id of the realm."""
    tables: tuple[Holder, ...]


class ListedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of reading some tables or some manifests."""

    manifests: tuple[str, ...] = ()
    """Manifests that may list content files."""
    dropped: tuple[str, ...] = ()
    """Further manifests that may list content files. Only dropped tables, which are in no head, name them."""
    found: tuple[str, ...] = ()
    """The named files that are in the set to search for (`FileDigests`). May contain false positives."""
    missing: tuple[str, ...] = ()
    """Locations of missing manifest lists and manifests that tables in heads name."""
    problem: str = ""
    """The error that prevented the search, so that the result is incomplete; empty if there was none."""


class Incomplete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table that names missing manifest lists or manifests, or a table that can no longer be read: the table itself,
    or one of its manifest lists."""

    owner: str
    """The table's catalog and name, for messages."""
    places: tuple[str, ...]
    """Locations in which the table may have files, whether or not it owns these locations."""
    problem: str
    """Message that says which files are kept for the table, and names one missing file or the error."""


class ManifestFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Locations of some manifests to read."""

    locations: tuple[str, ...]
    dropped: bool = False
    """True if only dropped tables name the manifests, which may therefore have been deleted."""


class FileDigests:
    """A set of files, stored as digests of eight bytes, so that it can be sent to executors.

    Membership tests may give false positives, so callers compare the whole location of each file that is found.
    """

    def __init__(self, locations: Iterable[str], naming: Names) -> None:
        self._digests = frozenset(digest(path) for location in locations for path in naming.paths(location))
        self._naming = naming

    def __contains__(self, location: str) -> bool:
        return any(digest(path) in self._digests for path in self._naming.paths(location))

    def among(self, locations: Iterable[str]) -> tuple[str, ...]:
        """Return the locations that are in the set. The result may contain false positives."""
        return tuple(location for location in locations if location in self)


class ListManifests(MapFunction[Holders, ListedFiles]):
    """Function that reads tables and their manifest lists, and finds which of the wanted files they name.

    `wanted` is the set of files to search for. The function also returns the locations of the manifests, but does not
    read them.
    """

    few = 32
    item = Holders
    result = ListedFiles

    def __init__(self, wanted: FileDigests) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: Holders) -> ListedFiles:
        reader = reach.reader(item.realm)
        named: set[str] = set()
        naming: tuple[set[str], set[str]] = (set(), set())
        missing: set[str] = set()
        for table in item.tables:
            if table.problem:
                return ListedFiles(problem=f"{table.owner}: {table.problem}")
            try:
                found, manifests = _named_by(reach, reader, table, missing)
            except (OSError, ValueError, PolarisError) as error:
                return ListedFiles(problem=f"{table.owner}: {error}")
            named |= found
            naming[table.dropped].update(manifests)
        fresh, dropped = naming
        return ListedFiles(tuple(fresh), tuple(dropped - fresh), self._wanted.among(named), tuple(missing))


def _named_by(
    reach: Reach, reader: ObjectReader, table: Holder, missing: set[str]
) -> tuple[set[str], set[str]]:
    """Return the files that a table or view names in its metadata and manifest lists.

    Manifest lists and manifests that the metadata of the earlier version `table.before` names are left out.

    Args:
        missing: set to which the locations of missing manifest lists are added, unless the table was dropped.
    Returns:
        two sets of locations: the named files, and the manifests among them that may list live files.
    Raises:
        OSError, ValueError, PolarisError: the table cannot be read.
    """
    needs = _needs(reach, reader, table, table.content)
    if needs.missing and table.dropped:
        return set(), set()
    if needs.problem:
        raise ValueError(needs.problem.removeprefix(f"{table.owner}: "))
    known = _needs(reach, reader, table, table.before) if table.before else Needs()
    lists = set(needs.lists).difference(known.lists)
    naming = set(needs.manifests).difference(known.manifests)
    named = {*needs.files, *lists, *naming}
    for location in lists:
        try:
            listed = manifests_of_list(reach.files, location)
        except MissingFileError:
            if not table.dropped:
                missing.add(location)
            continue
        for manifest in listed:
            named.add(manifest.path)
            if manifest.live_files != 0:
                naming.add(manifest.path)
    return named, naming


def _needs(reach: Reach, reader: ObjectReader, table: Holder, content: int) -> Needs:
    value = content_of(reader, content, View) if table.is_view else content_of(reader, content, Table)
    return needs_of(Content(table.owner, value), reader, reach.files, without=table.without)


class FindNamed(MapFunction[ManifestFiles, ListedFiles]):
    """Function that reads manifests and finds which of the wanted files they list.

    `wanted` is the set of files to search for.
    """

    few = 64
    item = ManifestFiles
    result = ListedFiles

    def __init__(self, wanted: FileDigests) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: ManifestFiles) -> ListedFiles:
        found: set[str] = set()
        missing: list[str] = []
        for location in item.locations:
            named = named_by_manifest(reach.files, location)
            if named.problem and not named.missing:
                return ListedFiles(problem=named.problem)
            if named.missing and not item.dropped:
                missing.append(location)
            found.update(self._wanted.among(named.locations))
        return ListedFiles(found=tuple(found), missing=tuple(missing))


class FindIncomplete(MapFunction[Holders, list[Incomplete]]):
    """Function that finds which tables name missing manifest lists or manifests.

    `missing` has the locations of the files that are known to be missing.
    """

    few = 32
    item = Holders
    result = list[Incomplete]

    def __init__(self, missing: Iterable[str]) -> None:
        self._missing = frozenset(missing)

    def __call__(self, reach: Reach, item: Holders) -> list[Incomplete]:
        reader = reach.reader(item.realm)
        found = []
        for table in item.tables:
            if table.dropped or table.problem:
                continue
            try:
                needs = _needs(reach, reader, table, table.content)
                missing = next(self._among(reach, needs), None)
            except (OSError, ValueError, PolarisError) as error:  # the table could be read before
                problem = f"all files are left, because it might need any of them: {error}"
                found.append(Incomplete(table.owner, (EVERYWHERE,), problem))
                continue
            if missing is not None:
                problem = f"files in its locations are left: there is no file {missing!r}"
                found.append(Incomplete(table.owner, (*needs.places, *needs.unconfirmed), problem))
        return found

    def _among(self, reach: Reach, needs: Needs) -> Iterator[str]:
        if needs.problem:
            raise ValueError(needs.problem)
        yield from self._missing.intersection((*needs.lists, *needs.manifests))
        for location in needs.lists:
            try:
                listed = manifests_of_list(reach.files, location)
            except MissingFileError:
                yield location
            else:
                yield from self._missing.intersection(manifest.path for manifest in listed)


class Question:
    """A search for references from tables to the files of a given set. `ask` can be called again for changed tables.

    Manifests that were read before are not read again. Results are in these attributes:

    - `needed`: the files to which a table refers or may refer, spelled as in `locations`.
    - `incomplete`: for each table with missing manifest lists or manifests, `Incomplete.problem`. If a table is
      incomplete, all files of the set in its locations are in `needed`.
    - `problem`: the error that ended the search; empty if there was none. After an error, any file of the set may be
      needed.
    """

    def __init__(
        self,
        locations: Iterable[str],
        engine: Engine,
        naming: Names | None = None,
        *,
        any_storage: bool = False,
    ) -> None:
        """
        Args:
            locations: the files to search for.
            naming: normalizes locations for comparison; by default with the default rules of `Comparison`.
            any_storage: whether only paths are compared, not schemes and authorities.
        """
        naming = naming or Names(Comparison())
        self._engine = engine
        self._naming = naming
        self._any_storage = any_storage
        self._asked: dict[str, list[tuple[FileName, str]]] = {}
        for location in locations:
            name = naming.of(location)
            self._asked.setdefault(name.path, []).append((name, location))
        self._wanted = FileDigests(
            (location for same in self._asked.values() for _, location in same), naming
        )
        self._seen: set[int] = set()
        self._seen_dropped: set[int] = set()
        """Digests of the manifests that were read because dropped tables name them. These manifests may be missing."""
        self._missing: set[str] = set()
        self.needed: set[str] = set()
        self.incomplete: dict[str, str] = {}
        self.problem = ""

    def ask(self, tables: Iterable[tuple[str, Holder]]) -> set[str]:
        """Search the given tables for the files of the set, and add the files found to `needed`.

        Args:
            tables: pairs of a realm's instance id and a table version.
        Returns:
            the files that this call added to `needed`.
        """
        before = set(self.needed)
        self._ask(tables)
        return self.needed - before

    def _ask(self, tables: Iterable[tuple[str, Holder]]) -> None:
        waves = iter(tables)
        while not self.problem and (wave := list(islice(waves, TABLES_OF_A_WAVE))):
            fresh: list[str] = []
            dropped: list[str] = []
            doing = "reading what other tables list"
            for listed in self._engine.map(ListManifests(self._wanted), _items(wave), doing):
                if not self._note(listed):
                    return
                fresh += _unseen(listed.manifests, self._seen)
                dropped += listed.dropped
            items = [ManifestFiles(tuple(part)) for part in _parts(fresh, MANIFESTS_OF_AN_ITEM)]
            dropped = list(_unseen(dropped, self._seen_dropped, self._seen))
            items += [
                ManifestFiles(tuple(part), dropped=True) for part in _parts(dropped, MANIFESTS_OF_AN_ITEM)
            ]
            doing = "reading manifests of other tables"
            for listed in self._engine.map(FindNamed(self._wanted), items, doing):
                if not self._note(listed):
                    return
            if self._missing:
                self._keep_incomplete(wave)

    def _keep_incomplete(self, tables: Sequence[tuple[str, Holder]]) -> None:
        """Add to `needed` all files in the locations of tables that name missing manifest lists or manifests."""
        places: set[str] = set()
        for found in self._engine.map(FindIncomplete(self._missing), _items(tables)):
            for table in found:
                self.incomplete[table.owner] = table.problem
                places.update(place_name(place, self._naming).path for place in table.places)
        for path, asked in self._asked.items() if places else ():
            if not places.isdisjoint(folders_of(path)):
                self.needed.update(location for _, location in asked)

    def _note(self, listed: ListedFiles) -> bool:
        """Add a partial result to the result. Return False if it reports a problem, which ends the search."""
        self.problem = listed.problem
        self._missing.update(listed.missing)
        for location in listed.found:
            known = self._naming.of(location)
            for name, asked in self._asked.get(known.path, ()):
                # A scheme or authority that one of the two names leaves out matches any other.
                pairs = ((name.scheme, known.scheme), (name.authority, known.authority))
                if self._any_storage or all(a == b or not a or not b for a, b in pairs):
                    self.needed.add(asked)
        return not self.problem


class UseMonitor:
    """A check that is repeated before files are deleted: whether some table has begun to need one of the files."""

    def __init__(
        self,
        question: Question,
        seen: Iterable[StoreHead],
        heads: Callable[[], list[StoreHead]],
        objects: Objects,
        oldest_purge_ms: int,
    ) -> None:
        """
        Args:
            question: the search for the files. The tables of `seen` have been searched already.
            seen: the heads whose tables have been searched.
            heads: function that reads the heads of the store.
            oldest_purge_ms: time in milliseconds since 1970: the files of a table that was dropped with PURGE are only
                kept if it was dropped after this time.
        """
        self.question = question
        self.heads = list(seen)
        """The heads of the store, as of the last call of `look`."""
        self._seen = {(head.realm, head.reference): head for head in self.heads}
        self._heads = heads
        self._objects = objects
        self._oldest_purge_ms = oldest_purge_ms

    def look(self) -> set[str]:
        """Read the heads again, and search the tables that were changed or registered since the last call.

        Tables on new branches, and tables that were dropped since the last call, are searched, too.

        Returns:
            the files that are needed now and were not needed at the last call.
        """
        self.heads = self._heads()
        changed = changed_since(self._seen.values(), self.heads, self._objects, self._oldest_purge_ms)
        found = self.question.ask(changed)
        self._seen.update({(head.realm, head.reference): head for head in self.heads})
        return found


def _items(tables: Sequence[tuple[str, Holder]]) -> list[Holders]:
    realms: dict[str, list[Holder]] = {}
    for realm, table in tables:
        realms.setdefault(realm, []).append(table)
    return [
        Holders(realm, tuple(part))
        for realm, some in realms.items()
        for part in _parts(some, TABLES_OF_AN_ITEM)
    ]


def _unseen(manifests: Iterable[str], seen: set[int], read: Collection[int] = ()) -> Iterator[str]:
    """Yield the manifests whose digests are in neither `seen` nor `read`, and add their digests to `seen`."""
    for manifest in manifests:
        short = digest(manifest)
        if short not in seen and short not in read:
            seen.add(short)
            yield manifest


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
