"""Finds which files of a given set the tables of a store name. Jobs check this before they delete any file.

The search covers every table of every live or recoverable head, with all its snapshots, whatever the table's location.
It also covers tables that can be restored from a history (`catalog.drops`), as far as their files still exist. If
several branches have the same version of a table, that version is read only once. If several tables name the same
manifest, that manifest is read only once.

The driver reads the indexes. Functions that an `Engine` runs read the rows of tables and views, the manifest lists and
the manifests. They return the locations of manifests, for some thousand tables at a time, and the given files that were
found.

If a manifest list or manifest does not exist, only the files in the locations of the tables that name it are kept
(`orphans.search` says why). If one cannot be read for another reason, all files are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.engine import Engine, MapFunction, Reach
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import MissingFileError, PolarisError
from polaris_spark.maintenance.needed_files import (
    EVERYWHERE,
    Content,
    Manifests,
    Needs,
    manifests_of_list,
    needs_of,
)
from polaris_spark.maintenance.orphans.decisions import Comparison, FileName, folders_of
from polaris_spark.maintenance.orphans.known_files import Names, place_name
from polaris_spark.maintenance.store_tables import Holder, Objects, changed_since

TABLES_OF_AN_ITEM = 10
TABLES_OF_A_WAVE = 20_000
"""Number of tables whose manifests the driver holds in memory at a time."""
MANIFESTS_OF_AN_ITEM = 20

T = TypeVar("T")


class Holders(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some tables of a realm."""

    realm: str
    """Instance id."""
    tables: tuple[Holder, ...]


class ListedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The files that some tables, or some manifests, name."""

    manifests: tuple[str, ...] = ()
    """Manifests that may name content files."""
    dropped: tuple[str, ...] = ()
    """Manifests that may name content files, and that only dropped tables name: tables that are in no head."""
    found: tuple[str, ...] = ()
    """Those of the named files that are wanted; a digest may be equal by chance (`FileDigests`)."""
    missing: tuple[str, ...] = ()
    """Missing manifest lists and manifests of tables in heads."""
    problem: str = ""
    """Why the result is not known; empty if it is."""


class Incomplete(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A table with missing manifest lists or manifests."""

    owner: str
    places: tuple[str, ...]
    """Locations that the table owns or names."""
    missing: str
    """One of the missing files, or why a table that could be read before cannot be read now."""


class ManifestFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Locations of some manifests."""

    locations: tuple[str, ...]
    dropped: bool = False
    """Whether the manifests may have been deleted, because only dropped tables name them."""


class FileDigests:
    """A set of files, stored as digests of eight bytes.

    Membership tests may give false positives, so callers compare the whole location of each file found.
    """

    def __init__(self, locations: Iterable[str], naming: Names) -> None:
        self._digests = frozenset(_digest(path) for location in locations for path in naming.paths(location))
        self._naming = naming

    def __contains__(self, location: str) -> bool:
        return any(_digest(path) in self._digests for path in self._naming.paths(location))

    def among(self, locations: Iterable[str]) -> tuple[str, ...]:
        """Return those of some locations that are in the set, with false positives."""
        return tuple(location for location in locations if location in self)


class ListManifests(MapFunction[Holders, ListedFiles]):
    """Function that reads tables and their manifest lists."""

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
    """Return the files that a table or view names.

    Leaves out the manifest lists and manifests that the version before (`Holder.before`) names already.

    Args:
        missing: missing manifest lists are added to this set, unless the table was dropped.
    Returns:
        the files that metadata and manifest lists name; those manifests among them that may name live files.
    Raises:
        OSError, ValueError, PolarisError: it is not known which files the table names.
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
    """Function that finds which of the wanted files are listed in manifests."""

    few = 64
    item = ManifestFiles
    result = ListedFiles

    def __init__(self, wanted: FileDigests) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: ManifestFiles) -> ListedFiles:
        manifests = Manifests(reach.files)
        found: set[str] = set()
        missing: list[str] = []
        for location in item.locations:
            named = manifests.of_manifest(location)
            if named.problem and not named.missing:
                return ListedFiles(problem=named.problem)
            if named.missing and not item.dropped:
                missing.append(location)
            found.update(self._wanted.among(named.locations))
        return ListedFiles(found=tuple(found), missing=tuple(missing))


class FindIncomplete(MapFunction[Holders, list[Incomplete]]):
    """Function that finds the tables that name missing manifest lists or manifests."""

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
                missing = next(self._among(reach, needs), "")
                places = (*needs.places, *needs.unconfirmed)
            except (OSError, ValueError, PolarisError) as error:  # the table could be read before
                missing, places = str(error), (EVERYWHERE,)
            if missing:
                found.append(Incomplete(table.owner, places, missing))
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
    """A search for those files of a given set that tables name. `ask` can be called again for changed tables.

    Manifests that were read before are not read again. `needed` holds the files that some table names or may name, as
    they were spelled in `locations`. `incomplete` maps each table with missing manifest lists or manifests to one of
    them; the files in the locations of these tables count as needed. A `problem` that is not empty says why it is not
    known whether tables name the other files.
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
            naming: normalizes locations for comparison; by default as the search for orphan files does.
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
        """Digests of manifests that only dropped tables named, and that may therefore be missing."""
        self._missing: set[str] = set()
        self.needed: set[str] = set()
        self.incomplete: dict[str, str] = {}
        self.problem = ""

    def ask(self, tables: Iterable[tuple[str, Holder]]) -> set[str]:
        """Look for the files of the set among the files that some tables name.

        Args:
            tables: pairs of a realm's instance id and a table.
        Returns:
            the files that were not in `needed` before.
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
        """Count all files in the locations of the tables that name missing manifest lists or manifests as needed."""
        places: set[str] = set()
        for found in self._engine.map(FindIncomplete(self._missing), _items(tables)):
            for table in found:
                self.incomplete[table.owner] = table.missing
                places.update(place_name(place, self._naming).path for place in table.places)
        for path, asked in self._asked.items() if places else ():
            if not places.isdisjoint(folders_of(path)):
                self.needed.update(location for _, location in asked)

    def _note(self, listed: ListedFiles) -> bool:
        """Add a partial result. Return False if it has a problem, and the search must therefore end."""
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


class Watching:
    """A check before files are deleted: finds tables that have come to need them since the heads were last read."""

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
            question: the files to look for; the tables of `seen` have been searched already.
            seen: the heads whose tables have been searched.
            heads: reads the heads of the store.
            oldest_purge_ms: see `Drop.keeps_files`.
        """
        self.question = question
        self.heads = list(seen)
        """The heads of the store, as of the last call of `look`."""
        self._seen = {(head.realm, head.reference): head for head in self.heads}
        self._heads = heads
        self._objects = objects
        self._oldest_purge_ms = oldest_purge_ms

    def look(self) -> set[str]:
        """Return those of the files that are named by tables changed, registered or branched since the last look.

        Tables that were dropped since the last look count as well.
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
        digest = _digest(manifest)
        if digest not in seen and digest not in read:
            seen.add(digest)
            yield manifest


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
