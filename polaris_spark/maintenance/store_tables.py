"""Search for all table versions whose files must be kept.

These are the versions in the heads of a store (the newest commits of its branches), and dropped versions whose files
are still kept. The module also finds the versions that are new since the heads were last read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from polaris_spark.catalog.branches.store_heads import StoreHead
from polaris_spark.catalog.drops.drops import Damage, Drop, drops_of, places_of
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, known_kind
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index import Entry, Index, IndexRoot, diff
from polaris_spark.index.keys import decode_key
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registrations import group_of

Objects = Callable[[str], ObjectStore]
"""A function that returns the `ObjectStore` of a realm, given the realm's instance id."""


class Holder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table or view that a head contains, or that was dropped."""

    owner: str
    """The table's catalog and name, for messages."""
    content: int
    """Object id of the version's row."""
    without: tuple[int, ...] = ()
    """Ids of snapshots that are about to be removed from the table. Their files need not be kept."""
    before: int = 0
    """Object id of an earlier version whose files have been searched already; 0 if there is none."""
    is_view: bool = False
    dropped: bool = False
    """Whether this version was dropped, so that its files may have been deleted."""
    problem: str = ""
    """The error, if this stands for a part of a log that cannot be read and may contain drops; empty for a version."""


def tables_of_store(
    heads: Iterable[StoreHead],
    objects: Objects,
    own: tuple[str, str],
    without: Mapping[int, tuple[int, ...]],
) -> Iterator[tuple[str, Holder]]:
    """Yield all table versions in the given heads, each only once, as pairs of the realm's instance id and the version.

    Args:
        own: instance id and reference name of the branch on which the job works.
        without: maps the object id of a table's row to the ids of the snapshots that are about to be removed from this
            table, for tables of the branch `own`.
    """
    families: dict[tuple[str, str], list[StoreHead]] = {}
    for head in heads:
        family = families.setdefault(_family(head), [])
        family.insert(0 if (head.realm, head.reference) == own else len(family), head)
    for (realm, _), (first, *others) in families.items():
        gone = without if (realm, first.reference) == own else {}
        for table in _tables_of_branches(objects(realm), first, others, gone):
            yield realm, table


class StoreDrops:
    """The tables and views that were dropped in the histories of a store's branches (`catalog.drops.drops`).

    Each history is read once, when it is first needed.
    """

    def __init__(self, heads: Iterable[StoreHead], objects: Objects) -> None:
        """
        Args:
            heads: the heads whose histories are read.
        """
        self._heads = list(heads)
        self._objects = objects
        self._read: dict[tuple[str, str], list[Drop | Damage]] = {}

    def of(self, head: StoreHead) -> list[Drop | Damage]:
        """Return the drops in the history of a head, newest first, and the parts of its log that cannot be read."""
        key = (head.realm, head.reference)
        if key not in self._read:
            self._read[key] = list(drops_of(self._objects(head.realm), head))
        return self._read[key]

    def last(self, head: StoreHead) -> dict[int, Drop]:
        """Return the last drop of each table and view in the history of a head, as a dict from entity id to drop."""
        found: dict[int, Drop] = {}
        for one in self.of(head):
            if isinstance(one, Drop):
                found.setdefault(one.entity, one)
        return found

    def holders(
        self, oldest_purge_ms: int, around: Collection[tuple[str, ...]] | None = None
    ) -> Iterator[tuple[str, Holder]]:
        """Yield all dropped versions of tables and views whose files are still kept, each only once.

        Each item is a pair of the realm's instance id and the version. For a part of a log that cannot be read, the
        pair has a `Holder` with a `problem`.

        Args:
            oldest_purge_ms: time in milliseconds since 1970: the files of a table dropped with PURGE are only kept if
                it was dropped after this time.
            around: locations, as tuples of URI segments. If given, only tables are returned whose locations overlap
                with one of these, or are not known.
        """
        seen: set[tuple[str, int]] = set()
        for head in self._heads:
            store = self._objects(head.realm)
            found = [
                one
                for one in self.of(head)
                if isinstance(one, Damage) or one.keeps_files(oldest_purge_ms - head.grace_beyond_ms)
            ]
            if around is not None:
                found = _around(store, found, around)
            for one in found:
                if isinstance(one, Drop):
                    if (head.realm, one.content) in seen:
                        continue
                    seen.add((head.realm, one.content))
                yield head.realm, _holder(one)


def _around(
    store: ObjectStore, found: Iterable[Drop | Damage], around: Collection[tuple[str, ...]]
) -> list[Drop | Damage]:
    """Return the dropped tables whose locations overlap with a location in `around`, or are not known.

    All damaged parts of logs are returned, too.
    """
    found = list(found)
    above = {place[:n] for place in around for n in range(1, len(place) + 1)}
    owned = places_of(store, [one.content for one in found if isinstance(one, Drop)])

    def overlaps(one: Drop | Damage) -> bool:
        places = None if isinstance(one, Damage) else owned[one.content]
        return places is None or any(
            place in above or any(place[:n] in around for n in range(1, len(place))) for place in places
        )

    return [one for one in found if overlaps(one)]


def _holder(found: Drop | Damage, before: int = 0) -> Holder:
    if isinstance(found, Damage):
        return Holder(found.owner, 0, problem=found.problem)
    is_view = decode_key(found.key).kind == VIEW
    return Holder(found.owner, found.content, before=before, is_view=is_view, dropped=True)


def changed_since(
    seen: Iterable[StoreHead], heads: Iterable[StoreHead], objects: Objects, oldest_purge_ms: int
) -> Iterator[tuple[str, Holder]]:
    """Yield the versions of tables and views that are new since earlier heads were read.

    Each item is a pair of the realm's instance id and the version. Versions that were both made and dropped since are
    yielded, too, if their files are still kept. A new branch is compared with another branch of its catalog.

    Args:
        seen: the earlier heads.
        heads: the heads as they are now.
        oldest_purge_ms: time in milliseconds since 1970: the files of a table dropped with PURGE are only kept if it
            was dropped after this time.
    """
    before = {(head.realm, head.reference): head for head in seen}
    families = {_family(head): head for head in before.values()}
    for head in heads:
        earlier = before.get((head.realm, head.reference)) or families.get(_family(head))
        if earlier is not None and earlier.head.commit == head.head.commit:
            continue
        store = objects(head.realm)
        root = IndexRoot() if earlier is None else _names(store, earlier)
        for key, was, entry in diff(root, _names(store, head), StoredObjects(store).read_shards):
            if entry is not None and (kind := known_kind(key)) in (TABLE, VIEW):
                earlier_version = 0 if was is None else was.pointer
                yield (
                    head.realm,
                    Holder(head.owner(key), entry.pointer, before=earlier_version, is_view=kind == VIEW),
                )
        known = Index(root, StoredObjects(store).read_shards)
        for found in _dropped_since(store, earlier, head):
            if isinstance(found, Damage):
                yield head.realm, _holder(found)
                continue
            was = known.get(found.key)
            known_version = 0 if was is None else was.pointer
            if found.content != known_version and found.keeps_files(oldest_purge_ms - head.grace_beyond_ms):
                yield head.realm, _holder(found, known_version)


def _dropped_since(store: ObjectStore, earlier: StoreHead | None, head: StoreHead) -> Iterator[Drop | Damage]:
    """Yield the drops in the history of `head` after the commits that it shares with the history of `earlier`.

    If these commits are not known, yield all drops in the history of `head`.
    """
    low = None
    if earlier is not None:
        shared = min(earlier.head.number, head.head.number)
        floor = max(earlier.head.floor_number, head.head.floor_number)
        if shared >= floor and ancestor(store, earlier.head, shared) == ancestor(store, head.head, shared):
            low = shared + 1
    if low is None or low <= head.head.number:
        yield from drops_of(store, head, low)


def _family(head: StoreHead) -> tuple[str, str]:
    """Return a key that is the same for all branches and tags of a catalog: the instance id, and a prefix of the
    reference."""
    return head.realm, group_of(head.reference)


def _tables_of_branches(
    store: ObjectStore, first: StoreHead, others: Sequence[StoreHead], without: Mapping[int, tuple[int, ...]]
) -> Iterator[Holder]:
    """Yield the table versions of the first branch, then those of other branches that the first branch does not have.

    Args:
        without: see `tables_of_store`.
    """
    read = StoredObjects(store).read_shards
    root, *roots = (_names(store, head) for head in (first, *others))
    indexes = [Index(other, read) for other in roots] if without else []

    def gone(key: bytes, entry: Entry) -> tuple[int, ...]:
        found = without.get(entry.pointer, ())
        same = found and any(there.pointer == entry.pointer for at in indexes if (there := at.get(key)))
        return () if same else found

    for key, entry in Index(root, read).range():
        if (owner := _table(first, key)) is not None:
            yield Holder(owner, entry.pointer, gone(key, entry))
    seen: set[int] = set()
    for head, other in zip(others, roots, strict=True):
        for key, _, changed in diff(root, other, read):
            owner = _table(head, key) if changed is not None else None
            if changed is not None and owner is not None and changed.pointer not in seen:
                seen.add(changed.pointer)
                yield Holder(owner, changed.pointer)


def _names(store: ObjectStore, head: StoreHead) -> IndexRoot:
    commit = store.get(head.head.commit, Commit)
    return dict(zip(commit.index_names, commit.index_roots, strict=True)).get(NAMES, IndexRoot())


def _table(head: StoreHead, key: bytes) -> str | None:
    """Return the catalog and name of a table, given its key in the index `names`; None if the key is not a table's."""
    return head.owner(key) if known_kind(key) == TABLE else None
