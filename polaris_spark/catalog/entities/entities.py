"""Common parts of changes to namespaces, tables and views: finding, adding and removing entities by name, checking
names and locations, and the base classes of the changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from polaris_spark.catalog.entities.properties import Binding
from polaris_spark.catalog.files.confinement import Confinement
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.locations import is_below_any, require_allowed
from polaris_spark.catalog.files.store_files import StoreFiles
from polaris_spark.catalog.manifests.manifest_files import ManifestFiles
from polaris_spark.catalog.rows import (
    IDS,
    NAMES,
    NAMESPACE,
    OWNERS,
    TABLE,
    VIEW,
    Namespace,
    id_bytes,
    id_from,
)
from polaris_spark.clock import Clock
from polaris_spark.commits.change import LoggedChange, Operation
from polaris_spark.commits.state import State
from polaris_spark.config import Properties
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
)
from polaris_spark.index import Entry
from polaris_spark.index.keys import decode_key, entry_key
from polaris_spark.names import problem_of_part

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

NamespaceName = tuple[str, ...]

SEPARATOR = "\x1f"
"""Character between the levels of a namespace in paths and queries of the REST protocol."""


class TableName(NamedTuple):
    """Identifier of a table or view within a catalog."""

    namespace: NamespaceName
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


class Context(NamedTuple):
    """Settings and services that every change of a catalog needs in addition to the request."""

    clock: Clock
    warehouse: str
    """Absolute location; tables and views that are created without a location are placed below it."""
    shared_locations: bool
    """Whether tables may overlap the locations of other tables."""
    operation_lifetime_ms: int
    """Minimum time for which an operation id is remembered, in milliseconds."""
    binding: Binding
    """Returns the effective properties of the catalog for a change."""
    manifest_files: ManifestFiles | None = None
    """Reads the manifest lists of appends that are rebased; if None, appends are not rebased."""
    allowed: tuple[tuple[str, ...], ...] | None = None
    """Locations below which this process reads and writes files for clients, as path segments. None allows all."""
    trusts: Callable[[int], bool] = lambda _: True
    """Function that returns whether a time, in milliseconds since 1970, can be trusted. A trusted time is not far ahead
    of the newest time recorded in the store. A commit drops old snapshots only if its time can be trusted."""
    refused_elsewhere: Callable[[tuple[str, ...]], str] = lambda _place: ""
    """Function that takes a location as path segments. If another catalog of the realm uses the location, it returns
    the reason why a table must not own it; otherwise, it returns an empty string."""
    settings: bytes = b""
    """Hash of all settings that decide which changes succeed, and what they change. Another process with an equal hash
    may apply the changes of this one. Empty if no other process may."""
    confinement: Confinement | None = None
    """Decides which symbolic links below the allowed locations are followed. If None, all are followed."""
    has_owners: bool = False
    """Whether the realm has access control, so that the principal that creates an entity becomes its owner."""

    @classmethod
    def of_realm(cls, clock: Clock, properties: Properties) -> Context:
        """Return the context of changes that place no tables or views, such as the creation of a catalog."""
        return cls(
            clock=clock,
            warehouse="",
            binding=Binding(properties, {}, None),
            shared_locations=False,
            operation_lifetime_ms=properties.idempotency_key_lifetime,
        )

    def owner_of(self, operation: Operation) -> str:
        """Return the principal that owns what an operation creates; empty if entities have no owners."""
        return operation.principal if self.has_owners else ""

    def require_allowed(
        self, places: Iterable[tuple[str, ...]], also: Collection[tuple[str, ...]] = ()
    ) -> None:
        """Check that clients of this catalog may use these locations.

        Args:
            places: the locations, as path segments.
            also: more allowed locations. If one of them is outside the catalog's allowed locations, symbolic links in
                it are followed.
        Raises:
            ForbiddenError: a location is outside the allowed locations, belongs to the files of a store, or leads
                outside the allowed locations by a symbolic link.
        """
        if self.allowed is None:
            return
        places = list(places)
        require_allowed((*self.allowed, *also), places)
        stores = StoreFiles.of_process()
        for place in places:
            path = local_path("/".join(place))
            if path is None:
                continue
            if self.confinement is not None:
                self.confinement.require(path)
            if stores.holds(str(path)) or stores.holds(os.path.realpath(path)):
                raise ForbiddenError(
                    f"location {path} belongs to the files of a store; choose another location"
                )

    def require_stored(self, state: State, places: Collection[tuple[str, ...]]) -> None:
        """Check that the property `allowed-locations` of the catalog allows these locations. The read of the property
        is recorded in `state`.

        Args:
            places: the locations, as path segments.
        Raises:
            ForbiddenError: a location is neither below a location in this property nor below the warehouse.
        """
        for allowed in self.binding.at(state).allowed if places else ():
            for place in places:
                if not is_below_any(place, allowed):
                    raise ForbiddenError(
                        f"location {'/'.join(place)} is neither below the catalog's warehouse nor below a location in "
                        "the catalog's property 'allowed-locations'"
                    )


def hash_of(*settings: object) -> bytes:
    """Return a hash of settings, for `Context.settings`. The settings must have the same `repr` in every process."""
    return hashlib.sha256(repr(settings).encode()).digest()


class NameEntry(NamedTuple):
    """Value of a name in the index `names`: object id of the entity's content, and entity id. The entity id never
    changes."""

    content: int
    entity_id: int


def namespace_in(text: str) -> NamespaceName:
    """Return the namespace in a path or query. Its levels are separated by the character 0x1F there."""
    return tuple(text.split(SEPARATOR))


def parent_in(view: State, text: str) -> NamespaceName:
    """Return the parent namespace in a query. pyiceberg escapes the name twice, so if no namespace has this name,
    unescape the name once more."""
    name = namespace_in(text)
    if "%" in text and find(view, namespace_key(name)) is None:
        name = namespace_in(unquote(text))
    return name


def namespace_key(namespace: Sequence[str]) -> bytes:
    """Return the key of a namespace in the index `names`."""
    return entry_key(namespace[:-1], NAMESPACE, namespace[-1])


def table_key(name: TableName, kind: bytes = TABLE) -> bytes:
    """Return the key of a table or view in the index `names`."""
    return entry_key(name.namespace, kind, name.name)


def check_name(parts: Sequence[str]) -> None:
    """Check that clients can address an entity by this name, given as namespace levels and, for a table or view, its
    name.

    Raises:
        BadRequestError: there are no parts; or a part is empty, contains the separator 0x1F, or is not valid Unicode.
    """
    if not parts:
        raise BadRequestError("the name of a namespace is missing; it must have at least one level")
    for part in parts:
        if not part:
            raise BadRequestError(f"name {'.'.join(parts)!r} has an empty level; no level may be empty")
        if SEPARATOR in part:
            raise BadRequestError(f"name {part!r} contains 0x1F, which separates levels in the REST protocol")
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"name {part!r} is not valid Unicode") from error


def check_new_name(name: str) -> None:
    """Check that a new entity may have this name, by the rules of `polaris_spark.names`.

    Names of existing entities are not checked, so that entities named by an earlier release can be used and renamed.

    Raises:
        BadRequestError: some clients cannot address the name, or it cannot be printed safely.
    """
    problem = problem_of_part(name)
    if problem is not None:
        raise BadRequestError(f"the name {name[:200]!a} {problem}; choose another name")


def find(state: State, key: bytes) -> NameEntry | None:
    """Return the entity under a key in the index `names`; None if the index has no such key.

    The read is recorded, so the change is applied again if another commit changes the entry first.
    """
    entry = state.lookup(NAMES, key)
    return None if entry is None else NameEntry(entry.pointer, id_from(entry.value))


def require_namespace(state: State, namespace: NamespaceName) -> NameEntry | None:
    """Return the namespace of that name; None for (), the root of the catalog, which always exists.

    Raises:
        NoSuchNamespaceError: the namespace does not exist.
    """
    if not namespace:
        return None
    found = find(state, namespace_key(namespace))
    if found is None:
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(namespace)}")
    return found


def require(state: State, name: TableName, kind: bytes) -> NameEntry:
    """Return the table or view of that name.

    Raises:
        NoSuchTableError, NoSuchViewError: the table or view does not exist.
    """
    found = find(state, table_key(name, kind))
    if found is None:
        if kind == TABLE:
            raise NoSuchTableError(f"Table does not exist: {name}")
        raise NoSuchViewError(f"View does not exist: {name}")
    return found


def require_free(state: State, name: TableName, kind: bytes) -> None:
    """Check that no table or view has this name. A table and a view cannot have the same name.

    Raises:
        AlreadyExistsError: a table or view has this name.
    """
    taken = taken_by(state, name)
    if taken is not None:
        same = "" if taken == _LABELS[kind] else " with same name"
        raise AlreadyExistsError(f"{taken}{same} already exists: {name}")


_LABELS = {TABLE: "Table", VIEW: "View"}


def taken_by(state: State, name: TableName) -> str | None:
    """Return `Table` or `View`, the kind of the entity that has this name; None if the name is free."""
    found = state.lookup_many(NAMES, [table_key(name, kind) for kind in _LABELS])
    return next(
        (label for label, entry in zip(_LABELS.values(), found, strict=True) if entry is not None), None
    )


def put(state: State, key: bytes, found: NameEntry) -> None:
    """Set the content and the entity id of a key in the index `names`."""
    state.put(NAMES, key, Entry(found.content, id_bytes(found.entity_id)))


class CatalogChange(LoggedChange[P, R]):
    """Base class of changes to catalogs and their content."""

    def __init__(self, context: Context, operation: Operation) -> None:
        self.context = context
        self.operation = operation


class TimedChange(CatalogChange[int, R]):
    """A change whose `prepare` determines only the time of the change."""

    def prepare(self, view: State) -> int:
        """Return the time of the change, in milliseconds since 1970."""
        return self.context.clock.now_ms()


def add_entity(state: State, key: bytes, content: int, entity_id: int, owner: str = "") -> None:
    """Add a new entity under `key`.

    Args:
        owner: the principal that owns the entity (`Context.owner_of`); empty for none.
    Raises:
        BadRequestError: the last part of the key is a name that `check_new_name` refuses.
    """
    check_new_name(decode_key(key).name)
    put(state, key, NameEntry(content, entity_id))
    state.put(IDS, id_bytes(entity_id), Entry(value=key))
    if owner:
        state.put(OWNERS, id_bytes(entity_id), Entry(value=owner.encode()))


def remove_entity(state: State, key: bytes, entity_id: int) -> None:
    """Remove an entity and its name."""
    state.remove(NAMES, key)
    state.remove(IDS, id_bytes(entity_id))
    if state.lookup(OWNERS, id_bytes(entity_id)) is not None:
        state.remove(OWNERS, id_bytes(entity_id))


_FOLDER_BYTES: Final = 1_024
"""Maximum length of the namespace part of a default location, in bytes. Longer parts are truncated, because file
systems and object stores allow only 1,024 to 4,096 bytes for a whole path."""


def default_location(state: State, context: Context, name: TableName, uuid: str) -> str:
    """Return the location of a table or view that is created without a location. The location ends in the UUID of the
    table or view, so no other table or view has it.

    The location lies below the `location` property of the namespace if that is set, otherwise below the warehouse.
    """
    found = require_namespace(state, name.namespace)
    base = state.get(found.content, Namespace).properties.get("location") if found else None
    if not base or not base.strip():
        base = default_namespace_location(context, name.namespace)
    return f"{base.rstrip('/')}/{slug(name.name)}-{uuid}"


def default_namespace_location(context: Context, namespace: NamespaceName) -> str:
    """Return the folder for the tables and views of a namespace that has no `location` property."""
    folders = "/".join([slug(part) for part in namespace])[:_FOLDER_BYTES]
    return f"{context.warehouse}/{folders}".rstrip("/")


def slug(part: str) -> str:
    """Return a name for use in a path: unsafe characters are replaced by `_`, and at most 64 characters are kept.
    Different names can give the same result."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in part)
    return safe[:64]
