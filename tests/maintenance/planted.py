"""Corruptions, each with the row that it is in."""

from __future__ import annotations

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import ObjectRow
from polaris_spark.catalog.catalogs import CATALOGS
from polaris_spark.catalog.entities import TableName, namespace_key, table_key
from polaris_spark.catalog.metadata.pieces import key_of
from polaris_spark.catalog.metadata.rows import (
    LogItems,
    Numbered,
    Schema,
    Snapshot,
    Table,
    View,
)
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, VIEW, CatalogRow, Namespace, id_bytes
from polaris_spark.commits.rows import Commit, Entries, RecentHead
from polaris_spark.index import Branch, Entry, Index, IndexRoot, Leaf
from polaris_spark.maintenance.checking import entities as entities
from polaris_spark.maintenance.checking import history as commits
from polaris_spark.maintenance.checking import log as logs
from polaris_spark.maintenance.checking import references as registry
from polaris_spark.maintenance.checking import rows as rows
from polaris_spark.maintenance.checking import system as system
from polaris_spark.maintenance.checking import tables as tables
from polaris_spark.objects import Header
from polaris_spark.system.registry import REFERENCES
from polaris_spark.system.stores import SYSTEM_REALM
from tests.maintenance.damage import Damaged, Planted, texts

LARGE = namespace_key(("large",))


def key(name: str) -> bytes:
    return table_key(TableName(("db",), name))


def content(store: Damaged, name: str = "t001") -> int:
    return store.entry(key(name)).pointer


def snapshot_leaf(store: Damaged) -> tuple[int, Leaf]:
    root = store.get(content(store), Table).snapshots
    id = root.shard
    for _ in range(root.height):
        branch = store.get(id, Branch)
        id = branch.children[0]
    return id, store.get(id, Leaf)


def snapshot(store: Damaged, id: int) -> int:
    found = Index(store.get(content(store), Table).snapshots, store.shards).get(key_of(id))
    assert found is not None
    return found.pointer


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
    """A header that names a pointer more than the payload does."""
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
    """A version of a table that only history needs."""
    number = next(n for n in range(20, 60) if _before(store, n))
    return store.delete(_before(store, number))


def _before(store: Damaged, back: int) -> int:
    entry = store.get(store.commit(back)[1].entries, Entries).entries[0]
    return entry.before if entry.action == "update-table" or entry.after else 0


def another_type(store: Damaged) -> str:
    """The entry points to what is no table: the row of the entry is wrong."""
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


# Names, ids and locations


def wrong_entity(store: Damaged) -> str:
    id, leaf = store.shard(NAMES, Leaf)
    values = [id_bytes(5), *leaf.values[1:]]
    return store.rewrite(id, Leaf.of(leaf.keys, leaf.pointers, values))


def wrong_id(store: Damaged) -> str:
    id, leaf = store.shard(IDS, Leaf, 0)
    values = [leaf.values[1], *leaf.values[1:]]
    return store.rewrite(id, Leaf.of(leaf.keys, leaf.pointers, values))


def wrong_owner(store: Damaged) -> str:
    id, leaf = store.shard(LOCATIONS, Leaf, 0)
    values = [leaf.values[1], *leaf.values[1:]]
    return store.rewrite(id, Leaf.of(leaf.keys, leaf.pointers, values))


def lost_location(store: Damaged) -> str:
    id, leaf = store.shard(LOCATIONS, Leaf, 0)
    keys = [leaf.keys[0] + b"0", *leaf.keys[1:]]
    return store.rewrite(id, Leaf.of(keys, leaf.pointers, leaf.values))


def overlap(store: Damaged) -> str:
    """Two tables say that they lie in each other, and the index agrees."""
    one, two = content(store, "t010"), content(store, "t011")
    inside = store.get(one, Table).location + "/inside"
    old = store.get(two, Table)
    store.alter(two, Table, location=inside)
    from polaris_spark.catalog.locations import segments
    from polaris_spark.index.keys import entry_key

    before = entry_key(segments(old.location), b"l", f"{old.entity_id:x}")
    after = entry_key(segments(inside), b"l", f"{old.entity_id:x}")

    def move(root: IndexRoot) -> IndexRoot:
        index = Index(root, store.shards)
        index.remove(before)
        index.put(after, Entry(value=id_bytes(old.entity_id)))
        return index.freeze(1 << 20, lambda: 0)[0]

    return store.alter_embedded(move, LOCATIONS)


def no_namespace(store: Damaged) -> str:
    lost = namespace_key(("db", "inner"))
    entity = store.entry(lost).value
    homeless = table_key(TableName(("db", "inner"), "homeless"))

    def move(root: IndexRoot) -> IndexRoot:
        index = Index(root, store.shards)
        index.put(homeless, Entry(index.get(key("t020")).pointer, entity))  # type: ignore[union-attr]
        index.remove(lost)
        return index.freeze(1 << 20, lambda: 0)[0]

    return store.alter_embedded(move)


def content_of_another(store: Damaged) -> str:
    return store.alter(content(store, "t030"), Table, entity_id=99)


# Tables, views, namespaces, catalogs


def current_schema(store: Damaged) -> str:
    return store.alter(content(store), Table, current_schema_id=9)


def default_spec(store: Damaged) -> str:
    return store.alter(content(store), Table, default_spec_id=9)


def default_sort_order(store: Damaged) -> str:
    return store.alter(content(store), Table, default_sort_order_id=9)


def ref_to_nowhere(store: Damaged) -> str:
    first, *others = store.get(content(store), Table).refs
    text = first.text.replace(str(first.snapshot_id).encode(), b"77")
    wrong = msgspec.structs.replace(first, snapshot_id=77, text=text)
    return store.alter(content(store), Table, refs=(wrong, *others))


def ref_to_another(store: Damaged) -> str:
    """A tag whose row and whose text name different snapshots."""
    refs = [
        msgspec.structs.replace(ref, snapshot_id=1_005) if ref.name == "v1" else ref
        for ref in store.get(content(store), Table).refs
    ]
    return store.alter(content(store), Table, refs=tuple(refs))


def current_snapshot(store: Damaged) -> str:
    return store.alter(content(store), Table, current_snapshot_id=1_001)


def schema_text(store: Damaged) -> str:
    id = store.get(content(store), Table).schemas[0].piece
    return store.rewrite(id, Schema(b'{"type":"struct"'))


def schema_number(store: Damaged) -> str:
    table = store.get(content(store), Table)
    piece = table.schemas[0].piece
    wrong = texts(store.get(piece, Schema).text) | {"schema-id": 4}
    return store.rewrite(piece, Schema(msgspec.json.encode(wrong)))


def sort_order_type(store: Damaged) -> str:
    table = store.get(content(store), Table)
    wrong = (Numbered(0, table.schemas[0].piece),)
    return store.alter(content(store), Table, sort_orders=wrong)


def snapshot_text(store: Damaged) -> str:
    id = snapshot(store, 1_004)
    wrong = texts(store.get(id, Snapshot).text) | {"snapshot-id": 4}
    return store.rewrite(id, Snapshot(msgspec.json.encode(wrong)))


def snapshot_order(store: Damaged) -> str:
    return store.alter(content(store), Table, next_order=3)


def log_items(store: Damaged) -> str:
    segment = store.get(content(store), Table).snapshot_log.segments[0]
    return store.rewrite(segment.piece, LogItems(b'{"snapshot-id":1}'))


def view_version(store: Damaged) -> str:
    id = store.entry(table_key(TableName(("db",), "v"), VIEW)).pointer
    return store.alter(id, View, current_version_id=8)


def namespace_entity(store: Damaged) -> str:
    return store.alter(store.entry(namespace_key(("db",))).pointer, Namespace, entity_id=3)


def catalog_name(store: Damaged) -> str:
    root = store.root(NAMES, CATALOGS)
    return store.alter(root.pointers[0], CatalogRow, name="another")


# References


def reference_value(store: Damaged) -> str:
    return store.put_reference(store.row_name(), b"\xc1")


def lost_reference(store: Damaged) -> str:
    return store.delete_reference(store.row_name())


def lost_registry(store: Damaged) -> str:
    return store.delete_reference("root")


def floor_above_head(store: Damaged) -> str:
    return store.alter_head(floor_number=store.head().number + 1)


def fence_ahead(store: Damaged) -> str:
    return store.alter_head(fence=2**62 + 2**61)


def head_number(store: Damaged) -> str:
    return store.alter_head(number=store.head().number - 1, recent=())


def recent_head(store: Damaged) -> str:
    head = store.head()
    old = head.recent[2]
    wrong = RecentHead(old.time, old.number, store.commit(50)[0])
    return store.alter_head(recent=(*head.recent[:2], wrong, *head.recent[3:]))


def sealed(store: Damaged) -> str:
    return store.alter_head(sealed=True)


def unsealed(store: Damaged) -> str:
    return store.alter_head(store.reference.replace("main", "old"), sealed=False)


def unlisted(store: Damaged) -> str:
    row = store.backend.read_reference(store.instance, store.row_name())
    assert row is not None
    return store.put_reference(store.reference.replace("main", "nobody") + "@5", row.value)


def registration(store: Damaged) -> str:
    """A registration that says another number of the commit that a branch began from."""
    id, commit = store.commit(0, "root")
    position = commit.index_names.index(REFERENCES)
    root = commit.index_roots[position]
    where = root.keys.index(store.reference.replace("main", "dev").encode())
    fields = msgspec.msgpack.decode(root.values[where] or b"")
    fields[4] += 1
    values = (*root.values[:where], msgspec.msgpack.encode(fields), *root.values[where + 1 :])
    roots = list(commit.index_roots)
    roots[position] = msgspec.structs.replace(root, values=values)
    return store.alter(id, Commit, index_roots=tuple(roots))


def lost_catalog(store: Damaged) -> str:
    """Nothing lists the catalog any more; its references are there."""
    id, commit = store.commit(0, CATALOGS)
    roots = [
        IndexRoot() if name == NAMES else root
        for name, root in zip(commit.index_names, commit.index_roots, strict=True)
    ]
    store.alter(id, Commit, index_roots=tuple(roots))
    return store.row_name()


# The store's own records


def store_record(store: Damaged) -> str:
    return store.delete_reference("store", SYSTEM_REALM)


def realm_record(store: Damaged) -> str:
    return store.put_reference("realm/default", b"\xc1", SYSTEM_REALM)


def realm_name(store: Damaged) -> str:
    return store.alter_record("realm/default", name="another")


def shared_instance(store: Damaged) -> str:
    value = msgspec.msgpack.encode(store.system_record("realm/default") | {"name": "twin"})
    return store.put_reference("realm/twin", value, SYSTEM_REALM)


def node_lease(store: Damaged) -> str:
    name = next(name for name in store.references(SYSTEM_REALM) if name.startswith("node/"))
    return store.alter_record(name, end_ms=5)


def long_lease(store: Damaged) -> str:
    name = next(name for name in store.references(SYSTEM_REALM) if name.startswith("node/"))
    return store.alter_record(name, end_ms=store.clock.now_ms() + 9 * 3_600_000)


def no_such_node(store: Damaged) -> str:
    name = next(name for name in store.references(SYSTEM_REALM) if name.startswith("node/"))
    value = msgspec.msgpack.encode(store.system_record(name))
    return store.put_reference("node/4711", value, SYSTEM_REALM)


def stranger(store: Damaged) -> str:
    store.backend.write_objects("9f9f9f", [ObjectRow(8, 0, store.row(content(store)))])
    return "9f9f9f"


PLANTED = tuple(
    Planted(damage.__name__, kind, damage)
    for kind, damages in (
        (rows.UNREADABLE, (format_byte, torn, header, header_of_garbage)),
        (rows.WRONG_HEADER, (unused_pointer,)),
        (rows.MISSING, (first_part, middle_part, table_object, schema, old_snapshot, log_entries)),
        (
            rows.MISSING,
            (leaf, branch, old_content, inner_commit, lost_reference, lost_registry, store_record),
        ),
        (entities.WRONG_ENTITY, (another_type,)),
        (logs.QUOTA, (embedded_too_much,)),
        (rows.ORPHAN_PART, (part_too_many,)),
        (rows.LEFTOVER, (stranger,)),
        (commits.WRONG_ANCESTOR, (wrong_parent, wrong_skip, lacks_skips)),
        (commits.WRONG_NUMBER, (wrong_number,)),
        (commits.WRONG_TIME, (wrong_time, early_time)),
        (commits.NO_LOG, (no_log,)),
        (commits.WRONG_HEAD, (floor_above_head, fence_ahead, head_number, recent_head)),
        (logs.WRONG_LOG, (log_lies, log_is_silent)),
        (logs.WRONG_INDEX, (unsorted_leaf, lost_entry, wrong_separator, wrong_counts, embedded_twice)),
        (entities.WRONG_ENTITY, (wrong_entity, wrong_id, wrong_owner, no_namespace)),
        (entities.WRONG_ENTITY, (content_of_another, namespace_entity, catalog_name)),
        (entities.WRONG_LOCATION, (lost_location,)),
        (entities.OVERLAP, (overlap,)),
        (tables.WRONG_CONTENT, (current_schema, default_spec, default_sort_order, ref_to_nowhere)),
        (tables.WRONG_CONTENT, (ref_to_another, current_snapshot, schema_text, schema_number)),
        (tables.WRONG_CONTENT, (sort_order_type, snapshot_text, snapshot_order, log_items)),
        (tables.WRONG_CONTENT, (view_version, snapshot_index)),
        (rows.UNREADABLE, (reference_value, realm_record)),
        (registry.WRONG_SEAL, (sealed, unsealed)),
        (registry.UNLISTED, (unlisted,)),
        (registry.WRONG_REGISTRATION, (registration,)),
        (registry.STRAY, (lost_catalog,)),
        (system.WRONG_RECORD, (realm_name, shared_instance, node_lease, long_lease, no_such_node)),
    )
    for damage in damages
)
"""Every corruption."""
