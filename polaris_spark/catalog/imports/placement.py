"""Changes that add imported tables and views to a catalog, many in one commit.

Each table or view gets an outcome. Each one that is added also gets a log entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from polaris_spark.catalog.entities.entities import (
    Context,
    NameEntry,
    NamespaceName,
    TableName,
    TimedChange,
    add_entity,
    check_name,
    check_new_name,
    find,
    namespace_key,
    put,
    table_key,
    taken_by,
)
from polaris_spark.catalog.entities.materialized_views import is_materialized
from polaris_spark.catalog.entities.namespace_changes import CreateNamespace
from polaris_spark.catalog.files import locations
from polaris_spark.catalog.files.locations import Holdings
from polaris_spark.catalog.files.ownership import unconfirmed_of
from polaris_spark.catalog.metadata.bounds import require_within
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import TABLE, Unloaded, folder_of
from polaris_spark.catalog.tables.contents import (
    UNCONFIRMED_LOCATIONS,
    content_of,
    holdings_of,
    require_available,
)
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, BadRequestError, ForbiddenError, InputError, RequestError

Properties = Mapping[NamespaceName, Mapping[str, str]]
"""Maps the name of a namespace to its properties in the source of the import."""

IMPORTED: Final = "imported"
REGISTERED: Final = "registered"
LOADED: Final = "loaded"
REPLACED: Final = "replaced"
EXISTS: Final = "exists"
CONFLICT: Final = "conflict"
FAILED: Final = "failed"
STALE: Final = "stale"
"""Status of a table or view whose rows were written before a sweep (which deletes unreachable rows) began. The sweep
may delete these rows, so they must be written again."""


class ImportOutcome(NamedTuple):
    """Result of the import of a table, view or namespace."""

    status: str
    message: str = ""


class Placement(NamedTuple):
    """A table or view to add to the catalog, and its name. If `content` is 0, only the location of the metadata file is
    stored, and the metadata is loaded at first use."""

    name: TableName
    kind: bytes
    metadata_location: str
    entity_id: int
    replaces: int
    """Object id of the content of the existing table or view that is replaced; 0 if there is none."""
    content: int = 0
    first_id: int = 0
    """Lowest object id of the rows that were written for the table or view."""
    held: Holdings = Holdings()  # immutable
    """Locations that the table or view uses. Empty if `content` is 0; they are then derived from
    `metadata_location`."""


class PlaceImported(Unrepeated, TimedChange[list[ImportOutcome]]):
    """Add many imported tables and views to a catalog. Missing namespaces are created in the same commit.

    A table or view whose name or location conflicts with another is not added, and its outcome says why. The others are
    added.
    """

    from_elsewhere = True

    def __init__(
        self, context: Context, operation: Operation, placements: Sequence[Placement], properties: Properties
    ) -> None:
        super().__init__(context, operation)
        self.placements = placements
        self.properties = properties

    def apply(self, state: State, prepared: int) -> list[ImportOutcome]:
        outcomes = []
        for placement in self.placements:
            try:
                outcomes.append(self._place(state, prepared, placement))
            except AlreadyExistsError as error:
                outcomes.append(ImportOutcome(CONFLICT, str(error)))
            except (RequestError, InputError) as error:
                outcomes.append(ImportOutcome(FAILED, str(error)))
        return outcomes

    def _place(self, state: State, now: int, placement: Placement) -> ImportOutcome:
        """Add one table or view. All checks are made before the first change of `state`, because changes cannot be
        undone for one table only."""
        name, kind = placement.name, placement.kind
        check_name((*name.namespace, name.name))
        if not placement.replaces:
            check_new_name(name.name)
        if placement.content and placement.first_id <= state.base.head.fence:
            return ImportOutcome(STALE)
        key = table_key(name, kind)
        found = find(state, key)
        if (0 if found is None else found.content) != placement.replaces:
            present = None if found is None else _content(state, found.content, kind)
            if present is not None and present.metadata_location == placement.metadata_location:
                return ImportOutcome(EXISTS)
            raise AlreadyExistsError(
                f"{name} was {'dropped' if found is None else 'changed' if placement.replaces else 'created'} in "
                "this catalog during the import, so it was left as it is; import it again"
            )
        if found is None and (taken := taken_by(state, name)) is not None:
            raise AlreadyExistsError(f"{taken} already exists: {name}")
        before = None if found is None else _content(state, found.content, kind)
        if isinstance(before, View) and is_materialized(before):
            raise AlreadyExistsError(f"{name} is a materialized view; drop it before the import")
        unloaded = _unloaded(placement)
        held = holdings_of(unloaded) if unloaded else placement.held
        try:
            old = Holdings() if before is None else holdings_of(before)
            require_available(self.context, state, placement.entity_id, old, held)
        except ForbiddenError as error:
            raise AlreadyExistsError(str(error)) from error
        ensure_namespace(self, state, now, name.namespace, self.properties)
        locations.move(state, placement.entity_id, old, held)
        content = state.add(unloaded) if unloaded else placement.content
        if found is None:
            add_entity(state, key, content, placement.entity_id, self.context.owner_of(self.operation))
        else:
            put(state, key, NameEntry(content, placement.entity_id))
        self.action = _action(kind, placement, before)
        away = " ".join(sorted("/".join(place) for place in held.unconfirmed))
        summary = {UNCONFIRMED_LOCATIONS: away} if away else {}
        self.record(
            state, now, placement.entity_id, key, before=placement.replaces, after=content, summary=summary
        )
        return ImportOutcome(_status(placement, before), _unconfirmed_message(placement.name, away))


def _unloaded(placement: Placement) -> Unloaded | None:
    """Return the `Unloaded` row of a table or view if only its metadata location is stored; otherwise None."""
    if placement.content:
        return None
    away = unconfirmed_of(folder_of(placement.metadata_location), {}, placement.metadata_location)
    return Unloaded(placement.entity_id, placement.metadata_location, away)


def _unconfirmed_message(name: TableName, away: str) -> str:
    if not away:
        return ""
    return (
        f"it uses locations outside the folder of its metadata file, and does not own them: {away}; "
        f"if they belong to it, CALL polaris.system.adopt(table => '{name}')"
    )


def ensure_namespace(
    change: TimedChange[list[ImportOutcome]],
    state: State,
    now: int,
    name: NamespaceName,
    properties: Properties,
) -> None:
    """Create a namespace and the namespaces above it, if they are missing.

    Raises:
        BadRequestError: the name is empty, or is reserved.
    """
    if not name:
        raise BadRequestError(
            "a table or view at the root of the source has no namespace; set the argument 'into' to the namespace "
            "into which to import it"
        )
    missing = []
    for n in range(len(name), 0, -1):
        if find(state, namespace_key(name[:n])) is not None:
            break
        missing.append(name[:n])
    if missing:
        require_within("levels of a namespace", len(name))
    for part in reversed(missing):
        state.check_time()
        CreateNamespace(change.context, change.operation, part, properties.get(part, {})).apply(state, now)


class PlaceNamespaces(Unrepeated, TimedChange[list[ImportOutcome]]):
    """Create the namespaces that were listed in the source of an import, including those without tables."""

    def __init__(self, context: Context, operation: Operation, properties: Properties) -> None:
        super().__init__(context, operation)
        self.properties = properties

    def apply(self, state: State, prepared: int) -> list[ImportOutcome]:
        outcomes = []
        for name in self.properties:
            try:
                check_name(name)
                ensure_namespace(self, state, prepared, name, self.properties)
                outcomes.append(ImportOutcome(IMPORTED))
            except (RequestError, InputError) as error:
                outcomes.append(ImportOutcome(FAILED, str(error)))
        return outcomes


def _content(state: State, content: int, kind: bytes) -> Table | View | Unloaded:
    if kind == TABLE:
        return content_of(state, content, Table)
    return content_of(state, content, View)


def _action(kind: bytes, placement: Placement, before: Table | View | Unloaded | None) -> str:
    if _status(placement, before) == LOADED:
        return "load-imported"
    return "import-table" if kind == TABLE else "import-view"


def _status(placement: Placement, before: Table | View | Unloaded | None) -> str:
    if isinstance(before, Unloaded) and before.metadata_location == placement.metadata_location:
        return LOADED
    if before is not None:
        return REPLACED
    return IMPORTED if placement.content else REGISTERED
