"""Every file that a store's tables and views name, gathered in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from polaris_spark.catalog.drops import Damage, Drop, drops_of
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import Links
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.state import StoredObjects
from polaris_spark.maintenance.needed_files import Content, Manifests, Needs, needs_of
from polaris_spark.maintenance.orphans.contents import contents_of, contents_of_drops
from polaris_spark.maintenance.orphans.decisions import Comparison, FileName, OwnedLocation
from polaris_spark.store.objects import ObjectStore


class Names:
    """Normalization of locations for comparison. Symbolic links of local folders are resolved once per job."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._links = Links()

    def of(self, location: str) -> FileName:
        """Return a location in the normalized form in which files are compared, with links resolved."""
        name = self._comparison.of(location)
        return name._replace(path=self._without_links(location, name))

    def paths(self, location: str) -> tuple[str, ...]:
        """Return the normalized paths of a location, with and without links resolved: machines may differ in links."""
        name = self._comparison.of(location)
        return tuple({name.path, self._without_links(location, name)})

    def _without_links(self, location: str, name: FileName) -> str:
        if name.scheme in ("", "file"):
            return self._comparison.of(self._links.resolved(location)).path
        return name.path


class Known(NamedTuple):
    """The files and locations that tables and views name."""

    files: set[FileName]
    places: list[OwnedLocation]
    broken: dict[str, str]
    """Owners that could not be read, each with the reason."""
    incomplete: dict[str, str]
    """Owners whose manifest lists or manifests are missing, each with a message that names the file."""


CONTENT, MANIFEST, LIST, METADATA = range(4)
"""Ranks of files, in the order in which they are deleted: a file is deleted after the files that it names."""


class Gathering:
    """Collector of the files that tables and views name, in the memory of one process.

    `spark.jobs.known_files.KnownFiles` answers the same question with DataFrames, which may exceed any memory.
    """

    def __init__(self, files: Files, names: Names) -> None:
        self._files = files
        self._names = names
        self._manifests = Manifests(files)
        self._lists: dict[str, list[Content]] = {}
        self._manifest_owners: dict[str, list[Content]] = {}
        self.known = Known(set(), [], {}, {})
        self.ranks: dict[str, int] = {}
        """Rank of every file, by its location exactly as written in the metadata."""
        self.owners: dict[str, set[str]] = {}
        """The owners that name a file, by its location."""

    def add(self, contents: Iterable[Content], store: ObjectStore) -> None:
        """Add the files and locations that the metadata of tables and views names."""
        for content in contents:
            needs = needs_of(content, StoredObjects(store), self._files)
            self._name(needs.files, METADATA, [content])
            self.known.places.extend(places_of(content, needs, self._names))
            if needs.problem and (content.strict or not needs.missing):
                self.known.broken[content.owner] = needs.problem
            for location in needs.lists:
                self._lists.setdefault(location, []).append(content)
            for location in needs.manifests:
                self._manifest_owners.setdefault(location, []).append(content)

    def finish(self) -> Known:
        """Read all manifest lists and manifests, each once, and return the result."""
        for location, owners in self._lists.items():
            self._name([location], LIST, owners)
            named = self._manifests.of_list(location)
            self._broken(named.problem, owners, missing=named.missing)
            for manifest in named.locations:
                self._manifest_owners.setdefault(manifest, []).extend(owners)
        for location, owners in self._manifest_owners.items():
            self._name([location], MANIFEST, owners)
            named = self._manifests.of_manifest(location)
            self._broken(named.problem, owners, missing=named.missing)
            self._name(named.locations, CONTENT, owners)
        return self.known

    def _name(self, locations: Iterable[str], rank: int, contents: Sequence[Content]) -> None:
        owners = {content.owner for content in contents}
        for location in locations:
            self.known.files.add(self._names.of(location))
            self.ranks.setdefault(location, rank)
            self.owners.setdefault(location, set()).update(owners)

    def _broken(self, problem: str, owners: Sequence[Content], *, missing: bool) -> None:
        if problem:
            into = self.known.incomplete if missing else self.known.broken
            for content in owners:
                if content.strict or not missing:
                    into[content.owner] = f"{content.owner}: {problem}"


def places_of(content: Content, needs: Needs, names: Names) -> Iterator[OwnedLocation]:
    """Yield the locations that a table or view owns, and those that it only names."""
    kept = content.moved or not needs.collected
    for location in (*needs.places, *needs.unconfirmed):
        name = place_name(location, names)
        yield OwnedLocation(name, content.owner, kept, needs.partitions, location in needs.unconfirmed)


def place_name(location: str, names: Names) -> FileName:
    """Return a table's location, normalized for comparison with files.

    A plain path is local; listing its folder returns `file` URIs.
    """
    return names.of(f"file://{location}" if location.startswith("/") else location)


def needed_by(head: StoreHead, store: ObjectStore, oldest_purge_ms: int) -> Iterator[Content]:
    """Yield the tables and views of a head, and those of its history whose files are kept (`kept_drops`)."""
    yield from contents_of(head, store)
    yield from kept_drops(head, store, oldest_purge_ms)


def kept_drops(
    head: StoreHead, store: ObjectStore, oldest_purge_ms: int, low: int | None = None, high: int | None = None
) -> Iterator[Content]:
    """Yield the tables and views that commits of a history dropped and whose files are still kept (`catalog.drops`).

    A realm that was moved to another store continues there with the files that are here, so a content for its warehouse
    is yielded, too. For a part of the log that cannot be read, a content with a problem is yielded, because that part
    may have dropped any table.

    Args:
        oldest_purge_ms: drops with PURGE count if they are later than this time, in milliseconds since 1970.
        low: number of the first commit to look at, by default the history floor.
        high: number of the last commit to look at, by default the head.
    """
    damaged: list[Damage] = []

    def kept() -> Iterator[Drop]:
        for found in drops_of(store, head, low, high):
            if isinstance(found, Damage):
                damaged.append(found)
            elif found.keeps_files(oldest_purge_ms - head.grace_beyond_ms):
                yield found

    warehouse = head.properties.get("warehouse", "") if head.moved else ""
    if warehouse and low in (None, head.head.floor_number):
        yield Content(head.catalog, None, moved=True, warehouse=warehouse)
    yield from contents_of_drops(head, store, kept())
    yield from (Content(one.owner, None, problem=one.problem) for one in damaged)
