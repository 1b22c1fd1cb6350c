"""Which policies apply to a catalog, namespace or table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import NamespaceName, TableName, namespace_key, table_key
from polaris_spark.catalog.rows import IDS as ENTITY_IDS
from polaris_spark.catalog.rows import NAMES, NAMESPACE, id_bytes, id_from
from polaris_spark.commits.state import CommitReader, State, reading_state
from polaris_spark.errors import CorruptionError, NoSuchNamespaceError, NoSuchTableError, ReferenceGoneError
from polaris_spark.index.keys import decode_key, entry_keys_upwards
from polaris_spark.maintenance.policies.changes import attached
from polaris_spark.maintenance.policies.rows import MAPPINGS, StoredPolicy, policies_reference
from polaris_spark.maintenance.policies.types import TYPES, MaintenanceContent, parsed


class Applicable(NamedTuple):
    """A policy that applies to a catalog, namespace or table."""

    policy: StoredPolicy
    is_inherited: bool
    """Whether the policy is attached to a namespace or catalog above, and not to the target itself."""


class Enabled(NamedTuple):
    """The policy of one type that applies to a table, with its parsed content."""

    policy: StoredPolicy
    content: MaintenanceContent


class AppliedPolicies:
    """The policies of a catalog and what they apply to, in one state of the catalog. Not thread-safe."""

    def __init__(self, catalog: Catalog, head: CommitReader | None = None) -> None:
        """Read the newest policies of a catalog.

        Args:
            head: the state of the catalog in which names are looked up; by default, the newest.
        """
        self._catalog = catalog
        self._head = catalog.head() if head is None else head
        self._state = policies_state(catalog)
        self._attached: dict[int, list[StoredPolicy]] = {}
        self._parsed: dict[int, MaintenanceContent] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the catalog has no attached policies."""
        return self._state is None or not self._state.scan(MAPPINGS, b"", None, limit=1)

    def to(self, namespace: NamespaceName = (), table: str = "", kind: str = "") -> list[Applicable]:
        """Return the policies that apply to the catalog, a namespace or a table.

        Args:
            namespace: levels of the namespace; () for the catalog.
            table: name of a table in the namespace; empty for the namespace itself.
            kind: only policies of this type; empty for all types.
        Raises:
            NoSuchNamespaceError, NoSuchTableError: the target does not exist.
        """
        chain = self.chain(namespace, table)
        nearest: dict[str, Applicable] = {}
        others: list[Applicable] = []
        for id in chain:
            for policy in self._of(id):
                is_own = id == chain[-1]
                if kind not in ("", policy.type):
                    continue
                known = TYPES.get(policy.type)  # a newer release may know more types
                if known is not None and known.is_inheritable:
                    nearest[policy.type] = Applicable(policy, not is_own)
                elif is_own:
                    others.append(Applicable(policy, is_inherited=False))
        return [*sorted(nearest.values(), key=lambda one: one.policy.type), *others]

    def chain(self, namespace: NamespaceName, table: str = "") -> list[int]:
        """Return the entity ids of the catalog, of each level of a namespace, and of a table, from the top downwards.

        Raises:
            NoSuchNamespaceError, NoSuchTableError: the namespace or table does not exist.
        """
        index, found = self._head.index(NAMES), [self._catalog.row.entity_id]
        for entry in index.get_many(entry_keys_upwards(namespace, NAMESPACE)):
            if entry is None:
                raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
            found.append(id_from(entry.value))
        if table:
            entry = index.get(table_key(TableName(namespace, table)))
            if entry is None:
                raise NoSuchTableError(f"Table does not exist: {'.'.join((*namespace, table))}")
            found.append(id_from(entry.value))
        return found

    def content(self, type: str, namespace: NamespaceName = (), table: str = "") -> Enabled | None:
        """Return the maintenance policy of the given type that applies to a catalog, namespace or table; None if there
        is none. The policy may be disabled."""
        for one in self.to(namespace, table, type):
            found = self._parsed.get(one.policy.id)
            if found is None:
                content = parsed(type, one.policy.content)
                assert isinstance(content, MaintenanceContent)
                found = self._parsed[one.policy.id] = content
            return Enabled(one.policy, found)
        return None

    def _of(self, target: int) -> list[StoredPolicy]:
        if self._state is None:
            return []
        found = self._attached.get(target)
        if found is None:
            here = attached(self._state, target)
            found = self._attached[target] = [one for one in here if self.namespace_of(one) is not None]
        return found

    def namespace_of(self, policy: StoredPolicy) -> NamespaceName | None:
        """Return the namespace of a policy; None if it was dropped, so that the policy applies to nothing."""
        return namespace_of(self._head, policy)


def policies_state(catalog: Catalog) -> State | None:
    """Return the newest state of the policies of a catalog; None if it never had any."""
    try:
        return reading_state(catalog.references.read(policies_reference(catalog.row)))
    except ReferenceGoneError:
        return None


def namespace_of(head: CommitReader, policy: StoredPolicy) -> NamespaceName | None:
    """Return the namespace of a policy in a state of the catalog; None if that namespace does not exist there."""
    entry = head.index(ENTITY_IDS).get(id_bytes(policy.namespace))
    if entry is None:
        return None
    try:
        path, kind, name = decode_key(entry.value)
    except CorruptionError:
        return None
    return (*path, name) if kind == NAMESPACE else None


def namespace_id(head: CommitReader, namespace: Sequence[str]) -> int:
    """Return the entity id of a namespace.

    Raises:
        NoSuchNamespaceError: the namespace does not exist.
    """
    entry = head.index(NAMES).get(namespace_key(namespace)) if namespace else None
    if entry is None:
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
    return id_from(entry.value)
