"""Which of some files the tables of a store name, wherever these lie: what expiry asks before it deletes anything.

Every table of every live or recoverable head counts, with all its snapshots. What is read once only: a version of a
table that several branches have, and a manifest, whoever names it. The driver reads indexes; contents, manifest lists
and manifests are read where the work is spread to, and what comes back from there is the locations of manifests, some
thousand tables at a time, and what was found of the files asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.contents import content_of
from polaris_spark.catalog.files import Files
from polaris_spark.catalog.folders import repeated
from polaris_spark.catalog.manifest_entries import ListedManifest, listed_manifests
from polaris_spark.catalog.metadata import ObjectReader
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.catalog.store_heads import StoreHead, store_heads
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.errors import PolarisError
from polaris_spark.index import Entry, Index, IndexRoot, diff
from polaris_spark.index.keys import decode_key
from polaris_spark.maintenance.orphans import needed_files
from polaris_spark.maintenance.orphans.deciding import Comparison, FileName
from polaris_spark.maintenance.orphans.known_files import Names
from polaris_spark.maintenance.orphans.needed_files import needs_of
from polaris_spark.maintenance.spreading import Reach, Spread, Work
from polaris_spark.store.objects import ObjectStore

TABLES_OF_AN_ITEM = 10
TABLES_OF_A_WAVE = 20_000
"""The manifests of so many tables are known to the driver at a time."""
MANIFESTS_OF_AN_ITEM = 20

NAMING = Names(Comparison())
"""The form in which locations are compared: that of the search for orphans."""

T = TypeVar("T")


class Holder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table that some head has."""

    owner: str
    """For messages."""
    content: int
    without: tuple[int, ...] = ()
    """Snapshots that are to be removed from it, and need nothing any more."""


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

    def __init__(self, names: Iterable[FileName]) -> None:
        self._digests = frozenset(_digest(name.path) for name in names)

    def __contains__(self, location: str) -> bool:
        return _digest(NAMING.of(location).path) in self._digests

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
    """What a table names itself or by its manifest lists, and those manifests that name files which are there.

    Raises:
        OSError, ValueError, PolarisError: it is not known.
    """
    value = content_of(reader, table.content, Table)
    needs = needs_of(needed_files.Content(table.owner, value), reader, reach.files, without=table.without)
    if needs.problem:
        raise ValueError(needs.problem.removeprefix(f"{table.owner}: "))
    named, naming = {*needs.files, *needs.lists, *needs.manifests}, set(needs.manifests)
    for location in needs.lists:
        for manifest in repeated(partial(_listed, reach.files, location)):
            named.add(manifest.path)
            if manifest.live_files != 0:
                naming.add(manifest.path)
    return named, naming


def _listed(files: Files, location: str) -> list[ListedManifest]:
    return list(listed_manifests(files, location))


class FindNamed(Work[ManifestFiles, Listed]):
    """Finds those of the files asked for that manifests name."""

    few = 64
    item = ManifestFiles
    result = Listed

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __call__(self, reach: Reach, item: ManifestFiles) -> Listed:
        manifests = needed_files.Manifests(reach.files)
        found: set[str] = set()
        for location in item.locations:
            named = manifests.of_manifest(location)
            if named.problem:
                return Listed(problem=named.problem)
            found.update(self._wanted.among(named.locations))
        return Listed(found=tuple(found))


class Needed(NamedTuple):
    """What was found of the files asked for."""

    locations: set[str]
    """Those that some table names, spelled as they were asked for."""
    problem: str = ""
    """Why it is not known of the others."""


def needed_in_store(
    tables: Iterable[tuple[str, Holder]],
    spread: Spread,
    locations: Collection[str],
    progress: Callable[[str, int, int], None],
) -> Needed:
    """Which of some files tables name.

    Args:
        tables: all that may need them, each with its realm's instance id.
        locations: of the files.
        progress: is told how many tables were looked at; may raise to stop.
    """
    asked: dict[str, list[tuple[FileName, str]]] = {}
    for location in locations:
        name = NAMING.of(location)
        asked.setdefault(name.path, []).append((name, location))
    wanted = Wanted(name for same in asked.values() for name, _ in same)
    needed: set[str] = set()
    seen: set[int] = set()
    done, waves = 0, iter(tables)
    while wave := list(islice(waves, TABLES_OF_A_WAVE)):
        fresh: list[str] = []
        for listed in spread(ListManifests(wanted), _items(wave)):
            progress("reading what other tables list", done, 0)
            if listed.problem:
                return Needed(needed, listed.problem)
            needed.update(_asked_for(asked, listed.found))
            for manifest in listed.manifests:
                digest = _digest(manifest)
                if digest not in seen:
                    seen.add(digest)
                    fresh.append(manifest)
        done += len(wave)
        items = [ManifestFiles(tuple(part)) for part in _parts(fresh, MANIFESTS_OF_AN_ITEM)]
        for position, listed in enumerate(spread(FindNamed(wanted), items)):
            progress("reading manifests of other tables", position, len(items))
            if listed.problem:
                return Needed(needed, listed.problem)
            needed.update(_asked_for(asked, listed.found))
    return Needed(needed)


def _asked_for(asked: Mapping[str, list[tuple[FileName, str]]], found: Iterable[str]) -> Iterator[str]:
    """The files asked for that locations mean, whatever scheme and authority either leaves out."""
    for location in found:
        known = NAMING.of(location)
        for name, wanted in asked.get(known.path, ()):
            pairs = ((name.scheme, known.scheme), (name.authority, known.authority))
            if all(a == b or not a or not b for a, b in pairs):
                yield wanted


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


# Tables


def tables_of_store(
    catalog: Catalog, without: Mapping[int, tuple[int, ...]], *, grace_ms: int
) -> Iterator[tuple[str, Holder]]:
    """Every version of a table that a live or recoverable head has, once, with its realm's instance id.

    Args:
        without: snapshots that are to be removed from tables of this catalog's branch, by their contents' ids.
        grace_ms: how long a dropped head may come back, milliseconds.
    """
    store = catalog.references.store
    own = (store.realm, catalog.reference)
    families: dict[tuple[str, str], list[StoreHead]] = {}
    for head in store_heads(
        store.backend,
        lambda record: store.of_realm(record.instance),
        catalog.context.clock,
        grace_ms=grace_ms,
    ):
        family = families.setdefault((head.realm, head.reference.partition("/heads/")[0]), [])
        family.insert(0 if (head.realm, head.reference) == own else len(family), head)
    for (realm, _), (first, *others) in families.items():
        gone = without if (realm, first.reference) == own else {}
        for table in _tables_of_branches(store.of_realm(realm), first, others, gone):
            yield realm, table


def _tables_of_branches(
    store: ObjectStore, first: StoreHead, others: Sequence[StoreHead], without: Mapping[int, tuple[int, ...]]
) -> Iterator[Holder]:
    """The tables of a branch, and those of others that it does not have, or not as they are there."""
    read = StoredObjects(store).read_shards
    root, *roots = (_names(store, head) for head in (first, *others))
    indexes = [Index(other, read) for other in roots] if without else []

    def gone(key: bytes, entry: Entry) -> tuple[int, ...]:
        found = without.get(entry.pointer, ())
        same = found and any(there.pointer == entry.pointer for at in indexes if (there := at.get(key)))
        return () if same else found

    for key, entry in Index(root, read).range():
        if (owner := _owner(first, key)) is not None:
            yield Holder(owner, entry.pointer, gone(key, entry))
    seen: set[int] = set()
    for head, other in zip(others, roots, strict=True):
        for key, _, changed in diff(root, other, read):
            owner = _owner(head, key) if changed is not None else None
            if changed is not None and owner is not None and changed.pointer not in seen:
                seen.add(changed.pointer)
                yield Holder(owner, changed.pointer)


def _names(store: ObjectStore, head: StoreHead) -> IndexRoot:
    commit = store.get(head.head.commit, Commit)
    return dict(zip(commit.index_names, commit.index_roots, strict=True)).get(NAMES, IndexRoot())


def _owner(head: StoreHead, key: bytes) -> str | None:
    """The name of a table by its key; None for what is no table."""
    decoded = decode_key(key)
    return f"{head.catalog}.{'.'.join((*decoded.path, decoded.name))}" if decoded.kind == TABLE else None
