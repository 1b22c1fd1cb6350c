"""Namespaces: nested, with properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.entities import (
    CatalogChange,
    Context,
    NamespaceName,
    add_entity,
    check_name,
    find,
    namespace_key,
    put,
    remove_entity,
    require_namespace,
)
from polaris_spark.catalog.rows import NAMES, Namespace
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    UnprocessableError,
)
from polaris_spark.index.keys import subtree

RESERVED = "system"
"""The namespace of the catalog's own views and procedures; it cannot be created."""


class PropertiesUpdated(NamedTuple):
    """Which properties a change touched."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


class CreateNamespace(CatalogChange[Namespace]):
    """Create a namespace; its parent must exist."""

    action = "create-namespace"

    def __init__(
        self, context: Context, operation: Operation, name: NamespaceName, properties: Mapping[str, str]
    ) -> None:
        super().__init__(context, operation)
        check_name(name)
        if name[0].lower() == RESERVED:
            raise BadRequestError(
                f"namespace {RESERVED!r} is reserved for the catalog's own views and procedures"
            )
        self.name = name
        self.properties = dict(properties)

    def apply(self, state: State, prepared: object) -> Namespace:
        assert isinstance(prepared, int)
        key = namespace_key(self.name)
        if find(state, key) is not None:
            raise AlreadyExistsError(f"Namespace already exists: {'.'.join(self.name)}")
        require_namespace(state, self.name[:-1])
        namespace = Namespace(state.new_id(), prepared, self.operation.principal, self.properties)
        content = state.add(namespace)
        add_entity(state, key, content, namespace.entity_id)
        self.record(state, prepared, namespace.entity_id, key, after=content)
        return namespace

    def repeat(self, state: State, entries: list[LogEntry]) -> Namespace:
        return state.get(entries[-1].after, Namespace)


class DropNamespace(CatalogChange[None]):
    """Drop an empty namespace."""

    action = "drop-namespace"

    def __init__(self, context: Context, operation: Operation, name: NamespaceName) -> None:
        super().__init__(context, operation)
        self.name = name

    def apply(self, state: State, prepared: object) -> None:
        assert isinstance(prepared, int)
        found = require_namespace(state, self.name)
        if found is None:
            raise BadRequestError("the root of a catalog cannot be dropped")
        if state.scan(NAMES, *subtree(self.name), limit=1):
            raise NamespaceNotEmptyError(f"Namespace {'.'.join(self.name)} is not empty")
        key = namespace_key(self.name)
        remove_entity(state, key, found.entity_id)
        self.record(state, prepared, found.entity_id, key, before=found.content)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class UpdateNamespace(CatalogChange[PropertiesUpdated]):
    """Set and remove properties of a namespace."""

    action = "update-namespace"

    def __init__(
        self,
        context: Context,
        operation: Operation,
        name: NamespaceName,
        updates: Mapping[str, str],
        removals: Sequence[str],
    ) -> None:
        super().__init__(context, operation)
        both = sorted(set(updates) & set(removals))
        if both:
            raise UnprocessableError(f"properties both set and removed: {', '.join(both)}")
        self.name = name
        self.updates = dict(updates)
        self.removals = list(dict.fromkeys(removals))

    def apply(self, state: State, prepared: object) -> PropertiesUpdated:
        assert isinstance(prepared, int)
        found = require_namespace(state, self.name)
        if found is None:
            raise NoSuchNamespaceError("the root of a catalog has no properties")
        before = state.get_for_rewrite(found.content, Namespace)
        removed = [name for name in self.removals if name in before.properties]
        answer = PropertiesUpdated(
            list(self.updates), removed, [name for name in self.removals if name not in before.properties]
        )
        gone = set(removed)
        properties = {k: v for k, v in before.properties.items() if k not in gone} | self.updates
        if properties != before.properties:
            after = state.add(msgspec.structs.replace(before, properties=properties))
            key = namespace_key(self.name)
            put(state, key, found._replace(content=after))
            self.record(
                state,
                prepared,
                found.entity_id,
                key,
                before=found.content,
                after=after,
                result=msgspec.msgpack.encode(answer),
            )
        return answer

    def repeat(self, state: State, entries: list[LogEntry]) -> PropertiesUpdated:
        return PropertiesUpdated(*msgspec.msgpack.decode(entries[-1].result))
