"""Reading the heads (newest commits) of all branches and tags of all catalogs in all realms of a store, including
dropped ones that can be restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.catalogs.references import CATALOGS, catalogs_in, dropped_in
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.clock import Clock
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import decode_key
from polaris_spark.names import MAIN
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.lost_rows import strict_reader, unlisted
from polaris_spark.system.realms import MOVED_TO, RealmRecord, Realms, RealmState
from polaris_spark.system.registrations import name_parts

_GONE = (RealmState.PURGING, RealmState.PURGED, RealmState.GONE)
"""States of realms that cannot be recovered."""

_SERVED = (RealmState.ACTIVE, RealmState.INACTIVE)
"""States of realms whose registry lists every reference. In a realm that is being loaded, some are not listed yet."""

Objects = Callable[[RealmRecord], ObjectStore]
"""Function that returns the object store of a realm."""


class StoreHead(NamedTuple):
    """The head of a catalog's branch or tag."""

    realm: str
    """Instance id of the realm."""
    catalog: str
    """Name for messages: `<realm>.<catalog>`, followed by `@<branch or tag>` if it is not the branch `main`."""
    reference: str
    head: Head
    properties: Mapping[str, str]
    """Properties of the catalog."""
    grace_beyond_ms: int = 0
    """Grace period of the catalog minus the session's grace period, in milliseconds."""
    moved: bool = False
    """Whether the realm was moved to another store. If so, this is the head at the time of the move."""

    def reader(self, store: ObjectStore) -> CommitReader:
        """Return the commit of the head, opened for reading."""
        return CommitReader(store, b"", self.head, store.get(self.head.commit, Commit))

    def owner(self, key: bytes) -> str:
        """Return the full name of a table or view for messages, given its key in the index `names`."""
        decoded = decode_key(key)
        return f"{self.catalog}.{dotted((*decoded.path, decoded.name))}"


def store_heads(backend: Backend, objects: Objects, clock: Clock) -> list[StoreHead]:
    """Read and return the heads of all branches and tags of all catalogs in all realms of a store, including dropped
    ones that can be restored.

    Raises:
        CorruptionError: a head cannot be read, or the row or the registration of a reference was lost, so that it is
            unknown which files the head needs.
    """
    records = [record for record in Realms(backend, clock).all() if record.state not in _GONE]
    return [head for record in records for head in _of_realm(record, objects(record), clock)]


def _of_realm(record: RealmRecord, store: ObjectStore, clock: Clock) -> Iterator[StoreHead]:
    if record.state in _SERVED and MOVED_TO not in record.properties:
        refuse_unlisted(record, store)
    references = strict_reader(store, clock)
    registered = references.listed()
    catalogs: dict[str, CatalogRow] = {}
    for one in registered:
        if one.name == CATALOGS:
            opened = references.open(references.head_of(one))
            rows = [*catalogs_in(opened), *(gone.row for gone in dropped_in(opened))]
            catalogs = {f"{row.entity_id:x}": row for row in rows}  # as in the names of their references
    for one in registered:
        parts = name_parts(one.name)
        if parts is None:
            continue
        head = references.head_of(one)
        if head.given_up:  # since the registry was read
            continue
        prefix = parts.catalog.removesuffix("/")
        catalog = catalogs.get(prefix.removeprefix("cat/"))
        name = f"{record.name}.{prefix if catalog is None else catalog.name}"
        name = name if (parts.name, parts.is_tag) == (MAIN, False) else f"{name}@{parts.name}"
        properties = {} if catalog is None else catalog.properties
        yield StoreHead(
            record.instance, name, one.name, head, properties, moved=MOVED_TO in record.properties
        )


def refuse_unlisted(record: RealmRecord, store: ObjectStore) -> None:
    """Raise an error if the registry of a realm has lost the registration of a reference.

    Raises:
        CorruptionError: the row of a reference is there and not sealed, but the registry does not list it.
    """
    for row_name, head in unlisted(store):
        if not head.sealed:
            raise CorruptionError(
                f"the registry of realm {record.name!r} does not list reference {row_name!r}, which was not dropped; "
                "run polaris-spark recover first"
            )
