"""Corruptions of the meaning of rows, each with the damaged row, and the list of all corruptions."""

from __future__ import annotations

import msgspec

from polaris_spark.backends.base import ObjectRow
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.catalog.entities.entities import TableName, namespace_key, table_key
from polaris_spark.catalog.metadata.rows import (
    LogItems,
    Numbered,
    Schema,
    Snapshot,
    Table,
    View,
)
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, VIEW, CatalogRow, Namespace, id_bytes
from polaris_spark.commits.rows import Commit, RecentHead
from polaris_spark.index import Entry, Index, IndexRoot, Leaf
from polaris_spark.maintenance.fsck import contents as contents
from polaris_spark.maintenance.fsck import entities as entities
from polaris_spark.maintenance.fsck import history as commits
from polaris_spark.maintenance.fsck import log as logs
from polaris_spark.maintenance.fsck import references as registry
from polaris_spark.maintenance.fsck import rows as rows
from polaris_spark.maintenance.fsck import system as system
from polaris_spark.system.registry import REFERENCES
from polaris_spark.system.stores import SYSTEM_REALM
from tests.maintenance.damage import Damaged, Planted, content, key, snapshot, texts
from tests.maintenance.planted_rows import (
    another_type,
    branch,
    early_time,
    embedded_too_much,
    embedded_twice,
    first_part,
    format_byte,
    header,
    header_of_garbage,
    inner_commit,
    lacks_skips,
    leaf,
    log_entries,
    log_is_silent,
    log_lies,
    lost_entry,
    middle_part,
    no_log,
    old_content,
    old_snapshot,
    part_too_many,
    schema,
    snapshot_index,
    table_object,
    torn,
    unsorted_leaf,
    unused_pointer,
    wrong_counts,
    wrong_number,
    wrong_parent,
    wrong_separator,
    wrong_skip,
    wrong_time,
)
from tests.maintenance.planted_views import DISAGREEMENTS

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
    """Two tables claim overlapping locations, and the index agrees."""
    one, two = content(store, "t010"), content(store, "t011")
    inside = store.get(one, Table).location + "/inside"
    old = store.get(two, Table)
    store.alter(two, Table, location=inside)
    from polaris_spark.catalog.files.locations import segments
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
    """A tag whose row and whose JSON text refer to different snapshots."""
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
    """A registration with a wrong number of the commit from which a branch was created."""
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
    """The catalog is not listed any more, but its references exist."""
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
        (entities.WRONG_VIEW, DISAGREEMENTS),
        (contents.WRONG_CONTENT, (current_schema, default_spec, default_sort_order, ref_to_nowhere)),
        (contents.WRONG_CONTENT, (ref_to_another, current_snapshot, schema_text, schema_number)),
        (contents.WRONG_CONTENT, (sort_order_type, snapshot_text, snapshot_order, log_items)),
        (contents.WRONG_CONTENT, (view_version, snapshot_index)),
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
