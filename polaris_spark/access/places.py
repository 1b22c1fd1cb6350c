"""Find the securable that a name refers to in a state of a catalog, and the securables above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.rows import OWNERS
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import NamespaceName
from polaris_spark.catalog.entities.materialized_views import STORAGE
from polaris_spark.catalog.merges.transactions import branch_of_transaction
from polaris_spark.catalog.rows import IDS, NAMES, NAMESPACE, TABLE, VIEW, id_bytes, id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.index.keys import decode_key, entry_key, entry_keys_upwards
from polaris_spark.names import is_transaction


class Place(NamedTuple):
    """The securables and entities that a name refers to in one state of a catalog."""

    chain: tuple[bytes, ...]
    """The securables, from the lowest one that exists up to the realm."""
    exists: bool
    entities: tuple[int, ...]
    """Entity ids of the namespaces, tables and views in the chain, the lowest first."""
    named: tuple[tuple[bytes, int | None], ...] = ()
    """Keys in the index `names` that were looked up, with the entity ids that were found (None: none)."""
    view: int | None = None
    """For the storage table of a materialized view: entity id of the view; otherwise None."""


def base_of(catalog: Catalog) -> tuple[bytes, ...]:
    """Return the securables that contain a state of a catalog: branch, catalog and realm.

    The state of a tag is in no branch. The state of a transaction is in the branch on which the transaction began.
    """
    whole = (securables.catalog(catalog.row.entity_id), securables.REALM)
    branch = catalog.branch
    if is_transaction(branch):
        branch = branch_of_transaction(branch) or branch
    return whole if catalog.tagged else (securables.branch(catalog.row.entity_id, branch), *whole)


def place_of(
    catalog: Catalog, head: CommitReader, namespace: NamespaceName, name: str = "", kind: bytes = NAMESPACE
) -> Place:
    """Return the place of a namespace, table or view.

    Args:
        head: the commit in which to look.
        namespace: namespace of the table or view, or the full name of the namespace; () for the root of the catalog.
        name: name of the table or view; empty for a namespace.
        kind: `TABLE`, `VIEW` or `NAMESPACE`.
    """
    base = base_of(catalog)
    keys = entry_keys_upwards(namespace, NAMESPACE)
    if kind != NAMESPACE:
        keys.append(entry_key(namespace, kind, name))
    if not keys:
        return Place(base, exists=True, entities=())
    index = head.index(NAMES)
    ids: list[int] = []
    named: list[tuple[bytes, int | None]] = []
    view = None
    for at, key in enumerate(keys):
        found = index.get(key)
        named.append((key, None if found is None else id_from(found.value)))
        if found is not None:
            ids.append(id_from(found.value))
        elif at == len(keys) - 2 and kind == TABLE and name == STORAGE:
            of_view = index.get(entry_key(namespace[:-1], VIEW, namespace[-1]))
            if of_view is not None:
                view = id_from(of_view.value)
                ids.append(view)
    exists = named[-1][1] is not None
    ids.reverse()
    chain = (*(securables.entity(catalog.row.entity_id, id) for id in ids), *base)
    return Place(chain, exists, tuple(ids), tuple(named), view)


def place_of_id(catalog: Catalog, head: CommitReader, entity_id: int) -> Place:
    """Return the place of an entity, given its id. If the entity does not exist in this state, the chain contains only
    the entity, the branch, the catalog and the realm."""
    entry = head.index(IDS).get(id_bytes(entity_id))
    if entry is not None:
        path, kind, name = decode_key(entry.value)
        if kind == NAMESPACE:
            return place_of(catalog, head, (*path, name))
        return place_of(catalog, head, path, name, kind)
    own = securables.entity(catalog.row.entity_id, entity_id)
    return Place((own, *base_of(catalog)), exists=False, entities=())


def owner_of(head: CommitReader, entity_id: int) -> str | None:
    """Return the principal that owns a namespace, table or view; None if it has no owner.

    Args:
        head: the newest commit of the branch, because the owner in an earlier commit may have been replaced since.
    """
    found = head.index(OWNERS).get(id_bytes(entity_id))
    return None if found is None else found.value.decode()


def owners_of(head: CommitReader, entities: Sequence[int]) -> list[str | None]:
    """Return the owner of each entity; None for entities without an owner."""
    found = head.index(OWNERS).get_many([id_bytes(id) for id in entities])
    return [None if one is None else one.value.decode() for one in found]
