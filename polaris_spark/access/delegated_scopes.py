"""Names of securables for an authorizer, and the scopes of readers in a realm with an authorizer.

The process that plans a read asks the authorizer about all namespaces, tables and views that the read could show.
Executors get the answers (`access.scopes.Scope`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from polaris_spark.access import securables
from polaris_spark.access.authorizers import Kind, Securable
from polaris_spark.access.needs import Need, Needs, On
from polaris_spark.access.privileges import SEES_NAMESPACE, SEES_TABLE, SEES_VIEW
from polaris_spark.access.scopes import READS_ALL, READS_VIEW, Scope
from polaris_spark.catalog.entities.materialized_views import STORAGE
from polaris_spark.catalog.rows import IDS, NAMES, NAMESPACE, TABLE, VIEW, CatalogRow, id_bytes, id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import decode_key, entry_key

if TYPE_CHECKING:
    from polaris_spark.access.rules import Subject

LISTS: Final[Mapping[str, str]] = {
    SEES_NAMESPACE: "NAMESPACE_LIST",
    SEES_TABLE: "TABLE_LIST",
    SEES_VIEW: "VIEW_LIST",
}
"""The privilege that an authorizer is asked for instead of a mark (`access.privileges`)."""

KINDS: Final[Mapping[bytes, Kind]] = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view"}

_ON: Final = {On.NAMESPACE: "namespace", On.TABLE: "table", On.VIEW: "view"}


def named_in(heads: Iterable[CommitReader], catalog: str, branch: str, entity_id: int) -> Securable | None:
    """Look for an entity in one commit after the other, and return its names in the first commit that contains it.
    Return None if no commit contains it.

    Args:
        catalog: name of the catalog.
        branch: name of the branch; empty for a tag.
    """
    for head in heads:
        entry = head.index(IDS).get(id_bytes(entity_id))
        found = None if entry is None else _named(head, entry.value, catalog, branch)
        if found is not None:
            return found
    return None


def _named(head: CommitReader, key: bytes, catalog: str, branch: str) -> Securable | None:
    """Return the names in a key of the index `names`. For the storage table of a materialized view, return the names of
    the view. Return None if the key has an unknown form."""
    try:
        path, kind, name = decode_key(key)
    except CorruptionError:
        return None
    if kind == NAMESPACE:
        return Securable("namespace", catalog, branch, (*path, name))
    if kind == TABLE and name == STORAGE and len(path) > 1:
        names, above = head.index(NAMES), path[:-1]
        if names.get(entry_key(above, NAMESPACE, path[-1])) is None and names.get(
            entry_key(above, VIEW, path[-1])
        ):
            return Securable("view", catalog, branch, above, path[-1])
    return Securable(KINDS[kind], catalog, branch, path, name) if kind in KINDS else None


def delegated_scope(
    subject: Subject,
    realm: str,
    shown: Needs,
    catalogs: Sequence[CatalogRow],
    state: Callable[[CatalogRow], tuple[str, CommitReader]],
    *,
    known: frozenset[int] | None,
) -> Scope:
    """Return the scope of a principal in a realm with an authorizer.

    Args:
        realm: instance id of the realm.
        shown: the privileges that allow the principal to see rows, one for each kind of securable.
        catalogs: the catalogs whose rows can be shown.
        state: returns the branch of a catalog, and the commit whose namespaces, tables and views can be shown.
        known: value of `Scope.catalogs`: entity ids of the catalogs that the principal may know; None for all.
    Raises:
        AuthorizerError: the authorizer made no decision.
    """
    needs = (Need(READS_ALL, On.REALM), Need(READS_ALL, On.CATALOG), Need(READS_VIEW, On.VIEW), *shown)
    held: dict[str, set[bytes]] = {need.privilege: set() for need in needs}
    for need in needs:
        if need.on is On.REALM:
            _ask(subject, need.privilege, [(securables.REALM, Securable("realm"))], held)
        elif need.on not in _ON:
            asked = [(securables.catalog(one.entity_id), Securable("catalog", one.name)) for one in catalogs]
            _ask(subject, need.privilege, asked, held)
    whole = held[READS_ALL]
    for row in catalogs:
        if whole.isdisjoint((securables.REALM, securables.catalog(row.entity_id))):
            named = list(_entities(row, *state(row)))
            for need in dict.fromkeys(need for need in needs if need.on in _ON):
                _ask(subject, need.privilege, [one for one in named if one[1].kind == _ON[need.on]], held)
    frozen = {privilege: frozenset(some) for privilege, some in held.items()}
    entities = {one for some in held.values() for one in some if securables.entity_of(one) is not None}
    return Scope(realm, subject.name, frozen, known, frozenset(entities), is_exact=True)


def _ask(
    subject: Subject,
    privilege: str,
    asked: Sequence[tuple[bytes, Securable]],
    held: Mapping[str, set[bytes]],
) -> None:
    assert subject.delegated is not None
    found = subject.delegated.which(LISTS.get(privilege, privilege), [named for _, named in asked])
    held[privilege].update(one for (one, _), allowed in zip(asked, found, strict=True) if allowed)


def _entities(row: CatalogRow, branch: str, head: CommitReader) -> Iterator[tuple[bytes, Securable]]:
    for key, entry in head.index(IDS).range():
        named = _named(head, entry.value, row.name, branch)
        if named is not None:
            yield securables.entity(row.entity_id, id_from(key)), named
