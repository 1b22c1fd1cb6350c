"""Changes of the policies of a catalog: commits to the reference `cat/<id>/policies`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.catalog.rows import id_bytes, id_from
from polaris_spark.clock import Clock
from polaris_spark.commits.change import ClockedChange, Operation, Unrepeated
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, CommitFailedError, NotFoundError
from polaris_spark.index import Entry
from polaris_spark.maintenance.policies.rows import IDS, MAPPINGS, POLICIES, TARGETS, StoredPolicy
from polaris_spark.maintenance.policies.types import parsed, type_of

R = TypeVar("R")

MAX_POLICIES: Final = 10_000
"""Maximum number of policies of a catalog."""
MAX_NAME_BYTES: Final = 200
MAX_DESCRIPTION: Final = 4_096
"""Maximum length of the description of a policy, in characters."""
MAX_PARAMETER_BYTES: Final = 1_024
"""Maximum size of the parameters with which a policy is attached, in bytes."""
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class PolicyName(NamedTuple):
    """The name of a policy in its namespace."""

    namespace: int
    """Entity id of the namespace."""
    name: str
    shown: str
    """The full name, for messages."""

    @property
    def key(self) -> bytes:
        """Key in the index `policies`."""
        return id_bytes(self.namespace) + self.name.encode()


class Target(NamedTuple):
    """The target of policies: the catalog, a namespace or a table."""

    entity_id: int
    shown: str
    """Its kind and name, for messages."""


class PolicyChange(Unrepeated, ClockedChange[R]):
    """Base class of changes of policies."""

    def __init__(self, clock: Clock, operation: Operation) -> None:
        super().__init__(clock, operation._replace(id=b""))


class CreatePolicy(PolicyChange[StoredPolicy]):
    """Create a policy.

    Raises:
        AlreadyExistsError: the namespace already has a policy of this name.
        BadRequestError: the name or content cannot be used, or there are too many policies.
    """

    def __init__(
        self, clock: Clock, operation: Operation, name: PolicyName, type: str, content: str, description: str
    ) -> None:
        super().__init__(clock, operation)
        if not _NAME.fullmatch(name.name) or len(name.name) > MAX_NAME_BYTES:
            raise BadRequestError(
                f"the name of a policy is {name.name[:200]!a}; it must be 1 to {MAX_NAME_BYTES} letters, digits, "
                "dashes and underscores"
            )
        parsed(type, content)
        self.name = name
        self.type = type
        self.content = content
        self.description = _checked_description(description)

    def apply(self, state: State, prepared: int) -> StoredPolicy:
        if state.lookup(POLICIES, self.name.key) is not None:
            raise AlreadyExistsError(f"policy {self.name.shown} already exists")
        if len(state.scan(IDS, b"", None, limit=MAX_POLICIES)) >= MAX_POLICIES:
            raise BadRequestError(f"the catalog already has {MAX_POLICIES} policies, the maximum")
        who = self.operation.principal
        row = StoredPolicy(
            state.new_id(),
            self.name.namespace,
            self.name.name,
            self.type,
            self.content,
            self.description,
            created_ms=prepared,
            updated_ms=prepared,
            created_by=who,
            updated_by=who,
        )
        state.put(POLICIES, self.name.key, Entry(state.add(row), id_bytes(row.id)))
        state.put(IDS, id_bytes(row.id), Entry(value=self.name.key))
        return row


class UpdatePolicy(PolicyChange[StoredPolicy]):
    """Change the content and description of a policy.

    Raises:
        NotFoundError: the policy does not exist.
        CommitFailedError: the policy has another version than expected.
        BadRequestError: the content cannot be used.
    """

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        name: PolicyName,
        content: str | None,
        description: str | None,
        expected: int | None,
    ) -> None:
        """
        Args:
            content: the new content; None to keep it.
            description: the new description; None to keep it.
            expected: version that the policy must have; None for any.
        """
        super().__init__(clock, operation)
        self.name = name
        self.content = content
        self.description = None if description is None else _checked_description(description)
        self.expected = expected

    def apply(self, state: State, prepared: int) -> StoredPolicy:
        row = find_policy(state, self.name)
        if self.expected not in (None, row.version):
            raise CommitFailedError(
                f"policy {self.name.shown} has the version {row.version}, not {self.expected}; read it again"
            )
        if self.content is not None:
            parsed(row.type, self.content)
        changed = msgspec.structs.replace(
            row,
            content=row.content if self.content is None else self.content,
            description=row.description if self.description is None else self.description,
            version=row.version + 1,
            updated_ms=prepared,
            updated_by=self.operation.principal,
        )
        state.put(POLICIES, self.name.key, Entry(state.add(changed), id_bytes(row.id)))
        return changed


class DropPolicy(PolicyChange[StoredPolicy]):
    """Drop a policy.

    Raises:
        NotFoundError: the policy does not exist.
        BadRequestError: the policy is attached to something, and `detach_all` is false.
    """

    def __init__(self, clock: Clock, operation: Operation, name: PolicyName, *, detach_all: bool) -> None:
        super().__init__(clock, operation)
        self.name = name
        self.detach_all = detach_all

    def apply(self, state: State, prepared: int) -> StoredPolicy:
        row = find_policy(state, self.name)
        targets = state.scan(TARGETS, id_bytes(row.id), id_bytes(row.id + 1))
        if targets and not self.detach_all:
            raise BadRequestError(
                f"policy {self.name.shown} is attached to {len(targets):,} targets; detach it first, or drop it "
                "with detach_all"
            )
        for key, _ in targets:
            state.remove(TARGETS, key)
            state.remove(MAPPINGS, key[8:] + key[:8])
        state.remove(POLICIES, self.name.key)
        state.remove(IDS, id_bytes(row.id))
        return row


class AttachPolicy(PolicyChange[StoredPolicy]):
    """Attach a policy to a target. If it is attached there, its parameters are replaced.

    Raises:
        NotFoundError: the policy does not exist.
        AlreadyExistsError: another policy of the same inheritable type is attached to the target.
    """

    def __init__(
        self,
        clock: Clock,
        operation: Operation,
        name: PolicyName,
        target: Target,
        parameters: Mapping[str, str],
    ) -> None:
        super().__init__(clock, operation)
        self.name = name
        self.target = target
        self.parameters = msgspec.json.encode(dict(parameters))
        if len(self.parameters) > MAX_PARAMETER_BYTES:
            raise BadRequestError(
                f"the parameters have {len(self.parameters)} bytes; the maximum is {MAX_PARAMETER_BYTES}"
            )

    def apply(self, state: State, prepared: int) -> StoredPolicy:
        row = find_policy(state, self.name)
        target = id_bytes(self.target.entity_id)
        if type_of(row.type).is_inheritable:
            for other in attached(state, self.target.entity_id):
                if other.type == row.type and other.id != row.id:
                    raise AlreadyExistsError(
                        f"policy {other.name!r} of the same type {row.type} is attached to {self.target.shown}; "
                        "detach it first"
                    )
        state.put(MAPPINGS, target + id_bytes(row.id), Entry(value=self.parameters))
        state.put(TARGETS, id_bytes(row.id) + target, Entry())
        return row


class DetachPolicy(PolicyChange[StoredPolicy]):
    """Detach a policy from a target.

    Raises:
        NotFoundError: the policy does not exist, or is not attached to the target.
    """

    def __init__(self, clock: Clock, operation: Operation, name: PolicyName, target: Target) -> None:
        super().__init__(clock, operation)
        self.name = name
        self.target = target

    def apply(self, state: State, prepared: int) -> StoredPolicy:
        row = find_policy(state, self.name)
        key = id_bytes(self.target.entity_id) + id_bytes(row.id)
        if state.lookup(MAPPINGS, key) is None:
            raise NotFoundError(f"policy {self.name.shown} is not attached to {self.target.shown}")
        state.remove(MAPPINGS, key)
        state.remove(TARGETS, id_bytes(row.id) + id_bytes(self.target.entity_id))
        return row


def find_policy(state: State, name: PolicyName) -> StoredPolicy:
    """Return a policy.

    Raises:
        NotFoundError: the policy does not exist.
    """
    found = state.lookup(POLICIES, name.key)
    if found is None:
        raise missing(name)
    return state.get_for_rewrite(found.pointer, StoredPolicy)


def missing(name: PolicyName) -> NotFoundError:
    """Return the error for a policy that does not exist."""
    return NotFoundError(f"Policy does not exist: {name.shown}")


def attached(state: State, target: int) -> list[StoredPolicy]:
    """Return the policies that are attached to a target itself, in the order of their creation.

    Args:
        target: entity id of the target.
    """
    found = state.scan(MAPPINGS, id_bytes(target), id_bytes(target + 1))
    keys = [entry.value for entry in state.lookup_many(IDS, [key[8:] for key, _ in found]) if entry]
    pointers = [entry.pointer for entry in state.lookup_many(POLICIES, keys) if entry]
    rows = state.get_many(pointers, StoredPolicy)
    return [rows[pointer] for pointer in pointers]


def policies_in(state: State, namespace: int | None = None) -> list[StoredPolicy]:
    """Return the policies of a namespace, or of all namespaces, sorted by namespace and name.

    Args:
        namespace: entity id of the namespace; None for all.
    """
    start, end = (b"", None) if namespace is None else (id_bytes(namespace), id_bytes(namespace + 1))
    pointers = [entry.pointer for _, entry in state.scan(POLICIES, start, end)]
    rows = state.get_many(pointers, StoredPolicy)
    return [rows[pointer] for pointer in pointers]


def targets_of(state: State, policy: StoredPolicy) -> list[int]:
    """Return the entity ids of the targets of a policy."""
    return [id_from(key[8:]) for key, _ in state.scan(TARGETS, id_bytes(policy.id), id_bytes(policy.id + 1))]


def _checked_description(text: str) -> str:
    if len(text) > MAX_DESCRIPTION:
        raise BadRequestError(f"the description has {len(text)} characters; the maximum is {MAX_DESCRIPTION}")
    return text
