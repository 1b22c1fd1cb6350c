"""Search for orphan files in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from polaris_spark.catalog.engine import Reach
from polaris_spark.catalog.folders import FileStatus, Folders
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.errors import PolarisError
from polaris_spark.maintenance.orphans.contents import contents_of_drops
from polaris_spark.maintenance.orphans.decisions import FileName, Mismatch, OwnedLocation, folders_of, judge
from polaris_spark.maintenance.orphans.known_files import Gathering, Known, needed_by
from polaris_spark.maintenance.orphans.search import (
    Broken,
    Doomed,
    DoomedJudge,
    FoundDoomed,
    Orphan,
    Search,
    SearchResult,
    broken_of,
    in_phases,
    refuse_mismatches,
    unlisted_ones,
)


class LocalSearch:
    """A `FileSearch` in this process: for stores in memory, and small catalogs."""

    def __init__(self, reach: Reach) -> None:
        self._files = reach.files
        self._folders = Folders(reach.files)
        self._objects = reach.own.of_realm
        self._listed: list[tuple[str, FileStatus]] = []
        self._unlisted: dict[str, str] = {}
        """Folders that cannot be listed, each with the reason."""

    def list_files(self, search: Search) -> None:
        """List the folders of a search, and keep the files found for `find`."""
        self._unlisted = {}
        self._listed = [
            (root, listed)
            for root in search.roots
            for listed in self._folders.below(root, partial(self._skip, root))
            if search.concerns(listed)
        ]

    def _skip(self, root: str, folder: str, problem: PolarisError) -> None:
        if folder == root:
            raise problem
        self._unlisted[folder] = str(problem)

    def _known(self, search: Search, heads: Sequence[StoreHead]) -> Known:
        gathering = Gathering(self._files, search.names)
        for head in heads:
            store = self._objects(head.realm)
            gathering.add(needed_by(head, store, search.oldest_purge_ms), store)
        return gathering.finish()

    def find(self, search: Search, heads: Sequence[StoreHead]) -> SearchResult:
        """Return the orphans among the listed files."""
        known = self._known(search, heads)
        prefixes: dict[str, set[tuple[str, str]]] = {}
        for name in known.files:
            prefixes.setdefault(name.path, set()).add((name.scheme, name.authority))
        named = [(search.names.of(listed.location), root, listed) for root, listed in self._listed]
        unknown = [one for one in named if self._is_unknown(one[0], prefixes, search.mismatch)]
        refuse_mismatches(_conflicts(unknown, prefixes), search.mismatch)
        return self._judged(search, unknown, known)

    def _is_unknown(
        self, name: FileName, prefixes: dict[str, set[tuple[str, str]]], mismatch: Mismatch
    ) -> bool:
        same = [FileName(*prefix, name.path) for prefix in prefixes.get(name.path, ())]
        if any(name.has_prefix_of(known) for known in same):
            return False
        return not same or mismatch is not Mismatch.IGNORE

    def _judged(
        self, search: Search, unknown: list[tuple[FileName, str, FileStatus]], known: Known
    ) -> SearchResult:
        places: dict[str, list[OwnedLocation]] = {}
        for place in known.places:
            places.setdefault(place.name.path, []).append(place)
        found: list[Orphan] = []
        for name, root, listed in unknown:
            around = [place for folder in folders_of(name.path) for place in places.get(folder, ())]
            judged = judge(
                name,
                search.names.of(root).path,
                around,
                known.broken,
                known.incomplete,
                keeps_strays=search.keeps_strays,
            )
            if judged.is_orphan and len(found) < search.max_files and search.permit.may(listed.location):
                found.append(Orphan(*listed, owner=judged.owner))
        return SearchResult(found, [*unlisted_ones(self._unlisted), *_broken(known)])

    def find_doomed(self, search: Search, heads: Sequence[StoreHead], doomed: Doomed) -> FoundDoomed:
        """Return the files of dropped tables that no head needs."""
        known = self._known(search, heads)
        store = self._objects(doomed.head.realm)
        gathering = Gathering(self._files, search.names)
        gathering.add(contents_of_drops(doomed.head, store, doomed.drops), store)
        gathering.finish()
        needed = {name.path for name in known.files}
        owned = {place.name.path for place in known.places}
        owned |= {place.name.path for place in gathering.known.places if place.unconfirmed}
        doomed_judge = DoomedJudge(doomed, search.names)
        found: list[tuple[int, Orphan, set[str]]] = []
        for location, rank in sorted(gathering.ranks.items(), key=lambda item: item[1]):
            path = search.names.of(location).path
            if known.broken or path in needed or not owned.isdisjoint(folders_of(path)):
                continue
            orphan = doomed_judge.found(self._folders, location)
            if orphan is not None and len(found) < search.max_files:
                found.append((rank, orphan, gathering.owners[location]))
        return in_phases(found, _broken(known))


def _broken(known: Known) -> list[Broken]:
    return broken_of(
        known.broken, known.incomplete, lambda owner: {p.name.path for p in known.places if p.owner == owner}
    )


def _conflicts(
    unknown: Iterable[tuple[FileName, str, FileStatus]], prefixes: dict[str, set[tuple[str, str]]]
) -> set[tuple[str, str]]:
    """Return pairs of known and listed prefixes (`scheme://authority`) of files whose paths are equal."""
    return {
        (f"{scheme}://{authority}", f"{name.scheme}://{name.authority}")
        for name, _, _ in unknown
        for scheme, authority in prefixes.get(name.path, ())
    }
