"""Corruptions of rows: of their bytes and pointers, of commits and of indexes, each with the damaged row."""

from __future__ import annotations

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import ObjectRow
from polaris_spark.catalog.metadata.rows import (
    Schema,
    Table,
)
from polaris_spark.catalog.rows import IDS, NAMES
from polaris_spark.commits.rows import Commit, Entries
from polaris_spark.index import Branch, IndexRoot, Leaf
from polaris_spark.maintenance.fsck import contents as contents
from polaris_spark.maintenance.fsck import entities as entities
from polaris_spark.maintenance.fsck import rows as rows
from polaris_spark.maintenance.fsck import system as system
from polaris_spark.objects import Header
from tests.maintenance.damage import LARGE, Damaged, content, key, snapshot, snapshot_leaf

# Rows


def format_byte(store: Damaged) -> str:
    id = content(store)
    store.put(id, b"\x07" + store.row(id)[1:])
    return f"{id}/0"


def torn(store: Damaged) -> str:
    id = content(store)
    store.put(id, store.row(id)[:-9])
    return f"{id}/0"


def header(store: Damaged) -> str:
    id = store.commit(5)[0]
    data = bytearray(store.row(id))
    data[7:9] = b"\xc1\xc1"
    store.put(id, bytes(data))
    return f"{id}/0"


def header_of_garbage(store: Damaged) -> str:
    store.backend.write_objects(store.instance, [ObjectRow(7, 0, b"\x01\x00\x01junk")])
    return "7/0"


def unused_pointer(store: Damaged) -> str:
    """A header with one pointer that the payload does not have."""
    id, commit = store.commit(3)
    strong = objects.decode_header(store.row(id), "").strong
    payload = objects.encode(commit)
    length = int.from_bytes(payload[3:7], "big")
    body = msgspec.msgpack.encode(
        Header("commit", 1, (*strong, strong[0]), objects.decode_header(payload, "").weak)
    )
    data = payload[:3] + len(body).to_bytes(4, "big") + body + payload[7 + length :]
    store.put(id, data)
    return f"{id}/0"


def first_part(store: Damaged) -> str:
    return store.delete(store.entry(LARGE).pointer)


def middle_part(store: Damaged) -> str:
    return store.delete(store.entry(LARGE).pointer, 1)


def part_too_many(store: Damaged) -> str:
    id = content(store)
    store.backend.write_objects(store.instance, [ObjectRow(id, 1, b"more")])
    return f"{id}/1"


# What is pointed to


def table_object(store: Damaged) -> str:
    return store.delete(content(store))


def schema(store: Damaged) -> str:
    return store.delete(store.get(content(store), Table).schemas[0].piece)


def old_snapshot(store: Damaged) -> str:
    return store.delete(snapshot(store, 1_002))


def log_entries(store: Damaged) -> str:
    return store.delete(store.commit(9)[1].entries)


def leaf(store: Damaged) -> str:
    return store.delete(store.shard(NAMES, Leaf)[0])


def branch(store: Damaged) -> str:
    return store.delete(store.shard(NAMES, Branch, 0)[0])


def old_content(store: Damaged) -> str:
    """A version of a table that only an older commit needs."""
    number = next(n for n in range(20, 60) if _before(store, n))
    return store.delete(_before(store, number))


def _before(store: Damaged, back: int) -> int:
    entry = store.get(store.commit(back)[1].entries, Entries).entries[0]
    return entry.before if entry.action == "update-table" or entry.after else 0


def another_type(store: Damaged) -> str:
    """An index entry points to an object that is not a table. The row of the entry is wrong."""
    store.rewrite(content(store), Schema(b"{}"))
    return f"{store.holder(key('t001'))}/0"


# Commits


def inner_commit(store: Damaged) -> str:
    return store.delete(store.commit(25)[0])


def wrong_parent(store: Damaged) -> str:
    id, commit = store.commit(30)
    parents = (commit.parents[0], commit.parents[2], *commit.parents[2:])
    return store.alter(id, Commit, parents=parents)


def wrong_skip(store: Damaged) -> str:
    id, commit = next(
        store.commit(back) for back in range(30, 80) if len(set(store.commit(back)[1].skips)) > 2
    )
    return store.alter(id, Commit, skips=(commit.skips[-1], *commit.skips[1:]))


def lacks_skips(store: Damaged) -> str:
    id, commit = store.commit(30)
    return store.alter(id, Commit, skips=commit.skips[:-1])


def wrong_number(store: Damaged) -> str:
    id, commit = store.commit(30)
    return store.alter(id, Commit, number=commit.number + 3)


def wrong_time(store: Damaged) -> str:
    id, commit = store.commit(30)
    return store.alter(id, Commit, time=commit.time + 10_000_000)


def early_time(store: Damaged) -> str:
    id, _ = store.commit(30)
    return store.alter(id, Commit, time=5)


def no_log(store: Damaged) -> str:
    return store.alter(store.commit(30)[0], Commit, entries=0)


def log_lies(store: Damaged) -> str:
    id = store.commit(10)[1].entries
    first, *others = store.get(id, Entries).entries
    wrong = msgspec.structs.replace(first, before=first.after)
    return store.alter(id, Entries, entries=(wrong, *others))


def log_is_silent(store: Damaged) -> str:
    return store.alter(store.commit(10)[1].entries, Entries, entries=())


# Indexes


def unsorted_leaf(store: Damaged) -> str:
    id, leaf = store.shard(NAMES, Leaf)
    keys = [leaf.keys[1], leaf.keys[0], *leaf.keys[2:]]
    return store.rewrite(id, Leaf.of(keys, leaf.pointers, leaf.values))


def lost_entry(store: Damaged) -> str:
    id, leaf = store.shard(IDS, Leaf, 0)
    return store.rewrite(id, Leaf.of(leaf.keys[1:], leaf.pointers[1:], leaf.values[1:]))


def wrong_separator(store: Damaged) -> str:
    id, branch = store.shard(NAMES, Branch, 0)
    separators = sorted([b"\x02db\x01tt9", *branch.separators[1:]])
    coded = type(branch.front_coded).of(separators)
    store.rewrite(id, Branch(coded, branch.children, branch.counts))
    bounds = [b"", *separators]
    wrong = next(
        child
        for child, lower, upper in zip(branch.children, bounds, [*separators, None], strict=True)
        if (keys := store.get(child, Leaf).keys) and (keys[0] < lower or (upper and keys[-1] >= upper))
    )
    return f"{wrong}/0"


def wrong_counts(store: Damaged) -> str:
    id, branch = store.shard(NAMES, Branch, 0)
    counts = (branch.counts[0] + 1, *branch.counts[1:])
    return store.rewrite(id, Branch(branch.front_coded, branch.children, counts))


def embedded_twice(store: Damaged) -> str:
    def double(root: IndexRoot) -> IndexRoot:
        return msgspec.structs.replace(
            root,
            keys=(*root.keys, root.keys[-1]),
            pointers=(*root.pointers, root.pointers[-1]),
            values=(*root.values, root.values[-1]),
        )

    return store.alter_embedded(double)


def embedded_too_much(store: Damaged) -> str:
    id, commit = store.commit()
    keys = tuple(b"%05d" % number for number in range(3_000))
    large = IndexRoot(keys=keys, pointers=(0,) * 3_000, values=(b"",) * 3_000)
    names, roots = (*commit.index_names, "others"), (*commit.index_roots, large)
    return store.alter(id, Commit, index_names=names, index_roots=roots)


def snapshot_index(store: Damaged) -> str:
    id, leaf = snapshot_leaf(store)
    keys = [leaf.keys[1], leaf.keys[0], *leaf.keys[2:]]
    return store.rewrite(id, Leaf.of(keys, leaf.pointers, leaf.values))
