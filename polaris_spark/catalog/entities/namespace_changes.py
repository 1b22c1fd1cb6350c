"""Changes of namespaces: creating and dropping them, and setting their properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from polaris_spark.catalog.entities.entities import (
    Context,
    NamespaceName,
    TimedChange,
    add_entity,
    check_name,
    default_namespace_location,
    find,
    namespace_key,
    put,
    remove_entity,
    require_namespace,
)
from polaris_spark.catalog.entities.materialized_views import require_no_view
from polaris_spark.catalog.files.locations import segments
from polaris_spark.catalog.metadata.bounds import (
    require_properties_growth,
    require_properties_within,
    require_within,
)
from polaris_spark.catalog.metadata.change_details import bounded, property_details
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


LOCATION: Final = "location"
"""Name of the namespace property for the folder in which new tables and views are placed."""


def with_default_location(
    context: Context, name: NamespaceName, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the properties of a namespace as clients load them. If no location is set, the default location is added,
    as in Iceberg's own catalogs.

    No additional property says that the location is the default, because Trino's `SHOW CREATE SCHEMA` fails on
    properties that Trino does not support.
    """
    if properties.get(LOCATION, "").strip():  # an earlier release stored blank locations; they count as unset
        return dict(properties)
    return {**properties, LOCATION: default_namespace_location(context, name)}


def require_location(properties: Mapping[str, str]) -> None:
    """Check that tables can be placed below the `location` property of a namespace, if it is set.

    Raises:
        BadRequestError: the location is not an absolute path or URI, or is the root of the file system.
    """
    location = properties.get(LOCATION)
    if location is not None and segments(location) == ("file://",):
        raise BadRequestError(
            f"location {location!r} of a namespace is the root of the file system; choose a folder below it"
        )


class PropertiesUpdated(NamedTuple):
    """Result of changing properties: names of the properties that were set, that were removed, and that could not be
    removed because they were not set."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


class CreateNamespace(TimedChange[Namespace]):
    """Create a namespace, and its missing parents unless the property `create-parent-namespaces` is false."""

    action = "create-namespace"

    def __init__(
        self, context: Context, operation: Operation, name: NamespaceName, properties: Mapping[str, str]
    ) -> None:
        require_properties_within(properties)
        require_within("levels of a namespace", len(name))
        super().__init__(context, operation)
        check_name(name)
        if name[0].lower() == RESERVED:
            raise BadRequestError(
                f"namespace {RESERVED!r} is reserved for the catalog's own views and procedures; choose another name"
            )
        self.name = name
        self.properties = dict(properties)

    def apply(self, state: State, prepared: int) -> Namespace:
        key = namespace_key(self.name)
        if find(state, key) is not None:
            raise AlreadyExistsError(f"Namespace already exists: {'.'.join(self.name)}")
        require_no_view(state, self.name)
        if self.context.binding.at(state).create_parents:
            for levels in range(1, len(self.name)):
                state.check_time()
                parent = namespace_key(self.name[:levels])
                if find(state, parent) is None:
                    self._create(state, prepared, parent, {})
        else:
            require_namespace(state, self.name[:-1])
        return self._create(state, prepared, key, self.properties)

    def _create(self, state: State, now: int, key: bytes, properties: dict[str, str]) -> Namespace:
        namespace = Namespace(state.new_id(), now, self.operation.principal, properties)
        content = state.add(namespace)
        add_entity(state, key, content, namespace.entity_id, self.context.owner_of(self.operation))
        summary = bounded(property_details({}, properties, properties))
        self.record(state, now, namespace.entity_id, key, after=content, summary=summary)
        return namespace

    def repeat(self, state: State, entries: list[LogEntry]) -> Namespace:
        return state.get(entries[-1].after, Namespace)


class DropNamespace(TimedChange[None]):
    """Drop an empty namespace."""

    action = "drop-namespace"

    def __init__(self, context: Context, operation: Operation, name: NamespaceName) -> None:
        super().__init__(context, operation)
        self.name = name

    def apply(self, state: State, prepared: int) -> None:
        found = require_namespace(state, self.name)
        if found is None:
            raise BadRequestError(
                "the name of the namespace to drop is empty; the root of a catalog cannot be dropped"
            )
        if state.scan(NAMES, *subtree(self.name), limit=1):
            raise NamespaceNotEmptyError(f"Namespace {'.'.join(self.name)} is not empty")
        key = namespace_key(self.name)
        remove_entity(state, key, found.entity_id)
        self.record(state, prepared, found.entity_id, key, before=found.content)

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class UpdateNamespace(TimedChange[PropertiesUpdated]):
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
        self.size = require_properties_within(updates) + require_properties_within(removals)
        super().__init__(context, operation)
        both = sorted(set(updates) & set(removals))
        if both:
            raise UnprocessableError(
                f"properties both set and removed: {', '.join(both)}; a request may only do one of these for each "
                "property"
            )
        self.name = name
        self.updates = dict(updates)
        self.removals = list(dict.fromkeys(removals))

    def apply(self, state: State, prepared: int) -> PropertiesUpdated:
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
            require_properties_growth(before.properties, properties)
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
                summary=bounded(
                    property_details(before.properties, properties, (*self.updates, *self.removals))
                ),
                result=msgspec.msgpack.encode(answer),
            )
        return answer

    def repeat(self, state: State, entries: list[LogEntry]) -> PropertiesUpdated:
        return PropertiesUpdated(*msgspec.msgpack.decode(entries[-1].result))
