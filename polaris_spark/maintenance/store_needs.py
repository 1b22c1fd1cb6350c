"""Which of some files the tables of a store name, wherever these lie: what is asked before anything is deleted.

Every table of every live or recoverable head counts, with all its snapshots. What is read once only: a version of a
table that several branches have, and a manifest, whoever names it. The driver reads indexes; contents, manifest lists
and manifests are read where the work is spread to, and what comes back from there is the locations of manifests, some
thousand tables at a time, and what was found of the files asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.needs import Content, Manifests, Needs, manifests_of_list, needs_of
from polaris_spark.maintenance.orphans.deciding import Comparison, FileName
from polaris_spark.maintenance.orphans.known_files import Names
from polaris_spark.maintenance.spreading import Reach, Spread, Work
from polaris_spark.maintenance.store_tables import Holder, Objects, changed_since

TABLES_OF_AN_ITEM = 10
TABLES_OF_A_WAVE = 20_000
"""The manifests of so many tables are known to the driver at a time."""
MANIFESTS_OF_AN_ITEM = 20

T = TypeVar("T")


class Holders(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some tables of a realm."""

    realm: str
    """Instance id."""
    tables: tuple[Holder, ...]


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What tables name."""

    manifests: tuple[str, ...] = ()
    """Those that may name content files."""
    found: tuple[str, ...] = ()
    """Manifests, manifest lists and statistics that may be among the files asked for."""
    problem: str = ""
    """Why it is not known."""


class ManifestFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Locations of some manifests."""

    locations: tuple[str, ...]


class Wanted:
    """The files asked for, by eight bytes each; more may pass for them, and whoever asks looks closer."""

    def __init__(self, locations: Iterable[str], naming: Names) -> None:
        self._digests = frozenset(_digest(path) for location in locations for path in naming.paths(location))
        self._naming = naming

    def __contains__(self, location: str) -> bool:
        return any(_digest(path) in self._digests for path in self._naming.paths(location))

    def among(self, locations: Iterable[str]) -> tuple[str, ...]:
        """Those of some locations that may be asked for."""
        return tuple(location for location in locations if location in self)


class ListManifests(Work[Holders, Listed]):
    """Reads tables and their manifest lists."""

    few = 32
    item = Holders
    result = Listed

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: Holders) -> Listed:
        reader = reach.objects(item.realm)
        named: set[str] = set()
        naming: set[str] = set()
        for table in item.tables:
            try:
                found, manifests = _named_by(reach, reader, table)
            except (OSError, ValueError, PolarisError) as error:
                return Listed(problem=f"{table.owner}: {error}")
            named |= found
            naming |= manifests
        return Listed(tuple(naming), self._wanted.among(named))


def _named_by(reach: Reach, reader: ObjectReader, table: Holder) -> tuple[set[str], set[str]]:
    """What a table or view names itself or by its manifest lists, and those manifests that name files which are there,
    but for what the version before named by the same lists.

    Raises:
        OSError, ValueError, PolarisError: it is not known.
    """
    needs = _needs(reach, reader, table, table.content)
    if needs.problem:
        raise ValueError(needs.problem.removeprefix(f"{table.owner}: "))
    known = _needs(reach, reader, table, table.before) if table.before else Needs()
    lists = set(needs.lists).difference(known.lists)
    naming = set(needs.manifests).difference(known.manifests)
    named = {*needs.files, *lists, *naming}
    for location in lists:
        for manifest in manifests_of_list(reach.files, location):
            named.add(manifest.path)
            if manifest.live_files != 0:
                naming.add(manifest.path)
    return named, naming


def _needs(reach: Reach, reader: ObjectReader, table: Holder, content: int) -> Needs:
    value = content_of(reader, content, View) if table.is_view else content_of(reader, content, Table)
    return needs_of(Content(table.owner, value), reader, reach.files, without=table.without)


class FindNamed(Work[ManifestFiles, Listed]):
    """Finds those of the files asked for that manifests name."""

    few = 64
    item = ManifestFiles
    result = Listed

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: ManifestFiles) -> Listed:
        manifests = Manifests(reach.files)
        found: set[str] = set()
        for location in item.locations:
            named = manifests.of_manifest(location)
            if named.problem:
                return Listed(problem=named.problem)
            found.update(self._wanted.among(named.locations))
        return Listed(found=tuple(found))


class Question:
    """Files of which is asked whether tables name them: first of all tables, then of those that changed, say.

    Manifests that were read for an earlier question are not read again. `needed` has those of the files that some table
    names, spelled as they were asked for, and `problem` why it is not known of the others, once it is not.
    """

    def __init__(
        self,
        locations: Iterable[str],
        spread: Spread,
        progress: Callable[[str, int, int], None],
        naming: Names | None = None,
        *,
        any_storage: bool = False,
    ) -> None:
        """
        Args:
            progress: is told how many tables were looked at; may raise to stop.
            naming: the form in which locations are compared; by default that of the search for orphans.
            any_storage: whether a file is named by its path alone, whatever scheme and authority it is named with.
        """
        naming = naming or Names(Comparison())
        self._spread = spread
        self._progress = progress
        self._naming = naming
        self._any_storage = any_storage
        self._asked: dict[str, list[tuple[FileName, str]]] = {}
        for location in locations:
            name = naming.of(location)
            self._asked.setdefault(name.path, []).append((name, location))
        self._wanted = Wanted((location for same in self._asked.values() for _, location in same), naming)
        self._seen: set[int] = set()
        self.needed: set[str] = set()
        self.problem = ""

    def ask(self, tables: Iterable[tuple[str, Holder]]) -> set[str]:
        """Look for the files in what tables name, each given with its realm's instance id; gives those found anew."""
        before = set(self.needed)
        self._ask(tables)
        return self.needed - before

    def _ask(self, tables: Iterable[tuple[str, Holder]]) -> None:
        done, waves = 0, iter(tables)
        while not self.problem and (wave := list(islice(waves, TABLES_OF_A_WAVE))):
            fresh: list[str] = []
            for listed in self._spread(ListManifests(self._wanted), _items(wave)):
                self._progress("reading what other tables list", done, 0)
                if not self._note(listed):
                    return
                fresh += self._unseen(listed.manifests)
            done += len(wave)
            items = [ManifestFiles(tuple(part)) for part in _parts(fresh, MANIFESTS_OF_AN_ITEM)]
            for position, listed in enumerate(self._spread(FindNamed(self._wanted), items)):
                self._progress("reading manifests of other tables", position, len(items))
                if not self._note(listed):
                    return

    def _note(self, listed: Listed) -> bool:
        """Keep what was found; whether that is known."""
        self.problem = listed.problem
        for location in listed.found:
            known = self._naming.of(location)
            for name, asked in self._asked.get(known.path, ()):
                # Whatever scheme and authority either leaves out.
                pairs = ((name.scheme, known.scheme), (name.authority, known.authority))
                if self._any_storage or all(a == b or not a or not b for a, b in pairs):
                    self.needed.add(asked)
        return not self.problem

    def _unseen(self, manifests: Iterable[str]) -> Iterator[str]:
        for manifest in manifests:
            digest = _digest(manifest)
            if digest not in self._seen:
                self._seen.add(digest)
                yield manifest


class Watching:
    """Looks again, before files are deleted, whether tables have come to need them since heads were read."""

    def __init__(
        self,
        question: Question,
        seen: Iterable[StoreHead],
        heads: Callable[[], list[StoreHead]],
        objects: Objects,
    ) -> None:
        """
        Args:
            question: about the files; what the tables of `seen` name of them is known.
            heads: reads the heads of the store.
        """
        self.question = question
        self._seen = {(head.realm, head.reference): head for head in seen}
        self._heads = heads
        self._objects = objects

    def look(self) -> set[str]:
        """Those of the files that are named by what was changed, registered or branched since the last look."""
        heads = self._heads()
        found = self.question.ask(changed_since(self._seen.values(), heads, self._objects))
        self._seen.update({(head.realm, head.reference): head for head in heads})
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


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
