"""Scopes of readers: what a principal may see in the system views and the change feed.

The process that plans a read checks the principal and makes its scope. The scope is small and can be pickled. Executors
leave out the rows that are not in it. They need no rules and no credentials of the principal.

A principal that holds `CATALOG_READ_LOG` on a catalog or on the realm sees all rows of the catalog or realm. Other
principals see only the rows of some namespaces, tables and views: those that they own, or on which they hold the
privilege that the system view declares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.needs import Need, Needs, On
from polaris_spark.catalog.rows import CATALOG, IDS, NAMES, NAMESPACE, OWNERS, TABLE, VIEW, id_bytes, id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import decode_key, entry_key

if TYPE_CHECKING:
    from polaris_spark.access.rules import Rules, Subject

READS_ALL: Final = "CATALOG_READ_LOG"
"""Privilege that shows all rows of a catalog or of the realm."""

SHOWS_CHANGES: Final[Needs] = (
    Need("NAMESPACE_READ_PROPERTIES", On.NAMESPACE),
    Need("TABLE_READ_PROPERTIES", On.TABLE),
    Need("VIEW_READ_PROPERTIES", On.VIEW),
    Need("CATALOG_READ_PROPERTIES", On.CATALOG),
)
"""The privileges that show the changes of a namespace, table, view or catalog."""

_ON: Final = {NAMESPACE: On.NAMESPACE, TABLE: On.TABLE, VIEW: On.VIEW, CATALOG: On.CATALOG}

READS_VIEW: Final = "VIEW_READ_PROPERTIES"
"""Privilege on a materialized view that also shows its storage table."""


class Scope(NamedTuple):
    """What a principal may see in one realm."""

    realm: str
    """Instance id of the realm."""
    principal: str
    held: Mapping[str, frozenset[bytes]]
    """Securables on which the principal holds a privilege, by the needed privilege. Catalogs and branches that it owns
    are included."""
    catalogs: frozenset[int] | None
    """Entity ids of the catalogs whose names the principal may know; None for all."""
    entities: frozenset[bytes]
    """Namespaces, tables and views on which the principal's roles hold any privilege."""
    is_exact: bool = False
    """Whether an authorizer decided about each namespace, table and view. Then nothing follows from privileges on what
    contains it, and from ownership."""

    def may(self, privilege: str, chain: Iterable[bytes]) -> bool:
        """Whether the principal holds a privilege on any securable of a chain."""
        held = self.held.get(privilege)
        return held is not None and not held.isdisjoint(chain)

    @property
    def sees_realm(self) -> bool:
        """Whether the principal sees all rows of the realm."""
        return self.may(READS_ALL, (securables.REALM,))

    def sees_all_of(self, catalog: int) -> bool:
        """Whether the principal sees all rows of a catalog, given its entity id."""
        return self.may(READS_ALL, (securables.catalog(catalog), securables.REALM))

    def knows(self, catalog: int) -> bool:
        """Whether the principal may know the name of a catalog, given its entity id."""
        return self.catalogs is None or catalog in self.catalogs


def scope_of(
    rules: Rules, subject: Subject, realm: str, shown: Needs, catalogs: Collection[int] | None
) -> Scope:
    """Return the scope of a principal.

    Args:
        realm: instance id of the realm.
        shown: the privileges that allow the principal to see rows, one for each kind of securable.
        catalogs: entity ids of the catalogs that the principal may know; None for all.
    """
    wanted = {READS_ALL, READS_VIEW, *(need.privilege for need in shown)}
    held = {name: {one for one, some in subject.held.items() if name in some} for name in wanted}
    for securable, owned in rules.owned_by(subject.name):
        for name in wanted & owned:
            held[name].add(securable)
    return Scope(
        realm,
        subject.name,
        {name: frozenset(some) for name, some in held.items()},
        None if catalogs is None else frozenset(catalogs),
        frozenset(one for one in subject.held if securables.entity_of(one) is not None),
    )


class Sight:
    """What a principal may see in one state of a catalog. Not thread-safe."""

    def __init__(
        self,
        scope: Scope,
        catalog: int,
        branch: str | None,
        head: CommitReader | None,
        newest: CommitReader | None,
    ) -> None:
        """
        Args:
            catalog: entity id of the catalog.
            branch: the branch to which the state belongs; None for a tag.
            head: the commit of the state; None if the state is not stored any more.
            newest: the newest commit of the branch, which determines the owners; None if it is not stored any more.
        """
        self._scope = scope
        self._catalog = catalog
        whole = (securables.catalog(catalog), securables.REALM)
        self._base = whole if branch is None else (securables.branch(catalog, branch), *whole)
        self._head = head
        self._newest = newest
        self._within: dict[tuple[str, tuple[str, ...]], bool] = {}
        self._known: dict[tuple[str, int], bool] = {}
        self._by_id: dict[tuple[str, int], bool] = {}
        self._ways: set[tuple[str, ...]] | None = None
        self.sees_all = scope.sees_all_of(catalog)
        """Whether the principal sees all rows of the catalog."""

    def may(self, privilege: str, path: tuple[str, ...], kind: bytes, name: str, entity_id: int) -> bool:
        """Whether the principal holds a privilege on a namespace, table or view in this state or on something above it,
        or owns one of these.

        Args:
            path: the namespace that contains it.
            kind: `NAMESPACE`, `TABLE` or `VIEW`.
        """
        if self._has(privilege, entity_id) or self._within_path(privilege, path):
            return True
        return kind == TABLE and len(path) > 1 and self._reads_view_of(path, name)

    def may_by_id(self, privilege: str, entity_id: int) -> bool | None:
        """Whether the principal holds a privilege on an entity, given its id, or on something above it in this state,
        or owns one of these. If this state does not contain the entity, its namespaces are unknown; return None if the
        other securables do not give the principal the privilege."""
        known = self._by_id.get((privilege, entity_id))
        if known is not None:
            return known
        entry = None if self._head is None else self._head.index(IDS).get(id_bytes(entity_id))
        if entry is None:
            return True if self._has(privilege, entity_id) or self._within_path(privilege, ()) else None
        path, kind, name = decode_key(entry.value)
        found = self.may(privilege, path, kind, name, entity_id)
        self._by_id[(privilege, entity_id)] = found
        return found

    def may_above(self, privilege: str, path: tuple[str, ...]) -> bool:
        """Whether the principal holds a privilege on a namespace in this state or on something above it, or owns one
        of these."""
        return self._within_path(privilege, path)

    def is_on_the_way(self, path: tuple[str, ...]) -> bool:
        """Whether a namespace contains something on which the principal's roles hold a privilege."""
        if self._ways is None:
            ids = [
                id
                for one in self._scope.entities
                if securables.catalog_of(one) == self._catalog
                and (id := securables.entity_of(one)) is not None
            ]
            self._ways = set() if self._head is None else paths_to(self._head, ids)
        return path in self._ways

    def _has(self, privilege: str, entity_id: int) -> bool:
        """Whether the principal holds a privilege on an entity itself, or owns it."""
        known = self._known.get((privilege, entity_id))
        if known is None:
            known = self._scope.may(privilege, (securables.entity(self._catalog, entity_id),))
            if not known and self._newest is not None and not self._scope.is_exact:
                owner = self._newest.index(OWNERS).get(id_bytes(entity_id))
                known = owner is not None and owner.value.decode() == self._scope.principal
            self._known[(privilege, entity_id)] = known
        return known

    def _within_path(self, privilege: str, path: tuple[str, ...]) -> bool:
        if self._scope.is_exact:
            return False
        known = self._within.get((privilege, path))
        if known is None:
            known = self._within[(privilege, path)] = self._reaches(privilege, path)
        return known

    def _reaches(self, privilege: str, path: tuple[str, ...]) -> bool:
        if not path or self._head is None:
            return self._scope.may(privilege, self._base)
        entry = self._head.index(NAMES).get(entry_key(path[:-1], NAMESPACE, path[-1]))
        if entry is not None and self._has(privilege, id_from(entry.value)):
            return True
        return self._within_path(privilege, path[:-1])

    def _reads_view_of(self, path: tuple[str, ...], name: str) -> bool:
        """Whether a table is the storage table of a materialized view, and the principal may load the view.

        Args:
            path: the namespace of the table. A storage table is in a namespace with the name of its view.
            name: name of the table.
        """
        from polaris_spark.catalog.entities.materialized_views import STORAGE  # importing it takes long

        if self._head is None or name != STORAGE:
            return False
        names = self._head.index(NAMES)
        if names.get(entry_key(path[:-1], NAMESPACE, path[-1])) is not None:
            return False
        view = names.get(entry_key(path[:-1], VIEW, path[-1]))
        return view is not None and self.may(READS_VIEW, path[:-1], VIEW, path[-1], id_from(view.value))


def privilege_for(shown: Needs, kind: bytes) -> str | None:
    """Return the privilege among `shown` that allows a principal to see the rows of entities of a kind, such as
    `TABLE`; None if there is none."""
    on = _ON.get(kind)
    return next((need.privilege for need in shown if need.on is on), None)


def sees_change(
    privilege: str, entity_id: int, path: tuple[str, ...], now: Sight, then: Callable[[], Sight | None]
) -> bool:
    """Whether a principal sees a change of a namespace, table or view. The change belongs to the entity id, so renames
    do not matter. If the entity does not exist any more, the change is visible to principals that may see the content
    of the namespace that contained it.

    Args:
        path: the namespace that contained the entity after the change.
        now: what the principal may see in the newest commit of the branch.
        then: returns what the principal may see in the commit of the change, or None if only the log of that commit is
            still stored.
    """
    found = now.may_by_id(privilege, entity_id)
    if found is not None:
        return found
    earlier = then()
    return earlier is not None and earlier.may_above(privilege, path)


def paths_to(head: CommitReader, entities: Sequence[int]) -> set[tuple[str, ...]]:
    """Return all namespaces that contain some entities, at every level. Entities that are namespaces are included."""
    found: set[tuple[str, ...]] = set()
    for entry in head.index(IDS).get_many(sorted(id_bytes(id) for id in entities)):
        if entry is not None:
            try:
                path, kind, name = decode_key(entry.value)
            except CorruptionError:
                continue
            full = (*path, name) if kind == NAMESPACE else path
            found.update(full[:length] for length in range(1, len(full) + 1))
    return found
