"""The catalogs of a realm, each with its heads in references of its own.

The reference `catalogs` holds them by name. A catalog's content lies in `cat/<id>/heads/<branch>`; the catalog comes
first, its head is completed by whoever opens it next.
"""

from __future__ import annotations

from collections.abc import Mapping

from polaris_spark.catalog.entities import CatalogChange, Context, check_name
from polaris_spark.catalog.rows import CATALOG, NAMES, CatalogRow, id_bytes
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, NotFoundError, ReferenceGoneError
from polaris_spark.index import Entry
from polaris_spark.index.keys import children, entry_key
from polaris_spark.system.registry import References

CATALOGS = "catalogs"
MAIN = "main"


def head_name(catalog: CatalogRow, branch: str = MAIN) -> str:
    """Name of the reference of a catalog's branch."""
    return heads_prefix(catalog) + branch


def heads_prefix(catalog: CatalogRow) -> str:
    """What the names of the references of a catalog's branches begin with; the rest is the branch."""
    return f"cat/{catalog.entity_id:x}/heads/"


def initialize(references: References, operation: Operation) -> None:
    """The references that every realm has; safe to repeat and to race."""
    references.initialize()
    ensure_reference(references, CATALOGS, operation)


def ensure_reference(references: References, name: str, operation: Operation) -> None:
    """Create a reference unless it is live already.

    Raises:
        ReferenceGoneError: it was dropped; an empty one in its place would look like lost data.
    """
    try:
        references.open(name)
    except ReferenceGoneError:
        found = references.lookup(name)
        if found is not None and found.registration.state == "dropped":
            raise
        try:
            references.create(name, operation)
        except AlreadyExistsError:
            references.open(name)


def find_catalog(references: References, name: str) -> CatalogRow | None:
    """The catalog of that name, from a fresh head."""
    head = references.read(CATALOGS)
    entry = head.index(NAMES).get(_key(name))
    return None if entry is None else head.store.get(entry.pointer, CatalogRow)


def list_catalogs(references: References) -> list[CatalogRow]:
    """All catalogs of the realm, by name."""
    head = references.read(CATALOGS)
    found = [entry.pointer for _, entry in head.index(NAMES).range(*children((), CATALOG))]
    rows = head.store.get_many(found, CatalogRow)
    return [rows[id] for id in found]


def open_catalog(
    references: References,
    name: str,
    context: Context,
    operation: Operation,
    *,
    create: bool,
    properties: Mapping[str, str] | None = None,
) -> CatalogRow:
    """The catalog of that name, created on first use if `create`; its head exists afterwards.

    Raises:
        NotFoundError: it does not exist and `create` is false.
    """
    row = find_catalog(references, name)
    if row is None:
        if not create:
            known = ", ".join(repr(c.name) for c in list_catalogs(references)) or "none"
            raise NotFoundError(
                f"catalog {name!r} does not exist (and 'create' is false); there are: {known}"
            )
        row = references.commit(CATALOGS, CreateCatalog(context, operation, name, properties or {}))
    ensure_reference(references, head_name(row), operation)
    return row


def require_branch(references: References, row: CatalogRow, branch: str) -> None:
    """Refuse a branch that a catalog does not have.

    Raises:
        NotFoundError: it does not exist.
    """
    try:
        references.open(head_name(row, branch))
    except ReferenceGoneError as error:
        raise NotFoundError(f"catalog {row.name!r} has no branch {branch!r}") from error


class CreateCatalog(CatalogChange[CatalogRow]):
    """Create a catalog; one that exists already is returned as it is."""

    action = "create-catalog"

    def __init__(
        self, context: Context, operation: Operation, name: str, properties: Mapping[str, str]
    ) -> None:
        super().__init__(context, operation)
        check_name([name])
        self.name = name
        self.properties = dict(properties)

    def apply(self, state: State, prepared: object) -> CatalogRow:
        assert isinstance(prepared, int)
        key = _key(self.name)
        entry = state.lookup(NAMES, key)
        if entry is not None:
            return state.get(entry.pointer, CatalogRow)
        row = CatalogRow(state.new_id(), self.name, prepared, self.operation.principal, self.properties)
        content = state.add(row)
        state.put(NAMES, key, Entry(content, id_bytes(row.entity_id)))
        self.record(state, prepared, row.entity_id, key, after=content)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


def _key(name: str) -> bytes:
    return entry_key((), CATALOG, name)
