"""Versions of tables that the heads of a store have, and those that they have come to have since they were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
from polaris_spark.catalog.store_heads import StoreHead
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import StoredObjects
from polaris_spark.index import Entry, Index, IndexRoot, diff
from polaris_spark.index.keys import decode_key
from polaris_spark.store.objects import ObjectStore

Objects = Callable[[str], ObjectStore]
"""The objects of a realm, by its instance id."""


class Holder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A version of a table or view that some head has."""

    owner: str
    """For messages."""
    content: int
    without: tuple[int, ...] = ()
    """Snapshots that are to be removed from it, and need nothing any more."""
    before: int = 0
    """An earlier version, of which is known already what it names; 0 if there is none."""
    is_view: bool = False


def tables_of_store(
    heads: Iterable[StoreHead],
    objects: Objects,
    own: tuple[str, str],
    without: Mapping[int, tuple[int, ...]],
) -> Iterator[tuple[str, Holder]]:
    """Every version of a table that a head has, once, with its realm's instance id.

    Args:
        own: instance id of the realm, and reference, of the branch that asks.
        without: snapshots that are to be removed from tables of that branch, by their contents' ids.
    """
    families: dict[tuple[str, str], list[StoreHead]] = {}
    for head in heads:
        family = families.setdefault(_family(head), [])
        family.insert(0 if (head.realm, head.reference) == own else len(family), head)
    for (realm, _), (first, *others) in families.items():
        gone = without if (realm, first.reference) == own else {}
        for table in _tables_of_branches(objects(realm), first, others, gone):
            yield realm, table


def changed_since(
    seen: Iterable[StoreHead], heads: Iterable[StoreHead], objects: Objects
) -> Iterator[tuple[str, Holder]]:
    """The tables and views of heads that earlier heads did not have, or not as they are now.

    A branch that is new is compared with another of its catalog.
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
            kind = decode_key(key).kind
            if entry is not None and kind in (TABLE, VIEW):
                earlier_version = 0 if was is None else was.pointer
                yield (
                    head.realm,
                    Holder(head.owner(key), entry.pointer, before=earlier_version, is_view=kind == VIEW),
                )


def _family(head: StoreHead) -> tuple[str, str]:
    """What the branches of a catalog have in common."""
    return head.realm, head.reference.partition("/heads/")[0]


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
    """The name of a table by its key; None for what is no table."""
    return head.owner(key) if decode_key(key).kind == TABLE else None
